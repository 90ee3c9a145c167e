"""General ability inside a run: measured before any edit and after each timestep, once; errors come before any work."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import first_edits

from wbe.records import BadArgument, WbeError
from wbe.runs.plan import RunPlan
from wbe.runs.records import compare_runs

pytest.importorskip("torch")
from wbe.lm.ability import AbilityTask, QuestionTask
from wbe.runs.loop import run_lifelong


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    "Two timesteps of three edits each."
    return first_edits(tmp_path_factory.mktemp("bench"), 3)


@pytest.fixture(autouse=True)
def own_tasks(monkeypatch):
    "Tasks of this file, by name."
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    Counted.asked = []


class Counted(AbilityTask):
    "Counts how often a model was asked; the value is the sum of its weights."

    english, asked, stop_at = False, [], None

    def measure(self, lm, protocol):
        if len(Counted.asked) == Counted.stop_at:
            raise KeyboardInterrupt
        Counted.asked.append(self.name)
        return [dict(metric="weight", value=sum(float(p.detach().abs().sum()) for p in lm.base.parameters()), n=1)]


class Second(Counted):
    pass


@pytest.fixture(scope="module")
def plan(bench):
    "A function that makes a plan."
    usual = dict(benchmark=bench, editor="ft", sample=3, axes=("update",), ask_lasting=5)
    usual |= dict(every=2, curve=2, hparams=dict(steps=2), ability=("test_ability:Counted", "test_ability:Second"))
    return lambda **more: RunPlan(**usual | more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, plan):
    "The folder and the table of a run that nothing stops, and what was asked in it."
    folder, Counted.asked = tmp_path_factory.mktemp("whole"), []
    run = run_lifelong(plan(), folder / "ft", progress=False)
    return folder, run, list(Counted.asked)


def table(run):
    return run.ability[run.ability.metric == "weight"].sort_values(["what", "scored_at"], ignore_index=True)


def test_measured_before_and_after_each_timestep_and_the_unedited_model_once(whole, plan):
    folder, run, asked = whole
    found = table(run)
    assert found.groupby("what").scored_at.apply(list).tolist() == [[0, 1, 2]] * 2
    assert len(asked) == 6  # three moments, not those within a timestep
    assert found.value[0] != found.value[1]
    assert (found.seconds > 0).all()
    none = table(run_lifelong(plan(editor="none", every=None), folder / "none", progress=False))
    assert Counted.asked == [] and set(none.value) == {found.value[0]}
    columns = compare_runs([run])
    name = ("test_ability:Counted, weight", "at the end")
    assert columns.loc["ft", name] == found.value[2]


def test_a_stopped_measurement_is_not_repeated(tmp_path, plan, whole, monkeypatch):
    monkeypatch.setattr(Counted, "stop_at", 3)  # the second task after the first timestep
    with pytest.raises(KeyboardInterrupt):
        run_lifelong(plan(), tmp_path / "run", progress=False)
    monkeypatch.setattr(Counted, "stop_at", None)
    again = table(run_lifelong(plan(), tmp_path / "run", progress=False))
    assert len(Counted.asked) == 6
    assert again.drop(columns="seconds").equals(table(whole[1]).drop(columns="seconds"))


def test_a_run_without_it_is_as_before(tmp_path, plan):
    run = run_lifelong(plan(ability=()), tmp_path / "run", progress=False)
    assert "seconds" not in run.ability and set(run.ability.what) == {"lasting facts"}


@pytest.mark.parametrize(
    "ability,message",
    [
        ("sqad", "did you mean 'squad'"),
        ("squad=nowhere.json", "no such file"),
        ("test_ability:table", "not a class"),
        ("reading=x", "reads no file"),
    ],
)
def test_a_wrong_name_is_found_before_anything_is_written(tmp_path, plan, ability, message):
    with pytest.raises(WbeError, match=message):
        run_lifelong(plan(ability=(ability,)), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_questions_that_cannot_be_downloaded_stop_the_run_before_any_edit(tmp_path, plan, monkeypatch):
    import huggingface_hub

    def unreachable(*args, **more):
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    monkeypatch.setattr("wbe.lm.ability.QuestionTask.english", False)
    with pytest.raises(WbeError, match=r"squad: the questions cannot be downloaded \(no network\); give a file"):
        run_lifelong(plan(ability=("squad",)), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_the_tiny_model_is_not_asked_about_the_real_world(tmp_path, plan):
    rows = [dict(Question="Who?", Answer=dict(Value="x", Aliases=[]))]
    (tmp_path / "web.json").write_text(json.dumps(dict(Data=rows)))
    with pytest.raises(BadArgument, match="triviaqa: wbe-tiny has read only"):
        run_lifelong(plan(ability=(f"triviaqa={tmp_path}/web.json",)), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_the_size_is_part_of_what_is_stored(tmp_path, plan):
    small, large = QuestionTask("squad", 5), QuestionTask("squad", 6)
    assert small.key != large.key
    assert plan(ability_size=5).identity() != plan().identity()
    with pytest.raises(BadArgument, match="ability_size is 0"):
        replace(plan(), ability_size=0)


@pytest.mark.extra("harness")
def test_the_names_are_those_of_the_harness():
    from lm_eval.tasks import TaskManager

    from wbe.lm.ability import ABILITIES

    ours = {name for name, (place, _) in ABILITIES.own.items() if place.endswith(":HarnessTask")}
    assert {"mmlu", "gsm8k", "ifeval"} == ours <= set(TaskManager().all_tasks)
