"""Fixtures that several tests share: the small world, written once."""

import fcntl
import os
import pty
import struct
import subprocess
import termios

import pytest

from wbe.world.files import World


@pytest.fixture(scope="session")
def small_world(tmp_path_factory):
    "The world of the demo in all formats, as a user would write it."
    return World(seed=7, entities=1500).write(
        tmp_path_factory.mktemp("world"), formats=("json.gz", "xml.bz2"), progress=False
    )


def on_terminal(words, cwd=None) -> tuple[int, str]:
    "Run a program in a pseudo-terminal, where progress bars are shown; returns its exit code and output."
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    process = subprocess.Popen([str(w) for w in words], stdin=there, stdout=there, stderr=there, cwd=cwd)
    os.close(there)
    printed = b""
    while True:
        try:
            data = os.read(here, 65_536)
        except OSError:  # raised by Linux when the other side has closed
            break
        if not data:
            break
        printed += data
    os.close(here)
    return process.wait(), printed.decode(errors="replace")
