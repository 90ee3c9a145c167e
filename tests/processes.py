"""Python processes without the time of their imports: each is forked from a server that has imported wbe once.

A `wbe` command takes three to six processor seconds to import torch, pandas and DuckDB, and often less to do its work.
`run` and `Process` take the words of `[sys.executable, *words]`: `-c CODE …`, `-m wbe …` or `FILE …`. As in a fresh
process, its current folder, variables, arguments, standard streams, session and signals are its own; it can be killed.

A process whose subject is the process itself is started afresh: how long `wbe --help` takes and what it imports, an
interrupt, a wheel in its own environment, the processes that a launcher starts.
"""

import atexit
import gc
import os
import re
import runpy
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from copy import deepcopy
from functools import cache
from importlib import import_module
from multiprocessing import connection, forkserver, get_context, spawn, util
from pathlib import Path

HERE = Path(__file__).parent
# What the package, its commands and the notebooks import, some of it late.
IMPORTED = (
    "pandas", "pyarrow.dataset", "pyarrow.parquet", "duckdb", "matplotlib.pyplot", "matplotlib.backends.backend_agg",
    "seaborn", "scipy.optimize", "scipy.stats", "torch", "peft", "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama", "execnb.shell", "ipykernel.kernelapp", "ipywidgets", "nbclient",
    "rich.console", "typer.testing",
)  # fmt: skip


def modules_of_package() -> list[str]:
    "All modules of the package but the one that begins a program."
    folder = Path(__file__).parents[1] / "wbe"
    paths = (p.relative_to(folder.parent).with_suffix("") for p in sorted(folder.rglob("*.py")))
    return [".".join(p.parts) for p in paths if p.name not in ("__init__", "__main__", "_modidx")]


def import_all():
    "Import the package and what it uses."
    gc.disable()
    for name in (*IMPORTED, *modules_of_package()):
        with suppress(ImportError):  # of an extra
            import_module(name)
    gc.enable()
    if "torch" in sys.modules:
        os.register_at_fork(after_in_child=renew_thread_pool)


def renew_thread_pool():
    "Let torch renew its pool of threads after a fork, while there is one thread; of two at once, one would find none."
    import torch

    torch.set_num_threads(torch.get_num_threads())


def timed_once(time_rounds):
    "In place of `time_rounds`: it times one question for a moment, and then says the same again."
    made = []

    def rounds(lm, asked, under, *_):
        made.extend([] if made else time_rounds(lm, asked[:1], under, 2, 1))
        return made

    return rounds


def time_answers_briefly():
    "From now on, a run times an answer once, where it times several for seconds at every timestep."
    from wbe.runs import moments

    moments.time_rounds = timed_once(moments.time_rounds)


def verify_once():
    """From now on, what is verified of each model that is loaded is verified once for all copies of the tiny model.

    Trees, shared prefixes and passes of a tail are a third of the time of a short run. Other models, and those with
    hooks, are always verified, and so is what the notebooks of these functions do.
    """
    from wbe.editors import tail
    from wbe.lm import sharing

    known, verify, reuse = set(), sharing._verify_method, tail._reuse_works

    def key(lm, name):
        plain = lambda m: not (m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m))
        own = lm.backend or lm.item_hooks or lm.quant or Path(str(lm.name)).name != "wbe-tiny"
        return None if own or not all(map(plain, lm.model.modules())) else (name, lm.model.config.to_json_string())

    def remembered(lm, name, check):
        if (at := key(lm, name)) in known:
            return True
        if (works := check()) and at:
            known.add(at)
        return works

    def verified(lm, name, *args):
        if name in lm.state.tried:
            return lm.state.tried[name]
        works = remembered(lm, name, lambda: verify(lm, name, *args))
        if works:
            lm.state.tried[name] = True
        return works

    sharing._verify_method = verified
    tail._reuse_works = lambda lm, level: remembered(lm, f"tail {level}", lambda: reuse(lm, level))


