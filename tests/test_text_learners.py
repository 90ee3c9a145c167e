"""Learners that take texts go through the same loop: killed and resumed, grown, compared; and what they refuse."""

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import processes
import pytest

pytest.importorskip("torch")
import torch

from wbe.benchmark.reader import Benchmark
from wbe.records import BadArgument
from wbe.runs.loop import run_lifelong
from wbe.runs.plan import RunPlan
from wbe.runs.records import Run, compare_runs, load_runs
from wbe.wikipedia.texts import SourceText, write_texts

SAMPLES = Path(__file__).parents[1] / "data_samples"
QUICK = dict(length=48, batch_size=4, steps=3, rate=0.01)
LEARNERS = {
    "text-diff": QUICK,
    "text-full": QUICK,
    "text-recadam": QUICK | dict(anneal_t0=1.0, gamma=10.0),
    "text-mix-review": QUICK,
    "text-lora": QUICK | dict(head=True),
    "text-k-adapter": QUICK | dict(heads=2, gain=1.0, head=True),  # a stack of two results in each timestep
    "text-passages": dict(words=20),
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    "Six edits of each of two timesteps in `bench`, and what was written: a sentence for each of them."
    folder = tmp_path_factory.mktemp("texts")
    (folder / "bench").mkdir()
    for path in sorted((SAMPLES / "benchmark").glob("wiki_big_edit_*.json"))[:2]:
        (folder / "bench" / path.name).write_text(json.dumps(json.loads(path.read_text())[:6]))
    bench = Benchmark.load(folder / "bench")

    def written(n, status):
        rows = bench[n].edits.to_pylist()
        return [SourceText(10 * n + i, r["subject"], status, f"{r['update']} {r['ans']}.") for i, r in enumerate(rows)]

    days = bench.timesteps[0].split("_")[0], *(name.split("_")[1] for name in bench.timesteps)
    for n, name in enumerate(bench.timesteps):
        write_texts(folder / f"wiki_texts_{name}.parquet", written(n, "new"))
    for n, day in enumerate(days):
        articles = [row for m in range(n) for row in written(m, "article")]
        write_texts(
            folder / f"wiki_articles_{day}.parquet", [SourceText(99, "Karsk", "article", "It is old."), *articles]
        )
    return folder


def plan_of(name, texts, **more) -> RunPlan:
    asked = dict(axes=("rephrase",), sample=2, lasting=str(SAMPLES / "lasting_facts.parquet"), ask_lasting=2)
    settings = dict(benchmark=str(texts / "bench"), model="toy", device="cpu", timesteps=(1, 2))
    learner = dict(editor=name, texts_dir=str(texts), hparams=LEARNERS.get(name, {}))
    return RunPlan(**dict(asked, **settings, **learner) | more)


def toy():
    from wbe.lm.toys import toy_lm

    torch.set_num_threads(1)
    return toy_lm("gpt2", n_positions=256)


class Stop(BaseException):
    pass


def carry_out(plan, folder, stop_at=None):
    "Carry out a run with a fresh model; stopped at an event, if one is named."
    left = [stop_at]

    def watch(event, data):
        if event == "kept" and left[0]:
            left[0] -= 1
            if not left[0]:
                raise Stop

    try:
        return run_lifelong(plan, folder, lm=toy(), progress=False, callbacks=[watch])
    except Stop:
        return None


def scores(run: Run):
    return run.scores.drop(columns="seconds")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, texts) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: carry_out(plan_of(name, texts), folder / name) for name in LEARNERS}


@pytest.mark.parametrize("name", LEARNERS)
def test_stopped_after_a_timestep_a_learner_ends_with_the_same_scores(tmp_path, texts, whole, name):
    assert carry_out(plan_of(name, texts), tmp_path / "run", stop_at=1) is None
    resumed = carry_out(plan_of(name, texts), tmp_path / "run")
    assert resumed.missing == [] == whole[name].missing
    assert scores(resumed).equals(scores(whole[name]))
    assert resumed.batches.texts.tolist() == whole[name].batches.texts.tolist()


