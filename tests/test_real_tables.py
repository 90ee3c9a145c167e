"""Real rows in the forms in which others ship them. They are no part of the project: tests run where they are."""

import json
from collections import Counter
from pathlib import Path

import pytest
from test_tables import flat_questions, qaedit_questions

from wbe.benchmark.own import open_benchmark
from wbe.benchmark.validator import validate_source

DATA = Path(__file__).parents[2] / "shared" / "data"


def zsre(r):
    yield "update", r["src"], r["alt"]
    yield "rephrase", r["rephrase"], r["alt"]
    question = r["loc"].removeprefix("nq question: ").strip()
    yield "locality", question if question.endswith("?") else question + "?", r["loc_ans"]


FILES = {
    "wikibigedit_real_1500": (flat_questions, dict(subject="subject")),
    "counterfact_real_100": (flat_questions, dict(subject="subject", ground_truth="previous")),
    "zsre_real_100": (zsre, dict(subject="subject")),
    "qaedit_real_100": (qaedit_questions, dict(subject="subject", source="source")),
}


def real(name: str) -> tuple[Path, list[dict]]:
    path = DATA / f"{name}.json"
    if not path.exists():
        pytest.skip("no real rows at hand")
    return path, json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", FILES)
def test_every_field_is_that_of_the_file(name):
    path, rows = real(name)
    expected, fields = FILES[name]
    bench = open_benchmark(path)
    probes = bench.probes()
    assert Counter(zip(probes.axis, probes.question, probes.expected)) == Counter(q for r in rows for q in expected(r))
    edits = bench[0].edits
    for theirs, ours in fields.items():
        assert edits[ours].to_pylist() == [r[theirs] for r in rows]
    assert bench.timesteps == [name] and not bench.source.set_aside
    assert len(set(bench[0].edit_ids)) == len(rows)
    by_edit = dict(zip(bench[0].edit_ids, rows))  # no question belongs to another edit
    for edit, part in probes.groupby("edit_id"):
        assert Counter(zip(part.axis, part.question, part.expected)) == Counter(expected(by_edit[edit]))


def test_every_rewrite_of_mquake_is_an_edit():
    path, rows = real("mquake_real_120")
    bench = open_benchmark(path)
    rewrites = {
        (w["question"], w["target_new"]["str"], w["prompt"].replace("{}", w["subject"]), w["subject"])
        for r in rows
        for w in r["requested_rewrite"]
    }
    edits = zip(*(bench[0].edits[c].to_pylist() for c in ("update", "ans", "rephrase", "subject")))
    assert set(edits) == rewrites


@pytest.mark.parametrize("name", [*FILES, "mquake_real_120"])
def test_the_check_finds_no_error(name):
    path, rows = real(name)
    report = validate_source(path)
    assert report.ok and report.description
    if name != "mquake_real_120":
        assert report.files == {path.name: len(rows)}


def test_the_same_rows_as_a_data_frame_and_a_csv(tmp_path):
    import pandas as pd

    path, rows = real("wikibigedit_real_1500")
    frame = pd.DataFrame(rows)
    frame.to_csv(tmp_path / f"{path.stem}.csv", index=False)
    digests = {open_benchmark(x, name=path.stem)[0].digest for x in (path, frame, tmp_path / f"{path.stem}.csv")}
    assert len(digests) == 1
