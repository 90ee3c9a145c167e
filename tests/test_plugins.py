"""Editors, writers, embedders and tasks of one's own, by module:Class and by entry points; also in other processes."""

import json
import os
import sys
from pathlib import Path

import processes
import pytest

from wbe.plugins import Registry, find_entry_points
from wbe.records import BadArgument
from wbe.runs.records import Run

pytest.importorskip("torch")
import torch

from wbe.editors.protocol import EDITOR_CLASSES, EDITORS, editor
from wbe.editors.requests import EditRequest
from wbe.editors.results import EditResult
from wbe.lm.scoring import score
from wbe.lm.toys import toy_lm
from wbe.runs.loop import run_lifelong
from wbe.runs.plan import RunPlan
from wbe.runs.sweep import read_sweep, run_sweep

BENCH = Path(__file__).parents[1] / "data_samples" / "benchmark"
torch.set_num_threads(1)
FEW = dict(benchmark=str(BENCH), max_edits=4, axes=("update",), ask_lasting=5)

# As in the tutorial: an editor that changes a weight, and one that changes only the prompt.
WEIGHT = """
from dataclasses import dataclass
from wbe.editors.protocol import AS_ASKED, HParams, hp
from wbe.editors.protocol import Editor
from wbe.editors.results import Delta, WeightEdit
from wbe.editors.training.finetune import answer_gradient

@dataclass(frozen=True, kw_only=True)
class StepHParams(HParams):
    layer: int = hp(0, minimum=0)
    size: float = hp(1.0, minimum=0)
    under: str = AS_ASKED

class GentleStep(Editor):
    "One step against the gradient of the answers."
    HParams, needs_subject, batch = StepHParams, False, 1
    presets = {"": (dict(layer=lambda lm: lm.layers // 2), "half way up")}

    def _edit(self, lm, requests, hparams):
        matrix = ("mlp_out", hparams.layer)
        g = answer_gradient(lm, requests, matrix, hparams.under)
        return WeightEdit(deltas={matrix: Delta(whole=-hparams.size * g / g.norm())})
"""
PROMPT = """
from wbe.editors.memory.retrieval import PromptEdit, format_fact
from wbe.editors.protocol import Editor

class FactsOfSubject(PromptEdit):
    def context_for(self, question):
        return [format_fact(r, "pair") for r in self.facts if r.subject in question][-3:]

class Mine(Editor):
    "The latest three facts about the subject stand in front of a question."
    causal = False

    def _edit(self, lm, requests, hparams):
        return FactsOfSubject(facts=list(requests))
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    "A user's folder with two editors, which is the current folder; nothing of it stays imported."
    (tmp_path / "own_weight.py").write_text(WEIGHT)
    (tmp_path / "own_prompt.py").write_text(PROMPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith(("own_", "gentle")):
            del sys.modules[name]


def install(site: Path, name: str, points: str, code: str = "", version: str = "1.2"):
    "A package with entry points, as pip would leave it."
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").write_text(code)
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{name}/__init__.py,,\n")
    (info / "entry_points.txt").write_text(points)


@pytest.fixture
def site(here, monkeypatch):
    install(here / "site", "gentle", "[wbe.editors]\ngentle = gentle:GentleStep\nrome = gentle:GentleStep\n", WEIGHT)
    monkeypatch.syspath_prepend(str(here / "site"))
    return here / "site"


def one_line(error: BadArgument) -> str:
    assert "\n" not in str(error)
    return str(error)


def refused(name: str, **options) -> str:
    with pytest.raises(BadArgument) as e:
        editor(name, **options)
    return one_line(e.value)


# ---- by place -----------------------------------------------------------------------------------------------------


def test_an_editor_in_the_current_folder_changes_a_weight_or_the_prompt(here):
    for name, batches in (("own_weight:GentleStep", 4), ("own_prompt:Mine", 1)):
        run = run_lifelong(RunPlan(editor=name, **FEW), here / "runs" / name.partition(":")[2], progress=False)
        assert run.missing == [] and int(run.batches.edits.sum()) == 4 and len(run.batches) == batches
        before, after = (run.scores[run.scores.moment == m].log_probability.mean() for m in ("before", "current"))
        assert after > before + 1  # both make the answers likelier
    assert run.config["editor"]["place"] == "own_prompt:Mine"
    assert run.config["editor"]["name"] == "mine"


def test_the_current_folder_cannot_replace_an_installed_module(here):
    (here / "json.py").write_text("raise RuntimeError('the wrong json')")
    editor("own_prompt:Mine")
    assert sys.path[-1] == str(here) and "wrong" not in (json.__doc__ or "")


@pytest.mark.parametrize(
    "name,options,message",
    [
        ("own_wight:GentleStep", {}, "did you mean 'own_weight'?"),
        ("own_weight:GentelStep", {}, "did you mean 'GentleStep'?"),
        ("own_weight:StepHParams", {}, "not a subclass of wbe.editors.protocol.Editor; did you mean own_weight:Gentle"),
        ("own_weight:hp", {}, "is a function, not a class"),
        ("own_weight.GentleStep", {}, "module:Class"),
        ("own_weight:", {}, "give it as module:Class"),
        ("own_weight:GentleStep", dict(sise=1), "did you mean 'size'?"),
        ("own_weight:GentleStep", dict(size=-1), "must be at least 0"),
        ("own_weight:GentleStep", dict(layer="abc"), "must be a whole number"),
        ("broken:Mine", {}, "SyntaxError"),
        ("needy:Mine", {}, "needs the package no_such_package"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(here, name, options, message):
    (here / "broken.py").write_text("def f(:\n")
    (here / "needy.py").write_text("import no_such_package\n")
    assert message in refused(name, **options)


def test_an_own_editor_is_saved_and_restored(here):
    lm = toy_lm("gpt2")
    facts = [EditRequest("Who runs Karsk?", "Nadia", "Karsk"), EditRequest("Who runs Orland?", "Zoë", "Orland")]
    ask = lambda lm: score(lm, [("Who runs Karsk?", "Nadia")], "zero-shot", progress=False)["log_probability"]
    for name in ("own_weight:GentleStep", "own_prompt:Mine"):
        result, bare = editor(name).edit(lm, facts), ask(lm)
        with result.on(lm):
            edited = ask(lm)
        assert ask(lm) == bare != edited
        again = EditResult.load(result.save(here / name.partition(":")[2]))
        assert type(again) is type(result)
        with again.on(toy := toy_lm("gpt2")):
            assert ask(toy) == edited
    assert type(again).__name__ == "FactsOfSubject"


def test_a_run_of_an_own_editor_continues_with_its_own_kind_of_result(here):
    class Stop(BaseException):
        pass

    def stop(event, data):
        if event == "kept":
            raise Stop

    plan = RunPlan(editor="own_prompt:Mine", batch=1, **FEW)
    whole = run_lifelong(plan, here / "runs" / "whole", progress=False)
    with pytest.raises(Stop):
        run_lifelong(plan, here / "runs" / "cut", progress=False, callbacks=[stop], checkpoint_seconds=0.0)
    cut = run_lifelong(plan, here / "runs" / "cut", progress=False)
    assert cut.scores.drop(columns="seconds").equals(whole.scores.drop(columns="seconds"))
    assert "resumed" in (here / "runs" / "cut" / "log.txt").read_text()


def test_changed_code_is_a_warning_and_is_recorded(here):
    plan = RunPlan(editor="own_prompt:Mine", **FEW)
    first = run_lifelong(plan, here / "run", progress=False).config["editor"]
    (here / "own_prompt.py").write_text(PROMPT + "\n# changed\n")
    with pytest.warns(UserWarning, match="the source of the editor own_prompt:Mine has changed"):
        second = run_lifelong(plan, here / "run", progress=False).config["editor"]
    assert second["sha256"] != first["sha256"] and second["earlier"] == [first]


# ---- by entry points ----------------------------------------------------------------------------------------------


def test_an_installed_package_registers_editors(here, site):
    made = editor("gentle", size=2)
    assert (type(made).__module__, made.name, made.about) == (
        "gentle",
        "gentle-step",
        "One step against the gradient of the answers.",
    )
    run = run_lifelong(RunPlan(editor="gentle", **FEW), here / "run", progress=False)
    assert {k: run.config["editor"][k] for k in ("place", "distribution", "version")} == dict(
        place="gentle:GentleStep", distribution="gentle", version="1.2"
    )
    assert "did you mean 'gentle'?" in refused("gentl")


def test_a_name_of_ours_stays_ours(site):
    with pytest.warns(UserWarning, match="the name 'rome' is wbe's own; use gentle:GentleStep"):
        assert type(editor("rome")).__module__ == "wbe.editors.weights.rome"
    refusals = {e.name: e.refused for e in EDITORS.entries() if e.package}
    assert refusals["gentle"] == "" and "wbe's own" in refusals["rome"]
    EDITORS.warned.clear()


def test_two_packages_with_one_name_are_refused_both(here, site):
    install(here / "site", "other", "[wbe.editors]\ngentle = other:Gentle\n")
    assert {p.package for p in find_entry_points("wbe.editors") if p.name == "gentle"} == {"gentle 1.2", "other 1.2"}
    assert "registers the name 'gentle' too; use gentle:GentleStep" in refused("gentle")
    assert editor("gentle:GentleStep").name == "gentle-step"  # by place it still works


def test_nothing_is_imported_to_list_names(site):
    install(site, "explosive", "[wbe.editors]\nboom = explosive:Boom\n", "raise RuntimeError('imported')")
    assert "boom" in EDITORS.names()
    assert "cannot be imported: RuntimeError: imported" in refused("boom")


# ---- in other processes -------------------------------------------------------------------------------------------


# Each process of a sweep imports an own editor, which can therefore shorten its timings (see processes.py).
BRIEFLY = f"""
import sys
sys.path.append({str(Path(__file__).parent)!r})
import processes
processes.time_answers_briefly()
"""


def test_a_sweep_runs_own_editors_in_its_processes(here, site, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for path in (here / "own_prompt.py", site / "gentle" / "__init__.py"):
        path.write_text(path.read_text() + BRIEFLY)
    (here / "sweep.toml").write_text(
        f'folder = "swept"\n[common]\nbenchmark = "{BENCH}"\nmax_edits = 2\naxes = ["update"]\nask_lasting = 5\n'
        '[[run]]\neditor = ["gentle", "own_prompt:Mine"]\nname = "{editor}"\n'
    )
    assert list(read_sweep("sweep.toml")[1]) == ["gentle", "own_prompt-Mine"]
    assert set(run_sweep("sweep.toml", jobs=2, progress=False).values()) == {"complete"}
    config = Run.load(here / "swept" / "gentle").config
    assert config["editor"]["distribution"] == "gentle"
    assert config["hardware"]["threads"] == max(1, len(os.sched_getaffinity(0)) // 2)  # its share of the cores
    assert Run.load(here / "swept" / "own_prompt-Mine").editor == "own_prompt:Mine"


def test_the_command_line_finds_a_file_beside_the_data(here):
    "The script `wbe` does not have the current folder on its path, unlike `python -m wbe`."
    code = "import sys; sys.path.remove(''); sys.argv[0] = 'wbe'; from wbe.cli.main import main; main()"
    words = f"run {BENCH} -e own_prompt:Mine --max-edits 2 --axes update --runs runs --name mine".split()
    env = {**os.environ, "OMP_NUM_THREADS": "1", "WBE_PROGRESS_SECONDS": "0"}
    done = processes.run(["-c", code, *words], env=env)
    assert done.returncode == 0, done.stderr
    assert "\r" not in done.stderr and "answers" in done.stderr  # progress is lines where nobody watches
    assert Run.load(here / "runs" / "mine").missing == []


# ---- writers and embedders ----------------------------------------------------------------------------------------


def test_writers_embedders_and_tasks_of_ones_own(here):
    from wbe.editors.memory.embed import embedder
    from wbe.writers.base import Hop, Request, make_writer

    (here / "own_things.py").write_text(
        """
