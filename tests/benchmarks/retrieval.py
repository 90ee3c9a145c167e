"""Retrieval indexes: time to build, to answer and to add; recall against exact search; memory.

    python tests/benchmarks/retrieval.py [--csv FILE] [--embedder NAME] [--ways NAMES] [--repeat N] [KEYS …]

The default is 10,000, 100,000 and 500,000 keys with the embedder hashed. Keys are questions about invented people,
written with wbe's phrases; queries ask for 500 of the facts in other words. Every index is built in eight additions and
searched in a separate process with one thread. Times are medians of five repetitions, with the lowest and the highest.
The row "annoy, 100 trees, as published" is the forest of the paper with Annoy's default number of inspected nodes (two
per tree); the others look into as much as a measured recall of 0.99 asks for. A row is printed and added to the file as
soon as it is measured.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import lru_cache
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # must be set before numpy is imported
import numpy as np

from wbe.editors.memory.embed import embedder
from wbe.editors.memory.index import _exact_search, _search_recall, vector_index
from wbe.records import MissingPackage
from wbe.store import format_bytes

WAYS = {
    "exact": ("exact", {}),
    "annoy, 100 trees, as published": ("annoy", dict(trees=100, recall=None)),
    "annoy, 20 trees": ("annoy", dict(trees=20)),
    "faiss": ("faiss", {}),
}
ADDITIONS = 8  # one for each timestep of a run
QUERIES, BATCH, ADDED = 500, 250, 1000  # ADDED: vectors that are added at a time


def invented_facts(n: int) -> list[tuple]:
    "Subjects with phrases for questions about them."
    from wbe.world.cast import CULTURES, SeededRandom, name_stock, person_name
    from wbe.writers.properties import PHRASES

    usable = [p for p in PHRASES.values() if len(p.questions) > 1 and p.kind in ("person", "place")]
    people, dice, country, stock = {}, SeededRandom("people"), 0, lru_cache(None)(name_stock)
    while len(people) < n // 8 + 1:
        names = stock("benchmark", country % 400, CULTURES[country % len(CULTURES)])
        people[person_name(dice, names, CULTURES[country % len(CULTURES)], ("female", "male")[country % 2])] = None
        country += 1
    people = list(people)
    return [(people[i // 8], usable[i % len(usable)]) for i in range(n)]


def questions(n: int) -> tuple[list[str], list[str]]:
    "Keys, and paraphrases of some of them as queries."
    facts = invented_facts(n)
    asked = [facts[i] for i in np.random.default_rng(0).choice(n, QUERIES, replace=False)]
    return [p.questions[0].replace("{s}", s) for s, p in facts], [p.questions[1].replace("{s}", s) for s, p in asked]


def timed(work, repeat: int, count: int) -> dict:
    "Milliseconds for each of so many things: median, lowest and highest of some repetitions."
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) / count * 1e3)
    return dict(ms=float(np.median(times)), low=min(times), high=max(times))


def answers(made, queries: np.ndarray, size: int, k: int = 2) -> np.ndarray:
    "What is found in batches of a size."
    return np.concatenate([made.search(queries[i : i + size], k)[0] for i in range(0, len(queries), size)])


def build(way: str, keys):
    "An index in eight additions; an approximate one has chosen how much it looks at."
    name, options = WAYS[way]
    if name == "faiss":
        import faiss

        faiss.omp_set_num_threads(1)
    made = vector_index(name, keys.shape[1], **options)
    for part in np.array_split(np.arange(len(keys)), ADDITIONS):
        made.add(keys[part[0] : part[-1] + 1])
    if name == "annoy":
        made.seal()
    made.search(np.asarray(keys[:2]), 2)
    return made


def measure(folder: Path, way: str, repeat: int) -> dict:
    "One index, in this process."
    keys, queries = np.load(folder / "keys.npy", mmap_mode="r"), np.load(folder / "queries.npy")
    import torch

    torch.set_num_threads(1)
    _exact_search(queries[:2], np.asarray(keys[:100]), 2)  # warm up: loading at first use is not measured
    before, start = resident(), time.perf_counter()
    made = build(way, keys)
    built, grown = time.perf_counter() - start, resident() - before
    true, found = np.load(folder / "true.npy"), answers(made, queries, BATCH, 5)
    many = timed(lambda: answers(made, queries, BATCH), repeat, len(queries))
    one = timed(lambda: answers(made, queries[:20], 1), repeat, 20)
    row = dict(keys=len(keys), index=way, build_s=built, query_ms=many["ms"], low_ms=many["low"], high_ms=many["high"])
    row |= dict(single_ms=one["ms"], recall_1=_search_recall(found[:, :1], true[:, :1]))
    recall_2 = _search_recall(answers(made, queries, BATCH), true[:, :2])
    row |= dict(recall_2=recall_2, recall_5=_search_recall(found, true))
    row |= dict(memory_mb=grown / 1e6, settings=repr(made))
    row |= dict(add_ms=timed(lambda: made.add(np.asarray(keys[:ADDED])), repeat, ADDED)["ms"])
    return row | dict(peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)


def resident() -> int:
    "Memory of this process in bytes, without the pages of mapped files: the keys are read from one."
    status = Path("/proc/self/status")
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines()) if status.exists() else {}
    return int(lines["RssAnon"].split()[0]) << 10 if "RssAnon" in lines else 0


def prepare(folder: Path, n: int, embed: str):
    "Keys, queries and the true neighbours, as files."
    start, h = time.perf_counter(), embedder(embed)
    kept, asked = questions(n)
    keys = np.lib.format.open_memmap(folder / "keys.npy", "w+", np.float32, (n, h.size))
    for i in range(0, n, 100_000):
        keys[i : i + 100_000] = h.embed(kept[i : i + 100_000])
    queries = h.embed(asked)
    for name, data in dict(queries=queries, true=_exact_search(queries, keys, 5)[0]).items():
        np.save(folder / name, data)
    print(f"{n:,} keys, embedded in {time.perf_counter() - start:.0f} s, vectors of {format_bytes(keys.nbytes)}")


def show(row: dict, out: Path | None):
    "Print a row, and add it to a file."
    import pandas as pd

    print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    if out:
        line = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
        pd.DataFrame([line]).to_csv(out, mode="a", header=not out.exists(), index=False)


def main(sizes: list[int], out: Path | None, embed: str, ways: list[str], repeat: int):
    for n in sizes:
        with tempfile.TemporaryDirectory() as tmp:
            prepare(Path(tmp), n, embed)
            for way in ways:
                command = [sys.executable, __file__, "--one", tmp, way, str(repeat)]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    print(f"  {way}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                    continue
                show(json.loads(done.stdout.splitlines()[-1]) | dict(embedder=embed), out)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        try:
            print(json.dumps(measure(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))))
        except MissingPackage as e:
            sys.exit(str(e))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument(
            "keys", nargs="*", type=lambda n: int(n.replace(",", "")), default=[10_000, 100_000, 500_000]
        )
        parser.add_argument("--csv", type=Path)
        parser.add_argument("--embedder", default="hashed")
        parser.add_argument("--ways", default=list(WAYS), type=lambda text: [w for w in WAYS if w in text.split("; ")])
        parser.add_argument("--repeat", type=int, default=5)
        args = parser.parse_args()
        main(args.keys, args.csv, args.embedder, args.ways, args.repeat)
