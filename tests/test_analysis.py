"""The analyses find the effects that were built into synthetic runs, and handle runs that are incomplete."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from toy_runs import made_up, made_up_runs

from wbe.analysis import cost, decay, flattery, timesteps
from wbe.analysis.gather import find_gaps, run_labels
from wbe.records import BadArgument

SMALL = dict(timesteps=4, edits=40, sample=30, every=20, first=160)


@pytest.fixture(scope="module")
def runs():
    return made_up_runs(("none", "rome", "lora-merge", "rag"), **SMALL)


def test_means_order_what_takes(runs):
    mean = timesteps.mean_accuracy(runs).set_index(["editor", "axis"])
    value = mean.value.xs("update", level="axis")
    assert value["rag"] > value["lora-merge"] > value["none"] and value["rome"] > value["lora-merge"]
    assert np.allclose(value["none"], mean.before["none", "update"], atol=0.1)
    assert mean.low["rag", "locality"] <= mean.before["rag", "locality"] <= mean.high["rag", "locality"]
    assert "update: best rag" in timesteps.summarise_means(mean.reset_index())


def test_rome_forgets_and_rag_does_not(runs):
    moved = timesteps.accuracy_changes(runs, axes=["update"])
    last = moved[moved.scored_at == 4].set_index("editor")
    assert last.high["rome"] < -0.3 and last.low["rag"] > -0.25
    kept = timesteps.forgetting_table(runs, axes=["update"])
    assert kept.forgetting["rome", "update"] > 0.5 > kept.forgetting["rag", "update"]
    assert timesteps.state_matrices(runs)["rome"].shape == (4, 5)  # the unedited model has a column too


def test_decay_sees_when_an_edit_is_gone(runs):
    s = decay.decay_summary(decay.decay_curve(runs)).xs("update", level="axis")
    assert s.half_gone["rome"] < 160 and np.isnan(s.half_gone["rag"]) and np.isnan(s.all_gone["rag"])
    assert "Clearly above it: rag" in decay.summarise_decay(decay.decay_curve(runs))


def test_cost(runs):
    c = cost.edit_cost(runs)
    assert "none" not in c.index and 0.4 < c.per_edit["rome"] < 0.7 and c.refused.sum() == 0
    t = cost.answer_time(runs).set_index(["editor", "scored_at"]).ratio
    assert 1.35 < t["rag", 4] < 1.55 and 0.95 < t["rome", 4] < 1.05  # time for retrieval counts too
    choice = cost.trade_off(runs)
    assert choice.front_edit["rag"] and not choice.front_edit["rome"]


def test_flattery_is_the_mean_of_the_differences(runs):
    both = flattery.teacher_forcing_gap(runs, ["update"]).set_index("editor")
    s = runs[1].scores
    s = s[(s.moment == "current") & (s.axis == "update")]
    assert np.isclose(both.difference["rome"], (s.token_accuracy - s.exact_match).mean())
    assert (both.difference_high - both.difference_low < both.exact_match_high - both.exact_match_low + 0.05).all()


def test_figures_have_no_overlapping_names(runs):
    for fig in (
        timesteps.draw_course(timesteps.accuracy_course(runs)),
        decay.draw_decay(decay.decay_curve(runs)),
        timesteps.draw_changes(timesteps.accuracy_changes(runs)),
    ):
        fig.draw_without_rendering()
        for ax in fig.axes:
            boxes = [t.get_window_extent() for t in ax.texts if t.get_text()]
            assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


def test_a_collapsed_model(runs):
    broken = made_up("rome", **SMALL)
    after = broken.scores.moment != "before"
    broken.scores.loc[after, ["exact_match", "token_accuracy", "log_probability", "perplexity", "finite"]] = [
        False,
        0.0,
        np.nan,
        np.nan,
        False,
    ]
    mean = timesteps.mean_accuracy([broken])
    assert (mean.value == 0).all() and (mean.high > 0).all()  # none of n: the interval does not shrink to a point
    (
        timesteps.draw_means(mean),
        timesteps.draw_matrices(timesteps.state_matrices([broken])),
        flattery.draw_teacher_forcing_gap(flattery.teacher_forcing_gap([broken])),
    )


def test_unfinished(runs):
    s = runs[1].scores
    half = SimpleNamespace(
        **{
            **vars(runs[1]),
            "name": "half",
            "editor": "half",
            "missing": ["timesteps 2 to 4 are not edited and asked yet"],
            "scores": s[(s.scored_at <= 1) & (s.moment != "curve")],
        }
    )
    both = [runs[3], half]
    assert run_labels(both) == ["rag", "half"] and len(find_gaps(both, ["curve", "past"])) == 3
    assert set(timesteps.mean_accuracy(both).editor) == {"rag", "half"}
    assert set(timesteps.accuracy_changes(both).editor) == {"rag"} == set(decay.decay_curve(both).editor)
    timesteps.draw_course(timesteps.accuracy_course(both)), timesteps.draw_matrices(timesteps.state_matrices(both))
    with pytest.raises(BadArgument, match="half: earlier edits were not asked again"):
        timesteps.accuracy_changes([half])
    only = SimpleNamespace(
        **{**vars(half), "scores": s[s.scored_at == 0], "batches": pd.DataFrame(), "ability": pd.DataFrame()}
    )
    for analysis in (
        timesteps.mean_accuracy,
        timesteps.accuracy_changes,
        timesteps.ability_table,
        decay.decay_curve,
        flattery.teacher_forcing_gap,
        cost.edit_cost,
    ):
        with pytest.raises(BadArgument):
            analysis([only])
