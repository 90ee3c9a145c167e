"""Benchmarks of every form, complete and damaged: valid rows are read, and faults are reported with their line."""

import json
import logging
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wbe.benchmark.published import load_published
from wbe.benchmark.reader import EDIT_FIELDS, Benchmark, Timestep, edit_ids, read_edits
from wbe.benchmark.rows import FormatError, json_rows
from wbe.benchmark.validator import validate_benchmark
from wbe.records import BadArgument, Edit, SchemaError, schema
from wbe.store import StoreError

MQUAKE = Path(__file__).parent / ".." / ".." / "shared" / "data" / "mquake_real_120.json"
NAME = "wiki_big_edit_20240201_20240220.json"


def edit(n: int, **changes) -> dict:
    "A valid row."
    row = dict(
        tag="new",
        subject=f"Town {n}",
        relation="head of government",
        object=f"Mayor {n}",
        subject_id=f"Q{9 * 10**8 + n}",
        relation_id="P6",
        object_id=f"Q{91 * 10**7 + n}",
        update=f"Who is the head of government of Town {n}?",
        rephrase=f"Who governs Town {n}?",
        personas=f"Arr, who be the captain of Town {n}?",
        ans=f"Mayor {n}",
        loc="Who governs Holm?",
        loc_ans="Emil Dahl",
        mhop=None,
        mhop_ans=None,
    )
    return row | changes


@pytest.fixture
def write(tmp_path):
    def to(data, name=NAME) -> Path:
        path = tmp_path / name
        path.write_bytes(
            data
            if isinstance(data, bytes)
            else (data if isinstance(data, str) else json.dumps(data, indent=1)).encode()
        )
        return path

    return to


def found(path, **options) -> list[tuple]:
    return [(f.severity, f.kind, f.line, f.row, f.field) for f in validate_benchmark(path, **options).findings]


# damaged files


def test_truncated_at_every_byte(write):
    "Wherever a file is truncated, every complete row before that is read with its line, and the end is reported."
    rows = [edit(n, subject=f'Tøwn {{{n}}} "[]"') for n in range(3)]
    text = json.dumps(rows, indent=1, ensure_ascii=False).encode()
    ends = [i + 1 for i in range(len(text)) if text[: i + 1].endswith(b"\n }")]
    for size in range(2, len(text) - 1):
        got = list(json_rows(write(text[:size])))
        good = [r for r in got if r.data is not None]
        assert [r.data for r in good] == rows[: sum(e <= size for e in ends)], size
        assert [r.line for r in good] == [2 + 17 * n for n in range(len(good))]
        assert any(r.kind for r in got), size


def test_a_truncated_file_is_refused_and_reported(write):
    path = write(json.dumps([edit(0), edit(1)], indent=1)[:-40])
    with pytest.raises(SchemaError, match=f"{NAME}, line 19, row 1: not JSON"):
        read_edits(path)
    assert [k[1] for k in found(path)] == ["not JSON", "not JSON"]


@pytest.mark.parametrize(
    "data, kind",
    [
        (b"", "empty file"),
        (b"  \n", "empty file"),
        (b"[]", "empty file"),
        (b"\x00\x01\x02", "not a list of rows"),
        (b"null", "not a list of rows"),
        (b"<!DOCTYPE html><html>", "not a list of rows"),
        (b"version https://git-lfs.github.com/spec/v1\n", "not a list of rows"),
        (json.dumps([edit(0)]).encode("utf-16"), "not a list of rows"),
        (b'[1, "a"]', "not an object"),
        (b"[" * 100_000, "not JSON"),
        ('[{"subject": "Łódź"}]'.encode("iso-8859-2"), "not UTF-8"),
        (b'[{"subject": "\\ud83c"}]', "not JSON"),
        (b'{"subject": {"0": "a"}}', "wrong type"),
    ],
)
def test_no_list_of_rows(write, data, kind):
    path = write(data)
    assert ("error", kind) in {f[:2] for f in found(path)}
    with pytest.raises(SchemaError, match=NAME):
        if len(read_edits(path)) == 0:
            raise SchemaError(f"{path}: no rows")


