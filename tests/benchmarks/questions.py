"""All steps from facts to released files with templates: seconds of each step, memory, growth.

    python tests/benchmarks/questions.py [EDITS …]        default: 10000 30000 100000

The steps are locality probes, second hops, questions and the release. The facts are those of `locality.py` (names from
the world's generator, ten static facts for each edit) with real properties; every edit has up to five texts. Each size
runs in a separate process, whose peak memory is measured.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from locality import write_facts

from wbe.records import Label, Statement, to_table
from wbe.store import write_table
from wbe.wikidata.claims import PropertyInfo
from wbe.writers.properties import PHRASES

RUN = """
import json, resource, sys, time
from datetime import date
from pathlib import Path
from wbe.benchmark.locality import find_locality
from wbe.benchmark.paths import find_two_hops
from wbe.benchmark.questions import write_questions
from wbe.benchmark.release import add_timestep
d = Path(sys.argv[1])
facts, static = d / "facts.parquet", d / "static_facts.parquet"
out, last = {}, time.perf_counter()
def lap(name):
    global last
    out[name], last = time.perf_counter() - last, time.perf_counter()
find_locality(facts, static, d / "l", progress=False); lap("locality")
find_two_hops(facts, d / "m"); lap("multi-hop")
locality, hops = d / "l/locality.parquet", d / "m/multihop.parquet"
m = write_questions(facts, static, locality, hops, d / "parsed", d / "q", progress=False); lap("questions")
add_timestep(d / "q/questions.parquet", date(2024, 2, 1), date(2024, 2, 20), d / "r"); lap("release")
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
print(json.dumps(dict(out, rows=m.counts["rows"], peak=peak)))
"""


def make(folder: Path, edits: int):
    "Facts with real properties, and the matching tables of a parsed snapshot."
    for path in write_facts(folder, edits, 10 * edits):
        table = pq.read_table(path)
        pids = sorted({p for p, _ in PHRASES}, key=lambda p: int(p[1:]))[:100]
        numbers = [int(p[1:]) - 1 for p in table["property_id"].to_pylist()]
        nouns = {p: PHRASES[p, ""].noun if (p, "") in PHRASES else "value" for p in pids}
        table = table.set_column(
            table.schema.get_field_index("property_id"),
            table.schema.field("property_id"),
            pa.array([pids[n] for n in numbers]),
        )
        table = table.set_column(
            table.schema.get_field_index("property"),
            table.schema.field("property"),
            pa.array([nouns[pids[n]] for n in numbers]),
        )
        write_table(path, table)
    ids = pq.read_table(folder / "facts.parquet", columns=["subject_id", "subject"]).to_pydict()
    known = dict(zip(ids["subject_id"], ids["subject"]))
    parsed = folder / "parsed"
    empty = [None] * len(known)
    names = dict(
        id=list(known),
        label=list(known.values()),
        description=empty,
        aliases=[["the " + n] for n in known.values()],
        enwiki=empty,
    )
    human = dict(
        property="P31",
        value="Q5",
        value_type="item",
        snak="value",
        rank="normal",
        has_other_qualifiers=False,
        other_qualifiers=[],
    )
    plain = dict(description="", datatype="item", functional=False, temporal=False, classes=[])
    write_table(parsed / "labels.parquet", to_table(names | dict(sitelinks=[1] * len(known)), Label))
    write_table(
        parsed / "statements.parquet",
        to_table([dict(human, subject=q, statement_id=q + "$0") for q in known], Statement),
    )
    write_table(
        parsed / "properties.parquet", to_table([dict(plain, id=p, label=nouns[p]) for p in pids], PropertyInfo)
    )


def measure(edits: int) -> dict:
    folder = Path(tempfile.mkdtemp())
    try:
        make(folder, edits)
        p = subprocess.run([sys.executable, "-c", RUN, str(folder)], capture_output=True, text=True)
        assert p.returncode == 0, p.stderr[-3000:]
        result = json.loads(p.stdout)
        steps = {k: round(v, 1) for k, v in result.items() if k not in ("rows", "peak")}
        return dict(
            edits=edits,
            static=10 * edits,
            rows=result["rows"],
            **steps,
            all=round(sum(steps.values()), 1),
            **{
                "rows a second": round(result["rows"] / sum(steps.values())),
                "peak memory, GB": round(result["peak"], 2),
            },
        )
    finally:
        shutil.rmtree(folder)


def main(sizes):
    import pandas as pd

    pd.set_option("display.width", 200)
    print("seconds:")
    print(pd.DataFrame([measure(n) for n in sizes]).to_string(index=False))


if __name__ == "__main__":
    main([int(a) for a in sys.argv[1:]] or [10_000, 30_000, 100_000])
