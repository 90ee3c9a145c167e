"""Neighbours of updates: how CPU seconds and memory grow.

    python tests/benchmarks/neighbours.py [ENTITIES …]        default: 30000 100000 300000

Synthetic snapshots: each entity has eight facts with objects of very different frequency, and one in twenty is updated.
Every size runs in a process of its own, whose engine may use 300 MB.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil


def measure(entities: int):
    "Print entities, updates, CPU seconds of the two steps, and the highest memory of this process in MB."
    import pyarrow as pa

    from wbe.benchmark.neighbours import _nearest_entities, _query_vectors, _write_vectors
    from wbe.engine import DuckDB

    rng, count = np.random.default_rng(0), 8 * entities
    entity, prop = np.repeat(np.arange(1, entities + 1), 8), np.tile(np.arange(1, 9), entities)
    objects = 10_000_000 + (rng.pareto(0.6, count) * 30).astype(np.int64) % entities + prop * entities
    with tempfile.TemporaryDirectory() as folder, DuckDB("300MB", threads=1) as e:
        work = Path(folder)
        items = e.keep(e.table(pa.table(dict(entity=entity, property=prop, object=objects))))
        del entity, prop, objects
        start = time.process_time()
        n = _write_vectors(e, items, work)
        subjects = e.table(pa.table(dict(entity=np.arange(1, entities, 20))))
        _query_vectors(e, subjects, items, items, work, n)
        middle = time.process_time()
        _nearest_entities(e, work, n=100, postings=1_000)
        end = time.process_time()
    memory = psutil.Process().memory_info()
    peak = getattr(memory, "peak_wset", 0) or resource_peak()
    print(
        f"{entities:>9,} {entities // 20:>8,} {middle - start:>8.1f} {end - middle:>8.1f} {peak / 1e6:>10,.0f}",
        flush=True,
    )


def resource_peak() -> int:
    "The highest memory of this process in bytes."
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        measure(int(sys.argv[2]))
        sys.exit()
    print(f"{'entities':>9} {'updates':>8} {'vectors':>8} {'search':>8} {'memory, MB':>10}", flush=True)
    for size in sys.argv[1:] or ("30000", "100000", "300000"):
        subprocess.run([sys.executable, __file__, "--one", size], check=True)