def test_one_bad_row_in_a_list_hides_no_other(write):
    rows = [json.dumps(edit(n)) for n in range(5)]
    for damage in (
        rows[2][:-20],
        rows[2].replace('"new"', '"new'),
        rows[2].replace(":", "", 1),
        rows[2] + "}",
        "7",
        "",
    ):
        path = write("[\n" + ",\n".join([*rows[:2], damage, *rows[3:]]) + "\n]")
        got = {r.data["subject"]: r.line for r in json_rows(path) if r.data}
        assert {n: got.get(f"Town {n}") for n in (0, 1, 3, 4)} == {0: 2, 1: 3, 3: 5, 4: 6}, damage
        report = validate_benchmark(path)
        assert not report.ok and all(f.line in (4, 5) for f in report.errors), report


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.text(max_size=12)), min_size=1, max_size=6),
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_rows_are_those_of_json(tmp_path_factory, rows, indent, ascii_only):
    "Any list of objects, written in any way: the rows are what `json` reads, and each begins on its line."
    path = tmp_path_factory.mktemp("rows") / NAME
    text = json.dumps(rows, indent=indent, ensure_ascii=ascii_only)
    path.write_text(text, encoding="utf-8", newline="")
    got = list(json_rows(path))
    assert [r.data for r in got] == rows
    for r in got:
        assert text.split("\n")[r.line - 1].lstrip("[ ").startswith("{")
    lines = path.with_suffix(".jsonl")
    lines.write_text(
        "".join(json.dumps(r, ensure_ascii=ascii_only) + " \r\n\n" for r in rows), encoding="utf-8", newline=""
    )
    assert [(r.data, r.line) for r in json_rows(lines)] == [(r, 1 + 2 * i) for i, r in enumerate(rows)]


def test_the_slow_and_the_fast_way_find_the_same_rows(write):
    from wbe.benchmark import rows

    rng = random.Random(3)
    text = json.dumps(
        [edit(n, update="".join(rng.choices('{}[]",:\\é\n', k=9))) for n in range(200)], indent=1
    ).encode()
    assert list(rows._row_spans(text)) == list(rows._damaged_row_spans(text, True))


def test_byte_order_mark_and_nan_are_warnings(write):
    path = write(
        b"\xef\xbb\xbf" + json.dumps([edit(0), edit(1, loc=float("nan"), loc_ans=float("nan"))], indent=1).encode()
    )
    assert found(path) == [("warning", "byte order mark", 1, None, None), ("warning", "NaN", 19, 1, None)]
    assert read_edits(path)["loc"].to_pylist() == ["Who governs Holm?", None]
    assert validate_benchmark(path).ok and not validate_benchmark(path, strict=True).ok


# unusual rows


@pytest.mark.parametrize("name", EDIT_FIELDS)
@pytest.mark.parametrize("value", [7, 1.5, True, ["a"], {"a": "b"}])
def test_every_field_is_text(write, name, value):
    path = write([edit(0), edit(1, **{name: value})])
    assert ("error", "wrong type", 19, 1, name) in found(path)
    with pytest.raises(SchemaError, match=f"line 19, row 1: field '{name}' holds"):
        read_edits(path)


@pytest.mark.parametrize("name", EDIT_FIELDS)
def test_a_field_that_one_row_lacks(write, name):
    path = write([edit(0), {k: v for k, v in edit(1).items() if k != name}])
    assert ("error", "missing field", 19, 1, name) in found(path)


@pytest.mark.parametrize("name", [n for n in EDIT_FIELDS if n not in ("subject", "update", "ans")])
def test_a_field_that_no_row_has_is_reported_once(write, name):
    path = write([{k: v for k, v in edit(n).items() if k != name} for n in range(3)])
    assert [f for f in found(path) if f[4] == name and f[1] != "half a probe"] == [
        ("warning", "absent from the file", None, None, name)
    ]
    assert read_edits(path).column_names == list(EDIT_FIELDS)
    assert len(set(Timestep(path).edit_ids)) == 3


