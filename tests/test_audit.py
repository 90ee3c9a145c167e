"""The audit's verdicts, compared with a plain reading of the dump's JSON, row by row; shapes of files; faults."""

import gzip
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from plain_reader import english, entities, plain_snapshot, value_text

from wbe.records import SchemaError, read_table
from wbe.store import StoreError
from wbe.wikidata.audit import AUDIT_VERDICTS, Audit, Verdict, audit_benchmark, read_rows

NAMES = [name for name, _ in AUDIT_VERDICTS]
REAL = Path(__file__).parents[2] / "shared" / "data" / "wikidata_real_49.json.gz"


@pytest.fixture(scope="session")
def snapshots(small_world, tmp_path_factory):
    "Two neighbouring snapshots: folders with tables, and the entities as JSON."
    folder, dumps = (
        tmp_path_factory.mktemp("snapshots"),
        [p for p in small_world.paths("dumps") if p.name.endswith(".json.gz")],
    )
    return [(plain_snapshot(dumps[t], folder / str(t)), {e["id"]: e for e in entities(dumps[t])}) for t in (4, 5)]


def by_hand(row: dict, world: dict, names: dict) -> str:
    "The verdict on one row from the entity's JSON, rule by rule, in the order of the list of verdicts."
    e, pid, oid = world.get(row["subject_id"]), row["relation_id"], row.get("object_id")
    if e is None:
        return "subject absent"
    claims = [c for group in e["claims"].values() for c in group]
    main = [
        (value_text(c["mainsnak"]) or c["mainsnak"]["snaktype"], c["rank"])
        for c in claims
        if c["mainsnak"]["property"] == pid
    ]
    best = "preferred" if any(rank == "preferred" for _, rank in main) else "normal"
    snaks = lambda groups: {value_text(s) for g in groups for s in g.get(pid, ())} - {None}
    values = [
        {v for v, rank in main if rank == best},
        {v for v, rank in main if rank == "normal" != best},
        {v for v, rank in main if rank == "deprecated"},
        snaks(c.get("qualifiers", {}) for c in claims),
        snaks(r["snaks"] for c in claims for r in c.get("references", ())),
    ]
    stands = lambda ids: [bool(ids & found) for found in values]
    here, called = stands({oid}), row.get("object") or names.get(oid)
    if not any(here):
        here = stands({i for found in values for i in found if called and names.get(i) == called})
        if oid and (here[0] or here[1]):
            return "another object of the same label"
    if here[0]:
        return "supported as the only value" if len(values[0]) == 1 else "supported beside others"
    for found, name in zip(
        here[1:], ("stated but not truthy", "deprecated only", "only as a qualifier", "only as a reference")
    ):
        if found:
            return name
    return "other value" if main else "property absent"


def random_rows(world: dict, names: dict, n: int, rng) -> list[dict]:
    "Facts, values of other roles and nonsense; some lack an id or a label, have an empty id, or a namesake's id."
    claims = [(s, c) for s, e in world.items() for group in e["claims"].values() for c in group]
    namesakes = {}
    for i, name in names.items():
        namesakes.setdefault(name, []).append(i)
    pools = {
        "main": [(s, c["mainsnak"]) for s, c in claims],
        "qualifier": [(s, q) for s, c in claims for qs in c.get("qualifiers", {}).values() for q in qs],
        "reference": [
            (s, q) for s, c in claims for r in c.get("references", ()) for qs in r["snaks"].values() for q in qs
        ],
        "odd": [(s, c["mainsnak"]) for s, c in claims if c["rank"] != "normal"],
        "namesake": [
            (s, c["mainsnak"]) for s, c in claims if len(namesakes.get(names.get(value_text(c["mainsnak"])), ())) > 1
        ],
    }
    items = {
        kind: [
            (s, q["property"], q["datavalue"]["value"]["id"])
            for s, q in pool
            if q["datatype"] == "wikibase-item" and q["snaktype"] == "value"
        ]
        for kind, pool in pools.items()
    }
    everybody, pids, out = list(world), sorted({c["mainsnak"]["property"] for _, c in claims}), []
    for _ in range(n):
        s, p, o = rng.choice(items[rng.choice(list(items))])
        s = rng.choice([s] * 9 + [rng.choice(everybody), "Q4"])
        p = rng.choice([p] * 9 + [rng.choice(pids)])
        o = rng.choice([o] * 6 + [rng.choice(namesakes.get(names.get(o), [o])), rng.choice(everybody), None, ""])
        label = names.get(o) if o else rng.choice(list(namesakes))
        if not o and rng.random() < 0.8:
            label = names.get(rng.choice(items["main"])[2])
        row = dict(
            tag=rng.choice(["new", "update"]),
            subject="S",
            relation="r",
            object=label,
            subject_id=s,
            relation_id=p,
            object_id=o,
        )
        if o and rng.random() < 0.1:
            row["object"] = None
        if row["object"] or row["object_id"]:
            out.append(row)
    return out


