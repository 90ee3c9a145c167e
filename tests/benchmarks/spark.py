"""Spark beside one process: what parsing a dump and comparing two snapshots cost, for the reckoning of a cluster.

    python tests/benchmarks/spark.py [--copies N] [--statements N] [--csv FILE]

A dump of real entities (of the world's, where those are missing) is parsed by one process, and by Spark on one and two
cores; two synthetic snapshots are compared by DuckDB and by Spark. The seconds of the processor are those of all
processes together, Java's included; `start` is what a Spark session takes before it does anything, and is not in them.
All ways must give equal tables.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import psutil
from compare import snapshot
from parse import REAL, copies, entity_lines

from wbe.world.files import World

WORK = """
import json, sys, time
from pathlib import Path
what, engine, threads, *paths = sys.argv[1:]
start = time.perf_counter()
if engine == "spark":
    from wbe.engine import Spark
    session = Spark(memory="3GB", threads=int(threads)).session
    session.range(2).count()
begun = time.perf_counter() - start
print(json.dumps(dict(begun=begun)), flush=True)
sys.stdin.readline()
start = time.perf_counter()
if what == "parse":
    from wbe.wikidata.parse import parse_dump
    made = parse_dump(paths[0], paths[1], workers=1, engine=engine.replace("one process", "duckdb"), progress=False)
    rows = made.counts["statements"]
else:
    from wbe.wikidata.changes import compare_snapshots
    rows = compare_snapshots(*paths, engine=engine, memory="3GB").counts["changed"]
print(json.dumps(dict(seconds=time.perf_counter() - start, rows=rows)), flush=True)
sys.stdin.readline()
"""


def cpu_of(process: psutil.Process) -> float:
    "CPU seconds of a process and of all below it, those that have ended included."
    total = 0.0
    for p in (process, *process.children(recursive=True)):
        try:
            t = p.cpu_times()
            total += t.user + t.system + t.children_user + t.children_system
        except psutil.Error:
            pass
    return total


def measure(what: str, engine: str, threads: int, *paths) -> dict:
    "One piece of work in a process of its own."
    command = [sys.executable, "-c", WORK, what, engine, str(threads), *map(str, paths)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen(command, **pipes) as process:
        line = process.stdout.readline()
        if not line:
            sys.exit(process.stderr.read().strip().splitlines()[-1])
        before, tree = cpu_of(psutil.Process(process.pid)), psutil.Process(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        done = json.loads(process.stdout.readline())
        spent = cpu_of(tree) - before
        process.stdin.write("\n")
        process.stdin.flush()
    how = engine if engine != "spark" else f"spark, {threads} core{'s' * (threads > 1)}"
    row = dict(work=what, engine=how, seconds=done["seconds"], cpu=spent)
    return row | dict(start=json.loads(line)["begun"], rows=done["rows"])


def write_bz2(path: Path, lines: list[bytes]) -> float:
    "A dump that Spark can read in parts; its JSON in MB."
    import bz2

    with bz2.open(path, "wb") as f:
        f.write(b"[\n" + b",\n".join(lines) + b"\n]\n")
    return sum(map(len, lines)) / 1e6


def parsing(folder: Path, times: int) -> list[dict]:
    if REAL.exists():
        lines = copies(entity_lines(REAL), times)
    else:
        world = World(7, 2500).write(
            folder / "world", dates=["2024-02-01"], articles=False, views=False, truth=False, progress=False
        )
        lines = copies(entity_lines(world.paths("dumps")[0]), times)
    mb, rows = write_bz2(folder / "dump.json.bz2", lines), []
    for n, (engine, threads) in enumerate((("one process", 1), ("spark", 1), ("spark", 2))):
        row = measure("parse", engine, threads, folder / "dump.json.bz2", folder / f"parsed-{n}")
        rows.append(row | dict(entities=len(lines), mb=mb, mb_per_cpu_second=mb / row["cpu"]))
    assert len({r["rows"] for r in rows}) == 1, rows
    return rows


def comparing(folder: Path, statements: int) -> list[dict]:
    for newer in (False, True):
        snapshot(folder / str(int(newer)), statements, newer)
    rows = []
    for n, (engine, threads) in enumerate((("duckdb", 2), ("spark", 2))):
        row = measure("compare", engine, threads, folder / "0", folder / "1", folder / f"out-{n}")
        rows.append(row | dict(statements=statements, statements_per_cpu_second=statements / row["cpu"]))
    assert len({r["rows"] for r in rows}) == 1, rows
    return rows


def main(args):
    folder = Path(tempfile.mkdtemp())
    try:
        start = time.perf_counter()
        table = pd.DataFrame([*parsing(folder, args.copies), *comparing(folder, args.statements)])
        print(table.round(2).to_string(index=False))
        print(f"{time.perf_counter() - start:.0f} s in all")
        if args.csv:
            table.round(4).to_csv(args.csv, index=False)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, default=40, help="of the entities")
    parser.add_argument("--statements", type=int, default=3_000_000, help="in each of the two snapshots")
    parser.add_argument("--csv", type=Path)
    main(parser.parse_args())
