"""Where the time of an edit goes, and how much of it the matrix products need on this machine.

    python tests/benchmarks/floors.py [--csv FILE] [--shape gpt2|tiny | --model FOLDER]
                                      [--edits N] [--batch N] [--rounds N] [WHAT …]

The lines are those of easyedit.py, ours alone, on one thread. For each: CPU milliseconds of an edit (of questions: of
the questions about an edit), and

- `floor`: what its matrix products would take at the machine's best. Each takes its floating-point operations over the
  rate of a large square product, or its bytes over the bandwidth of a large matrix times a vector, whichever is more.
  Nothing else is counted: norms, activations, softmax and Python are above the floor.
- `kernels`: what the same products take here when they are run alone, one after the other. A product of few tokens is
  far from both rates.
- `reached`: the share of the time that is `kernels`.
- where the processor time went, by samples of the stack: `products` (a linear layer or attention, forward),
  `backward`, `optimiser`, `pass` (the rest of a forward pass: norms, activations, rotary positions, calls),
  `tokenizer`, `other`.

A line that has reached nearly all gets faster only with fewer passes, fewer tokens, or other kernels.
"""

import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from statistics import median

from easyedit import WHAT, Line, arguments, cpu, opened

import pandas as pd
import torch
import transformers
from leaderboard import append
from scoring import peak
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

INTERVAL = 0.002  # seconds of processor time between two samples


def bandwidth(rows: int = 16_384, columns: int = 4_096) -> float:
    "Bytes per second of this thread in the product of a large matrix and a vector; the best of eight."
    a, x, best = torch.randn(rows, columns), torch.randn(columns), 0.0
    for _ in range(8):
        best = max(best, 4 * rows * columns / cpu(lambda: a @ x)[0])
    return best


def attention_flops(q, k, v, *_, **__) -> int:
    return 2 * q.numel() * (k.shape[-2] + v.shape[-2])


# Operations that are made of others, and are not taken apart where no gradient is wanted.
WHOLE = {
    torch.ops.aten.linear: lambda x, w, *_, **__: 2 * x.numel() * w.shape[0],
    torch.ops.aten.scaled_dot_product_attention: attention_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_flops,
}


class Products(TorchDispatchMode):
    "Counts the matrix products, forward and backward: their operations, their least time, and how often each shape is."

    def __init__(self, flops_a_second: float, bytes_a_second: float):
        super().__init__()
        self.rates, self.flops, self.seconds = (flops_a_second, bytes_a_second), 0, 0.0
        self.shapes, self.calls = Counter(), {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        count = WHOLE.get(function._overloadpacket) or flop_registry.get(function._overloadpacket)
        if count is not None:
            flops = count(*args, **(kwargs or {}), out_val=out)
            tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
            read = sum(t.numel() * t.element_size() for t in tensors)
            self.flops += flops
            self.seconds += max(flops / self.rates[0], read / self.rates[1])
            key = repr((function, [(t.shape, t.stride(), t.dtype) for t in tensors], kwargs))
            self.shapes[key] += 1
            self.calls.setdefault(key, (function, tree_map(described, (args, kwargs or {}))))
        return out

    def seconds_alone(self) -> float:
        "What the same products take when nothing else is done, with operands that are not in the nearest cache."
        return sum(self.shapes[key] * alone(*call) for key, call in self.calls.items())


@dataclass
class Described:
    "A tensor without its content."

    shape: tuple
    stride: tuple
    dtype: torch.dtype

    def made(self) -> torch.Tensor:
        out = torch.empty_strided(self.shape, self.stride, dtype=self.dtype)
        return out.normal_() if self.dtype.is_floating_point else out.fill_(1)


def described(x):
    return Described(x.shape, x.stride(), x.dtype) if isinstance(x, torch.Tensor) else x


def alone(function, given, copies: int = 4, rounds: int = 3) -> float:
    "Seconds of one call of an operation on random tensors, the best round over some copies of its operands."
    operands = [tree_map(lambda x: x.made() if isinstance(x, Described) else x, given) for _ in range(copies)]
    run = lambda: [function(*args, **kwargs) for args, kwargs in operands]
    run()
    return min(cpu(run)[0] for _ in range(rounds)) / copies


PLACES = (  # what a stack is counted as: the first whose text is in one of its frames
    ("backward", ("autograd/graph.py",)),
    ("optimiser", ("torch/optim/",)),
    ("tokenizer", ("transformers/tokenization", "tokenizers/", "wbe/lm/tokens")),
)
PRODUCTS = ("torch/nn/modules/linear.py", "transformers/pytorch_utils.py", "integrations/sdpa_attention.py")
PASS = ("transformers/models/", "transformers/activations", "transformers/masking", "torch/nn/modules/")


def place(frame) -> str:
    "What a stack is doing."
    files, leaf = [], frame.f_code.co_filename
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    for name, texts in PLACES:
        if any(text in file for file in files for text in texts):
            return name
    if leaf.endswith(PRODUCTS):
        return "products"
    return "pass" if any(text in file for file in files for text in PASS) else "other"


def sampled(work) -> dict:
    "The share of processor time in each place while some work runs; a long call of C takes one sample of its length."
    found, last = Counter(), time.process_time()

    def take(_, frame):
        nonlocal last
        now = time.process_time()
        found[place(frame)] += now - last
        last = now

    before = signal.signal(signal.SIGPROF, take)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)
    try:
        work()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    names = ("products", "backward", "optimiser", "pass", "tokenizer", "other")
    return {name: found[name] / max(1e-9, found.total()) for name in names}


def row(line: Line, rounds: int, rates: tuple[float, float]) -> dict:
    line.ours()
    with Products(*rates) as counted:
        line.ours()
    each = 1e3 / line.edits
    took = [cpu(line.ours)[0] * each for _ in range(rounds)]
    known = dict(what=line.what, ms=median(took), low=min(took), high=max(took), gflop=counted.flops * each / 1e12)
    floors = dict(floor=counted.seconds * each, kernels=counted.seconds_alone() * each)
    return known | floors | dict(reached=floors["kernels"] / median(took)) | sampled(line.ours)


def main(args):
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rates, lines, rows = (peak(), bandwidth()), opened(args), []
    shape = args.model.name if args.model else args.shape
    for what in args.what or WHAT:
        for line in getattr(lines, what.replace("-", "_"))():
            rows.append(row(line, args.rounds, rates))
            print(rows[-1], file=sys.stderr)
            if args.append:
                append("Where the time goes", [rows[-1] | dict(line=line.what, model=shape)])
    table = pd.DataFrame(rows).set_index("what")
    conditions = dict(
        shape=shape,
        gflops=rates[0] / 1e9,
        gigabytes=rates[1] / 1e9,
        torch=torch.__version__,
        date=time.strftime("%Y-%m-%d"),
    )
    print(conditions)
    print(table.map(lambda x: f"{x:.3g}").to_string())
    if args.csv:
        table.assign(**conditions).to_csv(args.csv)


if __name__ == "__main__":
    main(arguments(__doc__))
