"""Finding locality probes: compared with a plain loop over all pairs, and how seconds and memory grow.

    python tests/benchmarks/locality.py [EDITSxSTATIC …]        default: 10000x100000 30000x300000 100000x1000000

The facts are synthetic: people, towns and firms with names from the world's generator, and a hundred properties whose
frequencies differ widely.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from wbe.benchmark.locality import LocalityProbe, find_locality
from wbe.records import Fact, read_table, to_table
from wbe.store import write_table
from wbe.world.cast import CULTURES, SeededRandom, make_name, name_stock, person_name

FIND = """
import sys
from wbe.benchmark.locality import find_locality
find_locality(*sys.argv[1:4], method=sys.argv[4], progress=False)
"""
TRADES = "Motors Foods Systems Airlines Steel Pharma Textiles Energy Logistics Records Press".split()


def a_name(dice: SeededRandom) -> str:
    "A name of a person, a town or a firm."
    country = dice.below(200)
    culture = CULTURES[country % len(CULTURES)]
    kind = dice.random()
    if kind < 0.6:
        return person_name(dice, name_stock(7, country, culture), culture, dice.pick(("male", "female")))
    town = make_name(dice, culture, culture.town, 3)
    return town if kind < 0.8 else f"{town} {dice.pick(TRADES)}"


def write_facts(folder: Path, edits: int, static: int, properties: int = 100, seed: int = 7) -> tuple[Path, Path]:
    "Synthetic facts.parquet and static_facts.parquet; subjects have about three static facts each."
    dice, rng, n = SeededRandom(seed, "locality"), np.random.default_rng(seed), edits + static
    people = 2 * n if properties == 1 else n // 3 + 10
    names = [a_name(dice) for _ in range(people)]
    share = 1 / np.arange(1, properties + 1)
    pairs = np.stack([rng.integers(0, people, 2 * n), rng.choice(properties, 2 * n, p=share / share.sum())])
    pairs = np.unique(pairs, axis=1)
    pairs = pairs[:, rng.permutation(pairs.shape[1])[:n]]
    objects = rng.integers(0, people, pairs.shape[1])
    for name, part in (("facts", slice(0, edits)), ("static_facts", slice(edits, n))):
        s, p, o = pairs[0, part].tolist(), pairs[1, part].tolist(), objects[part].tolist()
        empty = [None] * len(s)
        rows = dict(
            subject_id=[f"Q{i + 1}" for i in s],
            property_id=[f"P{i + 1}" for i in p],
            object_id=[f"Q{i + 1}" for i in o],
            subject=[names[i] for i in s],
            property=[f"property {i + 1}" for i in p],
            object=[names[i] for i in o],
            tag=["new"] * len(s),
            previous_id=empty,
            previous=empty,
            valid_from=empty,
            valid_until=empty,
            statement_id=[f"Q{i + 1}$1" for i in s],
        )
        write_table(folder / f"{name}.parquet", to_table(rows, Fact))
    return folder / "facts.parquet", folder / "static_facts.parquet"


def all_pairs(facts, static) -> list[tuple]:
    """For every edit, the static fact of its property whose subject has the highest fuzz.ratio.

    Subject and object must differ from the edit's. Every pair is compared.
    """
    from rapidfuzz import fuzz

    blocks, out = {}, []
    for r in static:
        blocks.setdefault(r["property_id"], []).append(r)
    for r in facts:
        best, score = None, -1.0
        for c in blocks.get(r["property_id"], ()):
            if c["object_id"] != r["object_id"] and c["subject_id"] != r["subject_id"]:
                ratio = fuzz.ratio(r["subject"], c["subject"])
                if ratio > score:
                    best, score = c, ratio
        out.append((r, best, score))
    return out


def side_by_side(n: int, properties: int) -> dict:
    """`n` edits against `n` static facts, both ways, one after the other in this process.

    With one property, every pair is compared.
    """
    from rapidfuzz import fuzz

    folder = Path(tempfile.mkdtemp())
    paths = write_facts(folder, n, n, properties)
    facts, static = (read_table(p, Fact).to_pylist() for p in paths)
    start = time.perf_counter()
    theirs = all_pairs(facts, static)
    plain = time.perf_counter() - start
    start = time.perf_counter()
    find_locality(*paths, folder / "out", progress=False)
    ours = time.perf_counter() - start
    name = {r["subject_id"]: r["subject"] for r in facts}
    found = [
        r
        for r in read_table(folder / "out" / "locality.parquet", LocalityProbe).to_pylist()
        if r["property_id"] == r["probe_property_id"]
    ]
    ratio = [fuzz.ratio(name[r["subject_id"]], r["probe_subject"]) for r in found]
    shutil.rmtree(folder)
    return {
        "facts": n,
        "properties": properties,
        "all pairs, seconds": round(plain, 2),
        "ours, seconds": round(ours, 2),
        "all pairs / ours": round(plain / ours, 1),
        "mean fuzz.ratio of their probes": round(float(np.mean([s for _, b, s in theirs if b])), 1),
        "of ours": round(float(np.mean(ratio)), 1),
    }


def measure(edits: int, static: int, method: str) -> dict:
    "One run in a separate process, whose memory is measured."
    folder = Path(tempfile.mkdtemp())
    paths = write_facts(folder, edits, static)
    start, peak = time.perf_counter(), 0
    process = subprocess.Popen([sys.executable, "-c", FIND, *map(str, paths), str(folder / "out"), method])
    while process.poll() is None:
        try:
            peak = max(peak, psutil.Process(process.pid).memory_full_info().uss)
        except psutil.Error:
            pass
        time.sleep(0.1)
    seconds = time.perf_counter() - start
    assert process.returncode == 0
    probes = read_table(folder / "out" / "locality.parquet", LocalityProbe)
    shutil.rmtree(folder)
    return {
        "edits": edits,
        "static facts": static,
        "method": method,
        "seconds": round(seconds, 1),
        "facts a second": round((edits + static) / seconds),
        "peak memory, MB": round(peak / 1e6),
        "probes": len(probes),
        "with the same property": probes["property_similarity"].to_pylist().count(1.0),
    }


def main(sizes, loop=(500, 1000, 2000, 4000)):
    import pandas as pd

    print(f"{psutil.cpu_count()} cores\n")
    side_by_side(100, 1)  # loads the libraries
    print(
        pd.DataFrame([side_by_side(n, properties) for properties in (10, 1) for n in loop]).to_string(index=False),
        "\n",
        flush=True,
    )
    table = pd.DataFrame([measure(*size, method) for size in sizes for method in ("name", "graph")])
    print(table.to_string(index=False))
    return table


if __name__ == "__main__":
    main(
        [tuple(map(int, a.split("x"))) for a in sys.argv[1:]]
        or [(10_000, 100_000), (30_000, 300_000), (100_000, 1_000_000)]
    )
