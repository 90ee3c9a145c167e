"""Python processes without the time of their imports: each is forked from a server that has imported wbe once.

A `wbe` command takes three to six processor seconds to import torch, pandas and DuckDB, and often less to do its work.
`run` and `Process` take the words of `[sys.executable, *words]`: `-c CODE …`, `-m wbe …` or `FILE …`. As in a fresh
process, its current folder, variables, arguments, standard streams, session and signals are its own; it can be killed.

A process whose subject is the process itself is started afresh: how long `wbe --help` takes and what it imports, an
interrupt, a wheel in its own environment, the processes that a launcher starts.
"""

import atexit
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import tempfile
import traceback
from multiprocessing import forkserver, get_context, util
from pathlib import Path

PRELOADED = (
    "pandas", "pyarrow.parquet", "duckdb", "matplotlib.pyplot", "torch", "peft",
    "transformers.models.gpt2.modeling_gpt2", "transformers.models.llama.modeling_llama",
    "wbe.cli.main", "wbe.demo", "wbe.world.files", "wbe.wikidata.build", "wbe.wikidata.audit", "wbe.benchmark.series",
    "wbe.benchmark.evolving_series", "wbe.benchmark.locality", "wbe.wikipedia.comparison", "wbe.lm.models",
    "wbe.runs.loop", "wbe.analysis.report", "wbe.analysis.counts",
)  # fmt: skip


def time_answers_briefly():
    "From now on, a run times one question for a moment, where it times several for seconds at every timestep."
    from wbe.runs import moments

    rounds = moments.time_rounds
    moments.time_rounds = lambda lm, asked, under, _: rounds(lm, asked[:1], under, 2, 1)


def context():
    "The context of `multiprocessing` whose server has imported everything."
    found = get_context("forkserver")
    if forkserver._forkserver._forkserver_pid is None:
        found.set_forkserver_preload(list(PRELOADED))
        before = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = "1"
        forkserver.ensure_running()
        os.environ.pop("OMP_NUM_THREADS") if before is None else os.environ.update(OMP_NUM_THREADS=before)
    return found


def server_seconds() -> float:
    "Processor time so far of the server and of the processes that it has forked and that have ended."
    pid = forkserver._forkserver._forkserver_pid
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def exit_code(program) -> int:
    "What Python would exit with after a program."
    try:
        program()
        return 0
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    return 1


def work(words: list[str], cwd: str, env: dict, streams: tuple, session: bool, limits: list):
    "What a forked process does."
    if session:
        os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    for number, path in enumerate(streams, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), number)
    for what, limit in limits:
        import resource

        resource.setrlimit(what, limit)
    first, *rest = words
    sys.argv = words if first not in ("-c", "-m") else ["-c", *rest[1:]] if first == "-c" else rest
    sys.path.insert(0, "")
    time_answers_briefly()
    if first == "-c":
        code = exit_code(lambda: exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"}))
    elif first == "-m":
        code = exit_code(lambda: runpy.run_module(rest[0], run_name="__main__", alter_sys=True))
    else:
        code = exit_code(lambda: runpy.run_path(first, run_name="__main__"))
    util._exit_function()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


class Process:
    "A process like `subprocess.Popen([sys.executable, *words])`; its output goes to files."

    def __init__(self, words, cwd=None, env=None, session: bool = False, limits=(), silent: bool = False, streams=()):
        self.folder = tempfile.TemporaryDirectory()
        names = [os.devnull] * 2 if silent else [f"{self.folder.name}/{name}" for name in ("out", "err")]
        self.streams = tuple(streams or names)
        given = ([str(w) for w in words], str(cwd or os.getcwd()), dict(os.environ if env is None else env))
        self.process = context().Process(target=work, args=(*given, self.streams, session, list(limits)))
        self.process.start()
        self.pid = self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked process", timeout)
        return self.process.exitcode

    def send_signal(self, number: int):
        os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        return tuple(Path(p).read_text(errors="replace") if os.path.exists(p) else "" for p in self.streams)


def run(words, timeout: float | None = None, **options) -> subprocess.CompletedProcess:
    "As `subprocess.run([sys.executable, *words], capture_output=True, text=True)`."
    process = Process(words, **options)
    out, err = process.communicate(timeout)
    return subprocess.CompletedProcess(list(words), process.returncode, out, err)


def shell_line(line: str):
    "A line of a tutorial that begins with `!wbe`, in a process that is forked; the end of what it prints."
    command, _, end = line.partition(" 2>&1")
    program, *words = shlex.split(command)
    last = re.fullmatch(r"(?: \| tail -(\d+))?", end)
    assert program == "wbe" and last, f"not a line that can be forked: {line}"
    done = run(["-m", "wbe", *words])
    print("\n".join((done.stdout + done.stderr).splitlines()[-int(last[1] or 0) :]))


def on_terminal(terminal: int, words, cwd) -> Process:
    "A process whose output goes to a terminal, a descriptor."
    return Process(words, cwd, session=True, streams=[os.ttyname(terminal)] * 2)
