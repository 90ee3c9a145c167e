"""Seconds, bytes and accuracy of an edit on the tiny model: every editor with a recorded run, on the same edits.

    python data_samples/costs.py [NAME …]       costs.csv, beside this file; some minutes

The editors follow one another in one process with one thread, and nothing else should run meanwhile. Each has the
settings of its recorded run and its number of edits at a time, and makes the same 64 edits, a sample of the whole
benchmark, one batch after the other. Then the questions of these edits are asked. What is computed once for a model
(second moments, null space) is computed before and not timed. With names, only these rows are measured again.
"""

import sys
from pathlib import Path

import pandas as pd
import torch

from wbe.benchmark.reader import Benchmark
from wbe.editors.protocol import editor
from wbe.lm.models import load
from wbe.runs.records import load_runs

HERE, EDITS = Path(__file__).parent, 64
sys.path.append(str(HERE.parent / "tests"))
from shared_cells import shared  # noqa: E402

try_in_sequence = shared("09_editors/06_trials.ipynb", "wbe.editors.trials").try_in_sequence
COLUMNS = ("update", "rephrase", "locality", "seconds per edit", "bytes per edit")


def row(lm, bench, run) -> dict:
    "What an editor takes, and what the model answers after all edits."
    plan = run.config["plan"]
    ed = editor(plan["editor"], **plan["hparams"])
    ed.prepare(lm)
    size = run.config["batch"] or EDITS
    tried = try_in_sequence(lm, bench, {run.name: ed}, n=EDITS, batch=size, ask=EDITS, progress=False)
    return dict(batch=size) | tried.loc[run.name, list(COLUMNS)].to_dict()


def measure(names: list[str]):
    "Measure, and write the table."
    torch.set_num_threads(1)
    lm, bench = load("wbe-tiny", device="cpu"), Benchmark.load(HERE / "benchmark")
    runs = [r for folder in ("runs", "runs_later") for r in load_runs(HERE / folder) if not r.missing]
    runs = [r for r in runs if r.config["plan"]["max_edits"] is None and r.name != "none"]
    path = HERE / "costs.csv"
    known = pd.read_csv(path, index_col="run") if names and path.exists() else pd.DataFrame()
    for run in runs:
        if not names or run.name in names:
            measured = pd.DataFrame({run.name: row(lm, bench, run)}).T
            known = pd.concat([known.drop(index=run.name, errors="ignore"), measured])
            print(known.tail(1).round(4).to_string(header=len(known) == 1), flush=True)
    known.rename_axis("run").sort_index().round(5).to_csv(path)


if __name__ == "__main__":
    measure(sys.argv[1:])
