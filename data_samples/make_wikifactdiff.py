"""Write wikifactdiff.parquet: updates of the sample world from its first to its last dump, in WikiFactDiff's form.

    python data_samples/make_wikifactdiff.py

Everything depends only on the world's seed and on the versions of the rules, neighbours and statements. Dates and
numbers are said as the articles of the world say them. Page views: the two months before the newer dump.
"""

import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from wbe.benchmark.wikifactdiff import write_fact_updates
from wbe.wikidata.parse import parse_dump
from wbe.wikidata.rules import classify
from wbe.world.files import World
from wbe.world.state import SNAPSHOTS

SAMPLES = Path(__file__).parent


if __name__ == "__main__":
    days = SNAPSHOTS[0], SNAPSHOTS[-1]
    with tempfile.TemporaryDirectory() as folder:
        tmp = Path(folder)
        World(seed=7, entities=1500).write(tmp / "world", days, articles=False, truth=False, progress=False)
        views = sorted((tmp / "world/pageviews").glob("*.bz2"))[-2:]
        for day in days:
            parse_dump(SAMPLES / "world" / f"wikidata-{day:%Y%m%d}-all.json.bz2", tmp / f"{day}", progress=False)
        old, new = (tmp / f"{day}" for day in days)
        classify(old, new, tmp / "rules", *days, views=views)
        made = write_fact_updates(tmp / "rules", old, new, tmp / "updates.jsonl", views=views, style="grouped")
        rows = [json.loads(line) for line in (tmp / "updates.jsonl").read_text(encoding="utf-8").splitlines()]
        pq.write_table(pa.Table.from_pylist(rows), SAMPLES / "wikifactdiff.parquet", compression="zstd")
        print(dict(made.counts), f"{(SAMPLES / 'wikifactdiff.parquet').stat().st_size / 1e3:.0f} kB")
