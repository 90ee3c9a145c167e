"""A plan that cannot be carried out is refused in one line, before the model is asked or anything is written."""

import importlib.util
import json
import sys
import warnings
from pathlib import Path
from unittest import mock

import pyarrow.parquet as pq
import pytest

from wbe.records import WbeError

pytest.importorskip("torch")
import torch

from wbe.runs import loop, moments, study
from wbe.editors.memory.retrieval import _warn_once
from wbe.editors.protocol import editor
from wbe.editors.requests import EditRequest
from wbe.lm.models import load
from wbe.lm.toys import toy_lm
from wbe.runs.plan import RunPlan, check_plan
from wbe.runs.records import Run
from wbe.runs.sweep import read_sweep
from wbe.runs.loop import tracker

BENCH = Path(__file__).parents[1] / "data_samples" / "benchmark"
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny():
    return load("wbe-tiny", device="cpu")


def plan(**more) -> RunPlan:
    few = dict(benchmark=str(BENCH), max_edits=4, axes=("update",), ask_lasting=5)
    return RunPlan(**{**few, **more})


@pytest.fixture
def never_asked(monkeypatch):
    "The model must not be asked or edited."

    def fail(*args, **more):
        raise AssertionError("the model was asked")

    for name in ("score_questions", "score"):
        monkeypatch.setattr(moments, name, fail)


def refusal(p: RunPlan, folder: Path, lm=None) -> str:
    with pytest.raises(WbeError) as e:
        loop.run_lifelong(p, folder / "runs" / "one", lm, progress=False)
    assert "\n" not in str(e.value) and not (folder / "runs").exists()
    return str(e.value)


BEFORE_LOADING = [
    (dict(editor="rone"), "did you mean 'rome'?"),
    (dict(editor="nowhere:Mine"), "no module 'nowhere'"),
    (dict(editor="ft", hparams=dict(lyer=1)), "did you mean 'layer'?"),
    (dict(editor="ft", hparams=dict(layer="abc")), "layer is 'abc', but it must be a whole number"),
    (dict(editor="ft", hparams=dict(steps=-3)), "steps is -3, but it must be at least 1"),
    (dict(editor="ft", hparams=dict(lr=None)), "lr is None, but it must be a number"),
    (dict(editor="memit", corpus="nowhere.txt"), "nowhere.txt"),
    (dict(editor="rag", hparams=dict(embedder="hashd")), "did you mean 'hashed'?"),
    (dict(editor="rag", hparams=dict(index="anoy")), "did you mean 'annoy'?"),
    (dict(protocol="papr"), "did you mean 'paper'?"),
    (dict(generate=("locallity",)), "did you mean 'locality'?"),
    (dict(texts="nowhere.txt"), "nowhere.txt"),
    (dict(lasting="nowhere.parquet"), "nowhere.parquet"),
    (dict(device="gpu"), "did you mean 'cuda'?"),
    (dict(dtype="float23"), "did you mean 'float32'?"),
    (dict(quant="5bit"), "4bit"),
    (dict(model="./nowhere/model"), "no config.json"),
    (dict(timesteps=(9, 9)), "from 1 to 8"),
]


@pytest.mark.parametrize("settings,message", BEFORE_LOADING)
def test_refused_before_a_model_is_loaded(settings, message, tmp_path, monkeypatch, never_asked):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "load", lambda *a, **k: pytest.fail("the model was loaded"))
    assert message in refusal(plan(**settings), tmp_path)


def test_a_gpu_that_is_not_there_is_named(tmp_path, never_asked):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert "torch sees no GPU here" in refusal(plan(device="cuda:1"), tmp_path)


@pytest.mark.parametrize("index,package", [("annoy", "annoy"), ("faiss", "faiss")])
def test_a_missing_package_that_was_asked_for_is_named(index, package, tmp_path, never_asked):
    with hidden("annoy", "faiss", "sentence_transformers"):
        message = refusal(plan(editor="rag", hparams=dict(index=index)), tmp_path)
    assert "pip install" in message and package in message.lower()


@pytest.mark.parametrize(
    "settings,message",
    [
        (dict(editor="ft", hparams=dict(layer=99)), "layer 99, but wbe-tiny has the layers 0 to 5"),
        (dict(editor="rome", hparams=dict(layer=6)), "layer 6"),
        (dict(editor="memit", hparams=dict(layers=[1, 60])), "layer 60"),
        (dict(editor="memit", hparams=dict(layers=[])), "no layers are given"),
        (dict(editor="wise", hparams=dict(layer=77)), "layer 77"),
        (dict(editor="lora", hparams=dict(parts="qery")), "did you mean 'query'?"),
        (dict(editor="ft", hparams=dict(under="papr")), "did you mean 'paper'?"),
        (dict(protocol="chat"), "chat template"),
    ],
)
def test_refused_before_the_first_question(settings, message, tmp_path, tiny, never_asked):
    assert message in refusal(plan(**settings), tmp_path, tiny)


