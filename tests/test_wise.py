"""WISE with cached computations gives the result of its plain loop; sequences of edits survive saving and loading."""

import sys
from pathlib import Path

import pytest
import torch

from wbe.editors.protocol import editor
from wbe.editors.requests import EditRequest
from wbe.editors.results import EditResult, applied_edits, compact_edits
from wbe.lm.scoring import score
from wbe.lm.toys import toy_lm

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))
PLACES = ("Karsk", "France", "Vellmar", "Orland", "Selwyn", "Ostrava")
EDITS = [
    EditRequest(f"Who is the mayor of {p}?", a, p, id=str(n))
    for n, (p, a) in enumerate(zip(PLACES, ("Nadia", "Jon", "Zoë", "Paulo", "Mira", "Ada")))
]
EASY = dict(
    layer=2,
    lr=0.03,
    steps=8,
    alpha=0.5,
    beta=4.0,
    gamma=3.0,
    draws=3,
    unrelated="both",
    under="zero-shot,paper",
    ratio=0.8,
)
FEW_STEPS = dict(steps=2)  # where the result is compared with itself and not with another computation


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("over", ["last", "mean"])
def test_equals_the_plain_loop(family, over):
    from reference_wise import compare

    got = compare(toy_lm(family), EDITS[:3], **EASY, over=over)
    assert got["difference"] < 1e-3
    assert got["least"][0] == pytest.approx(got["least"][1], rel=1e-3)


@pytest.mark.parametrize(
    "family,part", [("gpt2", "mlp_in"), ("gptj", "mlp_out"), ("llama", "mlp_in"), ("qwen2", "mlp_out")]
)
def test_families_and_parts(family, part):
    lm = toy_lm(family)
    start = {k: v.clone() for k, v in lm.model.state_dict().items()}
    with editor("wise", **EASY | FEW_STEPS, part=part).edit(lm, EDITS[:2]).on(lm):
        assert all(score(lm, [(r.question, r.answer) for r in EDITS[:2]], progress=False)["finite"])
    assert (
        all(torch.equal(v, start[k]) for k, v in lm.model.state_dict().items())
        and not applied_edits(lm)
        and not lm.needs_whole_prompts
    )


@pytest.mark.parametrize("merge,retrieve", [("ties", True), ("slerp", True), ("dare", False)])
def test_killed_and_continued(tmp_path, merge, retrieve):
    wise, items = (
        editor("wise", **EASY | FEW_STEPS, save_every=1, merge_every=2, merge=merge, retrieve=retrieve),
        [(r.question, r.answer) for r in EDITS],
    )
    scores = lambda lm: score(lm, items, progress=False)["log_probability"]
    lm = toy_lm("llama")
    for n, r in enumerate(EDITS):
        wise.edit(lm, [r]).apply(lm)
        if n == 2:
            compact_edits(lm).save(tmp_path / "state")
    again = toy_lm("llama")
    EditResult.load(tmp_path / "state").apply(again)
    for r in EDITS[3:]:
        wise.edit(again, [r]).apply(again)
    assert scores(again) == scores(lm)
    assert len(lm.edits.attached["wise"].memories()) == (3 if retrieve else 1)


def test_bfloat16():
    lm = toy_lm("llama")
    lm.model.to(torch.bfloat16)
    with editor("wise", **EASY | FEW_STEPS).edit(lm, EDITS[:1]).on(lm):
        assert all(score(lm, [(r.question, r.answer) for r in EDITS], progress=False)["finite"])
