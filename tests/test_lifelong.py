"""A killed run resumes and ends with the same scores; a full disk loses nothing; two processes cannot share a run."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pandas as pd
import processes
import pytest
from conftest import first_edits

from wbe.records import BadArgument
from wbe.runs.plan import RunPlan
from wbe.runs.records import Run, compare_runs, load_runs
from wbe.store import StoreError

pytest.importorskip("torch")
from wbe.runs.loop import BenchmarkStudy, run_lifelong

BENCH = Path(__file__).parents[1] / "data_samples" / "benchmark"
# an axis whose answers are not generated
WORDS = "--sample 2 --set every=2 --set curve=2 --axes rephrase".split()


def plan(**more) -> RunPlan:
    return RunPlan(
        **{**dict(benchmark=str(BENCH), editor="ft", max_edits=3, sample=2, axes=("rephrase",), ask_lasting=2), **more}
    )


def scores(folder):
    return Run.load(folder).scores.drop(columns="seconds")


def work(folder: Path, words: tuple):
    "The command `wbe run` with a checkpoint after every batch; what it prints goes to a file."
    import wbe.runs.loop as module

    processes.time_answers_briefly()
    module.run_lifelong = partial(module.run_lifelong, checkpoint_seconds=0.0)
    from wbe.cli.main import main

    printed = os.open(f"{folder}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(printed, stream)
    sys.argv = ["wbe", "run", *WORDS, *words, "--runs", str(folder.parent), "--name", folder.name]
    main()


@pytest.fixture(scope="module")
def begin(tmp_path_factory):
    "A function that begins a run of three edits in each of two timesteps, in a process of its own."
    every = pd.read_parquet(BENCH.parent / "lasting_facts.parquet")
    folder = tmp_path_factory.mktemp("given")
    facts, bench = folder / "few.parquet", first_edits(folder / "bench", 3)
    every.iloc[:: len(every) // 4].to_parquet(facts)  # all of them would take longer than the edits

    def begin(folder: Path, *words):
        given = (str(bench), "--set", f"lasting={facts}")
        process = processes.context().Process(target=work, args=(folder, (*given, *words)))
        process.start()
        return process

    return begin


def finish(process, folder: Path):
    "Wait for a run, which succeeds."
    process.join()
    assert process.exitcode == 0, Path(f"{folder}.txt").read_text()


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    "A folder of runs, which share the scores of the unedited model."
    return tmp_path_factory.mktemp("runs")


@pytest.mark.parametrize(
    "editor,more,kills",
    [
        ("ft", [], ("config.json", "scores")),
        ("rome", ["--set", "steps=2", "--set", "samples=20"], ("state/current.json",)),
        ("wise", [f"--set={x}" for x in ("steps=1", "save_every=2", "merge_every=4")], ("state/current.json",)),
        ("lora", ["--set", "epochs=1", "--set", "batch=2"], ("state/current.json",)),
        ("memit", ["--set", "steps=1", "--set", "samples=20", "--set", "batch=2"], ("state/current.json",)),
    ],
)
def test_killed_anywhere_a_run_ends_with_the_same_scores(runs, begin, editor, more, kills):
    whole, folder = runs / f"{editor}-whole", runs / f"{editor}-killed"
    finish(begin(whole, "-e", editor, *more), whole)
    parts = lambda: len(list((folder / "scores").glob("*.parquet")))
    for what in kills:  # killed when this appears
        p, seen = begin(folder, "-e", editor, *more), parts()
        while p.is_alive() and not (parts() > seen if what == "scores" else (folder / what).exists()):
            time.sleep(0.002)
        p.kill()
        p.join()
        assert p.exitcode == -signal.SIGKILL, "killed before its end"
    finish(begin(folder, "-e", editor, *more), folder)
    assert scores(folder).equals(scores(whole))
    assert Run.load(folder).batches.edits.tolist() == Run.load(whole).batches.edits.tolist()
    left = [f for f in (folder / "state").iterdir() if f.name not in ("current.json", "results")]
    assert len(left) == 1, "one checkpoint is kept"


def test_a_full_disk_while_a_checkpoint_is_written_loses_nothing(tmp_path, monkeypatch):
    from wbe.editors.results import write_tensors as write

    calls = []

    def full(path, *args, **more):
        calls.append(path)
        if len(calls) == 2:
            raise StoreError(f"{path}: the disk is full: free some space, or choose a folder on another disk.")
        return write(path, *args, **more)

    monkeypatch.setattr("wbe.runs.checkpoints.write_tensors", full)
    with pytest.raises(StoreError, match="disk is full"):
        run_lifelong(plan(), tmp_path / "run", progress=False, checkpoint_seconds=0.0)
    assert json.loads((tmp_path / "run/state/current.json").read_text())["edits_done"] == 1
    run_lifelong(plan(), tmp_path / "run", progress=False)
    run_lifelong(plan(), tmp_path / "whole", progress=False)
    assert scores(tmp_path / "run").equals(scores(tmp_path / "whole"))


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file system of a few pages")
def test_a_disk_that_is_really_full(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("only root may mount")
    try:
        with pytest.raises(StoreError, match="disk is full|free some space"):
            run_lifelong(plan(), disk / "run", progress=False, checkpoint_seconds=0.0)
        subprocess.run(["mount", "-o", "remount,size=60m", str(disk)], check=True)
        assert run_lifelong(plan(), disk / "run", progress=False).missing == []
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def test_a_damaged_checkpoint_and_a_damaged_table_are_named(tmp_path):
    small = partial(plan, benchmark=first_edits(tmp_path / "bench", 8, 3), max_edits=None)
    run_lifelong(small(timesteps=(2, 2)), tmp_path / "run", progress=False)
    weights = next((tmp_path / "run/state").glob("*/weights.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(StoreError, match="not what the checkpoint says"):
        run_lifelong(small(timesteps=(2, 3)), tmp_path / "run", progress=False)
    table = tmp_path / "run/scores.parquet"
    table.write_bytes(table.read_bytes()[:100])
    with pytest.raises(StoreError, match=r"scores\.parquet: not a readable Parquet file"):
        len(Run.load(tmp_path / "run").scores)


def test_two_processes_cannot_work_on_one_run(tmp_path, begin):
    folder = tmp_path / "run"
    p = begin(folder, "-e", "ft")
    while not (folder / "config.json").exists():
        time.sleep(0.01)
    try:
        with pytest.raises(StoreError, match="already at work"):
            run_lifelong(plan(), folder, progress=False)
    finally:
        p.kill()
        p.join()


def bench_of(folder: Path, change) -> str:
    "The first six edits of the small world, changed by a function."
    rows = json.loads((BENCH / "wiki_big_edit_20240201_20240220.json").read_text())[:6]
    change(rows)
    folder.mkdir()
    (folder / "wiki_big_edit_20240201_20240220.json").write_text(json.dumps(rows))
    return str(folder)


def test_refused_edits_are_skipped_and_the_others_are_scored_after_the_same_numbers_of_edits(tmp_path):
    def change(rows):
        rows[1]["subject"] = "Nobody at all"
        rows[3] = rows[3] | dict(update=rows[2]["update"], subject=rows[2]["subject"], ans="Another")

    p = dict(benchmark=bench_of(tmp_path / "bench", change), max_edits=None, every=2, curve=4)
    run = run_lifelong(plan(editor="rome", hparams=dict(steps=2), **p), tmp_path / "run", progress=False)
    assert run.missing == [] and len(run.refused) == 1 and "Nobody at all" in run.refused.reason[0]
    assert run.batches.edits.sum() == 5 and run.scores[run.scores.moment == "current"].edited_at.isna().sum() == 1
    assert run.batches.refused.sum() == 1 and run.batches.edits_done.tolist() == [2, 3, 4, 5, 6]
    other = run_lifelong(plan(editor="lora", hparams=dict(epochs=1), **p), tmp_path / "lora", progress=False)
    assert other.batches.edits.tolist() == [2, 1, 1, 2] and len(other.refused) == 0  # needs no subject in the question
    for r in (run, other):
        assert r.moments[r.moments.moment == "curve"].edits_done.tolist() == [2, 4, 6]


def test_only_what_the_model_has_wrong_is_edited_also_after_an_interruption(tmp_path):
    p = dict(editor="prompt", batch=4, max_edits=24, axes=("update",), ask_lasting=2, unknown=True)
    run = run_lifelong(plan(**p), tmp_path / "run", progress=False)
    before = run.scores[run.scores.moment == "before"].set_index("edit_id").exact_match
    assert set(run.refused.edit_id) == set(before.index[before == 1]) and 0 < len(run.refused) < 24
    assert set(run.refused.reason) == {"the unedited model answers it"}
    now = run.scores[run.scores.moment == "current"].set_index("edit_id")
    assert set(now.index[now.edited_at.notna()]) == set(before.index[before == 0])

    def stop(event, data):
        if event == "kept" and data["edits_done"] >= 12:
            raise KeyboardInterrupt

    again = dict(progress=False, checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        run_lifelong(plan(**p), tmp_path / "again", callbacks=[stop], **again)
    resumed = run_lifelong(plan(**p), tmp_path / "again", **again)
    assert resumed.refused.equals(run.refused)
    pd.testing.assert_frame_equal(scores(tmp_path / "run"), scores(tmp_path / "again"))
    with pytest.raises(BadArgument, match="every edit is asked"):
        plan(**p, limit=3)


@pytest.mark.parametrize(
    "editor,hparams",
    [("lora", dict(epochs=1)), ("memit", dict(steps=1, samples=20)), ("rome", dict(steps=1, samples=20))],
)
def test_one_refused_edit_does_not_remove_the_others_of_its_batch(tmp_path, editor, hparams):
    def change(rows):
        for n in (0, 4):
            rows[n]["update"] = f"{'After a long and winding tale, ' * 60}{rows[n]['update']}"

    run = run_lifelong(
        plan(benchmark=bench_of(tmp_path / "bench", change), max_edits=None, editor=editor, hparams=hparams),
        tmp_path / "run",
        progress=False,
    )
    rows = json.loads(next((tmp_path / "bench").iterdir()).read_text())
    assert (
        run.missing == []
        and run.refused.question.tolist() == [rows[0]["update"], rows[4]["update"]]
        and run.batches.edits.sum() == 4
    )
    assert all("tokens with the answer" in reason for reason in run.refused.reason)
    assert run.scores[run.scores.moment == "current"].edited_at.isna().sum() == 2


def test_a_setting_that_fails_with_every_edit_is_an_error(tmp_path, monkeypatch):
    from wbe.editors.training.lora import LoraFT

    def fails(*_):
        raise BadArgument("lora: this setting is wrong")

    monkeypatch.setattr(LoraFT, "_edit", fails)
    with pytest.raises(BadArgument, match="this setting is wrong"):
        run_lifelong(plan(editor="lora"), tmp_path / "run", progress=False)


def test_a_model_with_edits_is_not_accepted_as_the_unedited_model(tmp_path):
    from wbe.editors.protocol import editor
    from wbe.editors.requests import EditRequest
    from wbe.lm.toys import toy_lm

    lm, p = toy_lm("gpt2", n_positions=256), plan(max_edits=1, hparams=dict(steps=1))
    edit = editor("ft", steps=1).edit(lm, [EditRequest("Who leads Aland?", "Ann", "Aland")]).apply(lm)
    with pytest.raises(BadArgument, match="begins with the unedited model"):
        run_lifelong(p, tmp_path / "a", lm=lm, progress=False)
    edit.undo(lm)
    assert run_lifelong(p, tmp_path / "a", lm=lm, progress=False).missing == []
    with pytest.raises(BadArgument, match="edits in its weights"):  # those of the previous run
        run_lifelong(p, tmp_path / "b", lm=lm, progress=False)


def test_the_unedited_model_is_scored_again_when_scoring_has_changed(tmp_path, monkeypatch):
    kept = lambda: len(list((tmp_path / ".before").iterdir()))
    run_lifelong(plan(editor="none", max_edits=1), tmp_path / "a", progress=False)
    run_lifelong(plan(editor="none", max_edits=1), tmp_path / "b", progress=False)
    assert kept() == 1
    monkeypatch.setattr("wbe.runs.moments.SCORING_VERSION", -1)
    run_lifelong(plan(editor="none", max_edits=1), tmp_path / "c", progress=False)
    assert kept() == 2


def test_a_model_with_another_chat_template_is_asked_anew_and_does_not_continue_a_run(tmp_path):
    from wbe.lm.toys import toy_lm

    kept = lambda: len(list((tmp_path / ".before").iterdir()))
    p = plan(editor="none", max_edits=1, model="toy", device="cpu", protocol="chat", lasting=None)
    first, changed = (toy_lm("llama", "llama-3", max_position_embeddings=1024) for _ in range(2))
    changed.tokenizer.chat_template = changed.tokenizer.chat_template.replace("<|start|>", "<|start|>the ")
    assert changed.tokenizer.chat_template != first.tokenizer.chat_template
    run = run_lifelong(p, tmp_path / "a", lm=first, progress=False)
    with pytest.raises(BadArgument, match="the tokenizer or its chat template is not what it was"):
        run_lifelong(p, tmp_path / "a", lm=changed, progress=False)
    for name, lm, count in (("b", first, 1), ("c", changed, 2)):
        other = run_lifelong(p, tmp_path / name, lm=lm, progress=False)
        assert kept() == count and other.scores.log_probability.equals(run.scores.log_probability) == (lm is first)
    assert compare_runs([run, other]).attrs["differ"] == ["protocols"]


def test_checkpoints_of_wise_stay_small(tmp_path):
    from wbe.editors.protocol import editor
    from wbe.editors.requests import EditRequest
    from wbe.lm.scoring import score
    from wbe.lm.toys import toy_lm
    from wbe.runs.checkpoints import Checkpoint

    lm, wise, state = (
        toy_lm("gpt2"),
        editor("wise", steps=1, layer=1, save_every=5, merge_every=10),
        Checkpoint(tmp_path),
    )
    for n in range(28):
        r = wise.edit(lm, [EditRequest(f"Who leads {n}?", f"Ann {n}", str(n))]).apply(lm)
        state.record(lm, r)
        state.save(lm, edits_done=n + 1, timestep=1, offset=n + 1)
    shards = lm.edits.attached["wise"].shards
    whole, kept = (
        sum(4 * s.values.numel() for s in shards),
        sum(f.stat().st_size for f in tmp_path.glob("results/*/*.safetensors")),
    )
    assert len(shards) == 6 and len(list((tmp_path / "results").iterdir())) <= 6 and whole <= kept < 2.1 * whole
    again, items = toy_lm("gpt2"), [(f"Who leads {n}?", "Ann") for n in range(0, 28, 3)]
    Checkpoint(tmp_path).restore(again)
    assert score(again, items, progress=False)["log_probability"] == score(lm, items, progress=False)["log_probability"]


def test_a_changed_model_or_benchmark_is_not_continued(tmp_path):
    bench = first_edits(tmp_path / "bench", 8, 3)
    p = plan(benchmark=bench, timesteps=(2, 2), max_edits=None)
    run_lifelong(p, tmp_path / "run", progress=False)
    json_file = Path(bench) / "wiki_big_edit_20240220_20240301.json"
    json_file.write_text(json.dumps(json.loads(json_file.read_text())[:-1]))
    with pytest.raises(BadArgument, match="timestep 2 of the benchmark is not what it was"):
        run_lifelong(p, tmp_path / "run", progress=False)


def test_runs_with_different_protocols_are_reported(tmp_path):
    for name, more in dict(a={}, b=dict(protocol="zero-shot")).items():
        run_lifelong(plan(max_edits=2, **more), tmp_path / name, progress=False)
    assert compare_runs(load_runs(tmp_path)).attrs["differ"] == ["protocols"]
    assert BenchmarkStudy(plan(), tmp_path / "c").config()["batch"] == 1
