"""A model spread over two devices is edited and asked as on one; the devices are virtual, see virtual_devices.py."""

import pytest
import torch
from virtual_devices import GPUS, VirtualDevices, split

from wbe.editors.protocol import editor
from wbe.editors.requests import EditRequest
from wbe.lm.scoring import score
from wbe.lm.toys import toy_lm

TOWNS = ("Karsk", "Orland", "Vellmar", "Tolvik", "Ashdown", "Muskostad")
TEXTS = [f"{n} is a town, and {m} is its mayor." for n in TOWNS for m in TOWNS]
REQUESTS = [
    EditRequest("Who heads Karsk?", "Jon", "Karsk", id="a"),
    EditRequest("Where is Orland, and what is it?", "France", "Orland", id="b"),
    EditRequest("Who heads Vellmar?", "Mira", "Vellmar", id="c"),
]
ITEMS = [(r.question, r.answer) for r in REQUESTS] + [("Is Tolvik large?", "yes")]
FIRST = 2  # so many layers lie on the first device, the other two on the second
VALUES = dict(steps=2, ridge=1e-2, samples=36, contexts=((2, 5),), corpus=TEXTS)
EDITORS = {
    "rome": dict(layer=3, adjust=True, **VALUES),
    "r-rome": dict(layer=1, **{k: v for k, v in VALUES.items() if k != "corpus"}),
    "memit": dict(layers=(1, 2, 3), moment_weight=10.0, **VALUES),
    "alphaedit": dict(layers=(1, 2), threshold=10.0, **VALUES),
    "ultraedit": dict(out_layers=(1, 3), lr=0.01),
    "ft": dict(layer=2, steps=2),
    "locft": dict(layer=2, epochs=2),
    "crispedit": dict(layers=(1, 2), epochs=2, corpus=TEXTS),
    "lora": dict(epochs=2),
    "lora-merge": dict(epochs=2),
    "wise": dict(layer=2, steps=2),
    "grace": dict(layer=2, steps=2, under="zero-shot"),
    "horen": dict(layer=3, steps=2, under="zero-shot"),
    "memoir": dict(layer=2, top=8, steps=2),
    "rag": dict(),
    "graph": dict(),
}


def log_probabilities(lm) -> torch.Tensor:
    return torch.tensor(score(lm, ITEMS, "zero-shot", progress=False)["log_probability"])


def edited(name: str, options: dict, lm) -> torch.Tensor:
    "The answers after two batches, the second on top of the first, and after both are undone."
    torch.manual_seed(0)
    ed = editor(name, **options)
    ed.prepare(lm)
    with ed.edit(lm, REQUESTS[:2]).on(lm), ed.edit(lm, REQUESTS[2:]).on(lm):
        both = log_probabilities(lm)
    return torch.stack([both, log_probabilities(lm)])


def test_the_checker_finds_what_cuda_would_refuse():
    lm, mode = toy_lm("llama"), VirtualDevices()
    split(lm, mode, FIRST)
    with mode:
        low, high = lm.weight("mlp_out", 0), lm.weight("mlp_out", 3)
        assert (low.device, high.device, lm.device) == (*GPUS, GPUS[0])
        with pytest.raises(RuntimeError, match="same device, but add got xpu:0, xpu:1"):
            low + high
        assert (low.to(high.device) + high).device == GPUS[1] and (high + torch.tensor(1.0)).device == GPUS[1]
        assert low[torch.tensor([0, 1])].device == GPUS[0] and low.T[0].device == GPUS[0]
        with pytest.raises(RuntimeError, match="__getitem__"):
            high[torch.tensor([0, 1], device=GPUS[0])]


@pytest.mark.parametrize("family", ["llama", "gpt2", "gptj", "gemma2"])
def test_a_model_on_two_devices_gives_the_scores_of_one(family):
    lm, mode = toy_lm(family), VirtualDevices()
    want = log_probabilities(lm)
    split(lm, mode, FIRST)
    with mode:
        got = log_probabilities(lm)
    assert torch.equal(got, want) and mode.moves


@pytest.mark.parametrize("name", EDITORS)
def test_edits_on_two_devices_are_those_on_one(name, tmp_path):
    options = EDITORS[name] | (dict(cache=str(tmp_path)) if "corpus" in EDITORS[name] else {})
    want = edited(name, options, toy_lm("llama"))
    lm, mode = toy_lm("llama"), VirtualDevices()
    split(lm, mode, FIRST)
    with mode:
        got = edited(name, options, lm)
    assert torch.equal(got, want) and mode.moves
    assert (want[0] - want[1]).abs().max() > 1e-4
