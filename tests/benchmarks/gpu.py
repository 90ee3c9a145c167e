"""What a GPU does with models of billions: questions a second, seconds and memory of an edit, half a million keys.

    python tests/benchmarks/gpu.py [--shapes llama-3-8b,llama-2-7b] [--device cuda] [--csv FILE] [WHAT …]

WHAT is any of scoring, editing, retrieval, training, 4bit; by default all of them. The models have random weights of
the given shape in bfloat16 (4bit: quantised by bitsandbytes); what they answer is without meaning, and so no accuracy
is measured. The share of the peak is that of a square matrix product on the same device: the multiplications of the
tokens that were computed, two for each weight but those of the embeddings, over what the device can do.
`--shapes toy --device cpu` tries all of it, in float32.
"""

import argparse
import gc
import json
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch
import transformers

from wbe.benchmark.reader import Benchmark
from wbe.editors.memory.index import vector_index
from wbe.editors.protocol import editor
from wbe.editors.requests import requests_from_rows
from wbe.lm.models import LM, load
from wbe.lm.tokens import get_protocol
from wbe.lm.scoring import score
from wbe.lm.tokens import encode_items
from wbe.lm.toys import toy_tokenizer
from wbe.store import format_bytes

sys.path.append(str(Path(__file__).parents[1]))
from shared_cells import shared  # noqa: E402

measure_peak_memory = shared("07_lm/13_cost.ipynb", "wbe.lm.cost").measure_peak_memory
SAMPLES = Path(__file__).parents[2] / "data_samples"
_LLAMA = dict(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, max_position_embeddings=4096)
SHAPES = {
    "llama-3-8b": dict(_LLAMA, intermediate_size=14336, num_key_value_heads=8, vocab_size=128_256),
    "llama-2-7b": dict(_LLAMA, intermediate_size=11008, num_key_value_heads=32, vocab_size=32_000),
    "toy": dict(
        hidden_size=64,
        num_hidden_layers=10,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        vocab_size=1024,
        max_position_embeddings=512,
    ),
}


def shaped(name: str, device: str) -> LM:
    "Random weights of a shape, made on the device."
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SHAPES[name], eos_token_id=2, bos_token_id=1, pad_token_id=0)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16 if device != "cpu" else torch.float32)
    model = model.to_empty(device=device).requires_grad_(False)
    for p in model.parameters():
        p.normal_(0, 0.02) if p.dim() > 1 else p.fill_(1)
    rotary = type(model.model.rotary_emb)(config).to(device)  # its table is no weight, and was empty
    model.model.rotary_emb = rotary
    return LM.of(model, toy_tokenizer("byte-level"), name)


def synchronise(device: str):
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def timed(device: str, work) -> tuple[float, object]:
    synchronise(device)
    start = time.perf_counter()
    out = work()
    synchronise(device)
    return time.perf_counter() - start, out


def peak(device: str, dtype) -> float:
    "Multiplications and additions a second of a square matrix product; the best of five."
    size = 8192 if device.startswith("cuda") else 512
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    a @ b
    return max(2 * size**3 / timed(device, lambda: a @ b)[0] for _ in range(5))


def weights_in_products(lm: LM) -> int:
    "Weights that every token is multiplied with: all but those of the embeddings and the head."
    ends = {id(p) for m in (lm.model.get_input_embeddings(), lm.model.get_output_embeddings()) for p in m.parameters()}
    return sum(p.numel() for p in lm.model.parameters() if p.dim() > 1 and id(p) not in ends)


def scoring(lm: LM, step, device: str) -> list[dict]:
    "All questions of a timestep, under two protocols, with and without generated text."
    probes, rows = step.probes(), []
    items = list(zip(probes.question, probes.expected))
    if device == "cpu":
        items = items[:100]
    most = peak(device, lm.dtype)
    for protocol in ("zero-shot", "paper"):
        score(lm, items[:50], protocol, progress=False)
        for share in ("tree", "nothing"):
            seconds, _ = timed(device, lambda p=protocol, s=share: score(lm, items, p, share=s, progress=False))
            row = dict(what=f"scoring, {protocol}, sharing {share}", count=len(items), seconds=seconds)
            if share == "nothing":
                tokens = sum(len(c.ids) for c in encode_items(lm, items, get_protocol(protocol)))
                row["share_of_peak"] = 2 * weights_in_products(lm) * tokens / seconds / most
            rows.append(row)
    seconds, _ = timed(device, lambda: score(lm, items, "zero-shot", generate=True, max_tokens=8, progress=False))
    return [*rows, dict(what="scoring and eight tokens of text, zero-shot", count=len(items), seconds=seconds)]


