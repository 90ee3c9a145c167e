"""Deliberate faults: is each one noticed by the nearest notebook or test? Not part of `make test`.

    python tests/mutants.py [--only WORD] [--limit SECONDS] [--table FILE] [--out FILE]

`mutants.toml` is the table of faults: a file of the package, or a notebook, the exact text, what replaces it, and the
checks that should fail: notebooks, or files and tests for pytest. Each fault is made in a copy of the tree, in the
module and in the cell that it comes from, and its checks run until one fails: killed. A check that needs more processor
seconds than the limit leaves the fault undecided. Before its first fault, a check must pass without one. Outputs that a
notebook stores are not compared, as `make test` does for some. `mutants.csv` has the outcomes before and after tests
were added.
"""

import argparse
import csv
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
WALL = 10  # the limit in real seconds is so many times that in processor seconds, for a crowded machine


def copy_tree(folder: Path) -> Path:
    "A copy of the tree; folders that only hold data are linked."
    ignore = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    for path in ROOT.iterdir():
        if path.name in ("wbe", "nbs", "tests"):
            shutil.copytree(path, folder / path.name, ignore=ignore)
        elif path.name != ".git":
            (folder / path.name).symlink_to(path)
    return folder


def replace_once(source: str, fault: dict, where) -> str:
    "A source with a fault; an error if its text is not there exactly once."
    found = source.count(fault["text"])
    if found != 1:
        raise SystemExit(f"{where}: the text of {fault['what']!r} occurs {found} times, not once; mend mutants.toml")
    return source.replace(fault["text"], fault["by"])


def notebook_of(module: str) -> str:
    "The path of the notebook that a module is exported from."
    return re.search(r"File to edit: (?:\.\./)+(nbs/.+\.ipynb)", module)[1]


def faulty_notebook(text: str, fault: dict, where) -> str:
    "A notebook with a fault in the cell that holds its text: an exported one, if the package has it."
    notebook, package = json.loads(text), not fault["file"].endswith(".ipynb")
    cells = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    cells = [c for c in cells if not package or re.search(r"^#\| *export", "".join(c["source"]), re.M)]
    holding = [c for c in cells if fault["text"] in "".join(c["source"])]
    if len(holding) != 1:
        raise SystemExit(f"{where}: {len(holding)} cells hold the text of {fault['what']!r}")
    holding[0]["source"] = replace_once("".join(holding[0]["source"]), fault, where)
    return json.dumps(notebook)


def faulty_files(copy: Path, fault: dict) -> dict[Path, str]:
    "What a fault changes, by path: the module and its notebook, or a notebook alone."
    if fault["file"].endswith(".ipynb"):
        path = copy / fault["file"]
        return {path: faulty_notebook(path.read_text(encoding="utf-8"), fault, path)}
    path = copy / "wbe" / fault["file"]
    module = path.read_text(encoding="utf-8")
    notebook = copy / notebook_of(module)
    changed = faulty_notebook(notebook.read_text(encoding="utf-8"), fault, notebook)
    return {path: replace_once(module, fault, path), notebook: changed}


def write_sources(files: dict[Path, str]):
    "Write files, and remove what Python has compiled of them."
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()


def passes(copy: Path, check: str) -> bool:
    "Whether a notebook or test passes; in a process of its own."
    sys.path[:] = [str(copy), str(copy / "tests"), *(p for p in sys.path if Path(p).resolve() != ROOT / "tests")]
    os.environ["PYTHONPATH"] = str(copy)
    os.chdir(copy)
    if ".ipynb" not in check:
        import pytest

        return pytest.main(["-x", "-q", "-p", "no:cacheprovider", *check.split()]) == 0
    from notebook_runner import execute
    from notebooks import time_answers_briefly

    if "10_runs" in check:
        time_answers_briefly()
    found = execute(copy / check, None)
    print(found.get("where", ""))
    return found["kind"] is None


def run_check(copy: Path, check: str, limit: float, log: Path) -> str:
    "The outcome of a check: passed, failed or undecided."
    child = os.fork()
    if child == 0:
        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1), os.dup2(out, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 2))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        try:
            code = 0 if passes(copy, check) else 1
        except BaseException as error:
            print(repr(error))
            code = 1
        sys.stdout.flush()
        os._exit(code)
    end = time.monotonic() + WALL * limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "undecided" if os.WIFSIGNALED(status) else ("passed", "failed")[bool(os.WEXITSTATUS(status))]
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "undecided"


def outcome(copy: Path, fault: dict, limit: float, log: Path) -> tuple[str, str]:
    "What becomes of a fault, and the check that decided it."
    files = faulty_files(copy, fault)
    sound = {path: path.read_text(encoding="utf-8") for path in files}
    write_sources(files)
    undecided = ""
    try:
        for check in fault["checks"]:
            found = run_check(copy, check, limit, log)
            if found == "failed":
                return "killed", check
            undecided = undecided or (check if found == "undecided" else "")
    finally:
        write_sources(sound)
    return ("undecided", undecided) if undecided else ("survived", "")


def preload():
    "Import what takes long, once for all checks."
    import duckdb  # noqa: F401
    import execnb.shell  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import narwhals  # noqa: F401
    import pandas  # noqa: F401
    import peft  # noqa: F401
    import pytest  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch
    import transformers  # noqa: F401

    torch.set_num_threads(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults whose file, description or checks hold this word")
    parser.add_argument("--limit", type=float, default=60, help="processor seconds of a check")
    parser.add_argument("--table", type=Path, default=ROOT / "tests" / "mutants.toml", help="the faults")
    parser.add_argument("--out", type=Path, help="where to write the table of outcomes, as CSV")
    args = parser.parse_args()
    faults = tomllib.loads(args.table.read_text(encoding="utf-8"))["fault"]
    faults = [f for f in faults if args.only in f"{f['file']} {f['what']} {f['checks']}"]
    rows, sound = [], {}
    with tempfile.TemporaryDirectory() as folder:
        copy, log = copy_tree(Path(folder).resolve()), Path(folder) / "log.txt"
        for fault in faults:
            faulty_files(copy, fault)  # an error for a stale one, before the work begins
        sys.path[:0] = [str(copy / "tests"), str(copy / "nbs" / "_dev")]
        preload()
        for fault in faults:
            for check in fault["checks"]:
                if check not in sound:
                    sound[check] = run_check(copy, check, args.limit, log)
                    if sound[check] != "passed":
                        print(f"without a fault, {check}: {sound[check]}\n{log.read_text()[-2000:]}", flush=True)
            bad = [check for check in fault["checks"] if sound[check] != "passed"]
            found = ("undecided", bad[0]) if bad else outcome(copy, fault, args.limit, log)
            rows.append([fault["file"], fault["what"], *found])
            print(f"{found[0]:9}  {fault['file']}: {fault['what']}  {found[1]}", flush=True)
    print({name: sum(row[2] == name for row in rows) for name in ("killed", "survived", "undecided")})
    if args.out:
        with open(args.out, "w", newline="", encoding="utf-8") as f:
            csv.writer(f, lineterminator="\n").writerows([["file", "fault", "outcome", "decided by"], *rows])


if __name__ == "__main__":
    main()