def write(path: Path, rows) -> Path:
    path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    return path


def test_every_verdict_agrees_with_a_plain_reading_of_the_entity(snapshots, tmp_path):
    folder, world = snapshots[1]
    names = {i: english(e["labels"]) for i, e in world.items()}
    rows = random_rows(world, names, 20_000, random.Random(7))
    got = audit_benchmark(write(tmp_path / "rows.json", rows), folder, out=tmp_path / "out").verdicts()
    want = [by_hand(r, world, names) for r in rows]
    wrong = [(r, w, g) for r, w, g in zip(rows, want, got.verdict) if w != g]
    assert not wrong, (len(wrong), wrong[:3])
    assert set(want) == set(NAMES) - {"unreadable row"}, Counter(want)
    assert list(got.row) == list(range(len(rows))) and got.was.isna().all()
    given = got[~got.by_label & got.meant_id.notna()]
    named = got[got.by_label]
    assert (given.meant_id == given.object_id).all() and (
        named.meant_id.map(names) == named.object.fillna(named.object_id.map(names))
    ).all()


def test_what_was_there_before(snapshots, tmp_path):
    (old, before), (new, world) = snapshots
    names = {i: english(e["labels"]) for i, e in world.items()}
    rows = [r for r in random_rows(world, names, 5_000, random.Random(8)) if r["object_id"]]
    got = audit_benchmark(write(tmp_path / "rows.json", rows), new, old, tmp_path / "out").verdicts()
    for r, g in zip(rows, got.itertuples()):
        main = [
            (value_text(c["mainsnak"]), c["rank"])
            for c in before.get(r["subject_id"], {"claims": {}})["claims"].get(r["relation_id"], ())
        ]
        best = "preferred" if any(rank == "preferred" for _, rank in main) else "normal"
        now = g.meant_id or r["object_id"]
        was = (
            "the same value"
            if any(v == now and rank != "deprecated" for v, rank in main)
            else "another value"
            if any(v and rank == best for v, rank in main)
            else "no value"
        )
        assert g.was == was, (r, g)
        assert g.tag_right == ((r["tag"], was) in {("new", "no value"), ("update", "another value")})


def test_every_change_of_the_truth_is_supported_and_new(small_world, snapshots, tmp_path):
    changes = small_world.truth("changes").query("timestep == 5 and tag in ('new', 'update') and value_type == 'item'")
    rows = [
        dict(tag=r.tag, subject_id=r.subject_id, relation_id=r.property_id, object_id=r.value)
        for r in changes.itertuples()
    ]
    result = audit_benchmark(write(tmp_path / "rows.json", rows), snapshots[1][0], snapshots[0][0], tmp_path / "out")
    assert result.supported == 1 and result.verdicts().tag_right.all() and len(rows) > 50
    assert (
        result.summary().share.sum() == pytest.approx(1)
        and result.history().loc["new"].sum() == (changes.tag == "new").sum()
    )


@pytest.mark.parametrize("shape", ["list", "lines", "columns", "packed", "parquet"])
def test_shapes_of_files_give_the_same_verdicts(snapshots, tmp_path, shape):
    folder, world = snapshots[1]
    rows = random_rows(world, {i: english(e["labels"]) for i, e in world.items()}, 300, random.Random(9))
    text = json.dumps(rows)
    want = audit_benchmark(write(tmp_path / "want.json", rows), folder, out=tmp_path / "want").verdicts()
    path = (
        tmp_path
        / {"list": "x.json", "lines": "x.jsonl", "columns": "x.json", "packed": "x.json.gz", "parquet": "x.parquet"}[
            shape
        ]
    )
    if shape == "packed":
        path.write_bytes(gzip.compress(text.encode()))
    elif shape == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text(
            {
                "list": json.dumps(rows, indent=2),
                "lines": "\n\n".join(map(json.dumps, rows)),
                "columns": json.dumps({k: {str(i): r[k] for i, r in enumerate(rows)} for k in rows[0]}),
            }[shape]
        )
    assert audit_benchmark(path, folder, out=tmp_path / "got").verdicts().equals(want)


