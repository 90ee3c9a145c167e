"""A run of an editor that carries state is stopped between two batches, continued, and ends with the same scores."""

import importlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from wbe.editors.results import carried_state
from wbe.editors.training.mend_training import BenchmarkExamples, train_network
from wbe.editors.training.rledit import RLEditTrainer, rledit_training
from wbe.lm.models import load
from wbe.lm.toys import toy_lm
from wbe.runs.export import restored_model
from wbe.runs.loop import run_lifelong
from wbe.runs.plan import RunPlan
from wbe.runs.records import Run, compare_runs

ASKED = dict(axes=("rephrase",), ask_lasting=2, batch=3, max_edits=6, timesteps=(1, 1), device="cpu")
COLUMNS = ["edit_id", "moment", "log_probability", "token_accuracy"]
TOWNS = ("Karsk", "Orland", "Vellmar", "Tolvik", "Ashdown", "Muskostad")
BENCH = Path(__file__).parents[1] / "data_samples" / "benchmark"


class Stop(BaseException):
    pass


def stop_when_kept(event, data):
    if event == "kept":
        raise Stop


def stop_after_one_batch(plan, folder):
    with pytest.raises(Stop):
        run_lifelong(plan, folder, progress=False, callbacks=[stop_when_kept], checkpoint_seconds=0.0)
    assert Run.load(folder).batches.edits.tolist() == [3]


def forget(folder):
    "Remove the carried state from the checkpoint of a run."
    path = folder / "state" / "current.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(carried=False)))


@pytest.fixture(scope="module")
def toy_folder(tmp_path_factory):
    folder, toy = tmp_path_factory.mktemp("model") / "toy", toy_lm("gpt2")
    toy.model.save_pretrained(folder)
    toy.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "texts.txt"
    path.write_text("\n\n".join(f"{n} is a town, and {m} is its mayor." for n in TOWNS for m in TOWNS))
    return str(path)


@pytest.fixture(scope="module")
def trained_network(toy_folder, tmp_path_factory):
    lm = load(str(toy_folder), device="cpu")
    row = dict(update="Who runs Karsk?", ans="Nadia", loc="Where is Orland?", loc_ans="Fro")
    settings = rledit_training(lm, out_layers=(1,), steps=1, length=2, batch=2, depth=2, rank=4, layers=1, checked=2)
    folder = tmp_path_factory.mktemp("network")
    settings = replace(settings, rate=0.1)
    return str(train_network(RLEditTrainer, lm, BenchmarkExamples([row]), folder, settings, progress=False))


@pytest.mark.parametrize(
    "editor, hparams",
    [
        ("ultraedit", dict(out_layers=[1], lr=0.01)),
        ("locft", dict(preset="replay", layer=1, epochs=3, lr=0.01)),
        ("alphaedit", dict(layers=[1], steps=3, samples=20)),
        ("crispedit", dict(layers=[1], epochs=2, lr=0.01)),
        ("rledit", dict()),
    ],
)
def test_stopped_and_continued(editor, hparams, toy_folder, corpus, trained_network, tmp_path):
    hparams = hparams | (dict(network=trained_network) if editor == "rledit" else {})
    more = ASKED | (dict(corpus=corpus) if editor in ("alphaedit", "crispedit") else {})
    plan = RunPlan(benchmark=str(BENCH), model=str(toy_folder), editor=editor, hparams=hparams, **more)
    whole = run_lifelong(plan, tmp_path / "whole", progress=False)
    stop_after_one_batch(plan, tmp_path / "stopped")
    shutil.copytree(tmp_path / "stopped", tmp_path / "forgetful")
    forget(tmp_path / "forgetful")
    again = run_lifelong(plan, tmp_path / "stopped", progress=False)
    assert again.scores[COLUMNS].equals(whole.scores[COLUMNS])
    state, expected = (carried_state(restored_model(run), editor) for run in (again, whole))
    now, then = state.tensors, expected.tensors
    assert now.keys() == then.keys() and all((now[k] == then[k]).all() for k in then)
    assert state.settings == expected.settings
    each, settings = compare_runs([whole])["edits", "bytes each"].iloc[0], len(json.dumps(expected.settings))
    assert each * 6 == pytest.approx(sum(t.numel() * t.element_size() for t in then.values()) + settings)
    forgetful = run_lifelong(plan, tmp_path / "forgetful", progress=False)
    moved = (again.scores.log_probability - forgetful.scores.log_probability)[again.scores.moment == "current"]
    assert moved.abs().max() > 1e-4


@pytest.mark.parametrize(
    "editor, hparams",
    [
        ("grace", dict(layer=1, steps=3, radius=1.0)),
        ("horen", dict(layer=1, steps=3)),
        ("memoir", dict(layer=1, top=16, threshold=0.5, steps=3, contexts=True)),
        ("wise", dict(layer=1, steps=3, lr=0.01, contexts=True, save_every=4, merge_every=8)),
    ],
)
def test_what_is_beside_a_layer_is_stopped_and_continued(editor, hparams, toy_folder, tmp_path):
    plan = RunPlan(benchmark=str(BENCH), model=str(toy_folder), editor=editor, hparams=hparams, **ASKED)
    whole = run_lifelong(plan, tmp_path / "whole", progress=False)
    stop_after_one_batch(plan, tmp_path / "stopped")
    again = run_lifelong(plan, tmp_path / "stopped", progress=False)
    assert again.scores[COLUMNS].equals(whole.scores[COLUMNS])


@pytest.mark.parametrize(
    "editor, hparams, work",
    [
        ("memit", dict(layers=[1], steps=3, samples=20), "wbe.editors.weights.keys._optimise_batch"),
        ("lora", dict(epochs=4), "wbe.editors.training.lora._epoch"),
        ("locft", dict(layer=1, epochs=4, lr=0.01, enough=0.0), "wbe.editors.training.finetune._shuffled_batches"),
    ],
)
def test_killed_in_the_middle_of_a_batch_of_a_whole_timestep(
    editor, hparams, work, toy_folder, corpus, tmp_path, monkeypatch
):
    module, name = work.rsplit(".", 1)
    plain, calls = getattr(importlib.import_module(module), name), []
    monkeypatch.setattr("wbe.editors.results.PartialWork.due", True)  # write at every occasion
    given = dict(benchmark=str(BENCH), editor=editor, model=str(toy_folder), hparams=hparams, **ASKED)
    plan = RunPlan(**(given | dict(batch=None)), corpus=corpus if editor == "memit" else None)
    monkeypatch.setattr("wbe.editors.weights.keys._CPU_TOKENS", 1)  # one request at a time

    def counted(*args):
        calls.append(args)
        if len(calls) == stop:
            raise Stop
        return plain(*args)

    monkeypatch.setattr(work, counted)
    stop = None
    whole = run_lifelong(plan, tmp_path / "whole", progress=False)
    count, stop = len(calls), len(calls) + 3
    with pytest.raises(Stop):
        run_lifelong(plan, tmp_path / "killed", progress=False)
    kept = tmp_path / "killed" / "state" / "partial"
    assert list(kept.rglob("part-*.safetensors"))
    stop = None
    again = run_lifelong(plan, tmp_path / "killed", progress=False)
    assert len(calls) == 2 * count + 1  # nothing but the interrupted piece was done twice
    pd.testing.assert_frame_equal(whole.scores[COLUMNS], again.scores[COLUMNS])
    assert not kept.exists()
    read = lambda run: sorted((p.name, p.read_bytes()) for p in (run.folder / "state").rglob("weights.safetensors"))
    assert read(whole) == read(again) != []
