"""The whole of `wbe benchmark` on worlds of growing size: seconds and memory of every stage.

    python tests/benchmarks/pipeline.py [--memory 3GB] [--run] [--append] [ENTITIES …]     default: 10000 30000 100000

A world with two snapshots is written, and a benchmark is made of it with templates, in a process of its own. The
highest memory of each stage is that of the whole process, with the engine's; it is reset between the stages. Seconds
are CPU seconds of all threads, which hardly depend on what else the machine does. With --run wbe-tiny then answers
the benchmark unedited and with retrieval, and a report compares the two; that takes some twentieth of a second an edit.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from leaderboard import append

WRITE = """
import sys
from wbe.world.files import World
World(7, int(sys.argv[1])).write(
    sys.argv[2], dates=["2024-02-01", "2024-03-01"], articles=False, views=False, truth=False, progress=False
)
"""
MAKE = """
import json, re, sys, time
from pathlib import Path

import wbe.benchmark.series as series
import wbe.wikidata.build as build
from wbe.world.files import World

stages = {}

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1e6

def timed(module, name, title):
    work = getattr(module, name)
    def run(*args, **options):
        Path("/proc/self/clear_refs").write_text("5")
        cpu, start = time.process_time(), time.perf_counter()
        try:
            return work(*args, **options)
        finally:
            was = stages.get(title(args) if callable(title) else title, (0, 0, 0))
            now = (time.process_time() - cpu, time.perf_counter() - start, peak())
            stages[title(args) if callable(title) else title] = (was[0] + now[0], was[1] + now[1], max(was[2], now[2]))
    setattr(module, name, run)

timed(build, "parse_dump", "parse (two dumps)")
timed(build, "compare_snapshots", "compare")
timed(build, "filter_facts", lambda args: f"filter {args[3]}")
timed(build, "_audit_facts", "audit")
timed(series, "find_locality", "locality")
timed(series, "find_two_hops", "multi-hop")
timed(series, "find_chains", "chains")
timed(series, "write_chains", "questions of chains")
timed(series, "write_questions", "questions")
timed(series, "add_timestep", "release: timestep")
timed(series, "write_lasting_facts", "lasting facts")
timed(series, "find_retired", "retired questions")
timed(series, "finish_release", "release: card and sums")

folder, memory, chains, engine = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "True", sys.argv[4]
dumps = sorted((folder / "world").rglob("*all.json.gz")) or sorted((folder / "world").rglob("*.json.gz"))
options = dict(chains=chains, memory=memory, workers=1, progress=False, engine=engine)
made = series.make_benchmark(folder / "bench", dumps, **options)
counts = {}
for name in ("changes/changes", "facts/filter_static", "locality/locality", "questions/questions"):
    for path in (folder / "bench" / "work").glob(f"*/{name}.manifest.json"):
        counts[name] = json.loads(path.read_text())["counts"]
print(json.dumps(dict(stages=stages, cpu=time.process_time(), counts=counts)))
"""


def size_of(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def child(command: list, **options) -> tuple[str, tuple[float, float]]:
    "What a process writes, its processor seconds and the highest memory of it or of a child."
    p = subprocess.Popen([sys.executable, *map(str, command)], stdout=subprocess.PIPE, text=True, **options)
    text = p.stdout.read()
    _, status, used = os.wait4(p.pid, 0)
    assert status == 0, f"{' '.join(map(str, command))[-300:]} ended with {os.waitstatus_to_exitcode(status)}"
    return text, (used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6)


def run_and_report(folder: Path) -> dict:
    "Processor seconds and memory of two runs of wbe-tiny with a benchmark, and of a report on them."
    rows, editors = {}, dict(unedited=[], rag=["--editor", "rag"])
    for name, editor in editors.items():
        run = ["run", "bench/release", "--model", "wbe-tiny", *editor, "--name", name]
        rows[f"run: {name}"] = child(["-m", "wbe", *run], cwd=folder)[1]
    report = ["report", *(f"runs/{name}" for name in editors), "-o", "report.html"]
    rows["report"] = child(["-m", "wbe", *report], cwd=folder)[1]
    return rows


def measure(entities: int, args):
    "The stages of one size, and what there was to do."
    folder = Path(tempfile.mkdtemp(dir=args.where))
    try:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", WRITE, str(entities), str(folder / "world")], check=True)
        print(f"{entities:,} entities: world written in {time.perf_counter() - start:.0f} s", file=sys.stderr)
        text, (cpu, gb) = child(["-c", MAKE, folder, args.memory, args.chains, args.engine])
        found = json.loads(text.splitlines()[-1])
        rows = {name: (cpu, gb) for name, (cpu, _, gb) in found["stages"].items()}
        rows["everything"] = (cpu, max(gb, *(gb for _, gb in rows.values())))
        rows |= run_and_report(folder) if args.run else {}
        counts = found["counts"]
        about = {
            "changes": counts["changes/changes"]["changed"],
            "static facts": counts["facts/filter_static"]["static_facts"],
            "edits": counts["questions/questions"]["rows"],
            "dumps, MB": round(size_of(folder / "world") / 1e6),
            "benchmark on disk, MB": round(size_of(folder / "bench") / 1e6),
        }
        return rows, about
    finally:
        shutil.rmtree(folder)


def growth(seconds: dict[str, dict]) -> list[dict]:
    "Lines of the leaderboard: for each stage its seconds by size, and the exponent between the two largest sizes."
    number = lambda name: int(name.replace(",", ""))
    sizes, lines = sorted(seconds, key=number), []
    before, last = sizes[-2:]  # of small worlds the start is most
    wider = math.log(number(last) / number(before))
    for stage, least in seconds[before].items():
        most = seconds[last].get(stage)
        grown = math.log(most / least) / wider if least >= 0.2 and most else None  # less is mostly the clock's noise
        text = " → ".join(f"{seconds[size].get(stage, 0):.1f}" for size in sizes)
        lines.append(dict(what=stage, sizes=" → ".join(sizes), seconds=text, exponent=grown))
    return lines


def main():
    import pandas as pd

    pd.set_option("display.width", 200)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, default=[10_000, 30_000, 100_000])
    parser.add_argument("--memory", default="3GB", help="for the engine; the process needs more")
    parser.add_argument("--chains", action="store_true", help="also chains of two to four facts")
    parser.add_argument("--engine", default="duckdb")
    parser.add_argument("--where", help="folder for the files")
    parser.add_argument("--run", action="store_true", help="also two runs with the benchmark, and a report")
    parser.add_argument("--append", action="store_true", help="add the growth of each stage to LEADERBOARD.md")
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; engine limited to {args.memory}; one process parses")
    seconds, memory, about = {}, {}, {}
    for n in args.sizes:
        rows, about[f"{n:,}"] = measure(n, args)
        seconds[f"{n:,}"] = {name: round(cpu, 1) for name, (cpu, _) in rows.items()}
        memory[f"{n:,}"] = {name: round(gb, 2) for name, (_, gb) in rows.items()}
        print(about[f"{n:,}"], seconds[f"{n:,}"], memory[f"{n:,}"], sep="\n", file=sys.stderr, flush=True)
    if args.append and len(seconds) > 1:
        append("Growth", growth(seconds))
    for title, table in (("what there is", about), ("CPU seconds", seconds), ("highest memory, GB", memory)):
        print(f"\n{title}, by number of entities:")
        print(pd.DataFrame(table)[[f"{n:,}" for n in sorted(args.sizes)]].to_string())


if __name__ == "__main__":
    main()
