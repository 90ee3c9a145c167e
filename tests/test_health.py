"""After which batch a model breaks, and how its matrices grow: recorded by runs that ask for it."""

import math

import pytest
from conftest import first_edits

from wbe.runs.plan import RunPlan
from wbe.runs.records import compare_runs

pytest.importorskip("torch")
from wbe.lm.models import load
from wbe.runs.loop import run_lifelong


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    "A function that makes a plan; fine-tuning at this rate destroys the model."
    folder = first_edits(tmp_path_factory.mktemp("bench"), 3)
    usual = dict(benchmark=folder, editor="ft", sample=3, axes=("update",), ask_lasting=20)
    return lambda **more: RunPlan(**usual | dict(hparams=dict(steps=3, lr=0.5), broken=5.0, norms=True) | more)


class Stop(BaseException):
    pass


def test_the_batch_is_named_and_the_norms_are_those_of_the_model(tmp_path, plan):
    told, lm = [], load("wbe-tiny", device="cpu")
    fresh = load("wbe-tiny", device="cpu")
    callbacks = [lambda event, data: told.append(data["edits_done"]) if event == "broken" else None]
    run = run_lifelong(plan(), tmp_path / "run", lm, progress=False, callbacks=callbacks)
    ratios = run.batches.perplexity_ratio.tolist()
    by_hand = 1 + next(i for i, r in enumerate(ratios) if not r < 5)
    assert told == [by_hand]  # once, batches are of one edit
    assert compare_runs([run]).loc["run", ("edits", "broken after")] == by_hand
    assert f"broken after {by_hand} edits" in run.health_lines[0]
    assert run.norms.scored_at.tolist() == [1, 2]
    last = run.norms.iloc[-1]
    norm = lambda model: math.sqrt((model.weight(last.matrix, last.layer).detach().double() ** 2).sum())
    assert norm(lm) == pytest.approx(last.norm, rel=1e-4)
    assert norm(fresh) == pytest.approx(last.before, rel=1e-4)
    assert last.norm > 1.5 * last.before


def test_a_resumed_run_compares_with_the_unedited_model(tmp_path, plan):
    whole = run_lifelong(plan(), tmp_path / "whole", progress=False, checkpoint_seconds=0.0)
    seen = []

    def stop(event, data):
        seen.append(event)
        if seen.count("kept") == 2:
            raise Stop

    with pytest.raises(Stop):
        run_lifelong(plan(), tmp_path / "run", progress=False, callbacks=[stop], checkpoint_seconds=0.0)
    again = run_lifelong(plan(), tmp_path / "run", progress=False, checkpoint_seconds=0.0)
    columns = ["edits_done", "perplexity", "perplexity_ratio"]
    assert again.batches[columns].equals(whole.batches[columns])
    assert again.norms.equals(whole.norms)
    assert again.health_lines == [line.replace("whole", "run") for line in whole.health_lines]


def test_gentle_edits_do_not_break_it_and_nothing_is_recorded_unasked(tmp_path, plan):
    gentle = dict(hparams=dict(steps=1, lr=1e-5))
    run = run_lifelong(plan(**gentle), tmp_path / "gentle", progress=False)
    assert "not broken" in run.health_lines[0]
    assert compare_runs([run]).loc["gentle", ("edits", "broken after")] == math.inf
    plain = run_lifelong(plan(**gentle, broken=None, norms=False), tmp_path / "plain", progress=False)
    assert not {"perplexity", "perplexity_ratio"} & set(plain.batches)
    assert plain.health_lines == [] and not (tmp_path / "plain" / "norms.parquet").exists()
    assert ("edits", "broken after") not in compare_runs([plain])


def test_an_editor_beside_the_weights_has_no_norms(tmp_path, plan):
    run = run_lifelong(plan(editor="prompt", hparams={}), tmp_path / "prompt", progress=False)
    assert run.norms.empty and run.batches.perplexity_ratio.tolist() == pytest.approx([1] * len(run.batches))