def test_a_tracker_is_checked_first_and_opens_its_files_later(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(WbeError, match="the tracker wandb needs the package wandb: pip install"):
        tracker("wandb", tmp_path / "runs" / "one")
    opened = []
    observe = tracker("mine", tmp_path, make=lambda *of: opened.append(of) or (lambda step, values: None))
    assert not opened
    observe("begun", {})
    observe("finished", dict(edits_done=1))
    assert len(opened) == 1


def test_a_model_without_a_corpus_takes_texts_that_it_generates(tmp_path, never_asked):
    toy = toy_lm("llama", max_position_embeddings=256)
    assert "tokens that the model generates" in editor("memit", layers=(1,)).check_for(toy).source
    assert "no such file" in refusal(plan(editor="memit", corpus="nowhere.txt"), tmp_path, toy)
    assert "encoder-decoder" in refusal(plan(editor="ft"), tmp_path, toy_lm("t5"))


def test_edits_without_a_subject_are_refused_where_all_lack_it(tmp_path, never_asked, monkeypatch):
    table = pq.read_table(next(BENCH.glob("*.parquet")))
    rows = [r | dict(subject="Nobody at all") for r in table.slice(0, 3).to_pylist()]
    path = tmp_path / "wiki_big_edit_20240201_20240220.json"
    path.write_text(json.dumps(rows, default=str))
    monkeypatch.setattr(study, "load", lambda *a, **k: pytest.fail("the model was loaded"))
    assert "rome can make none of the edits" in refusal(plan(benchmark=str(path), editor="rome"), tmp_path)


def test_what_failed_does_not_block_the_name(tmp_path, tiny):
    refusal(plan(editor="ft", hparams=dict(layer=99)), tmp_path, tiny)
    run = loop.run_lifelong(plan(editor="prompt"), tmp_path / "runs" / "one", progress=False)
    assert run.missing == []


def test_a_sweep_is_refused_whole(tmp_path):
    (tmp_path / "sweep.toml").write_text(f'[common]\nbenchmark = "{BENCH}"\n[[run]]\neditor = ["none", "rone"]\n')
    with pytest.raises(WbeError, match="run 1: no editor 'rone'; did you mean 'rome'.*module:Class$"):
        read_sweep(tmp_path / "sweep.toml")


def test_recorded_plans_can_be_read_where_their_files_are_missing():
    recorded = Run.load(BENCH.parent / "runs" / "memit").config["plan"]
    assert RunPlan.from_config(recorded | dict(corpus="/gone.txt")).corpus == "/gone.txt"
    with pytest.raises(WbeError, match="gone.txt"):
        check_plan(RunPlan.from_config(recorded | dict(corpus="/gone.txt")))


# ---- rag without its packages -------------------------------------------------------------------------------------


def hidden(*names):
    "Packages that seem not to be installed, within a block; others seem to be."
    real, known = importlib.util.find_spec, ("annoy", "faiss", "sentence_transformers")

    def find(name, *more):
        return None if name in names else object() if name in known else real(name, *more)

    return mock.patch("importlib.util.find_spec", find)


@pytest.mark.parametrize(
    "missing,used",
    [
        (("sentence_transformers", "annoy", "faiss"), ("hashed", "exact")),
        (("sentence_transformers", "annoy"), ("hashed", "faiss")),
        (("annoy", "faiss"), ("all-mpnet-base-v2", "exact")),
        (("sentence_transformers",), ("hashed", "annoy")),
        ((), ("all-mpnet-base-v2", "annoy")),
    ],
)
def test_rag_uses_what_is_installed_with_one_warning(missing, used):
    _warn_once.cache_clear()
    lm = toy_lm("gpt2")
    with hidden(*missing), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = [editor("rag").hparams_for(lm) for _ in range(2)]
    assert [(h.embedder, h.index) for h in found] == [used] * 2
    texts = [str(w.message) for w in seen if "rag" in str(w.message)]
    assert len(texts) == bool(missing)
    wanted = {"sentence_transformers": "sentence-transformers", "annoy": "annoy"}
    assert all(wanted[m] in texts[0] for m in missing if m in wanted)
    assert ("not installed" in found[0].source) == bool(missing)


def test_rag_edits_without_its_packages_and_records_what_it_used(tmp_path):
    _warn_once.cache_clear()
    lm = toy_lm("gpt2", n_positions=512)
    with hidden("sentence_transformers", "annoy", "faiss"), pytest.warns(UserWarning, match="hashed"):
        result = editor("rag").edit(lm, [EditRequest("Who runs Karsk?", "Nadia", "Karsk")])
    assert (result.hparams["embedder"], result.hparams["index"]) == ("hashed", "exact")


def test_a_resumed_run_keeps_what_it_recorded(tmp_path, tiny):
    """Begun with the exact index and the hashed embedder in place of the published ones; then the packages are there,
    and after that one that the record names is missing."""
    p, folder = plan(editor="rag", protocol="retrieval"), tmp_path / "rag"
    loop.run_lifelong(p, folder, progress=False)
    config = json.loads((folder / "config.json").read_text())
    assert (config["hparams"]["embedder"], config["hparams"]["index"]) == ("hashed", "exact")
    config["hparams"]["k"] = 1  # a preset that a later version chooses otherwise
    (folder / "config.json").write_text(json.dumps(config))
    assert loop.run_lifelong(p, folder, progress=False).config["hparams"]["k"] == 1
    config["hparams"]["index"] = "annoy"
    (folder / "config.json").write_text(json.dumps(config))
    with hidden("annoy"), pytest.raises(WbeError, match="annoy"):
        loop.run_lifelong(p, folder, progress=False)
    assert (folder / "config.json").exists()
