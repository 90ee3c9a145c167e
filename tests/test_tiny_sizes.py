"""Tiny models of other sizes: their trainings, their parameters, and the presets of editors by depth."""

import json
from dataclasses import replace

import pytest

from wbe.editors.protocol import editor
from wbe.lm.models import load
from wbe.lm.toys import toy_lm
from wbe.records import BadArgument
from wbe.tiny.training import TINY_SIZES, _Training, tiny_model, tiny_tokenizer


@pytest.mark.parametrize("size", TINY_SIZES)
def test_a_training_has_its_size(tmp_path, size):
    training = _Training(tmp_path, 1, 6, 4, "cpu", quick=False, size=size)
    assert training.params.get("size", "full") == size and ("size" in training.params) == (size != "full")
    (tmp_path / "training.json").write_text(json.dumps(training.params | {"log": []}))
    assert training.is_done()
    for other in TINY_SIZES.keys() - {size}:
        with pytest.raises(BadArgument, match="size differ"):
            _Training(tmp_path, 1, 6, 4, "cpu", quick=False, size=other).is_done()


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
    lm = load("wbe-tiny", device="cpu")
    assert editor("memit").hparams_for(lm).layers == (1, 2, 3) and editor("wise").hparams_for(lm).layer == 5
