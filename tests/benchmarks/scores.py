"""`wbe compare` and `wbe report` on runs of many scores: seconds and memory, in a process of their own.

    python tests/benchmarks/scores.py [--report] [--folder FOLDER] [SCORES …]        default: 1000000 10000000

The run is synthetic and has the shape of a long life: forty timesteps, five axes, every question asked before any edit
and just after its timestep, and a sample of all earlier timesteps after each. Seconds are CPU seconds of all threads.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

RECORDED = Path(__file__).parents[2] / "data_samples" / "runs" / "rag"
AXES, STEPS = ("update", "rephrase", "persona", "multi-hop", "locality"), 40
CLI = """
import resource, sys, time
from wbe.cli.main import main
try:
    sys.argv[0] = "wbe"; main()
except SystemExit as e:
    assert not e.code, e.code
finally:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print("MEASURED", sum(u.ru_utime + u.ru_stime for u in used), max(u.ru_maxrss for u in used) / 1e6)
"""


def texts(prefix: str, numbers: np.ndarray):
    "Texts that end in these numbers."
    unique, at = np.unique(numbers, return_inverse=True)
    return pa.array([f"{prefix}{n}" for n in unique], pa.large_string()).take(pa.array(at))


def asked_at(edits: int, sample: int):
    "For each moment: its name, the timestep after which it is, and the numbers of the edits that are asked."
    per = edits // STEPS
    for n in range(1, STEPS + 1):
        yield "before", n, 0, np.arange((n - 1) * per, n * per)
    for n in range(1, STEPS + 1):
        yield "current", n, n, np.arange((n - 1) * per, n * per)
        for m in range(1, n):
            yield "past", m, n, (m - 1) * per + np.arange(min(sample, per))


def scores_of(moment: str, of: int, after: int, edits: np.ndarray, per: int, part: str, rng) -> pa.Table:
    "The rows of one moment."
    n, numbers = len(edits) * len(AXES), np.repeat(edits, len(AXES))
    text = lambda value: pa.array([value], pa.large_string()).take(pa.array(np.zeros(n, int)))
    accuracy = rng.integers(0, 6, n) / 5
    right, asked = accuracy == 1, pa.array(np.zeros(n, np.int64) + of)
    return pa.table(
        dict(
            edit_id=texts(f"Q9/P6/Q8@T{of:02d}-", numbers),
            axis=pa.array(AXES, pa.large_string()).take(pa.array(np.tile(np.arange(len(AXES)), len(edits)))),
            probe=pa.array(np.zeros(n, np.int32)),
            asked_of=asked,
            timestep=text(f"T{of:02d}"),
            subject_id=texts("Q9", numbers // 3),
            moment=text(moment),
            scored_at=pa.array(np.zeros(n, np.int64) + after),
            edits_done=pa.array(np.zeros(n, np.int64) + after * per),
            edited_at=pa.nulls(n, pa.int64()) if moment == "before" else asked,
            token_accuracy=accuracy,
            exact_match=right,
            normalised_match=right.astype(float),
            log_probability=-rng.integers(1, 500, n) / 50,
            perplexity=1 + rng.integers(1, 500, n) / 50,
            finite=np.ones(n, bool),
            seconds=np.full(n, 0.01),
            answer=texts("Answer ", rng.integers(0, 5_000, n)),
            natural_end=np.ones(n, bool),
            outdated_match=np.where(right, 0.0, 1.0),
            part=pa.array([part]).take(pa.array(np.zeros(n, int))),
        )
    )


def write_questions(path: Path, edits: int):
    "The table of questions."
    per, numbers = edits // STEPS, np.repeat(np.arange(edits), len(AXES))
    n, step = len(numbers), numbers // per + 1
    word = lambda prefix, size: texts(prefix, numbers % size)
    empty, axes = pa.nulls(n, pa.large_string()), np.tile(np.arange(len(AXES)), edits)
    ids = pa.array([f"Q9/P6/Q8@T{t:02d}-{i}" for i, t in zip(numbers, step)], pa.large_string())
    columns = dict(
        edit_id=ids,
        axis=pa.array(AXES, pa.large_string()).take(pa.array(axes)),
        probe=pa.array(np.zeros(n, np.int32)),
        question=texts("Who is the head of number ", np.arange(n)),
        expected=word("Answer ", 5_000),
        aliases=pa.array([[]] * n, pa.list_(pa.string())),
        subject_id=texts("Q9", numbers // 3),
        tag=texts("new", numbers * 0),
        subject=texts("Town ", numbers // 3),
        relation_id=word("P", 60),
        relation=word("relation ", 60),
        object_id=word("Q8", 5_000),
        previous=word("Answer ", 4_000),
    )
    columns |= {name: empty for name in ("valid_from", "valid_until", "mhop_relation_id")}
    columns |= dict(timestep=texts("T", step), asked_of=pa.array(step))
    pq.write_table(pa.table(columns), path, compression="zstd")


def write_run(folder: Path, scores: int):
    "A finished run of about so many scores."
    edits = scores // (20 * len(AXES)) // STEPS * STEPS
    per, rng = edits // STEPS, np.random.default_rng(0)
    sample = (scores - 2 * edits * len(AXES)) // (STEPS * (STEPS - 1) // 2 * len(AXES))
    shutil.copytree(RECORDED, folder)
    out, rows = None, 0
    for moment, of, after, asked in asked_at(edits, sample):
        part = f"{after * per:08d}-{(of if moment == 'before' else after):03d}-{moment.replace('current', 'step')}"
        table = scores_of(moment, of, after, asked, per, part.replace("past", "step"), rng)
        out = out or pq.ParquetWriter(folder / "scores.parquet", table.schema, compression="zstd")
        out.write_table(table)
        rows += len(table)
    out.close()
    write_questions(folder / "questions.parquet", edits)
    config = json.loads((folder / "config.json").read_text())
    steps = range(1, STEPS + 1)
    config["timesteps"], config["plan"]["sample"] = list(steps), sample
    config["benchmark"] |= dict(edits={str(n): per for n in steps}, timesteps={str(n): f"T{n:02d}" for n in steps})
    config["benchmark"] |= dict(files={str(n): f"{n:064d}" for n in steps}, questions=edits * len(AXES))
    (folder / "config.json").write_text(json.dumps(config))
    return rows


def measure(*args) -> tuple[float, float]:
    "CPU seconds and gigabytes of a command."
    done = subprocess.run([sys.executable, "-c", CLI, *map(str, args)], stdout=subprocess.PIPE, text=True)
    line = next((x for x in done.stdout.splitlines() if x.startswith("MEASURED")), None)
    assert done.returncode == 0 and line, done.stdout[-2000:]
    return tuple(map(float, line.split()[1:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, default=[1_000_000, 10_000_000])
    parser.add_argument("--report", action="store_true", help="also the report")
    parser.add_argument("--folder", type=Path, help="where the runs are kept")
    args = parser.parse_args()
    for size in args.sizes:
        folder = args.folder or Path(tempfile.mkdtemp())
        run = folder / f"scores-{size}" / "long"
        rows = write_run(run, size) if not run.exists() else pq.ParquetFile(run / "scores.parquet").metadata.num_rows
        seconds, memory = measure("compare", run.parent)
        print(f"{rows:,} scores: compare {seconds:.1f} CPU s, {memory:.2f} GB", flush=True)
        if args.report:
            seconds, memory = measure("report", run.parent, "-o", folder / "report.html")
            print(f"{rows:,} scores: report {seconds:.1f} CPU s, {memory:.2f} GB", flush=True)
        if not args.folder:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
