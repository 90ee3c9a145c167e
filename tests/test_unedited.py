"""Analyses of unedited models use the data that exists: complete runs, stopped runs, a broken benchmark.

They report what is missing and show the rest.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from wbe.analysis.specificity import (
    correlations,
    draw_specificity,
    edit_rows,
    measure_popularity,
    summarise_correlations,
)
from wbe.analysis.statistics import (
    answers_with_dates,
    draw_temporal,
    fact_dates,
    format_timesteps,
    _missing_dates,
    summarise_dates,
    summarise_timestep_statistics,
    timestep_statistics,
    unedited_answers,
)
from wbe.benchmark.reader import Benchmark
from wbe.runs.loop import run_lifelong
from wbe.records import BadArgument
from wbe.runs.plan import RunPlan
from wbe.runs.records import Run

SAMPLE = Path(__file__).parents[1] / "data_samples" / "benchmark"


@pytest.fixture(scope="module")
def bench():
    return Benchmark.load(SAMPLE)


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    "A run with two edits of a timestep and the editor 'none'."
    folder = tmp_path_factory.mktemp("runs") / "none"
    run_lifelong(
        RunPlan(
            benchmark=str(SAMPLE),
            editor="none",
            timesteps=(1, 1),
            max_edits=2,
            axes=("update", "locality"),
            ask_lasting=2,
        ),
        folder,
        progress=False,
    )
    return Run.load(folder)


def synthetic(bench, axes=("update", "locality")):
    "Answers that are right for one edit in four."
    rows = bench.probes(list(axes))
    return rows.assign(exact_match=np.arange(len(rows)) % 4 == 0, token_accuracy=0.5, finite=True, scored_at=0)


def test_a_run_gives_its_unedited_model(bench, real):
    known = unedited_answers(real, bench)
    assert known.models == ["wbe-tiny"]
    before = real.scores[real.scores.moment == "before"]
    assert len(known.frame) == len(before) > 0
    assert any("update questions are answered" in m for m in known.missing)
    table = timestep_statistics(bench, known)
    assert table["wbe-tiny"].notna().any() and "–" in format_timesteps(table).to_numpy()
    assert "wbe-tiny leaves" in summarise_timestep_statistics(table)


def test_an_empty_run_and_an_odd_one(bench):
    class Nothing:
        scores, config, name, missing = pd.DataFrame(), {"plan": {"model": "m"}}, "rome", ["nothing was scored yet"]

    known = unedited_answers({"a": Nothing, "b": synthetic(bench)}, bench)
    assert known.models == ["b"]
    assert "a: nothing was scored yet" in known.missing
    table = timestep_statistics(bench, unedited_answers(Nothing, bench))
    assert list(table.columns) == ["old", "new", "days", "edits", "questions"]
    with pytest.raises(BadArgument, match="not str"):
        unedited_answers("runs/rome", bench)


def test_answers_without_finite_scores_are_excluded_and_counted(bench):
    rows = synthetic(bench)
    rows.loc[:9, ["token_accuracy", "finite"]] = [np.nan, False]
    known = unedited_answers(rows, bench)
    assert any("10 answers have no finite probability" in m for m in known.missing)
    assert timestep_statistics(bench, known, "token_accuracy").loc["all", "model"] == pytest.approx(0.5)


def test_a_benchmark_without_dates(bench):
    facts, known = fact_dates(bench, dates={}), unedited_answers(synthetic(bench), bench)
    rows = answers_with_dates(known, facts)
    assert "no edit states" in _missing_dates(facts)[0]
    with pytest.raises(BadArgument, match="no edit states when its fact began"):
        draw_temporal(facts, rows)  # in place of an empty figure
    draw_temporal(fact_dates(bench), rows[:0])  # dates, and no answers


def test_nothing_to_count_with(bench):
    known = unedited_answers(synthetic(bench), bench)
    asked = edit_rows(known)
    m = measure_popularity(asked)
    assert m.measures == [] and len(m.missing) == 2
    assert correlations(m).empty and summarise_correlations(correlations(m)) == []
    with pytest.raises(BadArgument, match="nothing to draw: no corpus was given"):
        draw_specificity(m)

    class Half:
        def counts(self, strings):
            return {s: len(s) for s in strings if s[0] < "M"}

    m = measure_popularity(asked, Half())
    assert m.measures == ["subject_count", "object_count"]
    assert correlations(m, repeats=20)["n"].between(1, len(asked) - 1).all()
    draw_specificity(m)


def test_a_year_alone_is_not_called_earlier(bench):
    ids = bench.to_pandas().index[:3]
    facts = fact_dates(
        bench, dates=dict(zip(ids, ("+2024-00-00T00:00:00Z/9", "+2024-02-10T00:00:00Z/11", "+2024-01-10T00:00:00Z/11")))
    )
    text = summarise_dates(facts)
    assert "33% about something earlier" in text and "for 33% the date is too coarse" in text


def test_the_cut_off_is_drawn_only_between_two_groups(bench):
    facts = fact_dates(bench)
    rows = answers_with_dates(unedited_answers(synthetic(bench), bench), facts)
    lines = lambda fig: [
        line for line in fig.axes[1].get_lines() if len(set(line.get_xdata())) == 1 and line.get_linestyle() == "--"
    ]
    assert len(lines(draw_temporal(facts, rows, cutoff="2024-02-01"))) == 1
    assert not lines(draw_temporal(facts, rows)) and not lines(draw_temporal(facts, rows, cutoff="1700-01-01"))
