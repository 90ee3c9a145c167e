"""Retrieval indexes: build time, milliseconds per query, recall of the first two against exact search, memory.

    python tests/benchmarks/retrieval.py [--json] [--embedder NAME] [KEYS …]

The default is 10,000, 100,000 and 500,000 keys with the embedder hashed. Keys are questions about invented people,
written with wbe's phrases; queries ask for 500 of the facts in other words. Every index is built in eight additions and
searched in a separate process with one thread. The row "annoy, 100 trees, as published" is the forest of the paper with
Annoy's default number of inspected nodes (two per tree); "annoy, 100 trees" and "annoy, 20 trees" choose that number by
measured recall.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # must be set before numpy is imported
import numpy as np

from wbe.editors.memory.embed import embedder
from wbe.editors.memory.index import IndexLibraryMissing, exact_search, search_recall, vector_index
from wbe.store import format_bytes

WAYS = {
    "exact": ("exact", {}),
    "annoy, 100 trees, as published": ("annoy", dict(trees=100, search_k=200)),
    "annoy, 100 trees": ("annoy", dict(trees=100)),
    "annoy, 20 trees": ("annoy", dict(trees=20)),
    "faiss": ("faiss", dict(threads=1)),
}
ADDITIONS = 8  # one for each timestep of a run
QUERIES = 500


def questions(n: int) -> tuple[list[str], list[str]]:
    "Keys, and paraphrases of some of them as queries."
    from wbe.writers.lookup import PHRASES
    from wbe.world.names import CULTURES, SeededRandom, name_stock, person_name

    usable = [p for p in PHRASES.values() if len(p.questions) > 1 and p.kind in ("person", "place")]
    people, dice, country = {}, SeededRandom("people"), 0
    while len(people) < n // 8 + 1:
        names = name_stock("benchmark", country % 400, CULTURES[country % len(CULTURES)])
        people[person_name(dice, names, CULTURES[country % len(CULTURES)], ("female", "male")[country % 2])] = None
        country += 1
    people = list(people)
    facts = [(people[i // 8], usable[i % len(usable)]) for i in range(n)]
    asked = [facts[i] for i in np.random.default_rng(0).choice(n, QUERIES, replace=False)]
    return [p.questions[0].replace("{s}", s) for s, p in facts], [p.questions[1].replace("{s}", s) for s, p in asked]


def measure(folder: Path, way: str) -> dict:
    "One index, in this process."
    name, options = WAYS[way]
    keys, queries = np.load(folder / "keys.npy", mmap_mode="r"), np.load(folder / "queries.npy")
    import torch

    torch.set_num_threads(1)
    exact_search(queries[:2], np.asarray(keys[:100]), 2)  # warm up: loading at first use is not measured
    before = resident()
    made, start = vector_index(name, keys.shape[1], **options), time.perf_counter()
    for part in np.array_split(np.arange(len(keys)), ADDITIONS):
        made.add(keys[part[0] : part[-1] + 1])
    if name == "annoy":
        made.seal()
    made.search(queries[:2], 2)  # FAISS chooses its search parameters at the first search
    built, start = time.perf_counter() - start, time.perf_counter()
    found = np.concatenate([made.search(some, 2)[0] for some in np.array_split(queries, 2)])
    per_query, grown = (time.perf_counter() - start) / len(queries) * 1e3, resident() - before
    true = np.load(folder / "true.npy")
    return dict(
        keys=len(keys),
        index=way,
        build_s=built,
        query_ms=per_query,
        recall=search_recall(found, true),
        nearest=float((found == true[:, :1]).any(1).mean()),
        memory_mb=grown / 1e6,
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        settings=repr(made),
    )


def resident() -> int:
    "Resident memory of this process, in bytes."
    return (
        int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        if Path("/proc/self/statm").exists()
        else 0
    )


def main(sizes: list[int], as_json: bool, embed: str):
    for n in sizes:
        with tempfile.TemporaryDirectory() as tmp:
            folder, h, start = Path(tmp), embedder(embed), time.perf_counter()
            kept, asked = questions(n)
            keys, queries = h.embed(kept), h.embed(asked)
            true = exact_search(queries, keys, 2)[0]
            for name, data in dict(keys=keys, queries=queries, true=true).items():
                np.save(folder / name, data)
            if not as_json:
                print(
                    f"{n:,} keys, embedded in {time.perf_counter() - start:.0f} s, "
                    f"vectors of {format_bytes(keys.nbytes)}",
                    flush=True,
                )
            del keys
            for way in WAYS:
                done = subprocess.run([sys.executable, __file__, "--one", tmp, way], capture_output=True, text=True)
                if done.returncode:
                    print(f"  {way}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                    continue
                row = json.loads(done.stdout.splitlines()[-1])
                settings = row.pop("settings")
                print(
                    json.dumps(row)
                    if as_json
                    else f"  {way:32} build {row['build_s']:7.1f} s   query {row['query_ms']:7.3f} ms   "
                    f"recall {row['recall']:.3f}   nearest found {row['nearest']:.3f}   "
                    f"memory {row['memory_mb']:,.0f} MB\n    {settings}",
                    flush=True,
                )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        try:
            print(json.dumps(measure(Path(sys.argv[2]), sys.argv[3])))
        except IndexLibraryMissing as e:
            sys.exit(str(e))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument(
            "keys", nargs="*", type=lambda n: int(n.replace(",", "")), default=[10_000, 100_000, 500_000]
        )
        parser.add_argument("--json", action="store_true")
        parser.add_argument("--embedder", default="hashed")
        args = parser.parse_args()
        main(args.keys, args.json, args.embedder)