def test_rows_that_cannot_be_read_are_counted(snapshots, tmp_path):
    good = json.dumps(dict(tag="new", subject_id="Q900000128", relation_id="P6", object_id="Q5", object="O"))
    lines = [
        good,
        "{not json}",
        '{"tag": 5}',
        good[:-1],
        "[]",
        '{"subject_id": "Q0", "relation_id": "P6", "object_id": "Q5"}',
        good,
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    got = audit_benchmark(tmp_path / "x.jsonl", snapshots[1][0], out=tmp_path / "out")
    assert list(got.verdicts().verdict == "unreadable row") == [False, True, True, True, True, True, False]
    assert (
        got.summary().rows["unreadable row"] == 5
        and got.summary().rows.sum() == 7
        and got.verdicts("unreadable row").why.notna().all()
    )
    assert "unreadable row" in got._repr_html_() and "7 rows" in repr(got)
    with pytest.raises(SchemaError, match="x.jsonl: row 1: "):
        read_rows(tmp_path / "x.jsonl", strict=True)
    for rows in ([], [1]):
        path = write(tmp_path / "few.json", rows)
        if rows:
            with pytest.raises(SchemaError, match="few.json: no row can be read; row 0"):
                read_rows(path)
        else:
            assert len(audit_benchmark(path, snapshots[1][0], out=tmp_path / "none").verdicts()) == 0


def test_the_file_of_verdicts_describes_itself(snapshots, tmp_path):
    path = write(tmp_path / "x.json", [dict(subject_id="Q900000128", relation_id="P6", object_id="Q5")])
    result = audit_benchmark(path, snapshots[1][0], out=tmp_path / "out")
    assert read_table(result.path, Verdict).num_rows == 1
    assert (
        pq.read_schema(result.path)
        .field("by_label")
        .metadata[b"doc"]
        .startswith(b"whether that entity was found by its label")
    )


def test_run_again_only_when_something_changed(snapshots, tmp_path):
    new, old = (tmp_path / name for name in ("new", "old"))
    for folder, (source, _) in zip((old, new), snapshots):
        shutil.copytree(source, folder)
    path = write(tmp_path / "x.json", [dict(tag="new", subject_id="Q900000128", relation_id="P6", object_id="Q5")])
    stamp = lambda: audit_benchmark(path, new, old, tmp_path / "out").manifest
    first = stamp()
    assert stamp() == first
    shutil.copy(
        snapshots[0][0] / "statements.parquet", new / "statements.parquet"
    )  # one of two inputs of the same name
    second = stamp()
    assert second != first and stamp() == second
    assert audit_benchmark(path, new, None, tmp_path / "out").manifest != second


def test_killed_it_leaves_no_result_and_can_be_run_again(snapshots, tmp_path):
    folder, world = snapshots[1]
    rows = random_rows(world, {i: english(e["labels"]) for i, e in world.items()}, 2_000, random.Random(3))
    path = write(tmp_path / "x.json", rows * 20)
    code = """
import sys
from wbe.wikidata.audit import audit_benchmark
audit_benchmark(*sys.argv[1:3], out=sys.argv[3])
"""
    p = subprocess.Popen([sys.executable, "-c", code, path, folder, tmp_path / "out"])
    while not (tmp_path / "out" / ".audit.lock").exists() and p.poll() is None:
        time.sleep(0.01)
    os.kill(p.pid, signal.SIGKILL)
    p.wait()
    with pytest.raises(StoreError, match="no complete audit here"):
        Audit(tmp_path / "out")
    assert len(audit_benchmark(path, folder, out=tmp_path / "out").verdicts()) == len(rows) * 20


def test_faults_of_snapshots_are_named(snapshots, tmp_path):
    path = write(tmp_path / "x.json", [dict(subject_id="Q1", relation_id="P6", object_id="Q5")])
    with pytest.raises(StoreError, match="statements.parquet: not there; parse the dump first"):
        audit_benchmark(path, tmp_path / "nowhere", out=tmp_path / "out")
    with pytest.raises(StoreError, match="none.json"):
        audit_benchmark(tmp_path / "none.json", snapshots[1][0], out=tmp_path / "out")
    with pytest.raises(ValueError, match="Choose from: duckdb, spark"):
        audit_benchmark(path, snapshots[1][0], out=tmp_path / "out", engine="pandas")
    assert not (tmp_path / "out" / "verdicts.parquet").exists()


@pytest.mark.skipif(not REAL.exists(), reason="the real entities are not here")
def test_real_entities_without_roles(tmp_path):
    """Rows of an extraction that matches `"property"` in the text of real entities.

    Most of them are not main values, and each gets the right verdict.
    """
    world = {e["id"]: e for e in entities(REAL)}
    names = {i: english(e["labels"]) for i, e in world.items()}
    folder, rows = plain_snapshot(REAL, tmp_path / "new"), []
    for s, e in world.items():
        text = json.dumps(e["claims"], separators=(",", ":"))
        for p, o in dict.fromkeys(re.findall(r'"property":"(P\d+)"(?:(?!"property":).)*?"id":"(Q\d+)"', text)):
            rows.append(dict(tag="new", subject_id=s, relation_id=p, object_id=o))
    got = audit_benchmark(write(tmp_path / "rows.json", rows), folder, out=tmp_path / "out")
    assert list(got.verdicts().verdict) == [by_hand(r, world, names) for r in rows]
    count = got.summary().rows
    assert count["only as a qualifier"] > 50 and count["only as a reference"] > 50 and count["subject absent"] == 0
    assert count.sum() == len(rows) and count["property absent"] == count["other value"] == 0
