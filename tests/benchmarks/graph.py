"""How long the graph takes to grow to many edits, to answer a question, and how much memory it needs.

    python tests/benchmarks/graph.py 1000 10000 500000
    python tests/benchmarks/graph.py 500000 --model wbe-tiny --model 92M
    python tests/benchmarks/graph.py 500000 --model wbe-tiny --benchmark data_samples/benchmark

Facts are random: four of each subject, sixty relations, all asked for in two hops where there is a second fact. No
model is loaded, unless one is named: then it scores and answers the same questions unedited and with the graph, by
turns, in CPU seconds, which depend less on what else the machine does than the clock. With a benchmark, the edits of
its first timestep are added to the random facts, and its own questions are scored, axis by axis.
"""

import argparse
import random
import resource
import time

import numpy as np

from wbe.editors.memory.graph import FactGraph, GraphFact

NOUNS = [
    f"{a}{b}"
    for a in "amber birch cedar delta ember flint grove heron indigo jasper".split()
    for b in "er ist ia age ment ry".split()
]


ANSWER_TOKENS = 8


def random_fact(i: int, n: int, rng: random.Random) -> GraphFact:
    s, o, r = i // 4, rng.randrange(max(1, n // 4)), NOUNS[i % len(NOUNS)]
    name = lambda k: f"Given{k % 4999} Family{k}"
    return GraphFact(
        name(s), name(o), f"What is the {r} of {name(s)}?", r, f"Q{s}", f"P9{i % len(NOUNS)}", f"Q{o}", id=str(i)
    )


def model_named(name: str):
    "A model by its name; 92M is a GPT-2 of 12 layers and width 768 with random weights and wbe-tiny's tokens."
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from wbe.lm.models import load

    lm = load("wbe-tiny" if name == "92M" else name, device="cpu")
    if name == "92M":
        torch.manual_seed(0)
        ends = dict(eos_token_id=lm.tokenizer.eos_token_id, bos_token_id=None, pad_token_id=lm.tokenizer.pad_token_id)
        shape = dict(n_layer=12, n_embd=768, n_head=12, vocab_size=8_192, n_positions=512)
        lm.model = GPT2LMHeadModel(GPT2Config(**shape, **ends)).eval()
    return lm


def spent_on(act, times: dict, name: str):
    "Add the CPU seconds of a call."
    start = time.process_time()
    act()
    times[name] = times.get(name, 0.0) + time.process_time() - start


def retriever_of(graph: FactGraph):
    "The memory of the editor around a graph."
    from wbe.editors.memory.connected import GraphHParams, GraphRetriever
    from wbe.editors.memory.connected import _LearntThreshold

    settings = {name: getattr(GraphHParams(), name) for name in GraphHParams.__dataclass_fields__}
    retriever = GraphRetriever(settings, _LearntThreshold(0.0, 0, 0, 0.0, 0.0))
    retriever.graph = graph
    return retriever


def compare_with_model(graph: FactGraph, questions: list[str], model: str) -> str:
    "CPU time of scoring questions, and of answering them one by one, without and with the graph; side by side."
    from wbe.lm.scoring import ask, score
    from wbe.lm.tokens import QAItem, encode_items

    lm, times, retriever = model_named(model), {}, retriever_of(graph)
    parts = [questions[i : i + 8] for i in range(0, len(questions), 8)]
    for n, part in enumerate([parts[0], *parts]):
        items = [QAItem(q, "Given1 Family12") for q in part]
        for hook in ([], [retriever]):
            lm.item_hooks[:] = hook
            which = "with the graph" if hook else "unedited"
            spent_on(
                lambda items=items: score(lm, items, too_long="truncate", progress=False), times, f"scored, {which}"
            )
            for q in part:
                spent_on(lambda q=q: ask(lm, [q], max_tokens=ANSWER_TOKENS, progress=False), times, f"asked, {which}")
        times = times if n else {}  # the first part is asked twice: once to warm up
    lm.item_hooks.clear()
    spent_on(lambda: [retriever.find(q) for q in questions], times, "searching")
    items = [QAItem(q, "x") for q in questions]
    tokens = [sum(len(x.ids) for x in encode_items(lm, some)) / len(some) for some in (items, retriever(items))]
    ms = {name: t / len(questions) * 1e3 for name, t in times.items()}
    lines = [f"          {model}: {tokens[0]:.0f} tokens of a prompt unedited, {tokens[1]:.0f} with the graph"]
    for what, name in {"scored": "scoring an answer", "asked": f"an answer of {ANSWER_TOKENS} tokens, alone"}.items():
        plain, edited = ms[f"{what}, unedited"], ms[f"{what}, with the graph"]
        lines.append(
            f"          {name}: {plain:.1f} ms unedited, {edited:.1f} ms with the graph: {edited / plain:.2f}x"
        )
    return "\n".join([*lines, f"          {ms['searching']:.2f} ms of it searching"])


