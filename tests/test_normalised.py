"""Measures of generated answers in runs: stored, computed for runs without them, empty where nothing was recorded."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wbe.records import choose_axes
from wbe.metrics.answers import MEASURES, OPTIONAL_MEASURES, exact_match, normalised_match
from wbe.runs.loop import run_lifelong
from wbe.runs.plan import RunPlan
from wbe.runs.records import Run, compare_measures, compare_runs, load_runs, with_normalised_match

SAMPLES = Path(__file__).parents[1] / "data_samples"
NORMALISED = f"just edited, {MEASURES['normalised_match'].name}"


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    "Ten edits of the recorded benchmark."
    table = pq.read_table(SAMPLES / "benchmark" / "wiki_big_edit_20240201_20240220.parquet").slice(0, 10)
    return table.to_pylist()


@pytest.fixture(scope="module")
def released(rows, tmp_path_factory) -> Path:
    "A release in which the locality answers are aliases, with an article and a full stop, of a name nobody gives."
    folder = tmp_path_factory.mktemp("release")
    for row in rows:
        row |= dict(loc_aliases=[f"The {row['loc_ans']}."], loc_ans="Nobody at All", ans_aliases=None)
    one, other, *_ = [row for row in rows if row["previous"]]
    one |= dict(previous="Somebody Else", previous_aliases=None)
    other |= dict(previous="Formerly So", previous_aliases=[f"The {other['previous']}."])
    pq.write_table(pa.Table.from_pylist(rows), folder / "wiki_big_edit_20240201_20240220.parquet")
    return folder


@pytest.fixture(scope="module")
def run(released, tmp_path_factory) -> Run:
    plan = RunPlan(benchmark=str(released), ask_lasting=5, axes=("update", "rephrase", "locality"))
    return run_lifelong(plan, tmp_path_factory.mktemp("runs") / "none", progress=False)


def test_an_alias_is_a_match_and_what_was_not_generated_is_empty(run):
    s = run.scores[run.scores.moment == "before"].set_index("axis")
    assert run.config["plan"]["generate"] == ["update", "locality"]
    assert s.loc["rephrase", "normalised_match"].isna().all() and s.loc["rephrase", "answer"].isna().all()
    assert not s.loc["locality", "exact_match"].any()
    asked = run.questions[run.questions.axis == "locality"].set_index("edit_id")
    s = s.loc["locality"]
    by_hand = [normalised_match(answer, asked.aliases[i]) for i, answer in zip(s.edit_id, s.answer)]
    assert s.normalised_match.tolist() == by_hand and sum(by_hand) >= 5


def test_a_run_without_the_column_is_read_with_it(run, tmp_path):
    stored = pq.read_table(run.folder / "scores.parquet")
    for name in ("config.json", "questions.parquet"):
        (tmp_path / name).write_bytes((run.folder / name).read_bytes())
    pq.write_table(stored.drop_columns(["normalised_match"]), tmp_path / "scores.parquet")
    assert Run.load(tmp_path).scores.normalised_match.equals(run.scores.normalised_match)
    # nor is a stored value computed again
    other = stored.drop_columns(["normalised_match"]).append_column("normalised_match", pa.array([0.5] * len(stored)))
    pq.write_table(other, tmp_path / "scores.parquet")
    assert set(Run.load(tmp_path).scores.normalised_match) == {0.5}


def test_a_run_that_was_begun_with_other_axes_continues(run, released, tmp_path):
    plan = RunPlan(benchmark=str(released), ask_lasting=5, axes=("locality",), generate=("locality",), max_edits=3)
    first = run_lifelong(plan, tmp_path / "run", progress=False)
    again = run_lifelong(replace(plan, generate=()), tmp_path / "run", progress=False)
    assert again.config["plan"]["generate"] == ["locality"] and again.scores.equals(first.scores)
    assert replace(plan, generate=()).name == plan.name


def test_the_recorded_runs():
    runs = load_runs(SAMPLES / "runs")
    for r in runs:
        s = r.scores
        known = s.normalised_match.notna()
        assert (known == s.answer.notna()).all() and known.all()
        again = with_normalised_match(s.drop(columns="normalised_match"), r.questions)  # as for runs that lack it
        assert (again.normalised_match == s.normalised_match).all()
        assert (s.normalised_match[known] >= s.exact_match[known]).all()
    table = compare_measures(runs)
    assert list(table.index) == [r.name for r in runs] and {a for a, _ in table} == set(choose_axes())
    exact = compare_runs(runs)["update"]["just edited"]
    gain = table["update", NORMALISED] - exact
    assert gain.idxmax() == "ft-l" and gain["ft-l"] > 0.05 and (gain >= 0).all()


def test_outdated_answers_are_those_before_the_edit(run, rows):
    stored, asked = pq.read_table(run.folder / "scores.parquet").to_pandas(), run.scores
    assert stored.outdated_match.astype(float).equals(asked.outdated_match)
    before = {r["subject"]: [r["previous"], *(r["previous_aliases"] or ())] for r in rows if r["previous"]}
    about = run.questions[run.questions.axis == "update"].set_index("edit_id").subject
    updates = asked[(asked.axis == "update") & asked.edit_id.map(about).isin(list(before))]
    by_hand = [normalised_match(answer, before[about[i]]) for i, answer in zip(updates.edit_id, updates.answer)]
    right = updates.normalised_match == 1
    assert updates.outdated_match.tolist() == (np.array(by_hand) & ~right).tolist() and 0 < sum(by_hand) < len(by_hand)
    assert asked.outdated_match.isna().sum() == len(asked) - len(updates)


def test_natural_endings_are_recorded_where_answers_are(run):
    s = run.scores
    assert (s.natural_end.notna() == s.answer.notna()).all() and s.natural_end.mean() > 0.5
    # the tiny model ends its answers; the longest of them was cut off, if any was
    assert s[s.natural_end == 0].answer.str.len().min() >= 10 or (s.natural_end.dropna() == 1).all()


def test_an_old_run_has_outdated_answers_and_no_natural_endings(tmp_path):
    none = Run.load(shutil.copytree(SAMPLES / "runs" / "none", tmp_path / "none"))
    recorded = pd.read_parquet(none.folder / "scores.parquet")
    assert recorded.natural_end.notna().any()
    recorded.drop(columns="natural_end").to_parquet(none.folder / "scores.parquet")  # as before it was recorded
    assert none.scores.natural_end.isna().all() and set(OPTIONAL_MEASURES) <= set(none.scores)
    s = none.scores.merge(none.questions[["edit_id", "axis", "previous"]], on=["edit_id", "axis"])
    s = s[(s.axis == "update") & s.previous.notna() & s.answer.notna()]
    # with SQuAD's rules, and without a look at the new answer
    by_text = [exact_match(a, p) for a, p in zip(s.answer, s.previous)]
    assert abs(np.mean(by_text) - s.outdated_match.mean()) < 0.01 and 0.3 < np.mean(by_text) < 0.9
    table = compare_measures([none, Run.load(SAMPLES / "runs" / "rome")])["update"]
    assert table["just edited, outdated answer"]["none"] > 0.3 > table["just edited, outdated answer"]["rome"]
    assert math.isnan(table["just edited, natural ending"]["none"]) and table["just edited, natural ending"]["rome"] > 0


def test_a_run_without_texts_says_so(tmp_path, capsys):
    from wbe.cli.runs import print_comparison

    folder = tmp_path / "old"
    folder.mkdir()
    source = SAMPLES / "runs" / "rome"
    for name in ("config.json", "questions.parquet", "batches.parquet"):
        (folder / name).write_bytes((source / name).read_bytes())
    scores = pd.read_parquet(source / "scores.parquet").assign(answer=None)
    scores = scores.drop(columns=["normalised_match", "natural_end"])
    scores.to_parquet(folder / "scores.parquet")
    old = Run.load(folder)
    assert old.scores.normalised_match.isna().all()
    assert np.isnan(compare_measures([old])["update", NORMALISED]["old"])
    print_comparison([old])
    shown = capsys.readouterr().out
    assert "not recorded" in shown and json.loads((folder / "config.json").read_text())["plan"]["editor"] == "rome"