def test_findings_are_counted_beyond_what_is_kept(write):
    report = validate_benchmark(write([edit(n, tag="x") for n in range(50)]), limit=10)
    assert (
        len(report.errors) == 10 and report.counts().loc["unknown tag", "times"] == 50 and "50 errors" in repr(report)
    )


def test_markup_in_a_name_is_shown_as_text(write):
    path = write([edit(0, tag="<script>alert(1)</script>")])
    assert (
        "<script>" not in validate_benchmark(path)._repr_html_()
        and "<script>" not in Benchmark.load(path)[0]._repr_html_()
    )


# folders


def test_dates(write, tmp_path):
    for dates in ("20240301_20240401", "20240201_20240301", "20240501_20240601", "20240520_20240701"):
        write([edit(0)], f"wiki_big_edit_{dates}.json")
    write([edit(0)], "wiki_big_edit_final.json")
    assert Benchmark.load(tmp_path).timesteps == [
        "20240201_20240301",
        "20240301_20240401",
        "20240501_20240601",
        "20240520_20240701",
    ]
    assert [(f.kind, f.file) for f in validate_benchmark(tmp_path).findings] == [
        ("gap in time", "wiki_big_edit_20240501_20240601.json"),
        ("dates out of order", "wiki_big_edit_20240520_20240701.json"),
        ("other file", "wiki_big_edit_final.json"),
    ]


def test_the_same_timestep_twice(write, tmp_path):
    write([edit(0)])
    (tmp_path / "copy").mkdir()
    write([edit(0)], f"copy/{NAME}")
    with pytest.raises(BadArgument, match="are the same timestep"):
        Benchmark.load(tmp_path)


