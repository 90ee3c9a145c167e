"""The audit on large tables: rows against the statements of two snapshots; seconds and peak memory of the process.

python tests/benchmarks/audit.py [ROWS STATEMENTS]        default: 500000 5000000
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

AUDIT = """
import resource, sys, time; from wbe.wikidata.audit import audit_benchmark
from wbe.engine import open_engine
start = time.perf_counter()
with open_engine("duckdb", memory="4GB") as e: audit_benchmark(*sys.argv[1:], engine=e)
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def quiet():
    "DuckDB without a progress bar."
    import duckdb

    con = duckdb.connect()
    con.execute("set enable_progress_bar = false")
    return con


def snapshot(folder: Path, statements: int, subjects: int, seed: int):
    """Synthetic tables of the right shape.

    A subject has four statements on average; each statement has one qualifier value and one reference value.
    """
    folder.mkdir()
    con, empty = quiet(), "null::varchar"
    con.execute(f"""create table s as
        select i, 'Q' || (1 + hash(i) % {subjects}) subject, 'P' || (1 + hash(i, 1) % 100) property,
            'Q' || (1 + hash(i, 2, i % 20 = {seed}) % {subjects}) as value,
            if(hash(i, 3) % 50 = 0, 'deprecated', if(hash(i, 3) % 10 = 1, 'preferred', 'normal')) rank
        from range({statements}) t(i)""")
    con.execute(f"""copy (
        select subject, property, value, 'item' value_type, 'value' snak, rank,
            {empty} start, {empty} as "end", {empty} point_in_time,
            false has_other_qualifiers, subject || '$' || i statement_id
        from s order by cast(subject[2:] as int)) to '{folder}/statements.parquet'""")
    con.execute(f"""copy (
        select subject, 'P' || (1 + hash(i, 4, r.role) % 100) property, 'Q' || (1 + hash(i, 5) % {subjects}) as value,
            'item' value_type, r.role, property main_property, subject || '$' || i statement_id
        from s, (values ('qualifier'), ('reference')) r(role) order by hash(i, 6)) to '{folder}/roles.parquet'""")
    con.execute(f"""copy (
        select 'Q' || i id, 'name ' || (i % {subjects // 10 * 9}) as label, '' description, []::varchar[] aliases,
            {empty} enwiki, 1 sitelinks
        from range(1, {subjects} + 1) t(i)) to '{folder}/labels.parquet'""")
    con.close()


def benchmark(path: Path, new: Path, rows: int):
    """Rows in the published form.

    Half are main values, a quarter are qualifier or reference values, a quarter are nonsense.
    One row in five has no object id.
    """
    statements, sample = f"'{new}/statements.parquet' using sample reservoir", "(select subject, property, value from"
    half, quarter = rows // 2, rows // 4
    names = f"(select count(*) // 10 * 9 from '{new}/labels.parquet')"
    quiet().execute(f"""copy (
        with sampled as (
            {sample} {statements}({half} rows) repeatable (1))
            union all {sample} '{new}/roles.parquet' using sample reservoir({quarter} rows) repeatable (1))
            union all (
                select if(hash(value) % 9 = 0, 'Q99' || subject[2:], subject),
                    if(hash(value) % 9 = 1, 'P999', property), 'Q7'
                from {statements}({rows - half - quarter} rows) repeatable (2)))
        select 'new' tag, 'S' subject, 'r' relation, 'name ' || (cast(value[2:] as int) % {names}) as object,
            subject subject_id, property relation_id, if(hash(subject) % 5 = 0, null, value) object_id,
            'What is it?' as update, 'It' ans
        from sampled)
        to '{path}' (format json, array true)""")


def main(rows: int = 500_000, statements: int = 5_000_000):
    "Make the tables, audit them in a separate process, and report the time."
    import pandas as pd

    with tempfile.TemporaryDirectory() as tmp:
        tmp, start = Path(tmp), time.perf_counter()
        for name, seed in (("old", 1), ("new", 2)):
            snapshot(tmp / name, statements, statements // 4, seed)
        benchmark(tmp / "rows.json", tmp / "new", rows)
        made = time.perf_counter() - start
        p = subprocess.run(
            [sys.executable, "-c", AUDIT, tmp / "rows.json", tmp / "new", tmp / "old", tmp / "out"],
            capture_output=True,
            text=True,
        )
        assert p.returncode == 0, p.stderr
        seconds, peak = map(float, p.stdout.splitlines()[-1].split())
        from wbe.wikidata.audit import Audit

        print(f"{os.cpu_count()} cores; tables made in {made:.0f} s")
        print(
            pd.DataFrame(
                [
                    {
                        "rows": rows,
                        "statements, each snapshot": statements,
                        "qualifier and reference values": 2 * statements,
                        "seconds": round(seconds, 1),
                        "peak memory, MB": round(peak / (1e6 if sys.platform == "darwin" else 1e3)),
                    }
                ]
            ).to_string(index=False)
        )
        return Audit(tmp / "out").summary()[["rows", "share"]]


if __name__ == "__main__":
    print(main(*[int(a) for a in sys.argv[1:]]))