def test_a_learner_changes_scores_and_its_work_is_in_the_table(whole):
    for name, run in whole.items():
        means = run.scores.groupby("moment").log_probability.mean()
        assert means["before"] != means["current"], name
        assert run.batches.edits.tolist() == [6, 6], name
        assert (run.batches.seconds > 0).all() and (run.batches.refused == 0).all()
    assert whole["text-diff"].batches.steps.tolist() == [3, 3]
    assert whole["text-full"].batches.texts.tolist() == [7, 13] and whole["text-diff"].batches.texts.tolist() == [6, 6]


def test_recadam_as_released_is_diff_in_a_whole_run(tmp_path, texts, whole):
    released = plan_of("text-recadam", texts, hparams=QUICK | dict(penalty=False))
    run = carry_out(released, tmp_path / "released")
    same = scores(whole["text-diff"])
    assert scores(run).equals(same) and not scores(whole["text-recadam"]).equals(same)


def test_learners_and_editors_stand_in_one_comparison(tmp_path, texts, whole):
    edits = carry_out(
        plan_of("ft", texts, hparams=dict(steps=2), timesteps=(1, 1)), whole["text-diff"].folder.parent / "ft"
    )
    table = compare_runs(load_runs(whole["text-diff"].folder.parent))
    assert edits.missing == [] and set(LEARNERS) | {"ft"} <= set(
        str(x) for x in table.reset_index().astype(str).values.ravel()
    )


def killed(folder: str, texts: str, name: str):
    run_lifelong(plan_of(name, Path(texts)), Path(folder), lm=toy(), progress=False)


def test_killed_at_any_moment_a_learner_ends_with_the_same_scores(tmp_path, texts, whole):
    name, folder, context = "text-k-adapter", tmp_path / "run", processes.context()
    for sign in ("config.json", "state/current.json"):
        process = context.Process(target=killed, args=(str(folder), str(texts), name))
        process.start()
        while process.is_alive() and not (folder / sign).exists():
            time.sleep(0.005)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    resumed = carry_out(plan_of(name, texts), folder)
    assert resumed.missing == [] and scores(resumed).equals(scores(whole[name]))


def test_a_run_grows_by_a_timestep(tmp_path, texts, whole):
    plan = plan_of("text-lora", texts, timesteps=(1, 1))
    carry_out(plan, tmp_path / "run")
    grown = carry_out(replace(plan, timesteps=(1, 2)), tmp_path / "run")
    assert grown.missing == [] and grown.config["timesteps"] == [1, 2]


@pytest.mark.parametrize(
    "more, message",
    [
        (dict(texts_dir=None), "takes texts: name their folder with texts_dir (--set texts_dir=…)"),
        (dict(texts_dir="nowhere"), "there is no such folder of texts"),
        (dict(every=5, tune=2), "text-diff takes all texts of a timestep at once; leave out every, tune"),
        (dict(batch=5), "leave out batch"),
        (dict(hparams=dict(stpes=5)), "did you mean 'steps'"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_written(tmp_path, texts, more, message):
    with pytest.raises(BadArgument) as e:
        carry_out(replace(plan_of("text-diff", texts), **more), tmp_path / "run")
    assert message in str(e.value)
    assert not (tmp_path / "run").exists()


def test_a_quantised_model_is_refused_by_a_learner_of_all_weights(texts):
    from wbe.editors.protocol import editor
    from wbe.editors.text.training import text_steps
    from wbe.lm.families import ModelError

    lm = toy()
    lm.quant = "4bit"
    [step] = text_steps(texts, [Benchmark.load(texts / "bench").timesteps[0]])
    with pytest.raises(ModelError, match="are quantised; load it without quant"):
        editor("text-diff").learn(lm, step)


def test_the_command_line_takes_a_folder_of_texts(tmp_path, texts):
    from typer.testing import CliRunner

    from wbe.cli.main import app

    words = ["run", str(texts / "bench"), "-e", "text-diff", "--runs", str(tmp_path), "--device", "cpu"]
    words += "--max-edits 2 --axes update --set steps=1 --set batch_size=1 --name learnt".split()
    missing = CliRunner().invoke(app, words, env=dict(os.environ, COLUMNS="200"))
    assert missing.exit_code != 0
    done = CliRunner().invoke(app, [*words, "--set", f"texts_dir={texts}"])
    assert done.exit_code == 0, done.output
    assert Run.load(tmp_path / "learnt").batches.texts.tolist() == [6]