def test_truncated_parquet_falls_back_to_json(write, tmp_path, caplog):
    path = write([edit(n) for n in range(4)])
    whole = path.with_suffix(".parquet")
    pq.write_table(read_edits(path), whole)
    assert Benchmark.load(tmp_path)[0].path == whole and validate_benchmark(tmp_path).ok
    data = whole.read_bytes()
    for size in (0, 3, len(data) // 2, len(data) - 1):
        whole.write_bytes(data[:size])
        with caplog.at_level(logging.WARNING):
            bench = Benchmark.load(tmp_path)
        assert bench[0].path == path and len(bench[0]) == 4 and "not a whole Parquet file" in caplog.text
        assert not validate_benchmark(tmp_path).ok
    path.unlink()
    with pytest.raises(StoreError, match="no JSON beside it"):
        Benchmark.load(tmp_path)


def test_parquet_errors_name_row_and_field(tmp_path):
    path = tmp_path / NAME.replace("json", "parquet")
    table = pa.Table.from_pylist(
        [edit(0), edit(1, ans=None)], schema=pa.schema([(n, pa.string()) for n in EDIT_FIELDS])
    )
    pq.write_table(table, path)
    with pytest.raises(SchemaError, match="row 1: field 'ans' is empty"):
        read_edits(path)
    assert ("error", "empty field", None, 1, "ans") in found(path)
    pq.write_table(table.set_column(3, "object", pa.array([1, 2])), path)
    with pytest.raises(SchemaError, match="field 'object' holds int64"):
        read_edits(path)


def test_columns_of_our_own_stay(write):
    got = read_edits(write([edit(0, similarity=0.5, sources=["a"], mixed=1), edit(1, similarity=None, mixed="x")]))
    assert got.column_names == [*schema(Edit).names, *got.column_names[15:]] and set(got.column_names[15:]) == {
        "similarity",
        "sources",
        "mixed",
    }
    assert got["sources"].to_pylist() == [["a"], None] and got["mixed"].to_pylist() == ["1", '"x"']


def test_ids_do_not_depend_on_order_or_wording(write):
    rows = [edit(n) for n in range(20)]
    one = edit_ids(read_edits(write(rows)), "t")
    two = edit_ids(read_edits(write([r | {"rephrase": "?", "update": r["update"] + " "} for r in reversed(rows)])), "t")
    assert one == two[::-1] and len(set(one)) == 20
    assert ("error", "other edit_id", 2, 0, "edit_id") in found(write([edit(0, edit_id="Q1/P1/Q1@t")]))


def test_many_rows(write):
    path = write(json.dumps([edit(n) for n in range(60_000)]))
    report = validate_benchmark(path)
    assert report.ok and report.files == {NAME: 60_000} and not report.findings
    assert Benchmark.load(path).summary().loc["20240201_20240220", "edits"] == 60_000
    text = path.read_bytes()
    path.write_bytes(text[:-1])  # the slow way
    assert [(f.kind, f.message) for f in validate_benchmark(path).errors] == [
        ("not JSON", "the file ends before its list does")
    ]


# published data


@pytest.mark.skipif(not MQUAKE.exists(), reason="the real instances are not here")
def test_real_mquake():
    raw, got = json.loads(MQUAKE.read_text(encoding="utf-8")), load_published(MQUAKE)
    assert got.kind == "mquake" and got.instances == raw and len(raw) == 120
    edits = {tuple(e[n] for n in ("subject_id", "relation_id", "object_id")): e for e in got.edits.to_pylist()}
    assert len(edits) == len(got) and not any(i.startswith("~") for i in got.edit_ids)
    triples = {tuple(t) for case in raw for t in case["orig"]["edit_triples"]}
    assert edits.keys() == triples  # every edit of every instance, once
    for case in raw:
        for triple, rewrite in zip(case["orig"]["edit_triples"], case["requested_rewrite"], strict=True):
            edit = edits[tuple(triple)]
            assert (edit["subject"], edit["object"]) == (rewrite["subject"], rewrite["target_new"]["str"])
    assert all(e["relation"] for e in edits.values())
    # questions over several facts belong to instances, not to single edits
    assert len(got.probes("multi-hop")) == 0 and not got.extra_probes


@pytest.mark.skipif(not MQUAKE.exists(), reason="the real instances are not here")
def test_real_mquake_with_any_field_gone(tmp_path):
    "Remove each field of an instance in turn: either it is not needed, or the error names row and field."
    case = json.loads(MQUAKE.read_text(encoding="utf-8"))[0]
    path, refused = tmp_path / "m.json", set()
    for name in case:
        path.write_text(json.dumps([case, {k: v for k, v in case.items() if k != name}], indent=1), encoding="utf-8")
        try:
            assert len(load_published(path).instances) == 2
        except FormatError as e:
            assert f"row 1: field '{name}' is missing" in str(e)
            refused.add(name)
    assert refused == set(case) - {"answer_alias", "new_answer_alias", "orig"}


@pytest.mark.parametrize(
    "row, field",
    [
        (dict(requested_rewrite={}, paraphrase_prompts=[], neighborhood_prompts=[]), "requested_rewrite.prompt"),
        (dict(subject="a", src="b?", alt="c", answers=[""], rephrase="d?"), r"answers\[0\]"),
        (dict(subject={}, relation={}, objects=[{"decision": "new"}], update_prompt="a ____"), "subject.label"),
        (dict(subject=None, update="b?", ans="c"), "subject"),
    ],
)
def test_odd_rows_name_file_row_and_field(write, row, field):
    with pytest.raises((FormatError, SchemaError), match=rf"odd.json, line 2, row 0: field '{field}' (is|holds)"):
        load_published(write([row], "odd.json"))


def test_our_release_is_valid(tmp_path):
    "Both forms of every released timestep pass the validator."
    from datetime import date

    from test_release import rows

    from wbe.benchmark.release import add_timestep
    from wbe.store import write_table

    write_table(tmp_path / "q" / "questions.parquet", rows(30))
    add_timestep(tmp_path / "q" / "questions.parquet", date(2024, 2, 1), date(2024, 2, 20), tmp_path / "release")
    report = validate_benchmark(tmp_path / "release")
    assert report.ok and sum(report.files.values()) >= 30, report