AXES = {"update": "ans", "rephrase": "ans", "personas": "ans", "mhop": "mhop_ans", "loc": "loc_ans"}


def compare_on_benchmark(graph: FactGraph, folder: str, model: str, limit: int) -> str:
    "CPU time of scoring a benchmark's questions, without and with the graph, by axis and for all of a timestep."
    from wbe.benchmark.reader import Benchmark
    from wbe.editors.memory.graph import graph_fact
    from wbe.editors.requests import requests_from_rows
    from wbe.lm.scoring import score
    from wbe.lm.tokens import encode_items

    step, lm = Benchmark.load(folder)[0], model_named(model)
    rows = step.edits.to_pylist()
    graph.add(map(graph_fact, requests_from_rows(rows, step.edit_ids, need_subject=False)))
    retriever, lines, whole = retriever_of(graph), [], np.zeros(2)
    for axis, answer in AXES.items():
        every = [(r[axis], r[answer]) for r in rows if r[axis]]
        items, times = every[:limit], {}
        for n in range(3):
            for hook in ([], [retriever]):
                lm.item_hooks[:] = hook
                spent_on(lambda items=items: score(lm, items, too_long="truncate", progress=False), times, len(hook))
            times = times if n else {}
        lm.item_hooks.clear()
        tokens = [np.mean([len(x.ids) for x in encode_items(lm, some)]) for some in (items, retriever(as_items(items)))]
        whole += np.array([times[0], times[1]]) / len(items) / 2 * len(every)
        ms = [times[n] / len(items) / 2e-3 for n in (0, 1)]
        counted = f"{tokens[0]:.0f} tokens unedited, {tokens[1]:.0f} with the graph"
        lines.append(f"          {axis}: {counted}; {ms[0]:.1f} ms and {ms[1]:.1f} ms: {ms[1] / ms[0]:.2f}x")
    lines.append(f"          {model}, all questions of the timestep: {whole[1] / whole[0]:.2f}x the unedited time")
    return "\n".join(lines)


def as_items(pairs: list) -> list:
    from wbe.lm.tokens import QAItem

    return [QAItem(*pair) for pair in pairs]


def measure(n: int, questions: int, models: list[str], limit: int, benchmark: str | None = None) -> str:
    rng, graph = random.Random(0), FactGraph()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    facts = [random_fact(i, n, rng) for i in range(n)]
    start = time.perf_counter()
    graph.add(facts)
    added = time.perf_counter() - start
    seconds, right, texts = [], 0, []
    for f in rng.sample(facts, questions):
        second = next((graph.facts[m] for m in graph._valid(f.target)), None)
        asked = f"What is the {second.relation} of the {f.relation} of {f.subject}?" if second else f.question
        texts.append(asked)
        start = time.perf_counter()
        best = graph.paths(asked, only_best=True)[:1]
        seconds.append(time.perf_counter() - start)
        right += [graph.facts[m] for p in best for m in p.numbers] == ([f, second] if second else [f])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    q50, q95 = np.quantile(seconds, [0.5, 0.95]) * 1e3
    if benchmark:
        compared = "".join(f"\n{compare_on_benchmark(graph, benchmark, model, limit)}" for model in models)
    else:
        compared = "".join(f"\n{compare_with_model(graph, texts[:limit], model)}" for model in models)
    return (
        f"{n:>9,} facts: {added / n * 1e6:5.0f} us to add one, a question {q50:5.2f} ms (95%: {q95:.2f} ms), "
        f"{right / questions:.0%} found, {(peak - before) / 1024:,.0f} MiB more{compared}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--model", action="append", default=[], help="also ask this model, or 92M; may be repeated")
    parser.add_argument("--asked", type=int, default=40, help="questions that each model is asked")
    parser.add_argument("--benchmark", help="folder of a benchmark whose own questions are scored")
    given = parser.parse_args()
    for size in given.sizes:
        print(measure(size, given.questions, given.model, given.asked, given.benchmark), flush=True)
