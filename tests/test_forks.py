"""Tests in forked processes: all reports arrive, files are shared out, and a process that dies is noticed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import processes

HERE = Path(__file__).parent
# What forks.py and conftest.py take from processes.py; this test starts no server.
NO_SERVER = """
begin_own_server = context = import_all = fork_kernels = lambda: None
verify_once = load_once = bind_once = connect_once = lambda: None
server_seconds, timed_once = lambda: 0.0, lambda rounds: rounds
"""
WHERE = """
import os, time, pytest
@pytest.fixture(scope="session")
def begun(tmp_path_factory):
    path = tmp_path_factory.mktemp("session") / "pid"
    path.write_text(str(os.getpid()))
    yield path
    open(os.environ["ENDED"], "a").write(path.read_text() + " ")
"""
PASS = (
    "import os, time\ndef test_one(begun): time.sleep(0.3)\ndef test_two(begun): print(os.getpid(), begun.read_text())"
)
FAIL = f"{PASS}\ndef test_three(begun): assert os.getpid() != int(begun.read_text()), os.getpid()"
DIE = "import os\ndef test_dies(): os._exit(0)"


def outcome(tmp_path: Path, files: dict) -> tuple[int, str]:
    "The exit code of pytest on files in a folder with our conftest.py, and what it prints."
    folder = tmp_path / "tests"
    folder.mkdir()
    for name in ("conftest.py", "forks.py"):
        shutil.copy(HERE / name, folder)
    with open(folder / "conftest.py", "a") as conftest:
        conftest.write(WHERE)
    (folder / "processes.py").write_text(NO_SERVER)
    (tmp_path / "settings.ini").write_text("[DEFAULT]\n")
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    words = ["-m", "pytest", "tests", "--forks", "2", "-p", "no:cacheprovider", "--rootdir", tmp_path]
    environment = os.environ | {"PYTHONPATH": str(HERE.parent), "ENDED": str(tmp_path / "ended")}
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_every_report_arrives_and_fixtures_of_the_session_stay(tmp_path):
    code, printed = outcome(tmp_path, dict(a=PASS, b=PASS, c=PASS, d=FAIL, e=FAIL))
    assert code == 1 and "2 failed, 10 passed" in printed, printed
    assert len(re.findall(r"^FAILED tests/test_[de].py::test_three", printed, re.M)) == 2
    ended = (tmp_path / "ended").read_text().split()
    assert len(ended) == len(set(ended)) == 2, "a fixture of the session ended before the last test of its process"


def test_a_process_that_dies_is_an_error(tmp_path):
    code, printed = outcome(tmp_path, dict(a=PASS, b=DIE))
    assert code == 3 and "a process of tests has died" in printed, printed


THREADS = """
import os, threading, torch

torch.set_num_threads(1)
x, errors = torch.ones(300, 300), []
if child := os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
start = threading.Barrier(3)

def compute():
    start.wait()
    try:
        x.add(1).mm(x)
    except RuntimeError as e:
        errors.append(e)

threads = [threading.Thread(target=compute) for _ in range(3)]
[t.start() for t in threads]
[t.join() for t in threads]
print(*errors)
os._exit(len(errors))
"""


def test_threads_that_begin_together_after_a_fork_find_the_pool_of_torch():
    for _ in range(2):
        done = processes.run(["-c", THREADS])
        assert done.returncode == 0, done.stderr
