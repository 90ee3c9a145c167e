"""Single rules of a run, each alone: what is planned, when the curve is due, what is dropped, a share of zero."""

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import toy_runs

from wbe.records import BadArgument
from wbe.runs.records import VERDICT_KEY, PartitionedTable, Run, reached_end, run_differences

pytest.importorskip("torch")
from wbe.lm.ability import static_items
from wbe.runs import loop, moments
from wbe.runs.plan import RunPlan
from wbe.runs.study import planned_edits
from wbe.runs.judged import _write_verdicts


def test_a_resumed_run_keeps_the_part_of_its_checkpoint_and_drops_the_later_ones(tmp_path):
    table = PartitionedTable(tmp_path, "batches")
    for n in (3, 4, 5):
        table.add(f"{n:08d}-001", pd.DataFrame(dict(edits=[n])))
    table.drop_after("00000004-001")
    assert table.frame().edits.tolist() == [3, 4]
    table.drop_after("")  # no checkpoint: all is done again
    assert len(table.frame()) == 0


def test_the_curve_is_due_after_every_so_many_of_the_first_edits():
    def due(done, every=20):
        return RunPlan(benchmark="b", every=every, first=60).curve_is_due(done)

    assert [n for n in range(1, 101) if due(n)] == [20, 40, 60]
    assert not any(due(n, every=None) for n in range(1, 101))


@pytest.mark.parametrize("most,planned", [(None, {1: 3, 2: 3, 3: 3}), (3, {1: 3}), (7, {1: 3, 2: 3, 3: 1})])
def test_edits_are_planned_in_order_until_there_are_enough(most, planned):
    assert planned_edits(["abc", "def", "ghi"], SimpleNamespace(timesteps=None, max_edits=most, tune=None)) == planned


def test_a_judge_that_is_asked_again_gives_the_verdict_that_counts(tmp_path):
    toy_runs.write(toy_runs.made_up("rag", timesteps=1, edits=2), tmp_path / "rag")
    run = Run.load(tmp_path / "rag")
    asked = run.scores[run.scores.moment == "current"].head(2)[list(VERDICT_KEY)]
    given = ("a", [None, "wrong"]), ("a", ["right", "wrong"]), ("b", ["wrong", "wrong"]), ("a", [None, None])
    for judge, verdicts in given:  # without a verdict: the judge did not answer
        _write_verdicts(run, asked.assign(answer="Ida", verdict=verdicts, judge=judge))
    of = run.verdicts.groupby("judge").verdict.agg(list).to_dict()
    assert of == dict(a=["right", "wrong"], b=["wrong", "wrong"])


def test_lasting_facts_that_are_all_wrong_have_the_interval_of_a_share_of_zero(monkeypatch):
    "With no right answer in `n`, the upper end is the share at which that has a chance of 2.5%."
    n = 20
    scores = dict(exact_match=[False] * n, token_accuracy=[1.0] * n, id=[f"Q{i}" for i in range(n)])
    monkeypatch.setattr(moments, "score", lambda *_, **__: scores)
    plan = SimpleNamespace(protocol="paper", tasks=(), texts=None)
    exact, tokens = moments.Asker.score_lasting(SimpleNamespace(plan=plan, lm=None, lasting=[]))
    assert (exact["value"], exact["low"], tokens["value"], tokens["high"]) == (0, 0, 1, 1)
    assert (1 - exact["high"]) ** n == pytest.approx(0.025)
    assert tokens["low"] ** n == pytest.approx(0.025)


def test_a_run_that_is_stopped_while_it_chooses_hyper_parameters_goes_on_and_chooses_the_same(tmp_path, monkeypatch):
    "The trials that were made stay; what was chosen stands in the run's description, and a repeated call keeps it."
    from wbe.editors import trials as tuning
    from wbe.lm.toys import toy_lm
    from wbe.runs.loop import run_lifelong

    rows = [dict(question=f"Who leads {n}?", answer=a, subject=n) for n, a in zip("ABCDEF", ("Ann", "Bo", "Cy") * 2)]
    plan = RunPlan(benchmark=rows, editor="ft", tune=3, hparams=dict(steps=2, lr=1e-2), axes=("update",), ask_lasting=2)
    said, tried, try_setting = [], [], tuning._try_setting

    def stopped(*given):
        if len(tried) == 4:
            raise KeyboardInterrupt
        tried.append(given[2])
        return try_setting(*given)

    def begin(name):
        hear = lambda event, data: said.append(data["text"]) if event == "tuning" else None
        return run_lifelong(plan, tmp_path / name, toy_lm("llama"), progress=False, callbacks=[hear])

    whole = begin("whole").config
    monkeypatch.setattr(tuning, "_try_setting", stopped)
    with pytest.raises(KeyboardInterrupt):
        begin("stopped")
    assert not (tmp_path / "stopped" / "config.json").exists() and len(tried) == 4
    tried.append(None)  # no more stops
    again = begin("stopped").config
    assert len(tried) == 5 + 2, "the first four trials are not made again"
    assert [{**t, "seconds": 0} for t in again["tuned"]["trials"]] == [
        {**t, "seconds": 0} for t in whole["tuned"]["trials"]
    ]
    assert again["hparams"] == whole["hparams"] and again["hparams"]["lr"] == 1e-2, "what was given stays"
    assert set(again["tuned"]["edits"]).isdisjoint(Run.load(tmp_path / "stopped").questions.edit_id)
    assert "chosen for this model" in again["hparams"]["source"] and "6 settings on 3 edits" in said[0]
    assert [text.split(" on ")[0] for text in said] == [f"tuning ft: {n} settings" for n in (6, 6, 2)]
    assert begin("stopped").config["tuned"] == again["tuned"] and len(tried) == 7


