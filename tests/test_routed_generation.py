"""Answers of a model with a layer that prompts are routed through: a cache gives those of whole passes, for less."""

import pytest
import torch

from wbe.editors.protocol import editor
from wbe.editors.requests import EditRequest
from wbe.lm.scoring import score
from wbe.lm.toys import toy_lm

PLACES = ("Karsk", "France", "Vellmar", "Orland")
EDITS = [EditRequest(f"Who is the mayor of {p}?", a, p, id=p) for p, a in zip(PLACES, ("Nadia", "Jon", "Zoë", "Paulo"))]
ASKED = [(r.question, r.answer) for r in EDITS] + [("Which river runs through Karsk, the town?", "the Ume")]
EASY = dict(lr=0.3, steps=6, alpha=0.5, beta=4.0, gamma=3.0, ratio=0.8, under="paper")
EDITORS = {
    "wise": dict(EASY),
    "wise, the answer counts for the route": dict(EASY, over="text"),
    "grace": dict(radius=3.0, steps=6, under="paper"),
    "grace, each token is looked up": dict(radius=3.0, steps=6, under="paper", decides="each token"),
    "horen": dict(steps=6, under="paper"),
    "memoir": dict(top=8, steps=6, under="paper"),
}


def answers(lm, whole: bool):
    "Generated texts, log-probabilities, and how many tokens the first block has computed."
    tokens, needs = [], lm.needs_whole_texts
    handle = lm.hook("block", 0, lambda x, out: tokens.append(x.shape[0] * x.shape[1]))
    lm.needs_whole_texts = needs or whole
    got = score(lm, ASKED, "paper", generate=True, progress=False)
    lm.needs_whole_texts = needs
    handle.remove()
    return got["answer"], torch.tensor(got["log_probability"]), sum(tokens)


@pytest.mark.parametrize("name", EDITORS)
def test_a_cache_gives_the_answers_of_whole_passes(name):
    lm = toy_lm("llama")
    unedited = score(lm, ASKED, "paper", generate=True, progress=False)["answer"]
    with editor(name.partition(",")[0], layer=2, **EDITORS[name]).edit(lm, EDITS).on(lm):
        texts, logps, tokens = answers(lm, False)
        wanted, also, more = answers(lm, True)
    assert texts == wanted != unedited
    torch.testing.assert_close(logps, also)
    assert tokens == more if "counts for the route" in name else tokens < more / 2
    assert not lm.needs_whole_texts and score(lm, ASKED, "paper", generate=True, progress=False)["answer"] == unedited
