"""Dumps of every form, complete, damaged and with invalid lines, read by several processes, and killed midway.

The tables are always the same, and no valid entity is lost.
"""

import bz2
import gzip
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from notebook_runner import definitions
from plain_reader import plain_snapshot

from wbe.records import Label, Statement, read_table
from wbe.wikidata import text
from wbe.wikidata.build import build_facts
from wbe.wikidata.claims import PropertyInfo, Role
from wbe.wikidata.entities import parse_lines
from wbe.wikidata.parse import DAMAGED_EXIT_CODE, ParsedDump, parse_dump
from wbe.store import StoreError
from wbe.world.files import World

REAL = Path(__file__).parent / ".." / ".." / "shared" / "data" / "wikidata_real_49.json.gz"
TABLES = {"statements": Statement, "labels": Label, "properties": PropertyInfo, "roles": Role}
PARSE = (
    "import sys; from wbe.wikidata.parse import parse_dump; "
    "parse_dump(sys.argv[1], sys.argv[2], roles=True, workers=int(sys.argv[3]), size=8_000, every=0.05, progress=False)"
)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    "One snapshot of a small world, late enough to have redirects, as JSON and as XML."
    world = World(5, 700).write(
        tmp_path_factory.mktemp("dumps"),
        dates=["2024-06-20"],
        formats=("json.gz", "xml.bz2"),
        articles=False,
        views=False,
        truth=False,
        progress=False,
    )
    return {"json": world.paths()[0], "xml": world.paths()[1]}


@pytest.fixture(scope="module")
def parsed(dumps, tmp_path_factory):
    return parse_dump(dumps["json"], tmp_path_factory.mktemp("parsed"), roles=True, size=100_000, progress=False)


def files(folder) -> dict:
    "The bytes of every output."
    return {
        p.name: p.read_bytes()
        for p in sorted(Path(folder).iterdir())
        if not p.name.startswith(".") and not p.name.endswith(".manifest.json")
    }


def parse(path, folder, **how) -> ParsedDump:
    return parse_dump(path, folder, **(dict(roles=True, size=100_000, progress=False) | how))


def test_a_plain_reader_gives_the_same_tables(dumps, parsed, tmp_path):
    "Statements, times, qualifiers, labels and roles are those of a reader that uses the standard library's JSON."
    plain = plain_snapshot(dumps["json"], tmp_path)
    statements = read_table(plain / "statements.parquet", Statement).to_pylist()
    mine = parsed.table().to_pylist()
    for rows in (statements, mine):
        for r in rows:
            r["other_qualifiers"] = sorted(r["other_qualifiers"])
    assert mine == statements and len(mine) > 5_000
    assert all(any(r[name] for r in mine) for name in ("start", "end", "point_in_time", "has_other_qualifiers"))
    labels, mine = read_table(plain / "labels.parquet", Label).to_pylist(), parsed.table("labels").to_pylist()
    english = [i for i, row in enumerate(mine) if row["label"] is not None]
    assert [mine[i] for i in english] == [labels[i] for i in english] and len(mine) - 50 < len(english) < len(mine)
    roles = pq.read_table(plain / "roles.parquet").to_pylist()
    with_value = [r for r in parsed.table("roles").to_pylist() if r.pop("snak") == "value"]
    assert (
        Counter(tuple(r.items()) for r in with_value) == Counter(tuple(r.items()) for r in roles) and len(roles) > 1_000
    )


def test_every_form_gives_the_same_bytes(dumps, parsed, tmp_path):
    plain = gzip.decompress(dumps["json"].read_bytes())
    third = len(plain) // 3
    parts = [plain[:third], plain[third : 2 * third], plain[2 * third :]]
    forms = {
        "plain.json": plain,
        "one.json.gz": gzip.compress(plain, 1),
        "many.json.gz": b"".join(map(gzip.compress, parts)),
        "one.json.bz2": bz2.compress(plain),
        "many.json.bz2": b"".join(bz2.compress(p, 1) for p in parts),
        "one.json.zst": zstandard.compress(plain),
        "many.zst": b"".join(map(zstandard.compress, parts)),
        "wrong-name.json.bz2": gzip.compress(plain),
        "dos.json": plain.replace(b"\n", b"\r\n"),
    }
    for name, data in forms.items():
        (tmp_path / name).write_bytes(data)
        other = parse(tmp_path / name, tmp_path / f"out-{name}", workers=1 + len(name) % 2 * ("many" in name))
        for table in TABLES:
            assert other.table(table).equals(parsed.table(table)), name
        if name != "dos.json":  # its batches are a few bytes shorter
            assert files(other.folder) == files(parsed.folder), name


