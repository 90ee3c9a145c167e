"""The study over several models: means over models against scipy, trainings of other sizes, presets by depth."""

import json
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from wbe.analysis.models import average_models, by_model, first_timesteps, ranking_agreement, runs_by_model
from wbe.analysis.models import shared_timesteps, spread_of_models, unsolved_by_model
from wbe.analysis.timesteps import accuracy_changes, mean_accuracy
from wbe.editors.protocol import editor
from wbe.lm.toys import toy_lm
from wbe.records import BadArgument
from wbe.tiny.training import TINY_SIZES, _Training, tiny_model, tiny_tokenizer

RNG = np.random.default_rng(5)
EDITORS = ("rome", "memit", "ft", "lora", "rag")
TABLE = pd.DataFrame(
    [(m, e, "update", RNG.random()) for m in "abcde" for e in EDITORS], columns=["model", "editor", "axis", "value"]
)


def test_the_mean_over_models_is_that_of_scipy():
    for row in average_models(TABLE).itertuples():
        v = TABLE[TABLE.editor == row.editor].value
        low, high = stats.t.interval(0.95, len(v) - 1, v.mean(), stats.sem(v))
        assert np.allclose([row.value, row.low, row.high, row.least, row.most], [v.mean(), low, high, v.min(), v.max()])
        assert row.models == 5


def test_a_model_without_an_editor_is_not_counted():
    fewer = TABLE[(TABLE.model != "a") | (TABLE.editor != "ft")]
    assert average_models(fewer).set_index("editor").models.to_dict() == dict.fromkeys(EDITORS, 5) | {"ft": 4}
    assert ranking_agreement(fewer).shape == (5, 5)  # over the four editors that all have


def test_agreement_counts_pairs():
    taus, wide = ranking_agreement(TABLE), TABLE.pivot(index="editor", columns="model", values="value")
    for a, b in combinations("abcde", 2):
        signs = [np.sign((wide[a][i] - wide[a][j]) * (wide[b][i] - wide[b][j])) for i, j in combinations(EDITORS, 2)]
        assert np.isclose(taus.loc[a, b], np.mean(signs))


def test_seeds_and_sizes_of_made_up_models():
    "Sizes differ by 0.3, seeds within a size by noise of 0.02; the table finds both."
    noise = {f"{size}-{s}": 0.02 * RNG.standard_normal() for size in "ab" for s in range(200)}
    values = [(model, 0.2 + 0.3 * (model[0] == "b") + n) for model, n in noise.items()]
    table = pd.DataFrame(values, columns=["model", "value"]).assign(editor="ft", axis="update", low=0.1, high=0.3)
    row = spread_of_models(table, {m: 1 + (m[0] == "b") for m, _ in values}).iloc[0]
    assert abs(row.seeds - 0.02) < 0.003 and abs(row.sizes - 0.3 / 2**0.5) < 0.01
    assert np.isclose(row.questions, 0.2 / 2 / stats.norm.ppf(0.975), rtol=1e-3)
    few = table[table.model.isin(["a-0", "a-1", "b-0"])]
    seeds = spread_of_models(few, {"a-0": 1, "a-1": 1, "b-0": 2}).seeds[0]
    assert np.isclose(seeds, abs(noise["a-0"] - noise["a-1"]) / 2**0.5)


def a_run(model, editor, parameters=5, timesteps=3):
    "A run with random answers."
    rows = []
    for t in range(1, timesteps + 1):
        for i in range(8):
            moments = [("before", 0), ("current", t), *(("past", later) for later in range(t + 1, timesteps + 1))]
            rows += [(f"{t}/{i}", t, m, at, t if at else None, bool(RNG.random() < 0.5)) for m, at in moments]
    columns = ["edit_id", "asked_of", "moment", "scored_at", "edited_at", "exact_match"]
    more = dict(axis="update", token_accuracy=0.5, answer=None, log_probability=-1.0, seconds=0.1)
    scores = pd.DataFrame(rows, columns=columns).assign(**more, subject_id=lambda s: s.edit_id)
    config = dict(plan=dict(model=f"somewhere/{model}"), model=dict(parameters=parameters))
    return SimpleNamespace(name=f"{model} {editor}", editor=editor, config=config, missing=[], scores=scores)


def test_each_model_has_the_table_of_its_own_runs():
    runs = [a_run(m, e, p) for m, p in (("x", 3), ("y", 9)) for e in ("none", "rome", "ft")]
    assert list(runs_by_model(runs)) == ["y", "x"]
    for make in (mean_accuracy, accuracy_changes):
        table = by_model(runs, make, axes=("update",))
        alone = make(runs[3:], axes=("update",))
        pd.testing.assert_frame_equal(table[table.model == "y"].drop(columns="model").reset_index(drop=True), alone)
    unsolved = unsolved_by_model(runs).set_index(["model", "timestep"]).unsolved
    before = runs[0].scores.query("moment == 'before' and asked_of == 2").exact_match
    assert np.isclose(unsolved["x", "2"], 1 - before.mean())


def test_a_short_run_is_not_compared_with_a_long_one():
    long, short = a_run("x", "rome", timesteps=4), a_run("y", "rome", timesteps=2)
    cut, same = shared_timesteps([long, short])
    assert len(cut.scores) == len(same.scores) == len(short.scores)
    assert set(cut.scores.scored_at) == {0, 1, 2} and set(cut.scores.asked_of) == {1, 2}
    with pytest.raises(BadArgument, match="not all runs have a timestep"):
        shared_timesteps([long, first_timesteps(short, 0)])


@pytest.mark.parametrize("size", TINY_SIZES)
def test_a_training_has_its_size(tmp_path, size):
    training = _Training(tmp_path, 1, 6, 4, "cpu", quick=False, size=size)
    assert training.params.get("size", "full") == size and ("size" in training.params) == (size != "full")
    (tmp_path / "training.json").write_text(json.dumps(training.params | {"log": []}))
    done = {s: _Training(tmp_path, 1, 6, 4, "cpu", quick=False, size=s).is_done() for s in TINY_SIZES}
    assert done == {s: s == size for s in TINY_SIZES}


def test_the_sizes_of_the_models():
    class Corpus:
        def texts(self, n, what):
            return ["Q: Who is the head of government of Karsk? A: Nadia Bellweather\n"] * 20

    tokenizer = tiny_tokenizer(Corpus(), 300)
    parameters = [tiny_model(tokenizer, 0, *size).num_parameters() for size in TINY_SIZES.values()]
    assert parameters == sorted(parameters) and parameters[0] < parameters[-1] / 3
    assert list(TINY_SIZES.values())[-1] == (6, 256, 4)  # the shipped model's


def test_presets_of_the_tiny_model_fit_other_depths():
    lm = replace(toy_lm("gpt2"), name="study-models/wbe-tiny-small-0")
    assert lm.layers == 4
    found = {name: editor(name).hparams_for(lm) for name in ("memit", "wise", "rome", "ft")}
    assert found["memit"].layers == (1, 2) and found["wise"].layer == 3 and found["rome"].layer == 1
    assert found["wise"].source == editor("wise").hparams_for(replace(lm, name="wbe-tiny")).source
    assert editor("wise").hparams_for(replace(lm, name="other")).source != found["wise"].source


def test_the_shipped_models_presets_are_unchanged():
    from wbe.editors.memory.wise import _WISE_PRESETS
    from wbe.editors.weights.memit import _TINY_VALUES

    six = SimpleNamespace(layers=6)
    assert (_TINY_VALUES["layers"](six), _WISE_PRESETS["wbe-tiny"][0]["layer"](six)) == ((1, 2, 3), 5)
