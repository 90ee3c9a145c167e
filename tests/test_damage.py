"""Damaged dumps: a damaged file stops with exit code 3 and one line, and a damaged line never becomes a false fact."""

import bz2
import gzip
import json

import processes
import pytest

from wbe.benchmark.series import Series, extend_benchmark, make_benchmark
from wbe.records import BadArgument
from wbe.wikidata.build import DamagedDump, build_facts
from wbe.wikidata.parse import parse_dump
from wbe.world.files import World

OLD, NEW = "2024-02-01", "2024-02-20"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    options = dict(formats=("json.gz", "xml.bz2"), articles=False, views=False, truth=False, progress=False)
    return World(5, 600).write(folder, dates=[OLD, NEW], **options)


@pytest.fixture(scope="module")
def dumps(world):
    return [p for p in world.paths("dumps") if p.name.endswith(".json.gz")]


@pytest.fixture(scope="module")
def facts(dumps, tmp_path_factory):
    return triples(build_facts(*dumps, tmp_path_factory.mktemp("whole"), rules=False, progress=False))


def triples(built) -> set:
    frame = built.facts()
    return set(zip(frame.subject_id, frame.property_id, frame.object_id, frame.tag))


def rewritten(path, folder, change):
    "A copy of a dump whose lines were changed by a function."
    lines = change(gzip.decompress(path.read_bytes()).split(b"\n"))
    folder.mkdir(exist_ok=True)
    (folder / path.name).write_bytes(gzip.compress(b"\n".join(lines), 1))
    return folder / path.name


