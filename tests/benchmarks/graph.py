"""How long the graph takes to grow to many edits, to answer a question, and how much memory it needs.

    python tests/benchmarks/graph.py 1000 10000 500000

Facts are random: four of each subject, sixty relations, half of them asked for in two hops. No model is loaded.
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


def measure(n: int, questions: int) -> str:
    rng, graph = random.Random(0), FactGraph()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    facts = [random_fact(i, n, rng) for i in range(n)]
    start = time.perf_counter()
    graph.add(facts)
    added = time.perf_counter() - start
    seconds, right = [], 0
    for f in rng.sample(facts, questions):
        second = next((graph.facts[m] for m in graph._valid(f.target)), None)
        asked = f"What is the {second.relation} of the {f.relation} of {f.subject}?" if second else f.question
        start = time.perf_counter()
        best = graph.paths(asked)[:1]
        seconds.append(time.perf_counter() - start)
        right += [graph.facts[m] for p in best for m in p.numbers] == ([f, second] if second else [f])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    q50, q95 = np.quantile(seconds, [0.5, 0.95]) * 1e3
    return (
        f"{n:>9,} facts: {added / n * 1e6:5.0f} us to add one, a question {q50:5.2f} ms (95%: {q95:.2f} ms), "
        f"{right / questions:.0%} found, {(peak - before) / 1024:,.0f} MiB more"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--questions", type=int, default=200)
    given = parser.parse_args()
    for size in given.sizes:
        print(measure(size, given.questions), flush=True)
