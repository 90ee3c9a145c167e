"""Runs that also ask other forms of the edited facts, and unchanged facts near the edits."""

import bz2
import gzip
import json
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cached_property
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("torch")
from wbe.lm.toys import toy_lm
from wbe.records import BadArgument
from wbe.runs.loop import ProgressTable, run_lifelong
from wbe.runs.plan import RunPlan
from wbe.runs.records import Run, compare_runs
from wbe.runs.questions import _without_retired
from wbe.benchmark.near_probes import CRITERIA, FORMS, _read_criteria, _write_criteria, form_probes
from wbe.benchmark.reader import Benchmark
from wbe.benchmark.release import WORLD_SOURCE, retired_probes
from wbe.benchmark.series import Series, make_benchmark
import wbe.cli.main  # noqa: F401 (it fills the app)
from wbe.cli.app import call_command
from wbe.world.files import World

ROWS = [  # two timesteps of an invented world; Q-ids higher than any of Wikidata's
    [("Orland", "P36", "capital", "Karsk"), ("Velmark", "P36", "capital", "Holm")],
    [("Ida Bell", "P19", "place of birth", "Karsk"), ("Aron Ves", "P19", "place of birth", "Holm")],
]
STAYS = [("Ida Bell", "P106", "occupation", "poet"), ("Aron Ves", "P106", "occupation", "actor")]
STAYS += [("Karsk", "P17", "country", "Orland"), ("Holm", "P17", "country", "Velmark")]
NAMES = ["Orland", "Velmark", "Karsk", "Holm", "Ida Bell", "Aron Ves", "poet", "actor"]
IDS = {name: f"Q90000{100 + i}" for i, name in enumerate(NAMES)}


def edit(s: str, pid: str, label: str, o: str) -> dict:
    ids = dict(subject_id=IDS[s], relation_id=pid, object_id=IDS[o])
    texts = dict(update=f"What is the {label} of {s}?", ans=o, loc="Who heads Pellmar?", loc_ans="Ilse Marrow")
    return dict(tag="new", subject=s, relation=label, object=o) | ids | texts


@pytest.fixture(scope="module")
def toy():
    return lambda: toy_lm("gpt2", n_positions=512)


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("world") / "bench"
    folder.mkdir()
    for dates, rows in zip(("20240201_20240220", "20240220_20240301"), ROWS):
        path = folder / f"wiki_big_edit_{dates}.json"
        path.write_text(json.dumps([edit(*r) for r in rows]), encoding="utf-8")
    columns = ["subject_id", "property_id", "object_id", "subject", "property", "object"]
    rows = [(IDS[s], pid, IDS[o], s, label, o) for s, pid, label, o in STAYS]
    pd.DataFrame(rows, columns=columns).to_parquet(folder / "lasting_facts.parquet")
    return folder


@pytest.fixture(scope="module")
def plan(bench) -> RunPlan:
    usual = dict(editor="prompt", batch=1, ask_lasting=2, axes=("update", "locality"))
    return RunPlan(benchmark=str(bench), forms="all", near="all", generate=("update", "completion"), **usual)


def scores(run: Run):
    return run.scores.drop(columns="seconds")


@pytest.fixture(scope="module")
def whole(toy, plan, tmp_path_factory) -> Run:
    return run_lifelong(plan, tmp_path_factory.mktemp("runs") / "whole", toy(), progress=False)


def test_every_form_is_asked_and_shown(whole):
    asked = whole.questions.groupby("axis").size()
    assert not whole.missing and set(FORMS) <= set(asked.index)
    assert asked["true-false"] == asked["negation"] == 2 * asked["completion"] == 8
    table = compare_runs([whole])
    assert {(form, "just edited") for form in FORMS} <= set(table.columns)
    completed = whole.scores[(whole.scores.axis == "completion") & (whole.scores.moment == "current")]
    assert completed.answer.notna().all()
    assert (completed.exact_match == (completed.token_accuracy == 1)).all()


def test_near_probes_are_asked_before_and_after_their_edit(whole):
    near = whole.scores[whole.scores.axis.isin(["same-subject", "same-object"])]
    assert {"before", "ahead", "current"} == set(near.moment)
    ahead = whole.scores[whole.scores.moment == "ahead"]
    assert set(ahead.asked_of) == {2} and set(ahead.scored_at) == {1} and ahead.edited_at.isna().all()
    questions = whole.questions[whole.questions.axis.isin(["same-subject", "same-object"])]
    shown = set(zip(questions.axis, questions.subject, questions.expected))
    assert shown == {  # Karsk's country is Orland, which is the edit of Orland's capital the other way round
        ("same-subject", "Ida Bell", "poet"),
        ("same-subject", "Aron Ves", "actor"),
        ("same-object", "Ida Bell", "Orland"),
        ("same-object", "Aron Ves", "Velmark"),
    }


