"""Fixtures that several tests share, and what becomes of a test that is skipped.

`@pytest.mark.extra("spark")` marks a test that needs an extra of settings.ini; it is skipped where that is missing.
WBE_EXTRAS=1 says that all are installed, so that such a test runs, and fails without its packages.
WBE_STRICT=1 makes a failure of every test that is skipped for a reason that `ALLOWED_SKIPS` does not name.
"""

import fcntl
import gc
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections import Counter
from configparser import ConfigParser
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

import pytest
from forks import pytest_addoption, pytest_runtestloop  # noqa: F401
from processes import fork_kernels, server_seconds, timed_once

from wbe.world.files import World

sys.modules.setdefault("rfc3987_syntax", None)  # as in nbs/_dev/notebooks.py

# Extras that `make test-extras` leaves out, because they pin other versions of what wbe needs (as nbs/_dev/extras.py).
APART = {"vllm"}
# Why a test may be skipped although everything that can be installed is installed.
ALLOWED_SKIPS = {
    "no GPU": r"\bno GPU\b",
    "material that is not part of the project": r"\b(real|published) (entities|instances|material|rows|files|chains)\b",
    "a user with other rights": r"\broot\b",
    "no browser": r"\bno (browser|Chromium)\b",
    "a long test, which WBE_LONG=1 runs": r"\bWBE_LONG=1\b",
    "an extra with an environment of its own": r"^the extra \w+ wants an environment of its own",
}
if not os.environ.get("WBE_EXTRAS"):
    ALLOWED_SKIPS["an extra, which `make test-extras` tests"] = r"^the extra \w+ is not installed"


def packages_of_extras() -> dict[str, list[str]]:
    "Names of the packages of every extra in settings.ini."
    config = ConfigParser(delimiters=["="])
    config.read(Path(__file__).parents[1] / "settings.ini", encoding="utf-8")
    found = {k.removesuffix("_requirements"): v.split() for k, v in config["DEFAULT"].items() if "_requirements" in k}
    return {extra: [re.match(r"[\w.-]+", p)[0] for p in packages] for extra, packages in found.items()}


def not_installed(extra: str) -> list[str]:
    "The packages of an extra that are not installed."

    def absent(package):
        try:
            return not version(package)
        except PackageNotFoundError:
            return True

    return [p for p in packages_of_extras()[extra] if absent(p)]


def pytest_configure(config):
    fork_kernels()
    gc.set_threshold(50_000, 20)  # usually after 700 new objects: tests/README.md has what that costs
    os.fsync = lambda _: None  # what a killed process has written is there; only a power failure needs it on the disk
    config.addinivalue_line("markers", "extra(*names): needs these extras of settings.ini; see `make test-extras`")


def pytest_ignore_collect(collection_path, config):
    "With `-m extra`, a file without a marked test is not imported."
    if config.option.markexpr == "extra" and re.match(r"test_.*\.py$", collection_path.name):
        if "mark.extra(" not in collection_path.read_text(encoding="utf-8"):
            return True


@pytest.fixture(autouse=True)
def short_timings(monkeypatch):
    "A run times its answers for seconds at every timestep; here once in a test, and one token more than the first."
    if "torch" not in sys.modules:  # no test of this process has a model
        return
    from wbe.runs import moments

    monkeypatch.setattr(moments, "time_rounds", timed_once(moments.time_rounds))


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    "No test asks or pays somebody's endpoint because its key is in the environment."
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


