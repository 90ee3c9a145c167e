"""WISE compared with its plain published loop: one edit at a time, every step on the whole model and all prompts.

python tests/benchmarks/reference_wise.py [--edits 8] [--model wbe-tiny]
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch

from wbe.benchmark.reader import Benchmark
from wbe.editors.memory.routing import shard_mask
from wbe.editors.memory.routing import Shard, activation_score, prompt_positions
from wbe.editors.memory.wise import WiseEdit, _margin_loss, _unrelated_prompts
from wbe.editors.protocol import editor, frozen_model
from wbe.editors.requests import requests_from_rows
from wbe.editors.training.finetune import answer_nll, answer_positions
from wbe.lm.models import load
from wbe.lm.passes import causal_inputs
from wbe.lm.scoring import score
from wbe.lm.tokens import QAItem, encode_items

ROOT = Path(__file__).parents[2]


def _through(lm, texts: list, h, delta, prompt_lengths: list):
    """A forward pass of whole texts with `delta` added to the layer.

    Returns all logits, and the activation of each text.
    """
    kept = {}

    def hook(module, args, out):
        kept["x"] = args[0].detach().float()
        return out + (args[0] @ delta.T).to(out.dtype)

    handle = lm.module(h.part, h.layer).register_forward_hook(hook)
    try:
        logits = lm.model(**causal_inputs(lm, texts, left=False)[0], use_cache=False).logits
    finally:
        handle.remove()
    first = torch.zeros(len(texts), dtype=torch.long, device=lm.device)
    behind = torch.tensor(prompt_lengths, device=lm.device)
    return logits, activation_score(*prompt_positions(kept["x"], first, behind, h.over), delta)


def plain_wise(lm, request, h, delta, mask, made: int) -> float:
    "Learn one edit in `delta`, in place; returns the smallest activation of the edit."
    coded = [c for p in h.protocols for c in encode_items(lm, [QAItem(request.question, request.answer)], p)]
    positions, answer, weight = answer_positions(coded)
    rows, columns = zip(*positions)
    unrelated = [QAItem(q, "?") for q in _unrelated_prompts(request, h.draws, h.unrelated, 7919 * h.seed + made)]
    ways, far = len(h.protocols), []
    for k, p in enumerate(h.protocols):
        far += [c.ids[: c.prompt_length] for c in encode_items(lm, unrelated[k::ways] or unrelated[:1], p)]
    texts = [c.ids for c in coded] + far
    prompt_lengths = [c.prompt_length for c in coded] + [len(x) for x in far]
    delta.requires_grad_(True)
    for _ in range(h.steps):
        logits, active = _through(lm, texts, h, delta, prompt_lengths)
        loss = answer_nll(logits[list(rows), list(columns)], answer, weight)
        loss = loss + _margin_loss(active[: len(coded)], active[len(coded) :], h.alpha, h.beta, h.gamma)
        (grad,) = torch.autograd.grad(loss, [delta])
        with torch.no_grad():
            delta.sub_(grad * mask, alpha=h.lr)
            if h.norm is not None:
                delta.clamp_(-h.norm, h.norm)
    delta.requires_grad_(False)
    with torch.no_grad():
        return float(_through(lm, texts, h, delta, prompt_lengths)[1][: len(coded)].min())


def plain_sequence(lm, requests, wise) -> WiseEdit:
    "Edits of one shard, one after the other."
    h = wise.hparams_for(lm)
    shape = tuple(lm.weight(h.part, h.layer).shape)
    delta, mask, least = (
        torch.zeros(shape, device=lm.device),
        shard_mask(shape, h.share, 0, h.seed).to(lm.device),
        math.inf,
    )
    with frozen_model(lm):
        for n, r in enumerate(requests):
            least = min(least, plain_wise(lm, r, h, delta, mask, n))
    return WiseEdit(shards=[Shard.of(0, len(requests), least, delta[mask], 0)])


def compare(lm, requests, **options) -> dict:
    "Seconds and success of both, and the difference of what they learnt."
    wise, items, out = (
        editor("wise", **{**dict(save_every=1000, merge_every=1000), **options}),
        [(r.question, r.answer) for r in requests],
        {},
    )
    wise.edit(lm, requests[:1])  # what a model computes once is not counted
    start = time.perf_counter()
    plain = plain_sequence(lm, requests, wise)
    out["plain_s"] = time.perf_counter() - start
    start = time.perf_counter()
    ours = wise.edit(lm, requests)
    out["wbe_s"] = time.perf_counter() - start
    plain.hparams, plain.model, plain.editor = ours.hparams, ours.model, ours.editor
    for name, result in (("plain", plain), ("wbe", ours)):
        with result.on(lm):
            out[f"{name}_success"] = score(lm, items, "paper", progress=False).means()["token_accuracy"]
    a, b = plain.shards[0], ours.shards[0]
    out |= dict(
        ratio=out["plain_s"] / out["wbe_s"],
        difference=float((a.values - b.values).norm() / a.values.norm()),
        least=(a.least, b.least),
    )
    return out


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--edits", type=int, default=8)
    p.add_argument("--model", default="wbe-tiny")
    given = p.parse_args(argv)
    torch.set_num_threads(1)
    lm, step = load(given.model), Benchmark.load(ROOT / "data_samples" / "benchmark")[0]
    out = compare(lm, requests_from_rows(step.edits.to_pylist(), ids=step.edit_ids, need_subject=False)[: given.edits])
    print(json.dumps({"editor": "wise", "model": given.model, "edits": given.edits, **out}, indent=1))


if __name__ == "__main__":
    main()
