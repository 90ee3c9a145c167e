"""Spark and DuckDB give the same tables, from the dump to the audit."""

import pyarrow.parquet as pq
import pytest

from wbe.wikidata.build import build_facts
from wbe.wikidata.parse import ParsedDump

pytestmark = pytest.mark.extra("spark")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    from wbe.world.files import World

    folder = tmp_path_factory.mktemp("spark")
    only = dict(dates=["2024-04-01", "2024-05-01"], formats=("json.bz2",), articles=False, views=False, truth=False)
    dumps = World(11, 700).write(folder / "world", progress=False, **only).paths("dumps")
    return {
        name: build_facts(*dumps, folder / name, engine=name, memory="1GB", progress=False)
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


def test_the_parsed_dumps_were_made_on_spark(both):
    "Spark splits the bzip2 file, so its row groups begin at other rows."
    left, right = (ParsedDump(next((b.folder / "parsed").iterdir())) for b in both.values())
    assert left.counts == right.counts and left.counts["statements"] > 1000