# Files of tests that take longest, in order: begun first, they do not keep one process busy when the others are done.
SLOW_FILES = (
    "test_other_runs",
    "test_damage",
    "test_frozen",
    "test_cli",
    "test_lifelong",
    "test_tutorials",
    "test_docs",
    "test_spark",
    "test_series",
    "test_resume",
    "test_mello",
    "test_plugins",
    "test_samples",
    "test_parse",
    "test_world_traits",
    "test_evolving",
    "test_families",
    "test_mquake_run",
    "test_lora_processes",
    "test_scoring_processes",
    "test_carried_state",
    "test_text_learners",
    "test_report",
    "test_audit",
    "test_faults",
    "test_wise",
    "test_wheel",
)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: SLOW_FILES.index(item.path.stem) if item.path.stem in SLOW_FILES else len(SLOW_FILES))
    for item in items:
        for extra in (name for mark in item.iter_markers("extra") for name in mark.args):
            if extra in APART:
                if find_spec(extra) is None:
                    reason = f"the extra {extra} wants an environment of its own, and is not installed here"
                    item.add_marker(pytest.mark.skip(reason=reason))
                continue
            if os.environ.get("WBE_EXTRAS"):
                continue
            if absent := not_installed(extra):
                reason = f"the extra {extra} is not installed ({', '.join(absent)}): see `make test-extras`"
                item.add_marker(pytest.mark.skip(reason=reason))


def refuse_skip(report):
    "A report of a skipped test as a failure, unless its reason is allowed."
    if not (os.environ.get("WBE_STRICT") and report.skipped) or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not any(re.search(pattern, reason) for pattern in ALLOWED_SKIPS.values()):
        report.outcome = "failed"
        report.longrepr = f"skipped ({reason}), but WBE_STRICT allows only: {'; '.join(ALLOWED_SKIPS)}"


def processor_seconds() -> float:
    "Processor time so far: of this process, of those that it has started and waited for, and of those forked for it."
    return sum(os.times()[:4]) + server_seconds()


_last = processor_seconds()
os.register_at_fork(after_in_child=lambda: globals().update(_last=processor_seconds()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    global _last
    report = yield
    refuse_skip(report)
    now = processor_seconds()
    report.user_properties = [*report.user_properties, ("processor seconds", now - _last)]
    _last = now
    return report


def pytest_terminal_summary(terminalreporter):
    "What took longest, in processor seconds, which do not depend on what else runs on the machine."
    tests, files = Counter(), Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, seconds in getattr(report, "user_properties", ()):
                if name == "processor seconds":
                    tests[report.nodeid] += seconds
                    files[report.nodeid.partition("::")[0]] += seconds
    terminalreporter.section(f"{tests.total():.0f} processor seconds")
    for what in (files.most_common(20), tests.most_common(20)):
        for name, seconds in what:
            terminalreporter.write_line(f"{seconds:7.1f} s  {name}")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    report = yield
    refuse_skip(report)
    return report


SAMPLE_BENCHMARK = Path(__file__).parents[1] / "data_samples" / "benchmark"
SMALL_WORLD = World(seed=7, entities=1500)


@pytest.fixture(scope="session")
def small_world(tmp_path_factory):
    "The world of the demo, as a user would write it; written once for all of pytest's processes, and for notebooks."
    from stored import served

    folder = tmp_path_factory.getbasetemp()
    with open(folder / "world.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the second process finds a complete world
        with served():
            return SMALL_WORLD.write(folder / "world", progress=False)


@pytest.fixture
def xml_dumps(tmp_path):
    "A function that writes the dumps of some snapshots of the small world as XML; all of them would take long."
    only = dict(formats=("xml.bz2",), articles=False, views=False, truth=False, progress=False)
    return lambda *dates: sorted(SMALL_WORLD.write(tmp_path / "xml", dates, **only).paths("dumps"))


def first_edits(folder: Path, edits: int, timesteps: int = 2) -> str:
    "A folder with the first edits of each of the first timesteps of the sample benchmark."
    folder.mkdir(exist_ok=True)
    for path in sorted(SAMPLE_BENCHMARK.glob("wiki_big_edit_*.json"))[:timesteps]:
        (folder / path.name).write_text(json.dumps(json.loads(path.read_text())[:edits]))
    return str(folder)


def start_on(terminal: int, words, cwd) -> subprocess.Popen:
    return subprocess.Popen([str(w) for w in words], stdin=terminal, stdout=terminal, stderr=terminal, cwd=cwd)


def on_terminal(words, cwd=None, start=start_on) -> tuple[int, str]:
    "Run a program in a pseudo-terminal, where progress bars are shown; returns its exit code and output."
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    process = start(there, words, cwd)
    # closed when the process has ended: a forked one opens the terminal by its name
    Thread(target=lambda: (process.wait(), os.close(there))).start()
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
