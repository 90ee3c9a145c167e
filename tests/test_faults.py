"""Killed processes, full disks, read-only folders: the result is complete or absent, and the message names a remedy."""

import bz2
import gzip
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from conftest import on_terminal

from wbe.store import StoreError
from wbe.world.files import World, WorldFiles

# a world of eight pieces, with three of its snapshots; the journal is written after every piece
DATES = ["2024-02-01", "2024-03-01", "2024-05-01"]
WRITE = """
import sys
import wbe.world.files as w
spool = w.Spool
w.Spool = lambda *args: spool(*args, every=0.0)
w.World(5, 2000).write(sys.argv[1], DATES, workers=int(sys.argv[2]))
""".replace("DATES", repr(DATES))


def content(path: Path) -> str:
    opener = {".gz": gzip.open, ".bz2": bz2.open}.get(path.suffix, open)
    with opener(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def contents(folder: Path) -> dict:
    return {
        str(p.relative_to(folder)): content(p)
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != "world.manifest.json"
    }


def pieces(folder: Path) -> int:
    "How many pieces the journal records as complete."
    try:
        return json.loads((folder / ".spool.json").read_text())["done"]
    except FileNotFoundError:
        return 0


def test_killed_at_any_moment_it_resumes_and_writes_the_same_bytes(tmp_path):
    subprocess.run([sys.executable, "-c", WRITE, tmp_path / "calm", "2"], check=True, capture_output=True)
    noted = []
    for attempt in range(2):
        p = subprocess.Popen(
            [sys.executable, "-c", WRITE, tmp_path / "killed", str(1 + attempt % 2)],
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        before = (noted or [1])[-1]
        while pieces(tmp_path / "killed") <= before and p.poll() is None:  # until the journal has grown
            time.sleep(0.01)
        os.killpg(p.pid, signal.SIGKILL)
        p.wait()
        noted.append(pieces(tmp_path / "killed"))
        assert not (tmp_path / "killed" / "world.manifest.json").exists()
        with pytest.raises(StoreError, match="no complete world here"):
            WorldFiles(tmp_path / "killed")
    assert 1 < noted[0] < noted[1], noted
    code, printed = on_terminal([sys.executable, "-c", WRITE, tmp_path / "killed", "2"])
    assert code == 0 and "going on with the world" in printed
    assert contents(tmp_path / "killed") == contents(tmp_path / "calm")
    assert not list((tmp_path / "killed").rglob("*.part"))


def test_a_full_disk_is_reported_and_leaves_no_partial_file(tmp_path):
    "A limit on the file size simulates the full disk; the same write fails."

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    code = """
import signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from wbe.cli.main import main
sys.argv = ["wbe", "world", sys.argv[1]]
main()
"""
    out = subprocess.run([sys.executable, "-c", code, tmp_path / "w"], preexec_fn=limit, capture_output=True, text=True)
    assert out.returncode == 1
    assert "the file would grow beyond the limit" in out.stderr and "Traceback" not in out.stderr
    assert [p for p in (tmp_path / "w").rglob("*") if p.is_file()] == []


def test_a_really_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", disk], capture_output=True).returncode
    ):
        pytest.skip("a small disk can be mounted by root only")
    try:
        with pytest.raises(StoreError, match="free some space"):  # checked before the work begins
            World(5, 700).write(disk / "w", progress=False)
        code = """
import sys, wbe.world.files as w
w.check_disk_space = lambda *a: None
w.World(5, 700).write(sys.argv[1], progress=False)
"""
        out = subprocess.run([sys.executable, "-c", code, disk / "w"], capture_output=True, text=True)
        assert "the disk is full: free some space" in out.stderr.splitlines()[-1]
        assert [p for p in (disk / "w").rglob("*") if p.is_file()] == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_folder_without_permission(tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    words = [sys.executable, "-m", "wbe", "world", locked / "w"]
    if os.geteuid() == 0:  # root may write anywhere unless it drops that capability
        if not shutil.which("setpriv"):
            pytest.skip("root without setpriv cannot drop its capabilities")
        words = ["setpriv", "--inh-caps=-dac_override", "--bounding-set=-dac_override", *words]
    out = subprocess.run(words, capture_output=True, text=True)
    assert out.returncode == 1, out.stderr
    assert "permission denied: choose a folder that you may write to" in out.stderr and out.stderr.count("\n") == 1
    assert list(locked.iterdir()) == []


def test_two_writers_in_one_folder(tmp_path):
    first = subprocess.Popen([sys.executable, "-c", WRITE, tmp_path / "w", "1"], stderr=subprocess.DEVNULL)
    while not (tmp_path / "w" / ".spool.json").exists():
        time.sleep(0.05)
        assert first.poll() is None
    with pytest.raises(StoreError, match="already at work on this"):
        World(5, 2000).write(tmp_path / "w", DATES, progress=False)
    first.kill()
    first.wait()


def test_a_journal_of_other_parameters_is_not_resumed(tmp_path):
    p = subprocess.Popen([sys.executable, "-c", WRITE, tmp_path / "w", "1"], stderr=subprocess.DEVNULL)
    while pieces(tmp_path / "w") < 1 and p.poll() is None:
        time.sleep(0.01)
    p.kill()
    p.wait()
    assert pieces(tmp_path / "w") >= 1
    World(5, 600).write(tmp_path / "w", dates=["2024-02-01"], articles=False, views=False, progress=False)
    World(5, 600).write(tmp_path / "clean", dates=["2024-02-01"], articles=False, views=False, progress=False)
    assert contents(tmp_path / "w") == contents(tmp_path / "clean")


# The engine: what DuckDB reports in its own way is reported as everywhere.

SORT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job would ignore it
from wbe.engine import DuckDB
def work():
    with DuckDB("60MiB", threads=1) as e:
        print("begun", flush=True)
        rows = e.con.sql(f"select md5(i::varchar) m, md5((i + 1)::varchar) n from range({sys.argv[1]}) t(i) order by m")
        rows.write_parquet(sys.argv[2])
"""
MAIN = """
import wbe.cli.main as cli
cli.app = work
cli.main()
"""


def spilled(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.glob("wbe-spill-*"))


def start_sort(rows: int, tmp_path: Path, **env) -> subprocess.Popen:
    words = [sys.executable, "-c", SORT + MAIN, str(rows), str(tmp_path / "sorted.parquet")]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process = subprocess.Popen(words, **pipes, env={**os.environ, "TMPDIR": str(tmp_path), **env})
    assert process.stdout.readline() == "begun\n"
    return process


def test_ctrl_c_in_a_query_is_an_interruption_and_no_error_of_the_query(tmp_path):
    process = start_sort(200_000_000, tmp_path)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), err
    assert "Query interrupted" not in err.splitlines()[-1] and "KeyboardInterrupt" in err.splitlines()[-1]
    assert spilled(tmp_path) == []


def test_what_a_killed_process_spilled_is_removed_by_the_next(tmp_path):
    process = start_sort(200_000_000, tmp_path)
    process.kill()
    process.wait()
    assert len(spilled(tmp_path)) == 1
    process = start_sort(1000, tmp_path)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert spilled(tmp_path) == []


@pytest.mark.parametrize("full, message", [("spill", "--set temp="), ("result", "the disk is full")])
def test_a_full_disk_under_a_query(tmp_path, full, message):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk can be mounted by root only")
    try:
        rows, out = (2_000_000, tmp_path) if full == "spill" else (400_000, disk)
        process = start_sort(rows, out, TMPDIR=str(disk if full == "spill" else tmp_path))
        _, err = process.communicate(timeout=120)
        assert process.returncode == 1 and err.count("\n") == 1, err
        assert err.startswith("wbe: ") and "the disk is full" in err and message in err
        assert str(disk) in err and spilled(disk) == spilled(tmp_path) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_scratch_can_be_moved(tmp_path, monkeypatch):
    from wbe.cli.app import _use_temp
    from wbe.engine import DuckDB

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", tempfile.tempdir)
    (tmp_path / "elsewhere").mkdir()
    _use_temp(tmp_path / "elsewhere")
    with DuckDB("100MiB") as e:
        assert e.spill.parent == tmp_path / "elsewhere"
