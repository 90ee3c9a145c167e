"""Locality probes at the size of a real dump: seconds and memory of each step, edits proportional to static facts.

    python tests/benchmarks/locality_size.py [STATIC …]        default: 1000000 10000000
    python tests/benchmarks/locality_size.py --memory 3GB 1000000 10000000 30000000 100000000

There is one edit for a hundred static facts. The facts are drawn from a stock of names with numpy and written chunk by
chunk, so that a hundred million take minutes: a thousand properties whose frequencies differ widely, three facts for
each subject, objects of which few are very frequent. Each size runs in a process of its own, whose highest memory is
measured by the system, with that of the engine. The seconds of the steps are CPU seconds of all threads, which hardly
depend on what else the machine does; those of the whole are by the clock.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wbe.records import Fact, schema
from wbe.world.cast import CULTURES, SeededRandom, make_name, name_stock, person_name

FIND = """
import json, re, sys, time
from pathlib import Path
import wbe.benchmark.locality as locality

seconds, memory_of = {}, {}
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1e6
def timed(name):
    work = getattr(locality, name)
    def run(*args, **options):
        start = time.process_time()
        Path("/proc/self/clear_refs").write_text("5")
        try:
            return work(*args, **options)
        finally:
            seconds[name] = seconds.get(name, 0) + time.process_time() - start
            memory_of[name] = max(memory_of.get(name, 0), peak())
    setattr(locality, name, run)
for name in ("_write_candidates", "_write_sorted", "_count_everything", "_search_probes"):
    timed(name)