def test_the_standard_inflater_gives_the_same_bytes(dumps, parsed, tmp_path, monkeypatch):
    monkeypatch.setattr(text, "_isal_gzip", text._zlib_gzip)
    assert files(parse(dumps["json"], tmp_path).folder) == files(parsed.folder)


def test_xml_and_json_give_the_same_tables(dumps, parsed, tmp_path):
    for workers in (1, 2):
        other = parse(dumps["xml"], tmp_path / str(workers), workers=workers)
        for name in TABLES:
            assert other.table(name).equals(parsed.table(name)), name
        assert (
            other.counts == parsed.counts | {"redirects": other.counts["redirects"]} and other.counts["redirects"] > 3
        )
    assert files(tmp_path / "1") == files(tmp_path / "2")


def test_one_process_or_two(dumps, parsed, tmp_path):
    assert files(parse(dumps["json"], tmp_path, workers=2).folder) == files(parsed.folder)


def noted(folder: Path) -> int:
    try:
        return json.loads((folder / ".spool.json").read_text())["done"]
    except FileNotFoundError:
        return 0


def test_killed_at_any_moment_it_resumes_and_writes_the_same_bytes(dumps, tmp_path):
    parse(dumps["json"], tmp_path / "calm", size=8_000)
    seen = []
    for workers in ("2", "1"):
        before, folder = (seen or [1])[-1], tmp_path / "killed"
        p = subprocess.Popen([sys.executable, "-c", PARSE, dumps["json"], folder, workers], start_new_session=True)
        while noted(folder) <= before and p.poll() is None:
            time.sleep(0.002)
        time.sleep(random.Random(len(seen)).random() / 20)
        assert p.poll() is None, "it was too fast to be killed"
        os.killpg(p.pid, signal.SIGKILL)
        p.wait()
        seen.append(noted(folder))
        assert not (folder / "parse.manifest.json").exists()
    assert 1 < seen[0] < seen[1], seen  # each process resumes where the previous one stopped
    subprocess.run([sys.executable, "-c", PARSE, dumps["json"], tmp_path / "killed", "1"], check=True)
    assert files(tmp_path / "killed") == files(tmp_path / "calm")


def test_a_full_disk_is_reported_and_the_next_run_resumes(dumps, parsed, tmp_path):
    "A limit on the file size simulates the full disk."

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    code = (
        "import signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); from wbe.wikidata.parse import parse_dump; "
        "parse_dump(sys.argv[1], sys.argv[2], roles=True, size=100_000)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, dumps["json"], tmp_path / "out"], preexec_fn=limit, capture_output=True, text=True
    )
    assert out.returncode == 1 and "the file would grow beyond the limit" in out.stderr.splitlines()[-1]
    assert not list((tmp_path / "out").glob("*.parquet"))
    assert files(parse(dumps["json"], tmp_path / "out").folder) == files(parsed.folder)


