"""Spark and DuckDB give the same tables, from the dump to the audit."""

import bz2
import gzip
import os

import pyarrow.parquet as pq
import pytest

from wbe.benchmark.series import make_benchmark
from wbe.wikidata.build import build_facts
from wbe.wikidata.parse import ParsedDump

pytestmark = pytest.mark.extra("spark")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    "Dumps with the traits of real ones (mul labels, merges, duplicates …), in a form that Spark splits."
    from wbe.world.files import World
    from wbe.world.traits import write_with_traits

    folder = tmp_path_factory.mktemp("dumps")
    only = dict(dates=["2024-04-01", "2024-05-01"], articles=False, views=False, truth=False)
    for path in write_with_traits(World(11, 900).write(folder / "world", progress=False, **only), folder / "traits"):
        (folder / path.name.replace(".gz", ".bz2")).write_bytes(bz2.compress(gzip.decompress(path.read_bytes())))
    return sorted(folder.glob("*.bz2"))


@pytest.fixture(scope="module")
def both(dumps, tmp_path_factory):
    folder = tmp_path_factory.mktemp("spark")
    return {
        name: build_facts(*dumps, folder / name, engine=name, memory="1GB", roles=True, progress=False)
        for name in ("duckdb", "spark")
    }


def test_every_table_of_the_pipeline_is_the_same(both):
    left, right = (b.folder for b in both.values())
    names = [p.relative_to(left) for p in left.rglob("*.parquet")]
    assert len(names) > 15 and sorted(names) == sorted(p.relative_to(right) for p in right.rglob("*.parquet"))
    for name in names:
        a, b = pq.read_table(left / name), pq.read_table(right / name)
        assert a.column_names == b.column_names, name
        assert a.to_pylist() == b.to_pylist(), name


def test_the_counts_are_the_same(both):
    left, right = (b.counts for b in both.values())
    assert left == right
    removed = {row["filter"] for row in left["filter"]["funnel"] if row["removed"]}
    assert {"meta property", "renamed or merged", "no label"} <= removed
    assert all(counts["duplicates"] > 3 for step, counts in left.items() if step.startswith("parse "))


def test_the_parsed_dumps_were_made_on_spark(both):
    "Spark splits the bzip2 file, so its row groups begin at other rows."
    left, right = (ParsedDump(next((b.folder / "parsed").iterdir())) for b in both.values())
    assert left.counts == right.counts and left.counts["statements"] > 1000


@pytest.mark.skipif(not os.environ.get("WBE_LONG"), reason="more than a minute: WBE_LONG=1 runs it")
def test_the_released_benchmark_is_the_same(dumps, tmp_path):
    "With locality probes, multi-hop questions and lasting facts."
    options = dict(memory="1GB", progress=False)
    folders = [make_benchmark(tmp_path / name, dumps, engine=name, **options).folder for name in ("duckdb", "spark")]
    files = [[p for p in folder.iterdir() if not p.name.endswith(".manifest.json")] for folder in folders]  # have times
    left, right = ({p.name: p.read_bytes() for p in some} for some in files)
    assert len(left) > 4 and left == right
    lasting = [pq.read_table(folder.parent / "lasting_facts.parquet") for folder in folders]
    assert len(lasting[0]) and lasting[0].to_pylist() == lasting[1].to_pylist()
