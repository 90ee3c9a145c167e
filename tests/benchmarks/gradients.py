"""Gradient norms per fact, computed in three ways: a backward pass each, batched with hooks, and `torch.func`.

    python tests/benchmarks/gradients.py [--json] [--facts N] [--model NAME …] [--device cpu]

The default models are wbe-tiny and three toys. All ways must give the same norms. `torch.func` is `vmap(grad(loss))`
over a functional call of the whole model, on facts of one length. It keeps the whole gradient of every fact in memory,
so memory limits its batch (eight facts here). One thread; CPU time.
"""

import argparse
import json
import logging
import os
import time
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # must be set before torch is imported
import numpy as np
import torch

from wbe.analysis.gradients import gradient_norms, parameter_groups
from wbe.editors.protocol import frozen_model
from wbe.lm.models import load
from wbe.lm.tokens import QAItem, encode_items
from wbe.lm.toys import toy_lm

TOYS = {
    "toy gpt2, 6 layers of 256": ("gpt2", dict(n_embd=256, n_inner=1024, n_layer=6, n_positions=256)),
    "toy llama, 6 layers of 256": (
        "llama",
        dict(hidden_size=256, intermediate_size=704, num_hidden_layers=6, max_position_embeddings=256),
    ),
    "toy llama, 4 layers of 768": (
        "llama",
        dict(hidden_size=768, intermediate_size=2048, num_hidden_layers=4, max_position_embeddings=256),
    ),
}


def facts(n: int) -> list[QAItem]:
    cities, names = (
        ["Karsk", "Vellmar", "Orland", "Tamberg"],
        ["Nadia Bellweather", "Jon Ashdown", "Zoë Łukasz", "Maria Tallis"],
    )
    return [QAItem(f"Who was head of government number {i} of {cities[i % 4]}?", names[i // 4 % 4]) for i in range(n)]


def whole(lm, items, at_once: int = 8) -> np.ndarray:
    "Norms by `torch.func` over the whole model, for items of the same length."
    coded = encode_items(lm, items)
    parameters = {k: p.detach() for k, p in lm.base.named_parameters()}
    groups, out = parameter_groups(lm), [None] * len(coded)

    def loss(p, ids, prompt_length):
        logits = torch.func.functional_call(
            lm.base, p, (), dict(input_ids=ids[None], use_cache=False), tie_weights=True
        ).logits[0]
        each = torch.nn.functional.cross_entropy(logits[:-1].float(), ids[1:], reduction="none")
        counted = torch.arange(len(ids) - 1) >= prompt_length - 1
        return (each * counted).sum() / counted.sum()

    lengths = {}
    for i, c in enumerate(coded):
        lengths.setdefault(len(c.ids), []).append(i)
    with frozen_model(lm):
        for same_length in lengths.values():
            for start in range(0, len(same_length), at_once):
                part = same_length[start : start + at_once]
                ids = torch.tensor([coded[i].ids for i in part])
                prompts = torch.tensor([coded[i].prompt_length for i in part])
                got = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, ids, prompts)
                squares = sum(v.flatten(1).square().sum(1) for k, v in got.items() if k in groups)
                for i, s in zip(part, squares.tolist()):
                    out[i] = s**0.5
    return np.array(out)


def timed(work, device: str = "cpu") -> tuple[float, object]:
    "CPU seconds, which do not depend on other processes; wall time on another device."
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    out = work()
    return clock() - start, out


def measure(name: str, lm, items: list[QAItem], device: str = "cpu") -> dict:
    gradient_norms(lm, items[:2])  # warm up: loading at first use is not measured
    slow, plain = timed(lambda: gradient_norms(lm, items, method="loop"), device)
    fast, hooks = timed(lambda: gradient_norms(lm, items), device)
    np.testing.assert_allclose(hooks.norm, plain.norm, rtol=1e-3)
    row = dict(
        model=name,
        parameters=lm.parameters,
        facts=len(items),
        loop_ms=1000 * slow / len(items),
        hooks_ms=1000 * fast / len(items),
        faster=slow / fast,
    )
    try:
        func, norms = timed(lambda: whole(lm, items), device)
        np.testing.assert_allclose(norms, plain.norm, rtol=1e-3)
        row |= dict(func_ms=1000 * func / len(items))
    except (RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError) as e:
        row |= dict(func_ms=None, func_error=str(e).strip().splitlines()[0][:120])
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="machine-readable, one object a line")
    parser.add_argument("--facts", type=int, default=64)
    parser.add_argument(
        "--model", action="append", default=[], help="a model by name or folder, instead of the default ones"
    )
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    models = {n: (lambda n=n: load(n, device=args.device)) for n in args.model or ["wbe-tiny"]}
    models |= {} if args.model else {n: (lambda f=f, more=more: toy_lm(f, **more)) for n, (f, more) in TOYS.items()}
    for name, made in models.items():
        row = measure(name, made(), facts(args.facts), args.device)
        if args.json:
            print(json.dumps(row), flush=True)
        else:
            func = f"torch.func {row['func_ms']:.0f} ms" if row["func_ms"] else f"torch.func: {row['func_error']}"
            print(
                f"{name:28} {row['parameters'] / 1e6:6.1f} M parameters: loop {row['loop_ms']:.0f} ms, "
                f"hooks {row['hooks_ms']:.0f} ms a fact "
                f"({row['faster']:.1f} times as fast), {func}",
                flush=True,
            )


if __name__ == "__main__":
    main()