def test_a_run_that_grows_is_asked_ahead_of_the_further_timestep(toy, plan, whole, tmp_path):
    lines = []
    for last in (1, 2, 2):
        run = run_lifelong(
            replace(plan, timesteps=(1, last)), tmp_path / "run", toy(), False, [ProgressTable(lines.append)]
        )
    key = ["scored_at", "moment", "edit_id", "axis", "probe"]
    found, wanted = (scores(r).sort_values(key, ignore_index=True) for r in (run, whole))
    pd.testing.assert_frame_equal(found[[*key, "exact_match"]], wanted[[*key, "exact_match"]])
    assert run.missing == [] and len(run.ability) == len(whole.ability)


@pytest.mark.parametrize("at", [3, 5])
def test_a_stopped_run_ends_with_the_same_scores(toy, plan, whole, tmp_path, at):
    class Stop(BaseException):
        pass

    events = []

    def stop(event, data):
        events.append(event)
        if len(events) == at:
            raise Stop

    with pytest.raises(Stop):
        run_lifelong(plan, tmp_path / "run", toy(), progress=False, callbacks=[stop], checkpoint_seconds=0.0)
    again = run_lifelong(plan, tmp_path / "run", toy(), progress=False, checkpoint_seconds=0.0)
    assert scores(again).equals(scores(whole))


def test_without_them_a_run_is_what_it_was(toy, plan, whole, tmp_path):
    few = replace(plan, forms=(), near=(), generate=("update",))
    run = run_lifelong(few, tmp_path / "run", toy(), progress=False)
    usual = whole.scores[whole.scores.axis.isin(["update", "locality"]) & (whole.scores.moment != "ahead")]
    same = dict(rtol=1e-3, atol=1e-5)  # other questions in a batch change the last bits
    pd.testing.assert_frame_equal(scores(run), usual.drop(columns="seconds").reset_index(drop=True), **same)
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for name in ("forms", "ask_forms", "near", "ask_near"):
        del config["plan"][name]  # as in a run that was begun before they existed
    path.write_text(json.dumps(config), encoding="utf-8")
    before = (tmp_path / "run" / "scores.parquet").read_bytes()
    run_lifelong(few, tmp_path / "run", toy(), progress=False)
    assert (tmp_path / "run" / "scores.parquet").read_bytes() == before
    with pytest.raises(BadArgument, match="was begun with"):
        run_lifelong(plan, tmp_path / "run", toy(), progress=False)