import numpy as np
from wbe.writers.base import WrittenText
class Shout:
    name, repairs = "shout", False
    def key(self): return dict(writer=self.name)
    def write(self, requests, progress=False):
        for r in requests: yield WrittenText(r.id, f"{r.subject.upper()}?", self.name)
class Letters:
    size = 26
    def key(self): return dict(embedder="letters")
    def embed(self, texts, progress=False):
        v = np.array([[t.lower().count(chr(97 + i)) for i in range(26)] for t in texts], np.float32)
        return v / np.linalg.norm(v, axis=1, keepdims=True)
def parameters(lm, protocol):
    return [dict(metric="count", value=float(lm.parameters))]
"""
    )
    plan = RunPlan(editor="own_prompt:Mine", tasks=("own_things:parameters",), **FEW)
    ability = run_lifelong(plan, here / "run", progress=False).ability
    counted = ability[(ability.what == "own_things:parameters") & (ability.metric == "count")]
    assert len(counted) == 2 and (counted.value > 1e6).all()  # before the edits and after
    heads = Request("Q1/P6/update", "update", "Orland", (Hop("P6", "head of government", "Zoë", "person"),), "place")
    assert [t.text for t in make_writer("own_things:Shout").write([heads])] == ["ORLAND?"]
    assert embedder("own_things:Letters").embed(["aab"])[0].argmax() == 0
    assert "has no method embed" in _refusal(lambda: embedder("own_things:Shout"))
    lm = toy_lm("gpt2", n_positions=512)
    rag = editor("rag", embedder="own_things:Letters", index="exact")
    rag.check_for(lm)
    with rag.edit(lm, [EditRequest("Who runs Karsk?", "Nadia", "Karsk")]).on(lm):
        assert "letters" in repr(lm.edits.attached["memory"].memory)


def _refusal(function) -> str:
    with pytest.raises(BadArgument) as e:
        function()
    return one_line(e.value)


def test_every_own_place_exists():
    from wbe.editors.memory.embed import EMBEDDERS
    from wbe.lm.ability import TASKS
    from wbe.writers.base import WRITERS

    for registry in (EDITORS, EMBEDDERS, WRITERS, TASKS):
        assert isinstance(registry, Registry)
        for name in registry.own:
            assert registry.get(name)
    assert list(EDITORS.own) == list(EDITOR_CLASSES)