def load_once():
    """From now on, the files of the tiny model are read once; who loads it gets a copy, in a third of the time.

    Files that have changed are read anew, and so are other models and other ways of loading.
    """
    from wbe.lm import models

    read, known = models._from_pretrained, {}

    def loaded(source, *options):
        folder = Path(source)
        if folder.name != "wbe-tiny" or not folder.is_dir():
            return read(source, *options)
        files = {str(f): (f.stat().st_ino, f.stat().st_size, f.stat().st_mtime_ns) for f in sorted(folder.iterdir())}
        if (key := repr((files, options))) not in known:
            known[key] = read(source, *options)
        return deepcopy(known[key])

    models._from_pretrained = loaded


def bind_once():
    """From now on, DuckDB says once which columns equal steps of equal tables have, and of files with equal columns.

    A relation asks it at every step, a third of the time of a query of few rows, and the same queries are made again
    and again. What the columns of a file are, DuckDB says of every state of the file. A step that reads another file
    or a Python object is always bound, and so is every query when it is run.
    """
    try:
        from duckdb import _expression, _relation, _seam
    except ImportError:  # an older version, which binds otherwise
        return
    bind, known, files = _seam.bind, {}, {}
    made_up = re.compile(r"_[0-9a-f]{14,16}\b")  # the ends of names of joins and of numbered rows
    scan = re.compile(r"parquet_scan\(\['(/[^'=*?\[\]]+)'\]")

    def columns(con, path):
        "What DuckDB says of a file."
        found = os.stat(path)
        state = path, found.st_ino, found.st_size, found.st_mtime_ns
        if state not in files:
            files[state] = repr(bind(con, f"SELECT * FROM parquet_scan(['{path}'])")[:2])
        return files[state]

    def bound(con, sql, capture=False, values=None):
        if not isinstance(sql, str) or values or not ('"__duckdb_in0"' in sql or scan.search(sql)):
            return bind(con, sql, capture, values)
        if re.search(r"\bread_\w+\(|'/|__duckdb_source", scan.sub("", sql)):
            return bind(con, sql, capture, values)
        names = list(dict.fromkeys(made_up.findall(sql)))
        numbered = lambda text: made_up.sub(lambda m: f"_<{names.index(m[0])}>" if m[0] in names else m[0], text)
        key = numbered(scan.sub(lambda m: f"file {columns(con, m[1])}", sql)), capture
        if key not in known:
            found = bind(con, sql, capture, values)
            if found.captured or made_up.search(repr(found.types)):
                return found
            known[key] = found._replace(names=[numbered(name) for name in found.names])
        found = known[key]
        return found._replace(names=[re.sub(r"_<(\d+)>", lambda m: names[int(m[1])], name) for name in found.names])

    _seam.bind = bound
    _expression.fold_name = _relation.fold_name = cache(_relation.fold_name)


def connect_once():
    """From now on, the engines of a process share one database of DuckDB, which takes 20 ms to begin and to end.

    Each has a connection of its own. What another limit of memory is asked for has its own database.
    """
    import duckdb

    from wbe.engine import memory_limit

    connect, shared, left = duckdb.connect, {}, []
    options = {"memory_limit", "temp_directory", "preserve_insertion_order", "threads"}
    own = "select table_name from duckdb_tables() where not temporary union all "
    own += "select view_name from duckdb_views() where not internal and not temporary"

    def connected(*args, config=None, **more):
        if args or more or {*(config or ())} != options or config["memory_limit"] != memory_limit():
            return connect(*args, config=config or {}, **more)
        limits = {k: v for k, v in config.items() if k != "temp_directory"}
        if (key := repr(limits)) not in shared:
            shared[key] = connect(config=limits | dict(enable_external_file_cache=False))  # files are read anew
        if found := shared[key].execute(own).fetchall():
            raise AssertionError(f"an engine has left tables to the next: {found}")
        return shared[key].cursor()

    duckdb.connect = connected
    os.register_at_fork(after_in_child=lambda: (left.append({**shared}), shared.clear()))  # threads end with a fork


