"""A run is stopped at every moment, resumed, and its whole tables are those of a run that was never stopped.

The folder of an unbroken run is copied whenever a file of it is complete: what a process killed at that moment leaves.
So a copy stands after every batch of both timesteps, between the last edit and the questions, and inside the
questions, when part of their tables is written. Each copy is resumed with a fresh model.

Beside it, `test_lifelong.py` kills processes with SIGKILL, `test_carried_state.py` stops runs in the middle of a batch,
and `test_text_learners.py` after a timestep. These compare scores after one or two stops; here are all stops and all
tables.
"""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from conftest import SAMPLE_BENCHMARK, first_edits

pytest.importorskip("torch")
import torch

from wbe.benchmark.reader import Benchmark
from wbe.lm.toys import toy_lm
from wbe.records import BadArgument
from wbe.runs.loop import run_lifelong
from wbe.runs.plan import RunPlan
from wbe.runs.records import RUN_TABLES, PartitionedTable, Run
from wbe.store import StoreError
from wbe.wikipedia.texts import SourceText, write_texts

EDITS = 3  # of each of the two timesteps
# what is measured and differs from run to run
MEASURED = "seconds|memory|^timed_|_low$|_high$"
ASKED = dict(sample=2, ask_lasting=1, device="cpu")
EDITORS = {  # by what they change
    "ft": dict(steps=2),  # weights
    "ultraedit": dict(out_layers=[1], lr=0.01),  # weights, and carries statistics from edit to edit
    "grace": dict(layer=1, steps=2, radius=1.0),  # a codebook beside a layer
    "rag": dict(),  # a memory of facts
    "text-diff": dict(length=48, batch_size=4, steps=2, rate=0.01),  # learns from texts
    "text-passages": dict(),  # keeps them beside the weights; only the latest count
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> Path:
    "A benchmark of two timesteps, with a sentence about each edit for learners of texts."
    folder = Path(first_edits(tmp_path_factory.mktemp("resume") / "bench", EDITS))
    for step in Benchmark.load(folder):
        rows = step.edits.to_pylist()
        texts = [SourceText(n, r["subject"], "new", f"{r['update']} {r['ans']}.") for n, r in enumerate(rows)]
        for name in (f"texts_{step.name}", f"articles_{step.name[-8:]}"):
            write_texts(folder / f"wiki_{name}.parquet", texts)
    return folder


def plan_of(editor: str, bench: Path) -> RunPlan:
    asked = ASKED | (dict() if editor.startswith("text-") else dict(batch=1))
    # a question that is not answered in words costs least; with one editor also moments within a timestep
    asked |= dict(axes=("rephrase",)) | (dict(every=2, curve=1) if editor == "ft" else {})
    lasting = str(SAMPLE_BENCHMARK.parent / "lasting_facts.parquet")
    return RunPlan(benchmark=str(bench), model="toy", editor=editor, hparams=EDITORS[editor], lasting=lasting, **asked)


def carry_out(plan: RunPlan, folder: Path) -> Run:
    torch.set_num_threads(1)
    return run_lifelong(plan, folder, lm=toy_lm("gpt2", n_layer=2), progress=False, checkpoint_seconds=0.0)


def tables(folder: Path) -> dict[str, pd.DataFrame]:
    "All tables of a run with the keys of their parts, without what differs from run to run."
    found = {name: PartitionedTable(folder, name).table() for name in RUN_TABLES}
    frames = {name: table.to_pandas() for name, table in found.items() if table is not None}
    return {name: f.loc[:, ~f.columns.str.contains(MEASURED)].reset_index(drop=True) for name, f in frames.items()}


def run_with_copies(plan: RunPlan, folder: Path, copies: Path, wanted, monkeypatch) -> list[Path]:
    "Carry out a run; its folder is copied whenever a file that is wanted is complete. Returns the copies."
    made, put = [], os.replace

    def replace_and_copy(source, target, **options):
        put(source, target, **options)
        if Path(target).is_relative_to(folder) and wanted(str(Path(target).relative_to(folder))):
            made.append(copies / f"{len(made):02d}" / folder.name)
            shutil.copytree(folder, made[-1])

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace_and_copy)
        carry_out(plan, folder)
    return made


def place(copy: Path) -> tuple:
    "Where a copy was made: edits in its checkpoint, parts of its tables."
    current = copy / "state" / "current.json"
    edits = json.loads(current.read_text())["edits_done"] if current.exists() else 0
    return edits, *(len(PartitionedTable(copy, name).parts) for name in ("moments", "scores"))


@pytest.mark.parametrize("editor", EDITORS)
def test_stopped_anywhere_a_run_ends_with_the_same_tables(editor, bench, tmp_path, monkeypatch):
    every_file, last = editor == "ft", f"{2 * EDITS:08d}"
    inside = lambda name: name.startswith("moments/") and "-step" in name and (every_file or last in name)
    wanted = lambda name: (
        name == "state/current.json" or inside(name) or (every_file and not name.startswith("ability"))
    )
    plan, whole = plan_of(editor, bench), tmp_path / "runs" / "run"
    copies = run_with_copies(plan, whole, tmp_path / "copies", wanted, monkeypatch)
    expected, places = tables(whole), [place(c) for c in copies]
    by_batch = range(1, 2 * EDITS + 1) if plan.batch else (EDITS, 2 * EDITS)
    assert {edits for edits, *_ in places} >= set(by_batch), "a copy after every batch"
    assert any(moments > scores for _, moments, scores in places), "and inside the questions"
    for copy, where in zip(copies, places):
        shutil.copytree(tmp_path / "runs" / ".before", copy.parent / ".before")
        run = carry_out(plan, copy)
        assert run.missing == [] and run.config["finished"]
        found = tables(copy)
        assert found.keys() == expected.keys()
        for name, frame in expected.items():
            pd.testing.assert_frame_equal(found[name], frame, obj=f"{name}, stopped at {where}")


def test_scores_of_a_wrong_moment_are_an_error_that_says_what_to_do(bench, tmp_path):
    plan, folder = plan_of("ft", bench), tmp_path / "run"
    carry_out(plan, folder)
    for name in ("scores", "moments", "ability"):  # what an interruption in the second timestep once led to
        rows = PartitionedTable(folder, name).table().to_pandas()
        again = rows[rows.part == f"{EDITS:08d}-001-step"].assign(edits_done=EDITS + 1).drop(columns="part")
        PartitionedTable(folder, name).add(f"{EDITS + 1:08d}-001-step", again)
    for read in (lambda: len(Run.load(folder).scores), lambda: carry_out(plan, folder)):
        with pytest.raises(StoreError, match=r"timestep 1 was scored after 3 and after 4 edits.*out anew") as e:
            read()
        assert "\n" not in str(e.value)


@pytest.mark.parametrize("what, editor", [("texts", "ft"), ("corpus", "memit")])
def test_a_file_that_a_run_reads_is_the_same_when_it_goes_on(what, editor, bench, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("A text of the beginning.\n")
    hparams = dict(steps=1, **(dict(layers=(1,), ridge=1.0) if editor == "memit" else {}))
    plan = replace(plan_of("ft", bench), editor=editor, hparams=hparams, timesteps=(1, 1), **{what: str(texts)})
    folder = tmp_path / "run"
    carry_out(plan, folder)
    texts.write_text("Another one.\n")
    with pytest.raises(BadArgument, match=f"the file of {what} is not what it was"):
        carry_out(replace(plan, timesteps=(1, 2)), folder)
