"Gradient norms: more model families, low precision, and the fallback to the plain loop."

import logging

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from wbe.analysis import gradients
from wbe.analysis.gradients import gradient_norms
from wbe.lm.families import ModelError
from wbe.lm.tokens import QAItem
from wbe.lm.toys import toy_lm

PAIRS = (
    ("Karsk", "Nadia Bellweather"),
    ("the old University of Orland", "Jon"),
    ("Vellmar", "Zoë Łukasz"),
    ("Karsk", "Jon"),
)
FACTS = [QAItem(f"Who runs {p}?", a) for p, a in PAIRS]


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma"])
def test_batched_norms_do_not_depend_on_the_batch(family):
    lm = toy_lm(family)
    whole = gradient_norms(lm, FACTS)
    lm.state.tokens_at_once = 1  # one fact at a time
    np.testing.assert_allclose(
        gradient_norms(lm, FACTS).drop(columns="id"), whole.drop(columns="id"), rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_bfloat16_agrees_within_its_precision(family):
    lm = toy_lm(family)
    lm.model.to(torch.bfloat16)
    hooks, loop = gradient_norms(lm, FACTS), gradient_norms(lm, FACTS, method="loop")
    np.testing.assert_allclose(hooks.norm, loop.norm, rtol=0.1)


def test_the_loop_is_the_fallback_with_a_warning_where_hooks_fail(monkeypatch, caplog):
    def refuses(lm, batch):
        raise ModelError("a module is passed more than once; take method='loop'")

    lm = toy_lm("llama")
    want = gradient_norms(lm, FACTS, method="loop")
    monkeypatch.setattr(gradients, "batched_norms", refuses)
    with caplog.at_level(logging.WARNING, "wbe"):
        got = gradient_norms(lm, FACTS)
    assert "one by one" in caplog.text
    np.testing.assert_allclose(got.norm, want.norm)


def test_wrong_norms_are_noticed(monkeypatch, caplog):
    right = gradients.batched_norms
    lm = toy_lm("gpt2")
    want = gradient_norms(lm, FACTS, method="loop")
    monkeypatch.setattr(
        gradients,
        "batched_norms",
        lambda lm, batch: [(loss, {k: 4 * v for k, v in s.items()}) for loss, s in right(lm, batch)],
    )
    with caplog.at_level(logging.WARNING, "wbe"):
        got = gradient_norms(lm, FACTS)
    assert "differ by" in caplog.text
    np.testing.assert_allclose(got.norm, want.norm)


def test_the_model_is_left_as_it_was():
    lm = toy_lm("gpt2")
    before, wanted = (
        {k: v.clone() for k, v in lm.model.state_dict().items()},
        [p.requires_grad for p in lm.model.parameters()],
    )
    gradient_norms(lm, FACTS)
    gradient_norms(lm, FACTS, method="loop")
    assert all(torch.equal(v, before[k]) for k, v in lm.model.state_dict().items())
    assert [p.requires_grad for p in lm.model.parameters()] == wanted and all(
        p.grad is None for p in lm.model.parameters()
    )
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in lm.model.modules())