def test_near_probes_need_unchanged_facts(toy, plan, bench, tmp_path):
    (tmp_path / "bare").mkdir()
    for path in bench.glob("*.json"):
        (tmp_path / "bare" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(BadArgument, match="no unchanged facts are known.*lasting="):
        run_lifelong(replace(plan, benchmark=str(tmp_path / "bare")), tmp_path / "run", toy(), progress=False)
    assert not (tmp_path / "run").exists()


# ---- criteria from the snapshots, in a world whose dumps are read again by hand


DAYS = ("2024-02-01", "2024-05-01", "2024-07-01")
EDIT = ["subject_id", "relation_id", "object_id"]


@pytest.fixture(scope="module")
def criteria(tmp_path_factory) -> Path:
    "A benchmark with criteria, to which the command has added a timestep."
    folder = tmp_path_factory.mktemp("criteria")
    how = dict(articles=False, views=False, truth=False, progress=False)
    *dumps, newest = World(7, 500).write(folder / "world", DAYS, **how).paths()
    make_benchmark(folder, dumps, source=WORLD_SOURCE, progress=False)
    _write_criteria(Series.load(folder), criteria=True)
    first = pd.read_parquet(folder / "criteria.parquet")
    assert len(first) and first.since.isna().all()
    call_command("extend", folder, "--dump", newest)
    now = pd.read_parquet(folder / "criteria.parquet")
    own = now[now.timestep == first.timestep[0]]
    assert own.drop(columns="since").equals(first.drop(columns="since")) and set(now.timestep) > set(own.timestep)
    return folder


def read_dump(folder: Path, day: str) -> "Dump":
    "The entities of a dump."
    (path,) = (p for p in (folder / "world").rglob("wikidata-*all.json.*") if day.replace("-", "") in p.name)
    lines = (gzip.open if path.suffix == ".gz" else bz2.open)(path, "rt")
    return Dump((e["id"], e) for e in map(json.loads, (x.rstrip(",\n") for x in lines if x.startswith("{"))))


def stated(entity: dict, pid: str, only_current: bool) -> set:
    "The values of a property: all that are not deprecated, or those of the best rank that are not over."
    claims = [c for c in (entity["claims"] or {}).get(pid, ()) if c["rank"] != "deprecated"]
    if only_current:
        best = [c for c in claims if c["rank"] == "preferred"] or claims
        claims = [c for c in best if "P582" not in (c.get("qualifiers") or {})]
    values = [c["mainsnak"]["datavalue"]["value"] for c in claims if c["mainsnak"]["snaktype"] == "value"]
    return {v["id"] for v in values if isinstance(v, dict) and "id" in v}


def names_of(entity: dict) -> list[str]:
    texts = [t for code in ("en", "mul") for t in (entity["aliases"] or {}).get(code, [])]
    labels = [(entity["labels"] or {}).get(code) for code in ("en", "mul")]
    return [t["value"].lower() for t in (*filter(None, labels), *texts)]


class Dump(dict):
    "Entities by id."

    @cached_property
    def subjects(self) -> dict:
        "Subjects by property, value, and whether the statement must be current."
        found = defaultdict(set)
        for i, e in self.items():
            for pid, only in product(e["claims"] or (), (False, True)):
                for value in stated(e, pid, only):
                    found[pid, value, only].add(i)
        return found


def having(dump: Dump, p, only_current: bool) -> set:
    "The subjects with the property and the object of a probe."
    return dump.subjects.get((p.relation_id, p.object_id, only_current), set())


def holds(p, edit, old: dict, new: dict, bearers: Counter) -> bool:
    "Whether two dumps give a probe."
    assert p.answer.lower() not in p.question.lower()
    if p.criterion == "alias":
        found = [a for a in names_of(new[p.subject_id]) if a in p.question.lower() and a != edit.subject.lower()]
        return any(bearers[a] == 1 for a in found) and edit.subject not in p.question and p.answer == edit.ans
    if p.criterion == "one-to-many":
        both = having(new, p, False) == {p.subject_id, p.answer_id} and edit.subject in p.question
        return both and p.answer_id in having(old, p, True) & having(new, p, True)
    return having(new, p, False) == {p.subject_id} and p.answer == edit.subject and edit.ans in p.question


def test_criteria_are_right_in_the_world(criteria):
    dumps = [read_dump(criteria, day) for day in DAYS]
    bearers = [Counter(name for e in dump.values() for name in set(names_of(e))) for dump in dumps]
    probes = pd.read_parquet(criteria / "criteria.parquet").fillna(dict(since=""))
    releases = sorted((criteria / "release").glob("wiki_big_edit_*.parquet"))
    for n, release in enumerate(releases):
        edits, own = pd.read_parquet(release), probes[probes.timestep == release.stem.removeprefix("wiki_big_edit_")]
        assert set(own.criterion) == {"alias", "reversal", "inverse", "one-to-many"}
        by_ids = {(e.subject_id, e.relation_id, e.object_id): e for e in edits.itertuples()}
        assert len(by_ids) == len(edits)
        for p in own.itertuples():
            edit = by_ids[p.subject_id, p.relation_id, p.object_id]
            assert holds(p, edit, *dumps[n : n + 2], bearers[n + 1])
            later = holds(p, edit, *dumps[1:], bearers[2])
            assert p.criterion == "inverse" or later == (not p.since)
        asked = own[own.criterion == "one-to-many"][EDIT]
        two = [e for e in edits.itertuples() if len(having(dumps[n + 1], e, False)) == 2]
        stay = [e for e in two if having(dumps[n], e, True) & having(dumps[n + 1], e, True) - {e.subject_id}]
        assert {*asked.itertuples(index=False, name=None)} == {(e.subject_id, e.relation_id, e.object_id) for e in stay}
    assert {"reversal", "one-to-many"} <= set(probes[probes.since != ""].criterion)


def test_no_criterion_is_asked_when_its_answer_is_gone(criteria):
    bench = Benchmark.load(criteria / "release")
    probes = pd.read_parquet(criteria / "criteria.parquet").fillna(dict(since=""))
    gone = {(*r[1:4], r.criterion) for r in probes.itertuples(index=False) if r.since}
    retired = retired_probes(bench.folder, bench[1].name)
    key = lambda i, axis: (*i.partition("@")[0].split("/"), axis)
    made = bench[0]
    found = form_probes(made.edits, made.edit_ids, tuple(CRITERIA), None, _read_criteria(criteria / "criteria.parquet"))
    asked = pd.DataFrame([(made.edit_ids[p.edit], p.axis) for p in found], columns=["edit_id", "axis"])
    assert len(_without_retired(asked, bench, 1)) == len(asked)
    left = _without_retired(asked, bench, 2)
    out = asked.drop(left.index)
    assert {key(*r) for r in out.itertuples(index=False)} >= gone
    assert all(key(*r) in gone or (r.edit_id, "update") in retired for r in out.itertuples(index=False))


def test_criteria_are_asked_like_other_forms(criteria, toy, plan, tmp_path):
    names = ("alias", "reversal", "inverse", "one-to-many")
    own = replace(plan, benchmark=str(criteria / "release"), forms=names, near=(), max_edits=40, limit=5, ask_forms=40)
    own = replace(own, generate=())
    run = run_lifelong(replace(own, editor="none", batch=None), tmp_path / "run", toy(), progress=False)
    probes = pd.read_parquet(criteria / "criteria.parquet")
    asked = run.questions[run.questions.axis.isin(names)]
    assert len(asked) and set(asked.question) <= set(probes.question)
    assert set(asked.axis) <= set(run.scores.axis)
    with pytest.raises(BadArgument, match="no criteria; make it with --set criteria=yes"):
        run_lifelong(replace(plan, forms=("alias",), generate=()), tmp_path / "none", toy(), progress=False)
