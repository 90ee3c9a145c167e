"""Editors compared with plain references of their published loops: seconds per edit, and whether the edits are equal.

    python tests/benchmarks/editors.py [--models tiny,gpt2] [--edits N] [--batch N] [--contexts 5] [--steps N]
                                       [--device cpu]

The references are written from the formulas, for GPT-2's architecture. They make one edit at a time, with a hook on the
layer; every optimisation step runs the whole model and computes logits for every position. MEMIT inverts a matrix as
wide as the layer for every batch. R-ROME inverts it once; that time is not counted on either side. Second moments take
one pass over the corpus for each layer, which ends at that layer, as in the published code.
Both sides get the same texts, run in one process on one thread, and must give the same edits. Times are CPU seconds
(wall time on a GPU); the ratios matter. Models: wbe-tiny, and random weights in the shape of GPT-2 (12 layers,
width 768, 50,257 tokens).
"""

import argparse
import os
import tempfile
import time
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # must be set before torch is imported
import torch
import transformers

from wbe.benchmark.reader import Benchmark
from wbe.editors.protocol import editor
from wbe.editors.requests import requests_from_rows
from wbe.editors.weights.keys import context_templates, encode_in_contexts, _encode_kl_prompt
from wbe.editors.weights.moments import second_moments
from wbe.lm.models import LM, load
from wbe.lm.scoring import score

SAMPLES = Path(__file__).parents[2] / "data_samples"


def padded(lm: LM, texts) -> tuple[torch.Tensor, torch.Tensor]:
    "Texts as a matrix of tokens, padded on the right, and its attention mask."
    n = max(len(t.ids) for t in texts)
    ids = torch.tensor([t.ids + [0] * (n - len(t.ids)) for t in texts], device=lm.device)
    return ids, torch.tensor([[1] * len(t.ids) + [0] * (n - len(t.ids)) for t in texts], device=lm.device)


def whole_pass(lm: LM, texts) -> torch.Tensor:
    ids, mask = padded(lm, texts)
    return lm.model(input_ids=ids, attention_mask=mask, use_cache=False).logits


def seen_at(lm: LM, texts, module, side: str) -> torch.Tensor:
    "A module's input or output at the subject's last token of each text; one pass through the whole model."
    kept = []
    handle = module.register_forward_hook(
        lambda m, given, out: kept.append(given[0] if side == "in" else out[0] if isinstance(out, tuple) else out)
    )
    with torch.no_grad():
        whole_pass(lm, texts)
    handle.remove()
    return kept[0][range(len(texts)), [t.subject_at for t in texts]].float()


def value(lm: LM, request, texts, layer: int, h, part: str = "mlp_out") -> torch.Tensor:
    "The value with which the model generates the answer; every step runs the whole model."
    kl, module = _encode_kl_prompt(lm, request), lm.module(part, layer)
    rows, start, before = [*texts, kl], None, None
    start = seen_at(lm, texts[:1], module, "out")[0]
    delta = torch.zeros_like(start, requires_grad=True)
    adam = torch.optim.Adam([delta], lr=h.lr)

    def add(m, given, out):
        hidden = (out[0] if isinstance(out, tuple) else out).clone()
        for r, t in enumerate(rows):
            hidden[r, t.subject_at] = hidden[r, t.subject_at] + delta.to(hidden.dtype)
        return (hidden, *out[1:]) if isinstance(out, tuple) else hidden

    handle = module.register_forward_hook(add)
    try:
        for step in range(h.steps):
            logp = whole_pass(lm, rows).float().log_softmax(-1)
            now = logp[-1, kl.subject_at]
            before = now.detach().clone() if before is None else before
            answers = [
                torch.stack([logp[r, p, t.ids[p + 1]] for p in range(t.prompt_length - 1, len(t.ids) - 1)]).mean()
                for r, t in enumerate(texts)
            ]
            loss = -torch.stack(answers).mean() + h.kl * (now.exp() * (now - before)).sum()
            loss = loss + h.weight_decay * (delta.square().sum() + 1e-30).sqrt() / start.norm() ** 2
            if loss.item() < h.enough or step == h.steps - 1:  # the last step only measures, as in the authors' code
                break
            adam.zero_grad()
            loss.backward()
            adam.step()
            most = h.clamp * start.norm()
            if delta.norm() > most:
                delta.data *= most / delta.norm()
    finally:
        handle.remove()
    return start + delta.detach()


def rome(
    lm: LM,
    request,
    h,
    inverse=None,  # of the second moments, computed once as in the published code
    same_key: bool = False,
) -> torch.Tensor:
    "The change of the layer's matrix."
    texts, module = (
        encode_in_contexts(lm, request, context_templates(lm, h.contexts, h.seed), h.under),
        lm.module("mlp_out", h.layer),
    )
    keys, outs = seen_at(lm, texts, module, "in"), seen_at(lm, texts, module, "out")
    u = mean = keys.mean(0)
    if inverse is not None:
        u = inverse @ mean
    key, now = (mean, outs.mean(0)) if same_key else (keys[0], outs[0])
    return torch.outer((value(lm, request, texts, h.layer, h) - now) / (u @ key), u)