@pytest.mark.parametrize("form", ["gz", "bz2", "zst"])
def test_a_damaged_tail_loses_no_valid_entity(form, dumps, parsed, tmp_path):
    pack = {
        "gz": gzip.compress,
        "bz2": lambda data: bz2.compress(data, 1),
        "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    }[form]
    data = gzip.decompress(dumps["json"].read_bytes())
    packed, whole = pack(data), parsed.table()
    ends = [
        i
        for i, r in enumerate(zip(whole["subject"].to_pylist(), [*whole["subject"].to_pylist()[1:], None]), 1)
        if r[0] != r[1]
    ]
    for where in (0.02, 0.5, 0.9):
        at = int(len(packed) * where)
        for name, hurt in (("cut", packed[:at]), ("overwritten", packed[:at] + b"\xff\x00" * 20 + packed[at + 40 :])):
            path = tmp_path / f"{where}-{name}.json.{form}"
            path.write_bytes(hurt)
            got = parse(path, tmp_path / f"out-{path.name}", workers=1)
            assert got.exit_code == DAMAGED_EXIT_CODE and ("middle" if name == "cut" else "broken") in got.damage
            n = len(got.table())
            if name == "cut":  # exactly the text that is there, up to the last byte
                there = b"".join(text.DumpText(path))
                assert data.startswith(there) and len(there) > len(data) * (where - 0.35)
                assert got.table().equals(whole.slice(0, n)) and n in (0, *ends)
                assert got.counts["items"] + got.counts["properties"] == sum(
                    line.startswith(b"{") for line in there.split(b"\n")[:-1]
                )
                assert [r["reason"] for r in got.rejected()] == ["truncated"] * (
                    there != b"" and not there.endswith(b"\n")
                )
            else:
                assert n >= len(whole) * (where - 0.35)
            assert parse(path, tmp_path / f"out-{path.name}").damage == got.damage  # a second call reports it again


def test_a_part_of_a_dump_is_parsed_with_a_warning(dumps, tmp_path, caplog):
    plain, xml = gzip.decompress(dumps["json"].read_bytes()), bz2.decompress(dumps["xml"].read_bytes())
    half = plain[: plain.index(b"\n", len(plain) // 2) + 1]
    for name, data, rejected in (
        ("a.json", half, 0),
        ("a.json.gz", gzip.compress(half), 0),
        ("b.xml", xml[:1_000_000], 1),
    ):
        caplog.clear()
        (tmp_path / name).write_bytes(data)
        got = parse(tmp_path / name, tmp_path / f"out-{name}")
        assert (
            got.exit_code == 0
            and "does not end with its closing" in caplog.text
            and got.counts["rejected"] == rejected
            and len(got.table()) > 500
        )
    (tmp_path / "empty.json").touch()
    assert parse(tmp_path / "empty.json", tmp_path / "out-empty").damage == "the file is empty"


def test_invalid_lines_are_counted_and_kept_and_change_no_table(dumps, parsed, tmp_path):
    lines = gzip.decompress(dumps["json"].read_bytes()).split(b"\n")
    entity = lines[50].rstrip(b",")
    rubbish = {
        b"<html>504 Gateway Time-out</html>": "not JSON",
        entity + entity: "not JSON",
        b"\x00\x01\x02": "not JSON",
        b"\xff\xfe{}": "not JSON",
        entity[: len(entity) // 2]: "truncated",
        entity[:-1]: "truncated",
        b"null,": "not an entity",
        b"[1, 2, 3],": "not an entity",
        b'{"id": 5, "type": "item"}': "not an entity",
        b'"Q5"': "not an entity",
        entity.replace(b'"id":"Q', b'"ID":"Q'): "not an entity",
        b"[" * 5000: "schema",
        entity.replace(b'"rank":"normal"', b'"rank":7', 1): "schema",
        entity.replace(b'"claims":{', b'"claims":{"P1":5,', 1): "schema",
    }
    rng, mixed = random.Random(3), list(lines)
    for line in rubbish:
        mixed.insert(rng.randrange(1, len(mixed) - 2), line)
    want = [(i, rubbish[line]) for i, line in enumerate(mixed, 1) if line in rubbish]
    (tmp_path / "rubbish.json.bz2").write_bytes(bz2.compress(b"\n".join(mixed)))
    for workers in (1, 2):
        got = parse(tmp_path / "rubbish.json.bz2", tmp_path / str(workers), workers=workers)
        rejected = got.rejected()
        assert [(r["line"], r["reason"].split(":")[0]) for r in rejected] == want
        assert all(
            len(r["text"]) <= 2000 and r["text"] == mixed[r["line"] - 1].decode("utf-8", "replace")[:2000]
            for r in rejected
        )
        assert (
            got.counts["rejected"]
            == len(want)
            == sum(n for name, n in got.counts.items() if name.startswith("rejected: "))
            and got.exit_code == 0
        )
        for table in TABLES:
            assert got.table(table).equals(parsed.table(table))


def test_random_damage_to_a_line_never_ends_the_parse(dumps):
    lines = [line for line in gzip.decompress(dumps["json"].read_bytes()).split(b"\n") if line.startswith(b"{")][:300]
    rng = random.Random(11)
    for _ in range(1500):
        line = bytearray(rng.choice(lines))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(line))
            line[at : at + rng.randrange(3)] = rng.choice(
                [b"", b'"', b"{", b"]", b"\\", b"\xff", b"0", b"null", b"\\ud800"]
            )
        got = parse_lines([bytes(line), lines[0]], roles=True)
        assert sum(got.counts[name] for name in ("items", "rejected", "others", "duplicates")) == 2
        assert pa.compute.all(pa.compute.is_valid(got.statements["statement_id"])).as_py() in (True, None)


def test_languages(dumps, parsed, tmp_path):
    lines = [
        json.loads(line.rstrip(b","))
        for line in gzip.decompress(dumps["json"].read_bytes()).split(b"\n")
        if line.startswith(b"{")
    ]
    got = parse(dumps["json"], tmp_path, language="de", fallback=("ar", "en"), roles=False)
    languages = ("de", "ar", "en")
    first = lambda terms: next((terms[code]["value"] for code in languages if code in terms), None)
    for e, row in zip(lines, got.table("labels").to_pylist(), strict=True):
        names = [a["value"] for code in languages if e["aliases"] for a in e["aliases"].get(code, [])]
        assert (row["label"], row["description"]) == (first(e["labels"]), first(e["descriptions"]))
        assert row["aliases"] == [n for n in dict.fromkeys(names) if n != row["label"]]
    assert got.table().equals(parsed.table()) and not (tmp_path / "roles.parquet").exists()


def test_other_readers_read_the_files(parsed):
    "The Parquet files are joined from pieces; DuckDB reads them independently."
    count = lambda what, name, more="": duckdb.sql(
        f"select {what} from '{parsed.folder / name}.parquet' {more}"
    ).fetchall()
    table = parsed.table()
    assert pq.ParquetFile(parsed.folder / "statements.parquet").metadata.num_row_groups > 3
    assert (
        duckdb.sql(f"select * from '{parsed.folder}/statements.parquet'").to_arrow_table().to_pylist()
        == table.to_pylist()
    )
    assert Counter(dict(count("rank, count(*)", "statements", "group by 1"))) == Counter(table["rank"].to_pylist())
    assert count("count(*), sum(sitelinks)", "labels") == [
        (len(parsed.table("labels")), sum(parsed.table("labels")["sitelinks"].to_pylist()))
    ]


def test_real_entities(tmp_path):
    if not REAL.exists():
        pytest.skip("the real entities are not here")
    got = parse(REAL, tmp_path, size=1_000_000)
    frame = got.table().to_pandas()
    assert got.counts["items"] == 49 and len(frame) == 4282 and got.counts["rejected"] == 0
    assert frame["rank"].value_counts().to_dict() == {"normal": 4196, "preferred": 74, "deprecated": 12}
    assert frame.snak.value_counts().to_dict() == {"value": 4277, "novalue": 4, "somevalue": 1}
    assert frame.value_type.value_counts().to_dict() == {
        "item": 1967,
        "external-id": 816,
        "quantity": 674,
        "text": 346,
        "string": 218,
        "media": 163,
        "coordinate": 46,
        "time": 26,
        "url": 25,
        "formula": 1,
    }
    plain = plain_snapshot(REAL, tmp_path / "plain")
    sort = lambda rows: [r | {"other_qualifiers": sorted(r["other_qualifiers"])} for r in rows]
    assert sort(got.table().to_pylist()) == sort(read_table(plain / "statements.parquet", Statement).to_pylist())


# ---- a release in Parquet tables


def test_facts_of_a_release_in_parquet_are_those_of_the_json(tmp_path):
    "What changed, what stayed and why the rest was dropped: through the tables as through the dumps."
    root = Path(__file__).parents[1]
    write_release = definitions(root / "nbs" / "04_wikidata" / "03_text.ipynb", "write_release").write_release
    options = dict(formats=("json.gz",), articles=False, views=False, truth=False, progress=False)
    dumps = World(7, 500).write(tmp_path / "world", dates=["2024-05-01", "2024-06-01"], **options).paths()
    for dump in dumps:
        lines = (line.rstrip(b",\n") for line in gzip.open(dump))
        write_release([json.loads(x) for x in lines if x.startswith(b"{")], tmp_path / dump.name[9:17])
    folders, said = [tmp_path / dump.name[9:17] for dump in dumps], []
    want = build_facts(*dumps, tmp_path / "json", progress=False)
    got = build_facts(*folders, tmp_path / "tables", progress=False, on_step=said.append)
    for static in (False, True):
        rows = [
            frame.sort_values("statement_id", ignore_index=True) for frame in (want.facts(static), got.facts(static))
        ]
        assert len(rows[0]) > 10 and rows[0].equals(rows[1])
    for step in ("compare", "classify", "filter", "filter static", "audit"):
        assert got.counts[step] == want.counts[step], step
    assert "20240501: no scholarly works in this release" in said and said.count("parse 20240501") == 1
    again = parse_dump(folders[0], tmp_path / "small", roles=True, size=50_000, workers=2, progress=False)
    whole = parse_dump(folders[0], tmp_path / "whole", roles=True, progress=False)
    assert all(again.table(name).equals(whole.table(name)) for name in TABLES)
    with pytest.raises(StoreError, match="no table of labels in fr is here; fetch wikidata-labels"):
        parse_dump(folders[0], tmp_path / "french", language="fr")
