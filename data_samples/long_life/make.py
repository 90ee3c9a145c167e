"""Half a million edits, one after the other: what these commands wrote, as small tables beside this file.

    wbe benchmark FOLDER/large --world 500000
    wbe run FOLDER/large/release -e rag --limit 100 --sample 25 --runs FOLDER/runs --name rag
    wbe run FOLDER/large/release -e ultraedit --max-edits 100000 --limit 100 --sample 25 --runs FOLDER/runs \\
        --name ultraedit
    python data_samples/long_life/make.py FOLDER/runs [FILE …] --release FOLDER/large/release

The benchmark (gigabytes) and the runs are not stored here. Each FILE holds what `/usr/bin/time -v` said of a command,
and is named after it. Editors and commands that are in the tables, and not among these, stay there.

HoReN and LoRA-Merge were run later, on the first timestep alone. It has the edits of the whole benchmark's:

    python -c "from wbe.benchmark.series import make_world_benchmark as make
    make('FOLDER/first', 500_000, dates=['2024-02-01', '2024-02-20'], ended='drop')"
    wbe run FOLDER/first/release -e horen --max-edits 25000 --limit 100 --sample 25 --set every=5000 \\
        --set first=25000 --set curve=100 --runs FOLDER/runs --name horen
    wbe run FOLDER/first/release -e lora-merge --max-edits 6000 --limit 100 --sample 25 --set every=5000 \\
        --set first=6000 --set curve=100 --runs FOLDER/runs --name lora-merge
"""

import argparse
import re
from pathlib import Path

import pandas as pd

from wbe.benchmark.release import release_files, timestep_numbers
from wbe.runs.records import load_runs

HERE = Path(__file__).parent
TIMES = dict(user="User time (seconds)", system="System time (seconds)", peak_kb="Maximum resident set size (kbytes)")


def write(name: str, table: pd.DataFrame, key: str | None = None):
    "Write a table beside this file; rows with other values of the key stay."
    path = HERE / f"{name}.csv"
    if key and path.exists():
        was = pd.read_csv(path)
        table = pd.concat([was[~was[key].isin(table[key])], table])
    table.to_csv(path, index=False, float_format="%.6g")
    print(table.to_string(), "\n")


def batches(run) -> pd.DataFrame:
    "What the edits of each timestep took."
    rows = run.batches.groupby("asked_of", as_index=False)
    table = rows.agg(edits=("edits", "sum"), seconds=("seconds", "sum"), peak_memory=("peak_memory", "max"))
    return table.assign(editor=run.editor)


def growth(run) -> pd.DataFrame:
    "What each five thousand edits took."
    rows = run.batches.assign(upto=5000 * -(-run.batches.edits_done // 5000)).groupby("upto", as_index=False)
    table = rows.agg(edits=("edits", "sum"), seconds=("seconds", "sum"), peak_memory=("peak_memory", "max"))
    return table.assign(editor=run.editor)


def moments(run) -> pd.DataFrame:
    "What the questions of each moment took."
    names = ("moment", "scored_at", "edits_done", "questions", "seconds", "model_seconds", "lookup_seconds")
    return run.moments[[*names, "bytes_beside"]].assign(editor=run.editor)


def shares(run) -> pd.DataFrame:
    "How many answers are right at each moment, on each axis."
    by = ["scored_at", "edits_done", "moment", "axis"]
    rows = run.scores.groupby(by, as_index=False)
    table = rows.agg(asked=("edit_id", "size"), exact=("exact_match", "sum"), tokens=("token_accuracy", "sum"))
    return table.assign(editor=run.editor)


def times(path: Path) -> dict:
    "What a command took."
    text = path.read_text(encoding="utf-8", errors="replace")
    found = {name: float(re.search(re.escape(label) + r": ([\d.]+)", text)[1]) for name, label in TIMES.items()}
    clock = re.search(r"Elapsed \(wall clock\) time.*: ([\d:.]+)\n", text)[1].split(":")
    seconds = sum(float(part) * 60**n for n, part in enumerate(reversed(clock)))
    return dict(command=path.stem, cpu_seconds=found["user"] + found["system"], seconds=seconds) | dict(
        peak_mb=found["peak_kb"] / 1e3
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--release", type=Path)
    args = parser.parse_args()
    found = [run for run in load_runs(args.runs) if len(run.batches)]
    if args.release:
        write("benchmark", pd.DataFrame([timestep_numbers(path) for path in release_files(args.release)]))
    for name, part in dict(batches=batches, growth=growth, moments=moments, shares=shares).items():
        write(name, pd.concat([part(run) for run in found]), "editor")
    if args.files:
        write("commands", pd.DataFrame([times(path) for path in args.files]), "command")
