"""How long the graph takes to grow to many edits, to answer a question, and how much memory it needs.

    python tests/benchmarks/graph.py 1000 10000 500000
    python tests/benchmarks/graph.py 500000 --questions 100 --model wbe-tiny

Facts are random: four of each subject, sixty relations, all asked for in two hops where there is a second fact. No
model is loaded, unless one is named: then it answers the same questions unedited and with the graph, in CPU seconds,
which depend less on what else the machine does than the clock.
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


def random_fact(i: int, n: int, rng: random.Random) -> GraphFact:
    s, o, r = i // 4, rng.randrange(max(1, n // 4)), NOUNS[i % len(NOUNS)]
    name = lambda k: f"Given{k % 4999} Family{k}"
    return GraphFact(
        name(s), name(o), f"What is the {r} of {name(s)}?", r, f"Q{s}", f"P9{i % len(NOUNS)}", f"Q{o}", id=str(i)
    )


def compare_with_model(graph: FactGraph, questions: list[str], model: str) -> str:
    "CPU time of scoring questions without and with the graph, in a warm process."
    from wbe.editors.memory.connected import GraphHParams, GraphRetriever
    from wbe.editors.memory.walks import LearntThreshold
    from wbe.lm.models import load
    from wbe.lm.scoring import score
    from wbe.lm.tokens import QAItem

    lm, spent = load(model, device="cpu"), {}
    settings = {name: getattr(GraphHParams(), name) for name in GraphHParams.__dataclass_fields__}
    retriever = GraphRetriever(settings, LearntThreshold(0.0, 0, 0, 0.0, 0.0))
    retriever.graph = graph
    items = [QAItem(q, "Given1") for q in questions]
    score(lm, items[:8], too_long="truncate", progress=False)
    start = time.process_time()
    for q in questions:
        retriever.find(q)
    spent_searching = time.process_time() - start
    given = retriever(items)
    for name, hooks in {"unedited": [], "by hand": [], "graph": [retriever]}.items():
        lm.item_hooks[:] = hooks
        start = time.process_time()
        score(lm, given if name == "by hand" else items, too_long="truncate", progress=False)
        spent[name] = time.process_time() - start
    per, search = {name: t / len(items) * 1e3 for name, t in spent.items()}, spent_searching / len(items) * 1e3
    return (
        f"          {model}: {per['unedited']:.1f} ms a question unedited, {per['by hand']:.1f} ms with the same facts "
        f"given by hand, {per['graph']:.1f} ms with the graph ({search:.1f} of it searching)"
    )


def measure(n: int, questions: int, model: str | None = None) -> str:
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
    compared = f"\n{compare_with_model(graph, texts, model)}" if model else ""
    return (
        f"{n:>9,} facts: {added / n * 1e6:5.0f} us to add one, a question {q50:5.2f} ms (95%: {q95:.2f} ms), "
        f"{right / questions:.0%} found, {(peak - before) / 1024:,.0f} MiB more{compared}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--model", help="also ask this model the questions, unedited and with the graph")
    given = parser.parse_args()
    for size in given.sizes:
        print(measure(size, given.questions, given.model), flush=True)
