"""Dumps with the traits of real ones: the pipeline makes of them what it makes of the world without traits."""

import gzip
import json

import pytest
from shared_cells import shared
from pandas import read_parquet
from stored import served

from wbe.benchmark.questions import BenchmarkRow
from wbe.benchmark.series import make_benchmark
from wbe.records import read_table
from wbe.wikidata.build import build_facts
from wbe.wikidata.parse import parse_dump
from wbe.world.files import World
from wbe.world.state import SNAPSHOTS

TRAITS = shared("02_world/13_traits.ipynb")
DAYS = ["2024-02-01", "2024-02-20", "2024-03-01", "2024-03-20"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    with served():
        return World(7, 1500).write(folder, dates=DAYS, articles=False, views=False, truth=False, progress=False)


@pytest.fixture(scope="module")
def realistic(plain, tmp_path_factory):
    return TRAITS.write_with_traits(plain, tmp_path_factory.mktemp("realistic"))


@pytest.fixture(scope="module")
def truth(realistic):
    return read_table(realistic[0].parent / "traits.parquet", TRAITS.WorldTrait).to_pandas()


def raw_lines(path) -> list[dict]:
    return [json.loads(line.rstrip(b",\n")) for line in gzip.open(path) if line.startswith(b"{")]


def test_every_trait_is_in_the_dumps(realistic, truth):
    "The truth of each trait, found in the lines by plain reading."
    assert set(truth.kind) == set(TRAITS.TRAITS)
    lines = raw_lines(realistic[-1])
    items = [e for e in lines if e["type"] == "item"]
    uses = truth[truth.snapshot == 3].groupby("kind").size()
    assert (
        sum("mul" in e["labels"] and "en" not in e["labels"] for e in {e["id"]: e for e in items}.values())
        == uses["mul"]
    )
    assert len(lines) - len({e["id"] for e in lines}) == uses.duplicate > 5
    once = {e["id"]: e for e in lines}.values()
    assert sum(e["labels"] == [] for e in once) >= uses.nameless > 5
    assert sum("P90001" in (e["claims"] or ()) for e in once) == uses.unreadable > 5
    assert (
        sum(TRAITS.FOCUS_LIST_PROPERTY in (e["claims"] or ()) for e in once if e["type"] == "item")
        == uses.meta_property
    )
    moved = truth[truth.kind == "merged_value"].groupby("subject_id").value.nunique()
    assert (moved == 2).sum() > 5  # values that change although nothing happened


def test_the_tables_hold_the_same_names_and_statements(plain, realistic, truth, tmp_path):
    for t, (path, other) in enumerate(zip(plain.paths("dumps"), realistic)):
        a = parse_dump(path, tmp_path / "a", roles=True, progress=False, force=True)
        b = parse_dump(other, tmp_path / "b", roles=True, progress=False, force=True)
        assert b.rejected() == [] and b.damage is None and not b.unclosed
        named = {r["id"]: r for r in b.table("labels").to_pylist()}
        for r in a.table("labels").to_pylist():
            assert named[r["id"]] | dict(aliases=[]) == r | dict(aliases=[])
            assert set(named[r["id"]]["aliases"]) == set(r["aliases"])
        old = a.table().to_pandas().set_index("statement_id")
        new = b.table().to_pandas().set_index("statement_id")
        shared = new.loc[old.index]
        assert shared.drop(columns="other_qualifiers").equals(old.drop(columns="other_qualifiers"))
        rest = new.drop(old.index)
        assert rest.index.str.contains("7A17").all() and not new.index.duplicated().any()
        uses = truth[truth.snapshot == t].groupby("kind").size()
        assert b.counts["duplicates"] == uses.duplicate
        assert b.counts["unreadable"] == uses.unreadable + (uses.unknown_datatype // 2)
        assert dict(rest[rest.property == "P90003"].groupby("value_type").size()) == {
            "local-name": uses.unknown_datatype // 2
        }


def test_two_readers_agree_about_the_names(realistic, tmp_path):
    "Label, description and aliases by plain JSON reading, and by the parser."
    got = {r["id"]: r for r in parse_dump(realistic[-1], tmp_path, progress=False).table("labels").to_pylist()}
    some = 0
    for e in raw_lines(realistic[-1]):
        first = lambda terms: next((terms[c]["value"] for c in ("en", "mul") if terms and c in terms), None)
        aliases = [a["value"] for c in ("en", "mul") if e["aliases"] for a in e["aliases"].get(c, ())]
        assert (got[e["id"]]["label"], got[e["id"]]["description"]) == (first(e["labels"]), first(e["descriptions"]))
        assert got[e["id"]]["aliases"] == list(dict.fromkeys(aliases))
        some += bool(e["aliases"]) and "mul" in e["aliases"]
    assert some > 20


@pytest.fixture(scope="module")
def both_benchmarks(plain, realistic, tmp_path_factory):
    made = lambda name, dumps: make_benchmark(tmp_path_factory.mktemp(name) / "b", dumps[:3], progress=False).folder
    with served():  # notebooks make the benchmark of the plain dumps
        benchmark = made("plain", plain.paths("dumps"))
    return benchmark, made("realistic", realistic)


def test_the_benchmark_is_the_same(both_benchmarks):
    "All edits, questions and answers; the items of the traits are further candidates of locality probes only."
    a, b = both_benchmarks
    names = sorted(p.name for p in a.glob("wiki_*.parquet"))
    assert len(names) == 2 and names == sorted(p.name for p in b.glob("wiki_*.parquet"))
    for name in names:
        rows, others = (read_table(f / name, BenchmarkRow).to_pylist() for f in (a, b))
        for r in rows + others:
            for column in [c for c in r if c.endswith("_aliases")]:
                r[column] = r[column] and sorted(r[column])
        assert sum(r["loc_subject_id"] == o["loc_subject_id"] for r, o in zip(rows, others)) > 0.95 * len(rows)
        for r in rows + others:
            for column in [c for c in r if c.startswith("loc")]:
                del r[column]
        assert others == rows and len(rows) > 50


def test_the_funnel_counts_what_the_traits_added(both_benchmarks, truth):
    "What was only renamed or merged, and what is about the editors' work, is left out by a filter with its count."

    def funnel(release, step):
        path = release.parent / "work" / step / "facts" / "filter_changed.manifest.json"
        return {r["filter"]: r["removed"] for r in json.loads(path.read_text())["counts"]["funnel"]}

    for t, step in enumerate(("20240201_20240220", "20240220_20240301"), 1):
        before, now = (funnel(release, step) for release in both_benchmarks)
        removed = {name: n - before[name] for name, n in now.items()}
        at = lambda kind, s: set(truth[(truth.kind == kind) & (truth.snapshot == s)].subject_id)
        assert removed["meta property"] == len(at("meta_property", t) - at("meta_property", t - 1)) > 3
        value = lambda s: truth[(truth.kind == "merged_value") & (truth.snapshot == s)].set_index("subject_id").value
        before, now = value(t - 1), value(t)
        both = before.index.intersection(now.index)
        moved = [q for q in both if before[q] != now[q]]
        # the value moved to the other item, and what was said of the twin with it
        assert len(moved) > 0 and removed["renamed or merged"] == 2 * len(moved)


def test_redirects_of_xml_dumps_tell_mergings(small_world, xml_dumps, tmp_path):
    "In the XML dumps a merged item is a redirect: the statements that follow it are no updates, as the truth says."
    merged = small_world.truth("changes").query("kind == 'merging' and tag in ('new', 'update')")
    t = int(merged.timestep.mode()[0])
    dumps = xml_dumps(SNAPSHOTS[t - 1], SNAPSHOTS[t])
    built = build_facts(*dumps, tmp_path / "b", rules=False, progress=False)
    dropped = read_parquet(tmp_path / "b" / "facts" / "dropped.parquet").query("reason == 'renamed or merged'")
    want = merged[merged.timestep == t]
    assert len(want) > 3
    assert set(zip(dropped.subject, dropped.property, dropped.value)) == set(
        zip(want.subject_id, want.property_id, want.value)
    )
    folder = tmp_path / "b" / "parsed" / f"{SNAPSHOTS[t]:%Y%m%d}"
    before = {p: p.stat().st_mtime_ns for p in folder.iterdir()}
    parsed = parse_dump(dumps[1], folder, progress=False)
    assert len(before) > 4 and before == {p: p.stat().st_mtime_ns for p in folder.iterdir()}, "parsed once"
    entities = small_world.truth("entities")
    gone = entities[entities.redirect_to.notna() & (entities["last"] < t)]
    assert dict(zip(*(parsed.table("redirects")[c].to_pylist() for c in ("id", "target")))) == dict(
        zip(gone.id, gone.redirect_to)
    )
    assert built.counts["filter"]["facts"] > 20
