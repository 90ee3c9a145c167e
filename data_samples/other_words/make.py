"""Editors asked in a second writer's words: `python data_samples/other_words/make.py FOLDER` writes right.parquet.

In the first two timesteps, the personas' questions are replaced by those of words.toml. Edits, presets and order
are those of the recorded runs. A stopped call continues.
"""

import json
import sys
import tomllib
from pathlib import Path

import pandas as pd

from wbe.runs.loop import run_lifelong
from wbe.runs.plan import RunPlan

HERE = Path(__file__).parent
EDITORS = ("none", "ft", "wise", "memit", "ultraedit", "grace", "horen", "memoir", "lora-merge", "rag", "prompt")
COLUMNS = dict(update="update", rephrase="rephrase", persona="other")  # axis that is asked, and what it is called here


def other_question(row: dict, words: dict) -> str:
    "The question in the second writer's words; the subject as the benchmark names it inside a sentence."
    name = row["subject"]
    name = f"the {name}" if f"the {name}" in row["update"] and not name.startswith("the ") else name
    return words[row["relation_id"]].format(name)


def write_benchmark(out: Path) -> Path:
    "The first two timesteps with the other questions."
    out.mkdir(parents=True, exist_ok=True)
    words = tomllib.loads((HERE / "words.toml").read_text(encoding="utf-8"))
    for path in sorted((HERE.parent / "benchmark").glob("wiki_big_edit_*.json"))[:2]:
        rows = json.loads(path.read_text(encoding="utf-8"))
        rows = [row | {"personas": other_question(row, words)} for row in rows]
        (out / path.name).write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    return out


def main(folder: Path):
    bench, columns, axes = write_benchmark(folder / "benchmark"), {}, tuple(COLUMNS)
    for editor in EDITORS:
        every = None if editor in ("none", "lora-merge") else 100  # as recorded
        plan = dict(axes=axes, generate=axes, every=every, curve=2, sample=2, ask_lasting=1)
        plan = RunPlan(benchmark=str(bench), model="wbe-tiny", editor=editor, **plan)
        scores = run_lifelong(plan, folder / "runs" / editor).scores
        for axis, name in COLUMNS.items():  # right after the timestep of each edit
            s = scores[(scores.moment == "current") & (scores.axis == axis)].set_index("edit_id")
            columns[f"{editor}/{name}"] = s.normalised_match.astype(bool)
    pd.DataFrame(columns).rename_axis("edit_id").reset_index().to_parquet(HERE / "right.parquet", index=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