def without_main(name: str) -> dict:
    "What a process is told of the one that starts it: nothing of its main module, which would be executed again."
    return {k: v for k, v in preparation(name).items() if not k.startswith("init_main")}


preparation, spawn.get_preparation_data = spawn.get_preparation_data, without_main


def context():
    "The context of `multiprocessing` whose server has imported everything."
    found = get_context("forkserver")
    if forkserver._forkserver._forkserver_pid is None:
        found.set_forkserver_preload(["preloaded"])
        given = dict(os.environ)
        folders = filter(None, [str(HERE), given.get("PYTHONPATH")])  # the server gets no other `sys.path`
        os.environ.update(OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(folders))
        forkserver.ensure_running()
        os.environ.clear()
        os.environ.update(given)
    return found


def serve(listener, alive, *ends):
    "A server for the processes of one process, which has imported everything too."
    for end in ends:  # of the pipe that says whether the process lives
        end.close()
    gc.collect()
    gc.freeze()
    forkserver.main(listener.detach(), alive.fileno(), [])


def begin_own_server(how: str = "forkserver"):
    """From now on, what this process starts comes from a server of its own, whose seconds are those of its tests.

    With `fork`, the server is a copy of this process, which has imported everything and nothing else.
    """
    first, address = forkserver._forkserver, connection.arbitrary_address("AF_UNIX")
    first.ensure_running = lambda: None  # it would look for the server among the own children
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        read, write = get_context(how).Pipe(duplex=False)
        ends = [write] if how == "fork" else []
        server = get_context(how).Process(target=serve, args=(listener, read, *ends), daemon=True)
        server.start()
    first._forkserver_address, first._forkserver_alive_fd = address, os.dup(write.fileno())
    first._forkserver_pid = server.pid


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
    forkserver._forkserver.ensure_running = lambda: None  # what it starts is forked from the same server
    fork_kernels()
    for number, path in enumerate(streams, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), number)
    for what, limit in limits:
        import resource

        resource.setrlimit(what, limit)
    first, *rest = words
    sys.argv = words if first not in ("-c", "-m") else ["-c", *rest[1:]] if first == "-c" else rest
    sys.path.insert(0, "")
    time_answers_briefly()
    verify_once()
    load_once()
    bind_once()
    connect_once()
    if rest[:1] == ["ipykernel_launcher"]:
        begin_figures_inline()
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


class Kernel(Process):
    "A Jupyter kernel as `jupyter_client` starts it; it leads a group of processes, which gets its signals."

    stdout = stderr = None

    def __init__(self, command, env, cwd, stderr):
        self.stdin = open(os.devnull)
        stream = f"/proc/{os.getpid()}/fd/{stderr.fileno()}" if stderr else os.devnull
        super().__init__(command[1:], cwd, env, session=True, streams=[stream] * 2)
        while self.poll() is None and os.getsid(self.pid) != self.pid:
            time.sleep(0.005)


def fork_kernels():
    """From now on, a Jupyter kernel that this process starts is forked.

    A fresh one imports for seven processor seconds what a report needs.
    """
    from jupyter_client import launcher

    def start(command, env=None, cwd=None, stderr=None, **options):
        if command[1:3] == ["-m", "ipykernel_launcher"] and sys.platform == "linux":
            return Kernel(command, env, cwd, stderr)
        return subprocess.Popen(command, env=env, cwd=cwd, stderr=stderr, **options)

    launcher.Popen = start


def begin_figures_inline():
    "What a fresh kernel says by a variable before matplotlib is imported: figures are its outputs."
    import matplotlib

    sys.modules.pop("matplotlib_inline.backend_inline", None)  # it finds the kernel's shell when it is imported
    matplotlib.rcParams["backend"] = "module://matplotlib_inline.backend_inline"


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