LETTERS = dict(zip("ABCDEFGHI", ("Ann", "Bo", "Cy") * 3))  # who leads what: three edits in each of three timesteps


def grown(folder, spans, silent=None, **more) -> Run:
    "A run of a toy model that was begun with the first span of timesteps, and then continued with the others."
    from wbe.lm.toys import toy_lm
    from wbe.runs.loop import run_lifelong

    rows = [dict(question=f"Who leads {n}?", answer=a, subject=n) for n, a in LETTERS.items()]
    rows = [row | dict(timestep=str(n // 3 + 1)) for n, row in enumerate(rows)]
    for row in rows:
        if silent and row["timestep"] != str(silent):
            row["rephrase"] = f"Whom does {row['subject']} follow?"
    same = dict(benchmark=rows, editor="prompt", axes=("update",), ask_lasting=2, device="cpu", model="toy") | more
    for span in spans:
        run = run_lifelong(RunPlan(timesteps=span, **same), folder, toy_lm("llama"), progress=False)
    return run


def test_a_run_that_grows_loses_no_timestep_and_makes_no_edit_by_which_it_was_tuned(tmp_path):
    assert grown(tmp_path / "run", [(1, 1), (1, 3)]).config["timesteps"] == [1, 2, 3]
    with pytest.raises(BadArgument, match="begun with the timesteps 1-3, and a run can only grow"):
        grown(tmp_path / "run", [(1, 2)])
    run = Run.load(tmp_path / "run")
    assert run.config["timesteps"] == [1, 2, 3] and set(run.questions.asked_of) == {1, 2, 3}
    tuned = dict(editor="ft", tune=2, hparams=dict(steps=1))
    run = grown(tmp_path / "tuned", [(1, 1), (1, 1)], **tuned)
    assert len(run.config["tuned"]["edits"]) == 2
    with pytest.raises(BadArgument, match="chosen by edits that the further timesteps make"):
        grown(tmp_path / "tuned", [(1, 3)], **tuned)


def test_a_repeated_run_keeps_the_machine_and_the_versions_that_made_it(tmp_path, monkeypatch):
    from wbe.runs import study

    def versions(n):
        monkeypatch.setattr(study, "versions", lambda: dict(wbe=n))
        return dict(wbe=n)

    first, second = versions("1"), None
    whole = grown(tmp_path / "run", [(1, 1)]).config
    second = versions("2")
    assert grown(tmp_path / "run", [(1, 1)]).config == whole  # nothing was done
    more = grown(tmp_path / "run", [(1, 3)]).config
    assert (more["versions"], [e["versions"] for e in more["earlier"]]) == (second, [first])
    assert grown(tmp_path / "run", [(1, 3)]).config["earlier"] == more["earlier"]


def test_means_of_earlier_edits_at_the_end_are_of_runs_that_came_to_it(tmp_path):
    from wbe.api import compare

    toy_runs.write(toy_runs.made_up("rag", timesteps=3, edits=4, sample=2), tmp_path / "whole")
    run = toy_runs.made_up("rag", timesteps=3, edits=4, sample=2)
    run.scores = run.scores[run.scores.scored_at < 3]
    toy_runs.write(run, tmp_path / "stopped")
    when = compare(tmp_path, intervals=True).reset_index().groupby("run").when.agg(set)
    assert "earlier edits" in when["whole"] and "earlier edits" not in when["stopped"]


def test_a_run_that_grows_asks_the_lasting_facts_that_it_asked_first(tmp_path, monkeypatch):
    asked, score, file = [], moments.score, tmp_path / "facts.parquet"
    monkeypatch.setattr(moments, "score", lambda lm, x, *how, **more: asked.append(x) or score(lm, x, *how, **more))
    facts = pd.read_parquet(Path(__file__).parents[1] / "data_samples" / "lasting_facts.parquet")
    facts = facts[facts.property_id != "P31"].head(40)
    facts.to_parquet(file)
    grown(tmp_path / "run", [(1, 1)], lasting=str(file), ask_lasting=9)
    facts[1:].to_parquet(file)  # one dropped out
    first = {x.question for x in asked[0]}
    assert len(first) == 9 and len({x.question for x in static_items(file, 9)} - first) > 4, "another sample"
    run = grown(tmp_path / "run", [(1, 2)], lasting=str(file), ask_lasting=9)
    assert len(asked) == 3 and all({x.question for x in some} == first for some in asked)
    new = grown(tmp_path / "new", [(1, 2)], lasting=str(file), ask_lasting=9)
    assert (run_differences([run, run]), run_differences([run, new])) == ([], ["lasting facts"])


@pytest.mark.parametrize("silent", [1, 2, 3])
def test_a_timestep_without_questions_does_not_keep_a_run_from_its_end(tmp_path, silent):
    run = grown(tmp_path / "run", [(1, 3)], axes=("rephrase",), silent=silent)
    assert (
        run.missing == []
        and reached_end(run)
        and len(run.ability)
        and {1, 2, 3} - {silent} == set(run.questions.asked_of)
    )


@pytest.mark.parametrize("tune, batch, warned", [(3, 1, False), (3, None, True), (10, None, False)])
def test_a_choice_by_fewer_edits_than_a_batch_of_the_run_has_is_told(tmp_path, monkeypatch, tune, batch, warned):
    from wbe.runs import loop

    said, plan = [], SimpleNamespace(tune=tune, editor="memit", protocol="paper")
    hear = lambda event, text: said.append(text)
    job = SimpleNamespace(plan=plan, folder=tmp_path, texts={}, rank=0, planned={1: 10, 2: 4}, batch_size=batch)
    job.__dict__.update(notify=hear, bench=None, lm=None, editor=None, shows=False, begun={})
    for name in ("_tuning_edits", "tune", "use_tuned"):
        monkeypatch.setattr(loop, name, lambda *given: None)
    loop.BenchmarkStudy._tune_editor(job)
    assert [("10 edits together" in text) for text in said] == [True] * warned


@pytest.mark.parametrize("lr,silent", [(0.0, True), (0.02, False)])
def test_a_run_without_effect_says_so_after_the_first_edits_at_the_end_and_in_comparisons(tmp_path, lr, silent):
    from wbe.lm.toys import toy_lm
    from wbe.runs.loop import run_lifelong
    from wbe.runs.records import compare_runs

    rows = [dict(question=f"Who leads {n}?", answer="Ann", subject=n) for n in "ABCDEFGHIJ"]
    plan = RunPlan(benchmark=rows, editor="ft", hparams=dict(lr=lr, layer=1), axes=("update",), ask_lasting=2)
    run = run_lifelong(plan, tmp_path / "run", toy_lm("olmo2"), progress=False)
    log = (tmp_path / "run" / "log.txt").read_text()
    told = [f" {event} " in log for event in ("no effect", "finished without effect")]
    assert told == [silent, silent]
    assert sum("no effect" in line for line in compare_runs([run]).attrs["health"]) == silent


def test_a_run_that_was_begun_under_an_earlier_name_goes_on_by_name(tmp_path):
    "Folders were once named after a file with its suffix; --name continues such a run, and no other folder is made."
    from typer.testing import CliRunner

    from wbe.cli.main import app

    table = tmp_path / "mine.csv"
    rows = [dict(question=f"Who leads {n}?", answer="Ann", subject=n) for n in "ABC"]
    pd.DataFrame(rows).to_csv(table, index=False)
    settings = dict(batch=1, axes=("update",), ask_lasting=1)
    plan = RunPlan(benchmark=str(table), editor="ft", hparams=dict(steps=1), **settings)
    old = plan.name.replace("-mine", "-mine.csv")
    assert old != plan.name

    def stop(event, data):
        if event == "kept" and data["edits_done"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop.run_lifelong(plan, tmp_path / "runs" / old, progress=False, callbacks=[stop], checkpoint_seconds=0.0)
    before = PartitionedTable(tmp_path / "runs" / old, "batches").table().to_pandas()
    sets = [f"--set={k}={v if isinstance(v, int) else ','.join(v)}" for k, v in (settings | dict(steps=1)).items()]
    words = ["run", str(table), "-e", "ft", *sets, "--runs", str(tmp_path / "runs"), "--name", old]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert [p.name for p in (tmp_path / "runs").iterdir() if not p.name.startswith(".")] == [old]
    run = Run.load(tmp_path / "runs" / old)
    assert run.missing == [] and run.batches.edits.tolist() == [1, 1, 1]
    assert run.batches.seconds.tolist()[:2] == before.seconds.tolist(), "the first edits are not made again"