def memit(lm: LM, requests, h, moments) -> dict:
    "The changes of the layers' matrices."
    layers, texts, out = (
        sorted(h.layers),
        [encode_in_contexts(lm, r, context_templates(lm, h.contexts, h.seed), h.under) for r in requests],
        {},
    )
    z = torch.stack([value(lm, r, t, layers[-1], h, "block") for r, t in zip(requests, texts)], 1)
    for n, layer in enumerate(layers):
        keys = torch.stack([seen_at(lm, t, lm.module("mlp_out", layer), "in").mean(0) for t in texts], 1).double()
        now = torch.stack([seen_at(lm, t[:1], lm.module("block", layers[-1]), "out")[0] for t in texts], 1)
        missing = (z - now).double() / (len(layers) - n)
        inner = h.moment_weight * moments[layer].regular(h.ridge).double() + keys @ keys.T
        out[layer] = (missing @ torch.linalg.solve(inner, keys).T).float()
        with torch.no_grad():
            lm.weight("mlp_out", layer).add_(out[layer])
    with torch.no_grad():
        for layer in layers:
            lm.weight("mlp_out", layer).sub_(out[layer])
    return out


def one_layer(lm: LM, request, h) -> torch.Tensor:
    "FT: the change of one layer's matrix, every step through the whole model."
    (text,) = encode_in_contexts(lm, request, [""], h.under)
    module, matrix = lm.module("mlp_out", h.layer), lm.weight("mlp_out", h.layer)
    d = torch.zeros(matrix.shape, device=matrix.device, requires_grad=True)
    adam = torch.optim.Adam([d], lr=h.lr, weight_decay=h.weight_decay)
    handle = module.register_forward_hook(lambda m, given, out: out + given[0] @ d.T)
    for _ in range(h.steps):
        logp = whole_pass(lm, [text]).float().log_softmax(-1)
        answer = range(text.prompt_length - 1, len(text.ids) - 1)
        loss = -torch.stack([logp[0, p, text.ids[p + 1]] for p in answer]).mean()
        if loss.item() < h.enough:
            break
        adam.zero_grad()
        loss.backward()
        adam.step()
    handle.remove()
    return d.detach()


class Enough(Exception):
    "Everything that was wanted is computed."


def moments_of_one(lm: LM, layer: int, ids: list[list[int]]) -> torch.Tensor:
    "The sum of key times key of a layer, in a pass that ends there."
    width, now = lm.weight("mlp_out", layer).shape[1], {}
    total = torch.zeros(width, width, device=lm.device)

    def hook(m, given):
        keys = given[0][now["mask"].bool()]
        total.addmm_(keys.T, keys)
        raise Enough

    handle = lm.module("mlp_out", layer).register_forward_pre_hook(hook)
    for i in range(0, len(ids), 16):
        given, now["mask"] = padded(lm, [argparse.Namespace(ids=x) for x in ids[i : i + 16]])
        try:
            with torch.no_grad():
                lm.model(input_ids=given, attention_mask=now["mask"], use_cache=False)
        except Enough:
            pass
    handle.remove()
    return total


def moments_plainly(lm: LM, layers, texts: list[str]) -> dict:
    "Sums for several layers, one pass over the texts for each."
    ids = sorted(lm.tokenizer(texts, truncation=True, max_length=lm.context_length)["input_ids"], key=len)
    return {layer: moments_of_one(lm, layer, ids) for layer in layers}


def took(device: str, work) -> tuple[float, object]:
    clock = time.process_time if device == "cpu" else time.perf_counter
    if device != "cpu":
        torch.cuda.synchronize()
    start = clock()
    out = work()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - start, out


def far(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def success(lm: LM, deltas: dict, requests) -> float:
    "Token accuracy of the requests' answers with these changes applied."
    old = {n: lm.weight("mlp_out", n).detach().clone() for n in deltas}
    with torch.no_grad():
        for n, d in deltas.items():
            lm.weight("mlp_out", n).add_(d)
        out = score(lm, [(r.question, r.answer) for r in requests], "zero-shot", progress=False).means()[
            "token_accuracy"
        ]
        for n, w in old.items():
            lm.weight("mlp_out", n).copy_(w)
    return out


def gpt2(tokenizer, device: str) -> LM:
    "Random weights in the shape of the smallest GPT-2."
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None
    )
    return LM.of(transformers.GPT2LMHeadModel(config).to(device), tokenizer, "gpt2-shaped")


def both_ways(
    lm: LM,
    requests,
    name: str,
    ed,
    plainly,  # from a request to the change of the layer's matrix
    device: str,
) -> dict:
    "Single edits by an editor and by its reference."
    layer = ed.hparams_for(lm).layer
    ed.edit(lm, requests[:1])
    ours, got = took(device, lambda: [{layer: ed.edit(lm, [r]).deltas["mlp_out", layer].dense()} for r in requests])
    plain, want = took(device, lambda: [{layer: plainly(r)} for r in requests])
    return row(lm, name, len(requests), plain, ours) | agreement(lm, requests, got, want, 1)


