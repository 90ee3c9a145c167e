"""A run that is killed goes on where it was and ends with the same scores; a full disk loses nothing; two processes keep apart."""
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wbe.records import BadArgument
from wbe.runs import Plan, Run, compare, load_runs
from wbe.store import StoreError

pytest.importorskip("torch")
from wbe.lifelong import Work, lifelong

BENCH = Path(__file__).parents[1] / "data_samples" / "benchmark"
WORDS = ["-b", str(BENCH), *"--max-edits 24 --timesteps 2-3 --sample 5 --eval-every 8 --curve 4 --axis update --axis locality".split()]


def plan(**more) -> Plan:
    return Plan(**{**dict(benchmark=str(BENCH), editor="ft", max_edits=6, sample=5, axes=("update",), ask_lasting=10), **more})


def scores(folder):
    return Run.load(folder).scores.drop(columns="seconds")


def begin(folder: Path, *words) -> subprocess.Popen:
    code = ("import sys, wbe.lifelong as w\nfrom functools import partial\nw.lifelong = partial(w.lifelong, keep=0.0)\n"  # a checkpoint after every batch
            "from wbe.cli import main\nsys.argv[0] = 'wbe'\nmain()")
    return subprocess.Popen([sys.executable, "-c", code, "run", *WORDS, *words, "--runs", str(folder.parent), "--name", folder.name],
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize("editor,more,kills", [("ft", [], ("config.json", "state/current.json", "scores")), ("rag", [], ("state/current.json",)),
                                               ("rome", ["--set", "steps=3"], ("state/current.json",))])
def test_killed_anywhere_a_run_ends_with_the_same_scores(tmp_path, editor, more, kills):
    whole = begin(tmp_path / "whole", "-e", editor, *more)
    assert whole.wait() == 0, whole.stderr.read()
    wanted, folder = scores(tmp_path / "whole"), tmp_path / "killed"
    parts = lambda: len(list((folder / "scores").glob("*.parquet")))
    for what in kills:  # killed when this appears
        p, seen = begin(folder, "-e", editor, *more), parts()
        while p.poll() is None and not (parts() > seen if what == "scores" else (folder / what).exists()):
            time.sleep(0.002)
        p.send_signal(signal.SIGKILL)
        p.wait()
    p = begin(folder, "-e", editor, *more)
    assert p.wait() == 0, p.stderr.read()
    assert scores(folder).equals(wanted)
    assert Run.load(folder).batches.edits.tolist() == Run.load(tmp_path / "whole").batches.edits.tolist()
    left = [f for f in (folder / "state").iterdir() if f.name not in ("current.json", "results")]
    assert len(left) == 1, "one checkpoint is kept"


def test_a_full_disk_while_a_checkpoint_is_written_loses_nothing(tmp_path, monkeypatch):
    import wbe.editors.base as base

    write, calls = base._write_tensors, []

    def full(path, *args, **more):
        calls.append(path)
        if len(calls) == 2:
            raise StoreError(f"{path}: the disk is full: free some space, or choose a folder on another disk. Nothing was half-written.")
        return write(path, *args, **more)

    monkeypatch.setattr("wbe.lifelong._write_tensors", full)
    with pytest.raises(StoreError, match="disk is full"):
        lifelong(plan(), tmp_path / "run", progress=False, keep=0.0)
    assert json.loads((tmp_path / "run/state/current.json").read_text())["edits_done"] == 1
    lifelong(plan(), tmp_path / "run", progress=False)
    lifelong(plan(), tmp_path / "whole", progress=False)
    assert scores(tmp_path / "run").equals(scores(tmp_path / "whole"))


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file system of a few pages")
def test_a_disk_that_is_really_full(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("only root may mount")
    try:
        with pytest.raises(StoreError, match="disk is full|free some space"):
            lifelong(plan(), disk / "run", progress=False, keep=0.0)
        subprocess.run(["mount", "-o", "remount,size=60m", str(disk)], check=True)
        assert lifelong(plan(), disk / "run", progress=False).missing == []
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def test_a_damaged_checkpoint_and_a_damaged_table_are_named(tmp_path):
    lifelong(plan(timesteps=(2, 2), max_edits=None), tmp_path / "run", progress=False)
    weights = next((tmp_path / "run/state").glob("*/weights.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(StoreError, match="not what the checkpoint says"):
        lifelong(plan(timesteps=(2, 3), max_edits=None), tmp_path / "run", progress=False)
    table = tmp_path / "run/scores.parquet"
    table.write_bytes(table.read_bytes()[:100])
    with pytest.raises(StoreError, match=r"scores\.parquet: not a readable Parquet file"):
        len(Run.load(tmp_path / "run").scores)


def test_two_processes_cannot_work_on_one_run(tmp_path):
    folder = tmp_path / "run"
    p = begin(folder, "-e", "ft")
    while not (folder / "config.json").exists():
        time.sleep(0.01)
    try:
        with pytest.raises(StoreError, match="already at work"):
            lifelong(plan(), folder, progress=False)
    finally:
        p.kill()
        p.wait()


def test_edits_that_cannot_be_made_are_kept_aside_and_the_rest_is_done(tmp_path):
    bench = tmp_path / "bench"
    bench.mkdir()
    rows = json.loads((BENCH / "wiki_big_edit_20240201_20240220.json").read_text())[:6]
    rows[1]["subject"] = "Nobody at all"
    rows[3] = rows[3] | dict(update=rows[2]["update"], subject=rows[2]["subject"], ans="Another")
    (bench / "wiki_big_edit_20240201_20240220.json").write_text(json.dumps(rows))
    run = lifelong(plan(benchmark=str(bench), max_edits=None, editor="rome", hparams=dict(steps=2)), tmp_path / "run", progress=False)
    assert run.missing == [] and len(run.refused) == 1 and "Nobody at all" in run.refused.reason[0]
    assert run.batches.edits.sum() == 5 and run.scores[run.scores.moment == "current"].edited_at.isna().sum() == 1
    run = lifelong(plan(benchmark=str(bench), max_edits=None, editor="lora", hparams=dict(epochs=1)), tmp_path / "lora", progress=False)
    assert run.batches.edits.tolist() == [3, 3]


def test_a_changed_model_or_benchmark_is_not_continued(tmp_path):
    bench = tmp_path / "bench"
    shutil.copytree(BENCH, bench)
    p = plan(benchmark=str(bench), timesteps=(2, 2), max_edits=None)
    lifelong(p, tmp_path / "run", progress=False)
    for path in bench.glob("*20240220_20240301.parquet"):
        path.unlink()
    json_file = bench / "wiki_big_edit_20240220_20240301.json"
    json_file.write_text(json.dumps(json.loads(json_file.read_text())[:-1]))
    with pytest.raises(BadArgument, match="timestep 2 of the benchmark is not what it was"):
        lifelong(p, tmp_path / "run", progress=False)


def test_runs_that_do_not_belong_together_say_so(tmp_path):
    for name, more in dict(a={}, b=dict(under="zero-shot")).items():
        lifelong(plan(max_edits=2, **more), tmp_path / name, progress=False)
    assert compare(load_runs(tmp_path)).attrs["differ"] == ["protocols"]
    assert Work(plan(), tmp_path / "c").config()["batch"] == 1