folder, memory, method, postings = sys.argv[1:]
facts, static, out = (Path(folder) / name for name in ("facts.parquet", "static_facts.parquet", "out"))
m = locality.find_locality(facts, static, out, method=method, postings=int(postings), memory=memory, progress=False)
print(json.dumps(dict(seconds=seconds, memory=memory_of, cpu=time.process_time(), counts=m.counts)))
"""
TRADES = "Motors Foods Systems Airlines Steel Pharma Textiles Energy Logistics Records Press United Town".split()
CHUNK = 1_000_000  # facts


def stock(seed: int) -> tuple[pa.Array, pa.Array]:
    "First and second parts of names."
    first, second = set(), {f" {trade}" for trade in TRADES}
    for country in range(60):
        dice, culture = SeededRandom(seed, "stock", country), CULTURES[country % len(CULTURES)]
        names = name_stock(seed, country, culture)
        for _ in range(1_500):
            given, *rest = person_name(dice, names, culture, dice.pick(("male", "female"))).split(" ", 1)
            first |= {given, make_name(dice, culture, culture.town, 3)}
            second.update(f" {name}" for name in (*rest, make_name(dice, culture, culture.town, 3)))
    return pa.array(sorted(first)), pa.array(sorted(second))


class Names:
    "The label of every entity, by its number."

    def __init__(self, seed: int, entities: int):
        self.first, self.second = stock(seed)
        rng = np.random.default_rng(seed)
        self.a, self.b = (rng.integers(0, len(part), entities).astype(np.int32) for part in (self.first, self.second))

    def of(self, numbers) -> pa.Array:
        import pyarrow.compute as pc

        parts = self.first.take(pa.array(self.a[numbers])), self.second.take(pa.array(self.b[numbers]))
        return pc.binary_join_element_wise(*parts, "")


def ids(letter: str, numbers) -> pa.Array:
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(letter, pa.array(numbers + 1).cast(pa.string()), "")


def draw(rng, subjects, entities: int, properties: int, share) -> pa.Table:
    "Facts about some subjects, as the columns of the record; a subject has a property once."

    props = rng.choice(properties, len(subjects), p=share)
    pairs = np.unique(subjects.astype(np.int64) * properties + props)
    subjects, props = pairs // properties, pairs % properties
    frequent = (rng.random(len(pairs)) ** 4 * min(entities, 200_000)).astype(np.int64)
    objects = np.where(rng.random(len(pairs)) < 0.6, frequent, rng.integers(0, entities, len(pairs)))
    return pa.table(dict(s=subjects, p=props, o=objects))


def fact_table(t: pa.Table, names: Names, tag: str) -> pa.Table:
    import pyarrow.compute as pc

    s, p, o = (t[c].to_numpy() for c in "spo")
    columns = dict(subject_id=ids("Q", s), property_id=ids("P", p), object_id=ids("Q", o))
    columns |= dict(subject=names.of(s), object=names.of(o))
    columns["property"] = pc.binary_join_element_wise("property ", pa.array(p + 1).cast(pa.string()), "")
    columns |= dict(
        tag=pa.array([tag] * len(s)), statement_id=pc.binary_join_element_wise(columns["subject_id"], "1", "$")
    )
    want = schema(Fact)
    return pa.table([columns.get(f.name, pa.nulls(len(s), f.type)) for f in want], schema=want)


def write_facts(folder: Path, static: int, edits: int, properties: int = 1_000, seed: int = 7):
    "facts.parquet and static_facts.parquet."
    rng, entities = np.random.default_rng(seed), static // 3
    share = 1 / np.arange(1, properties + 1)
    share /= share.sum()
    names = Names(seed, entities)
    with pq.ParquetWriter(folder / "static_facts.parquet", schema(Fact), compression="zstd") as out:
        for start in range(0, static, CHUNK):
            subjects = np.repeat(np.arange(start // 3, min(start + CHUNK, static) // 3), 3)
            out.write_table(fact_table(draw(rng, subjects, entities, properties, share), names, "static"))
    subjects = rng.integers(0, entities, edits)
    pq.write_table(fact_table(draw(rng, subjects, entities, properties, share), names, "new"), folder / "facts.parquet")


def size_of(folder: Path) -> int:
    "Bytes on the disk below a folder."
    total = 0
    for base, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(base, name)).st_size
            except OSError:
                pass
    return total


def run_watched(command: list, folder: Path) -> tuple[str, float, float, float]:
    "The output of a process, its seconds, its highest memory and the highest size of a folder meanwhile, in GB."
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    disk, over = [0], threading.Event()

    def watch():
        while not over.wait(1):
            disk[0] = max(disk[0], size_of(folder))

    thread = threading.Thread(target=watch)
    start = time.perf_counter()
    thread.start()
    text = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    over.set()
    thread.join()
    assert status == 0, f"it ended with {status}"
    return text, time.perf_counter() - start, used.ru_maxrss / 1e6, disk[0] / 1e9


def measure(static: int, memory: str, method: str, postings: int, where=None) -> dict:
    folder = Path(tempfile.mkdtemp(dir=where))
    try:
        write_facts(folder, static, static // 100)
        (folder / "out").mkdir()
        command = [sys.executable, "-c", FIND, str(folder), memory, method, str(postings)]
        text, seconds, peak, disk = run_watched(command, folder / "out")
        found = json.loads(text.splitlines()[-1])
        probes = pq.read_table(folder / "out" / "locality.parquet", columns=["similarity"])["similarity"]
        steps, memory_of = found["seconds"], found["memory"]
        return {
            "static facts": static,
            "edits": found["counts"]["edits"],
            "candidates: CPU s": round(steps["_write_candidates"], 1),
            "candidates: peak memory, GB": round(memory_of["_write_candidates"], 2),
            "sorted: CPU s": round(steps["_write_sorted"], 1),
            "sorted: peak memory, GB": round(memory_of["_write_sorted"], 2),
            "features: CPU s": round(steps["_count_everything"], 1),
            "features: peak memory, GB": round(memory_of["_count_everything"], 2),
            "search: CPU s": round(steps["_search_probes"], 1),
            "search: peak memory, GB": round(memory_of["_search_probes"], 2),
            "all: CPU s": round(found["cpu"], 1),
            "all: seconds by the clock": round(seconds, 1),
            "all: peak memory, GB": round(max(peak, *memory_of.values()), 2),
            "disk, GB": round(disk, 1),
            "probes": found["counts"]["probes"],
            "mean similarity": round(float(np.mean(probes)), 3),
        }
    finally:
        shutil.rmtree(folder)


def main():
    import pandas as pd

    pd.set_option("display.width", 200)
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", nargs="*", type=int, default=[1_000_000, 10_000_000])
    parser.add_argument("--memory", default="3GB", help="for the engine; the process needs more")
    parser.add_argument("--method", default="name")
    parser.add_argument("--postings", type=int, default=1_000)
    parser.add_argument("--where", help="folder for the files")
    args = parser.parse_args()
    rows = []
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; engine limited to {args.memory}; by {args.method}")
    for n in args.sizes:
        rows.append(measure(n, args.memory, args.method, args.postings, args.where))
        print(rows[-1], file=sys.stderr, flush=True)
    print(pd.DataFrame(rows).set_index("static facts").T.to_string())


if __name__ == "__main__":
    main()