def damaged_files(path) -> dict:
    text = gzip.decompress(path.read_bytes())
    lines = text.split(b"\n")
    return {
        "text.json": b"This is not a dump.\n" * 50,
        "empty.json": b"",
        "page.json.gz": b"<!DOCTYPE html><html><body>503 Service Unavailable</body></html>",
        "one.json": b"\n".join([lines[0], lines[1].rstrip(b","), b"]", b""]),
        "half.json": text[: len(text) // 2],
        "half.json.gz": path.read_bytes()[: path.stat().st_size // 2],
    }


@pytest.mark.parametrize("name", ["text.json", "page.json.gz", "half.json.gz"])
def test_the_command_stops_with_code_3_and_one_line(name, dumps, tmp_path):
    path = tmp_path / f"wikidata-20240201-{name}"
    path.write_bytes(damaged_files(dumps[0])[name])
    got = processes.run(["-m", "wbe", "benchmark", tmp_path / "b", path, dumps[1]])
    lines = [line for line in got.stderr.splitlines() if not line.startswith("· ") and "parsing wiki" not in line]
    assert got.returncode == 3 and len(lines) == 1 and lines[0].startswith("wbe: ") and path.name in lines[0]
    assert not (tmp_path / "b" / "series.json").exists() and not (tmp_path / "b" / "release").exists()
    got = processes.run(["-m", "wbe", "benchmark", tmp_path / "p", path, "--until", "parsed"])
    lines = [line for line in got.stderr.splitlines() if "parsing wiki" not in line]
    assert got.returncode == 3 and len(lines) == 1 and lines[0].startswith("wbe: ") and path.name in lines[0]


def test_every_damage_is_refused_on_either_side(dumps, tmp_path):
    for name, data in damaged_files(dumps[0]).items():
        bad = tmp_path / f"wikidata-20240201-{name}"
        bad.write_bytes(data)
        with pytest.raises(DamagedDump):
            build_facts(bad, dumps[1], tmp_path / f"a-{name}", rules=False, progress=False)
        late = tmp_path / f"wikidata-20240401-{name}"
        late.write_bytes(data)
        with pytest.raises(DamagedDump):
            build_facts(dumps[1], late, tmp_path / f"b-{name}", rules=False, progress=False)


def test_a_fall_of_the_entities_is_refused_with_the_numbers(dumps, tmp_path):
    "A tenth of the items is gone, and the dump is closed properly."
    less = rewritten(dumps[1], tmp_path / "less", lambda lines: [x for i, x in enumerate(lines) if i % 10 or i > 550])
    with pytest.raises(DamagedDump, match=r"entities.*\(-\d+\.\d%\).*insist"):
        build_facts(dumps[0], less, tmp_path / "a", rules=False, progress=False)
    assert build_facts(dumps[0], less, tmp_path / "a", rules=False, progress=False, insist=True).counts["filter"]


@pytest.mark.parametrize("side", [0, 1])
def test_rejected_lines_are_no_facts(side, dumps, facts, tmp_path):
    "Ten lines are cut off: the facts are those of the whole dumps without the ten subjects."
    cut = set()

    def change(lines):
        changed = [q for q in sorted({f[0] for f in facts})][::3][:10] if side else []
        items = [i for i, x in enumerate(lines) if x.startswith(b"{")]
        wanted = [i for i in items if json.loads(lines[i].rstrip(b","))["id"] in changed] or items[40:480:44]
        for i in wanted:
            cut.add(json.loads(lines[i].rstrip(b","))["id"])
            lines[i] = lines[i][: 2 * len(lines[i]) // 3]
        return lines

    mine = list(dumps)
    mine[side] = rewritten(dumps[side], tmp_path / "cut", change)
    said = []
    built = build_facts(*mine, tmp_path / "b", rules=False, progress=False, on_step=said.append)
    assert len(cut) == 10 and any("10 entities could not be read" in text for text in said)
    got = triples(built)
    want = {f for f in facts if f[0] not in cut}
    # where an entity could not be read in the newer dump, it has no name either
    assert got == (want if side == 0 else {f for f in want if f[2] not in cut}) and len(got) > 20


@pytest.mark.parametrize("side", [0, 1])
def test_an_unreadable_value_costs_its_property_only(side, dumps, facts, tmp_path):
    "A value that the database may not give out any more: the entity stays, and its property is not compared."
    hit = {}

    def change(lines):
        for i, line in enumerate(lines):
            if line.startswith(b"{") and i % 7 == 0:
                e = json.loads(line.rstrip(b","))
                pid = sorted(e["claims"])[0] if e["claims"] else None
                if pid and e["type"] == "item":
                    hit[e["id"]] = pid
                    snak = e["claims"][pid][0]["mainsnak"]
                    snak["datavalue"] = dict(value=None, type="string", error="The value is not valid any more")
                    lines[i] = json.dumps(e).encode() + b","
        return lines

    mine = list(dumps)
    mine[side] = rewritten(dumps[side], tmp_path / "sick", change)
    built = build_facts(*mine, tmp_path / "b", rules=False, progress=False)
    parsed = parse_dump(mine[side], tmp_path / "p", progress=False)
    assert parsed.rejected() == [] and parsed.counts["unreadable"] == len(hit) > 50
    assert triples(built) == {f for f in facts if hit.get(f[0]) != f[1]}


def test_lines_that_stand_twice_count_once(dumps, facts, tmp_path):
    def twice(lines):
        items = [x for x in lines if x.startswith(b"{")]
        return [*lines[:300], *items[:200], *lines[300:-2], items[5].rstrip(b","), b"]", b""]

    mine = [rewritten(path, tmp_path / str(i), twice) for i, path in enumerate(dumps)]
    for size in (5_000, 1 << 22):  # one line a batch, or all in one
        built = build_facts(*mine, tmp_path / f"b{size}", rules=False, progress=False)
        assert triples(built) == facts
        parsed = parse_dump(mine[0], tmp_path / f"p{size}", size=size, progress=False)
        assert parsed.counts["duplicates"] == 201
        assert len(set(parsed.table("labels")["id"].to_pylist())) == parsed.entities
        ids = parsed.table()["statement_id"].to_pylist()
        assert len(ids) == len(set(ids)) == parsed.counts["statements"]


def test_unusual_bytes(world, dumps, facts, tmp_path):
    "A byte order mark, a NUL in a label, and the XML of 2014, with the text before the model."
    marked = tmp_path / dumps[0].name.replace(".gz", "")
    marked.write_bytes(b"\xef\xbb\xbf" + gzip.decompress(dumps[0].read_bytes()))
    assert triples(build_facts(marked, dumps[1], tmp_path / "bom", rules=False, progress=False)) == facts

    some = {f[0] for f in facts} | {f[2] for f in facts}

    def with_nul(lines):
        label = b'"labels":{"en":{"language":"en","value":"'
        mine = [any(f'"id":"{q}"'.encode() in x[:60] for q in some) for x in lines]
        return [x.replace(label, label + b"\\u0000") if hit else x for x, hit in zip(lines, mine)]

    mine = [rewritten(path, tmp_path / str(i), with_nul) for i, path in enumerate(dumps)]
    made = make_benchmark(tmp_path / "nul", mine, progress=False)
    rows = json.loads((made.folder / "wiki_big_edit_20240201_20240220.json").read_text())
    assert len(rows) > 20 and not any("\0" in str(value) for r in rows for value in r.values())
    xml = next(p for p in world.paths("dumps") if p.name.endswith(".xml.bz2"))
    text = bz2.decompress(xml.read_bytes()).decode()
    pages = []
    for page in text.split("  <page>"):
        model, body = page.find("      <model>"), page.find("      <text ")
        end = page.find("</text>") + len("</text>\n")
        pages.append(page if model < 0 else page[:model] + page[body:end] + page[model:body] + page[end:])
    old = tmp_path / "wikidatawiki-20240201-pages.xml"
    old.write_text("  <page>".join(pages))
    a, b = (parse_dump(p, tmp_path / f"x{i}", progress=False) for i, p in enumerate((xml, old)))
    assert b.table().equals(a.table()) and len(b.table()) > 4_000


def test_a_wrong_argument_leaves_no_trace(dumps, tmp_path):
    with pytest.raises(BadArgument, match="closeness"):
        make_benchmark(tmp_path / "b", dumps, closeness="nme", progress=False)
    with pytest.raises(BadArgument, match="a folder"):
        make_benchmark(tmp_path / "b", [dumps[0], tmp_path], progress=False)
    assert not (tmp_path / "b").exists()


def test_a_damaged_dump_can_be_replaced(dumps, tmp_path):
    make_benchmark(tmp_path / "b", dumps, progress=False)
    plan = (tmp_path / "b" / "series.json").read_bytes()
    bad = tmp_path / "wikidata-20240301-all.json.gz"
    bad.write_bytes(dumps[1].read_bytes()[:50_000])
    with pytest.raises(DamagedDump):
        extend_benchmark(tmp_path / "b", bad, progress=False)
    assert (tmp_path / "b" / "series.json").read_bytes() == plan
    good = World(5, 600).write(
        tmp_path / "w", dates=["2024-03-01"], articles=False, views=False, truth=False, progress=False
    )
    extend_benchmark(tmp_path / "b", good.paths("dumps")[0], progress=False)
    assert [s.name for s in Series.load(tmp_path / "b").steps] == ["20240201_20240220", "20240220_20240301"]
