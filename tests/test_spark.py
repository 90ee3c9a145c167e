"""Spark and DuckDB give the same tables, from the dump to the audit; of Wikipedia from the dump to what differs."""

import bz2
import gzip
import json
import os

import pyarrow.parquet as pq
import pytest
from shared_cells import shared

from wbe.benchmark.series import make_benchmark
from wbe.engine import Spark
from wbe.wikidata.audit import audit_benchmark
from wbe.wikidata.build import build_facts
from wbe.wikipedia.comparison import compare_wikipedia
from wbe.wikipedia.pages import parse_wikipedia
from wbe.world.dumps import XML_TAIL, xml_head, xml_page

pytestmark = pytest.mark.extra("spark")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    "Dumps with the traits of real ones (mul labels, merges, duplicates …), in a form that Spark splits."
    from wbe.world.files import World

    folder = tmp_path_factory.mktemp("dumps")
    only = dict(dates=["2024-04-01", "2024-05-01"], articles=False, views=False, truth=False)
    world = World(11, 900).write(folder / "world", progress=False, **only)
    for path in shared("02_world/13_traits.ipynb").write_with_traits(world, folder / "traits"):
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


def rows_about(parsed, some: slice) -> list[dict]:
    "Statements of a snapshot as rows of a benchmark, every third with the object of another."
    names = {r["id"]: r["label"] for r in pq.read_table(parsed / "labels.parquet").to_pylist()}
    stated = pq.read_table(parsed / "statements.parquet", columns=["subject", "property", "value"]).to_pylist()
    known = [s for s in stated if s["subject"] in names and s["value"] in names][some]
    objects = [known[i - 7 * (i % 3 == 2)]["value"] for i in range(len(known))]
    name = lambda s, o: dict(subject=names[s["subject"]], relation=s["property"], object=names[o], ans=names[o])
    ids = lambda s, o: dict(subject_id=s["subject"], relation_id=s["property"], object_id=o)
    about = dict(update="Which?", tag="update")
    return [name(s, o) | ids(s, o) | about for s, o in zip(known, objects)]


def test_an_audit_is_the_same(both, tmp_path):
    "Of statements of either day, some of them of no day."
    old, new = sorted((both["duckdb"].folder / "parsed").iterdir())
    rows = [row for parsed in (old, new) for row in rows_about(parsed, slice(None, None, 9))]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    audits = {e: audit_benchmark(tmp_path / "rows.json", new, old, tmp_path / e, engine=e) for e in both}
    duckdb, spark = (pq.read_table(audit.path) for audit in audits.values())
    assert spark.equals(duckdb) and len(duckdb) == len(rows) > 500
    assert len(set(duckdb["verdict"].to_pylist())) > 3


def test_the_parsed_dumps_are_the_same_bytes(both):
    "Also the lines that were rejected."
    left, right = (b.folder / "parsed" for b in both.values())
    names = [p.relative_to(left) for p in left.rglob("*") if p.suffix in (".parquet", ".gz")]
    assert len(names) == 12
    for name in names:
        assert (left / name).read_bytes() == (right / name).read_bytes(), name


PAGES = 600


def wikipedia(day: int, some: range) -> bytes:
    "Pages of a dump: every ninth differs by day, some are redirects or templates, four are damaged on the first day."
    pages = []
    for i in some:
        text = f"'''Page {i}''' is {'x' * (i % 200)}.\n\nIt has {day if i % 9 == 0 else 0} lakes, [[Page {i + 1}]].\n"
        to = "Page 0" if i % 11 == 5 else ""
        page = xml_page(f"Page {i}", 10 * (i % 13 == 4), i, 9 * i + day, day, text, "wikitext", "text/x-wiki", to)
        damage = {20: ("<title>", "<titel>"), 31: ("</page>", ""), 310: ("lakes", "<b>"), 599: ("</page>", "")}
        pages.append(page.replace(*damage.get(i, ("", ""))) if day == 1 and i in damage else page)
    return (xml_head("enwiki") + "".join(pages)).encode()


@pytest.fixture(scope="module")
def wikipedia_dumps(tmp_path_factory):
    "Two parts of the first day, in small blocks of bzip2, of which the second was cut; the second day in one file."
    folder, tail = tmp_path_factory.mktemp("wikipedia"), XML_TAIL.encode()
    parts = [folder / f"enwiki-20240201-pages-articles{n}.xml-p{n}p9.bz2" for n in (1, 2)]
    parts[0].write_bytes(bz2.compress(wikipedia(1, range(PAGES // 2)) + tail, 1))
    parts[1].write_bytes(bz2.compress(wikipedia(1, range(PAGES // 2, PAGES)), 1))
    whole = folder / "enwiki-20240202-pages-articles.xml.bz2"
    whole.write_bytes(bz2.compress(wikipedia(2, range(PAGES)) + tail, 1))
    return parts, [whole]


def test_wikipedia_is_the_same(wikipedia_dumps, tmp_path):
    jobs = Spark(memory="1GB").session.sparkContext.statusTracker().getJobIdsForGroup
    before, pairs, how = len(jobs()), [], dict(size=20_000, progress=False)
    for i, files in enumerate(wikipedia_dumps):
        local = parse_wikipedia(files, tmp_path / f"local{i}", **how)
        there = parse_wikipedia(files, tmp_path / f"spark{i}", engine="spark", **how)
        assert there.path.read_bytes() == local.path.read_bytes()
        assert there.counts == local.counts
        assert there.rejected() == local.rejected()
        pairs.append((local, there))
    assert pairs[0][0].damage and len(pairs[0][0].rejected()) == 4 and pairs[0][0].counts["articles"] > 400
    local, there = zip(*pairs)
    calm = compare_wikipedia(*local, tmp_path / "compared", size=20, progress=False)
    on_spark = compare_wikipedia(*there, tmp_path / "on_spark", size=20, engine="spark", progress=False)
    assert calm.counts["changed"] > 40 and on_spark.counts == calm.counts
    assert on_spark.path.read_bytes() == calm.path.read_bytes()
    assert len(jobs()) > before + 4


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
