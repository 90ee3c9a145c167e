"""The comparison of two snapshots: seconds and memory for one to ten million statements in each, with a memory limit.

    python tests/benchmarks/compare.py [STATEMENTS …] [--memory 3GB]        default: 1000000 3000000 10000000

The snapshots are synthetic and have the shape of real ones: ten statements a subject on average, some deprecated or
preferred, some with times. In the newer snapshot, one statement in a hundred has another value, one is gone and one is
new. The memory limit applies to the engine; with 3GB the whole process stays below 4 GB. The peak is measured.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb

COMPARE = """
import json, resource, sys, time
from wbe.wikidata.changes import compare_snapshots
start = time.perf_counter()
counts = compare_snapshots(*sys.argv[1:4], memory=sys.argv[4]).counts
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
print(json.dumps(dict(seconds=time.perf_counter() - start, peak=peak, **counts)))
"""


def snapshot(folder: Path, statements: int, newer: bool):
    "Tables like those of a parsed dump: `statements` rows, a tenth as many subjects, sorted by subject as in a dump."
    folder.mkdir(parents=True)
    con, empty = duckdb.connect(), "null::varchar"
    con.execute("set enable_progress_bar = false; set memory_limit = '4GB'")
    subjects, luck = statements // 10, "hash(i, 7) % 100"
    changed = f"if({newer} and {luck} = 0, 1, 0)"
    con.execute(f"""copy (
        select 'Q' || (1 + i // 10) subject, 'P' || (1 + hash(i, 1) % 200) property,
            'Q' || (1 + hash(i, 2, {changed}) % {subjects}) as value, 'item' value_type, 'value' snak,
            if(hash(i, 3) % 50 = 0, 'deprecated', if(hash(i, 3) % 20 = 1, 'preferred', 'normal')) rank,
            if(hash(i, 4) % 5 = 0, '+20' || (10 + hash(i, 5) % 14) || '-01-01T00:00:00Z/11', null) start,
            {empty} as "end", {empty} point_in_time,
            false has_other_qualifiers, []::varchar[] other_qualifiers, 'Q' || (1 + i // 10) || '$' || i statement_id
        from range({statements + statements // 100}) t(i)
        where not ({newer} and {luck} = 1 and i < {statements}) and not (not {newer} and i >= {statements}))
        to '{folder}/statements.parquet' (compression zstd, row_group_size 100000)""")
    con.execute(f"""copy (
        select 'Q' || (1 + i) id, 'name ' || i as label, '' description, []::varchar[] aliases, {empty} enwiki,
            1::bigint sitelinks
        from range({subjects + subjects // 100 * newer}) t(i)) to '{folder}/labels.parquet' (compression zstd)""")
    con.close()


def measure(statements: int, memory: str) -> dict:
    "Compare two snapshots in a separate process."
    import json

    folder = Path(tempfile.mkdtemp())
    try:
        for newer in (False, True):
            snapshot(folder / str(int(newer)), statements, newer)
        command = [sys.executable, "-c", COMPARE, str(folder / "0"), str(folder / "1"), str(folder / "out"), memory]
        result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return {
            "statements in each": statements,
            "seconds": result["seconds"],
            "peak memory, GB": result["peak"],
            "seconds per million": result["seconds"] / statements * 1e6,
            **{k: result[k] for k in ("changed", "removed", "static")},
        }
    finally:
        shutil.rmtree(folder)


def main(sizes, memory: str):
    import pandas as pd

    pd.set_option("display.width", 200)
    print(f"memory limit of the engine: {memory}")
    table = pd.DataFrame([measure(n, memory) for n in sizes])
    print(table.round(2).to_string(index=False))
    first, last = table.iloc[0], table.iloc[-1]
    grown = (last["seconds"] / first["seconds"], last["statements in each"] / first["statements in each"])
    print(f"{grown[1]:.0f} times the statements take {grown[0]:.1f} times as long")


if __name__ == "__main__":
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("statements", nargs="*", type=int)
    args.add_argument("--memory", default="3GB")
    given = args.parse_args()
    main(given.statements or [1_000_000, 3_000_000, 10_000_000], given.memory)