def row(lm: LM, name: str, count: int, plain: float, ours: float) -> dict:
    return dict(model=lm.name, what=name, edits=count, reference=plain / count, ours=ours / count, ratio=plain / ours)


def moments_both_ways(lm: LM, texts: list[str], device: str) -> dict:
    "Second moments of five layers."
    layers = range(1, 6) if lm.layers > 6 else range(5)
    second_moments(lm, [0], texts[:20], folder=tempfile.mkdtemp(), progress=False)
    ours, got = took(device, lambda: second_moments(lm, layers, texts, len(texts), tempfile.mkdtemp(), progress=False))
    plain, want = took(device, lambda: moments_plainly(lm, layers, texts))
    name = f"second moments, layers {layers[0]}–{layers[-1]}"
    return row(lm, name, 1, plain, ours) | dict(difference=max(far(got[n].total, want[n]) for n in layers))


def measured(
    lm: LM,
    requests,
    some,  # the requests of MEMIT's batch
    options: dict,
    texts: list[str],
    device: str,
) -> list[dict]:
    "Every editor on one model, both ways."
    more = dict(options, corpus=texts, cache=tempfile.mkdtemp(), ridge=1e-2, samples=len(texts))
    rows = [moments_both_ways(lm, texts, device)]
    for name, adjust in (("rome", False), ("r-rome", True)):
        ed = editor(name, adjust=adjust, **more)
        h = ed.hparams_for(lm)
        inverse = None
        if adjust:
            m = second_moments(lm, [h.layer], texts, len(texts), more["cache"], progress=False)[h.layer]
            inverse = torch.linalg.inv(m.regular(h.ridge).double()).float()
        plainly = partial(rome, lm, h=h, inverse=inverse, same_key=name == "r-rome")
        rows.append(both_ways(lm, requests, name + (", adjusted" if adjust else ""), ed, plainly, device))
    ed = editor("memit", **more, moment_weight=15.0)
    h = ed.hparams_for(lm)
    m = second_moments(lm, h.layers, texts, len(texts), more["cache"], progress=False)
    ours, got = took(device, lambda: {n: d.dense() for (_, n), d in ed.edit(lm, some).deltas.items()})
    plain, want = took(device, lambda: memit(lm, some, h, m))
    rows.append(
        row(lm, f"memit, a batch of {len(some)}", len(some), plain, ours)
        | agreement(lm, some, [got], [want], len(some))
    )
    ed = editor("ft")
    rows.append(both_ways(lm, requests, "ft", ed, partial(one_layer, lm, h=ed.hparams_for(lm)), device))
    return rows


def agreement(lm: LM, requests, got: list[dict], want: list[dict], batch: int) -> dict:
    "The largest relative difference of two lists of changes, and the accuracy of each."
    groups = [requests[i : i + batch] for i in range(0, len(requests), batch)]
    both = [sum(success(lm, d, g) for d, g in zip(side, groups)) / len(groups) for side in (want, got)]
    return dict(
        difference=max(far(a[n], b[n]) for a, b in zip(got, want) for n in b),
        **dict(zip(("accuracy, reference", "accuracy, ours"), both)),
    )


def main(args):
    import pandas as pd

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    step = Benchmark.load(SAMPLES / "benchmark")[0]
    tiny = load("wbe-tiny", device=args.device, dtype="float32")
    rows = []
    for name in args.models.split(","):
        small = name == "tiny"
        lm = tiny if small else gpt2(tiny.tokenizer, args.device)
        for p in lm.model.parameters():
            p.requires_grad_(False)
        edits, batch = args.edits or (2 if small else 1), args.batch or (4 if small else 2)
        requests = list({r.question: r for r in requests_from_rows(step.edits, step.edit_ids)}.values())
        contexts = args.contexts if args.contexts is not None else (5 if small else 2)
        options = dict(contexts=((contexts, 5), (contexts, 10)), steps=args.steps or (25 if small else 10))
        texts = [
            f"Q: {q} A: {a}. {c}"
            for q, a, c in zip(*(step.edits.column(c).to_pylist() for c in ("update", "ans", "personas")))
        ][:64]
        rows += measured(lm, requests[:edits], requests[:batch], options, texts, args.device)
    print(
        f"torch {torch.__version__}, transformers {transformers.__version__}, {args.device}, one thread"
        + (", CPU time" if args.device == "cpu" else "")
    )
    print(
        pd.DataFrame(rows)
        .set_index(["model", "what"])
        .map(lambda x: f"{x:.3g}" if isinstance(x, float) else x)
        .fillna("")
        .to_string()
    )


if __name__ == "__main__":
    words = argparse.ArgumentParser()
    words.add_argument("--models", default="tiny,gpt2")
    words.add_argument("--edits", type=int, help="single edits of each editor (2 on tiny, 1 on gpt2)")
    words.add_argument("--batch", type=int, help="edits of MEMIT's batch (4 and 2)")
    words.add_argument("--contexts", type=int, help="context templates of 5 tokens, and as many of 10 (5 and 2)")
    words.add_argument("--steps", type=int, help="of an optimisation (25 and 10)")
    words.add_argument("--device", default="cpu")
    main(words.parse_args())