def editing(lm: LM, step, device: str) -> Iterator[dict]:
    "One edit by ROME, a hundred together by MEMIT, UltraEdit and LoRA: seconds and peak memory."
    requests = list({r.question: r for r in requests_from_rows(step.edits, step.edit_ids)}.values())
    texts, cache = [f"{r.question} {r.answer}" for r in requests], tempfile.mkdtemp()
    hundred = requests[:100] if device != "cpu" else requests[:8]
    moments = dict(corpus=texts, samples=len(texts), cache=cache, ridge=1e-2)
    small = dict(layers=(2, 3, 4)) if lm.layers < 12 else {}
    for name, batch, options in (
        ("ultraedit", hundred, dict(in_layers=(), out_layers=(4, 5)) if small else {}),
        ("rome", requests[:1], {}),
        ("rome", requests[1:4], {}),
        ("lora", hundred, {}),
        ("memit", hundred, moments | small),  # the longest is the last
    ):
        ed = editor(name, **options)
        ed.prepare(lm)
        with measure_peak_memory(lm) as memory:
            seconds, result = timed(device, lambda ed=ed, batch=batch: ed.edit(lm, batch))
        about = dict(what=f"{name}, {len(batch)} edits", count=len(batch), seconds=seconds)
        del result
        gc.collect()
        yield about | dict(memory=format_bytes(memory.bytes))


def retrieval(device: str) -> list[dict]:
    "Half a million keys on the device, questions in batches."
    keys, rows = 500_000 if device != "cpu" else 50_000, []
    vectors = torch.nn.functional.normalize(torch.randn(keys, 384), dim=1).numpy()
    index = vector_index("exact", 384, device=device)
    seconds, _ = timed(device, lambda: index.add(vectors))
    rows.append(dict(what=f"exact index of {keys:,} keys: adding", count=keys, seconds=seconds))
    for size in (1, 250):
        index.search(vectors[:size], 2)
        seconds, _ = timed(device, lambda n=size: index.search(vectors[:n], 2))
        rows.append(dict(what=f"exact index of {keys:,} keys: {size} at a time", count=size, seconds=seconds))
    return rows


def training(device: str) -> list[dict]:
    "The first steps of the tiny model's training."
    from wbe.tiny.training import train_tiny

    steps, folder = (200 if device != "cpu" else 4), tempfile.mkdtemp()
    how = dict(device=device, progress=False, quick=device == "cpu")
    seconds, _ = timed(device, lambda: train_tiny(folder, steps=steps, **how))
    return [
        dict(what=f"{steps} steps of the tiny model's training, preparation included", count=steps, seconds=seconds)
    ]


def four_bits(name: str, step, device: str) -> list[dict]:
    "The same shape in four bits: scoring."
    with tempfile.TemporaryDirectory() as folder:
        lm = shaped(name, device)
        lm.model.save_pretrained(folder)
        lm.tokenizer.save_pretrained(folder)
        del lm
        gc.collect()
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
        lm = load(folder, quant="4bit", device=device)
        return [r | dict(what="4 bits: " + r["what"]) for r in scoring(lm, step, device)]


def main(args):
    transformers.logging.set_verbosity_error()
    step, rows, begun = Benchmark.load(SAMPLES / "benchmark")[0], [], time.perf_counter()
    since = lambda: f"[{time.perf_counter() - begun:.0f} s]"
    if args.device == "cpu":
        torch.set_num_threads(1)
    device, what = args.device, args.what or ("scoring", "editing", "retrieval", "training", "4bit")
    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.processor() or platform.machine()
    print(json.dumps(dict(device=name, torch=torch.__version__, bf16=peak(device, torch.bfloat16) / 1e12)), "TFLOP/s")

    def note(shape, found):
        for row in found:
            rows.append(dict(shape=shape, **row))
            print(since(), {k: round(v, 4) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)

    for shape in args.shapes.split(","):
        if {"scoring", "editing"} & set(what):
            lm = shaped(shape, device)
            print(since(), f"the model of {shape} is made", flush=True)
            for part in ("scoring", "editing"):
                if part in what:
                    note(shape, dict(scoring=scoring, editing=editing)[part](lm, step, device))
            del lm
            gc.collect()
        if "4bit" in what and device.startswith("cuda"):
            note(shape, four_bits(shape, step, device))
    for part in ("retrieval", "training"):
        if part in what:
            note("", dict(retrieval=retrieval, training=training)[part](device))
    table = pd.DataFrame(rows)
    table["each"] = table.seconds / table["count"]
    print(table.map(lambda x: f"{x:.4g}" if isinstance(x, float) else x).fillna("").to_string(index=False))
    if args.csv:
        table.assign(device=name).to_csv(args.csv, index=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="scoring, editing, retrieval, training, 4bit")
    parser.add_argument("--shapes", default="llama-3-8b,llama-2-7b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--csv", type=Path)
    main(parser.parse_args())
