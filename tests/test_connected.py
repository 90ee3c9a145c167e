"""Editors that put several facts in front of a question: the oracle and the graph, in runs, killed and undone."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from wbe.editors.protocol import Editor, editor
from wbe.editors.requests import EditRequest, requests_from_rows
from wbe.lm.tokens import QAItem
from wbe.lm.toys import toy_lm
from wbe.runs.loop import BenchmarkStudy, run_lifelong
from wbe.runs.plan import RunPlan

BENCH = Path(__file__).parents[1] / "data_samples" / "benchmark"


def plan(name, **more) -> RunPlan:
    axes = ("update", "multi-hop", "locality")
    return RunPlan(
        **dict(benchmark=str(BENCH), editor=name, timesteps=(1, 1), max_edits=6, ask_lasting=3, axes=axes) | more
    )


def toy():
    return toy_lm("gpt2", n_positions=256)


def contexts(lm, questions) -> list:
    items = [QAItem(q, "x") for q in questions]
    for hook in lm.item_hooks:
        items = hook(items)
    return [x.context for x in items]


@pytest.fixture(scope="module")
def rows():
    from wbe.benchmark.reader import Benchmark

    step = Benchmark.load(BENCH)[0]
    return [dict(r, edit_id=i) for r, i in zip(step.edits.to_pylist(), step.edit_ids)]


def test_the_oracle_gets_the_probes_in_a_run_and_no_other_editor_does(tmp_path, rows, monkeypatch):
    seen = {}

    def spy(self, lm, requests, hparams):
        seen[self.name] = requests
        return real[type(self)](self, lm, requests, hparams)

    real = {type(editor(n)): type(editor(n))._edit for n in ("oracle", "prompt")}
    for cls in real:
        monkeypatch.setattr(cls, "_edit", spy)
    for name in ("oracle", "prompt"):
        lm = toy()
        runner = BenchmarkStudy(plan(name), tmp_path / name, lm, progress=False)
        list(runner.updater.update(1))
    assert all(r.probes for r in seen["oracle"]) and not any(r.probes for r in seen["prompt"])
    editor("prompt").edit(lm, requests_from_rows(rows[:4], probes=True))
    assert not any(r.probes for r in seen["prompt"])


def test_every_question_of_a_timestep_has_its_true_facts(tmp_path, rows):
    lm = toy()
    runner = BenchmarkStudy(plan("oracle", max_edits=200), tmp_path / "r", lm, progress=False)
    list(runner.updater.update(1))
    asked = runner.asker.questions.of(1)
    for axis, found in zip(asked.axis, contexts(lm, asked.question)):
        assert len(found) == (2 if axis == "multi-hop" else 1)
    multi = asked[asked.axis == "multi-hop"]
    by_edit = {r["edit_id"]: r for r in rows}
    for i, answer, found in zip(multi.edit_id, multi.expected, contexts(lm, multi.question)):
        own = by_edit[i]["ans"]
        assert found[0][1] == own and found[1][1] == answer and own in found[1][0]


def test_a_finished_run_of_the_oracle_scores_every_axis(tmp_path):
    run = run_lifelong(plan("oracle", max_edits=8), tmp_path / "r", toy(), progress=False)
    assert set(run.scores.axis) == {"update", "locality", "multi-hop"} and run.config["finished"]


def test_the_oracle_says_what_a_benchmark_lacks(rows):
    from wbe.editors.memory import retrieval as oracle

    published = [{k: v for k, v in r.items() if k != "mhop_relation_id"} for r in rows if r["mhop"]][:3]
    for made, missing in (
        (requests_from_rows(published, probes=True), "mhop_relation_id"),
        (requests_from_rows(published), "only their own question"),
    ):
        oracle._warn_once.cache_clear()
        with pytest.warns(UserWarning, match=missing):
            editor("oracle").edit(toy(), made)
    assert Editor.sees_probes is False


def simple_paths(edges: dict, node: str, seen: set):
    "Every path from a node that visits no node twice, the empty one included."
    yield ()
    for (s, r), o in edges.items():
        if s == node and o not in seen:
            for rest in simple_paths(edges, o, seen | {o}):
                yield ((s, r, o), *rest)


def test_a_walk_in_many_random_graphs_against_every_path_by_hand():
    "The oracle enumerates all simple paths by recursion; each relation is a word of its own, so a fit is a count."
    import random

    from wbe.editors.memory.graph import FactGraph, GraphFact

    rng = random.Random(3)
    kinds = ["xenon", "argon", "krypton", "radon", "helium"]
    for _ in range(30):
        edges = {(f"N{rng.randrange(9)}", rng.choice(kinds)): f"N{rng.randrange(9)}" for _ in range(22)}
        edges = {(s, r): o for (s, r), o in edges.items() if s != o}
        graph = FactGraph(phrases=False)
        graph.add([GraphFact(s, o, f"What is the {r} of {s}?", r, s, "", o) for (s, r), o in edges.items()])

        start = rng.choice([s for s, _ in edges])
        every = [w for w in simple_paths(edges, start, {start}) if 1 <= len(w) <= 4]
        wanted = rng.choice([w for w in every if len({r for _, r, _ in w}) == len(w)])
        text = "What is " + " of ".join(f"the {r}" for _, r, _ in reversed(wanted)) + f" of {start}?"
        found = graph.paths(text, beam=10**6)
        named = [
            tuple((f.subject, f.relation, f.answer) for f in map(graph.facts.__getitem__, p.numbers)) for p in found
        ]
        assert sorted(named) == sorted(every)
        asked = {r for _, r, _ in wanted}
        assert {r for _, r, _ in named[0]} == asked and len(named[0]) == len(wanted)


def test_an_undone_graph_is_the_graph_before(rows):
    from wbe.editors.memory.graph import FactGraph, graph_fact

    facts = [graph_fact(r) for r in requests_from_rows(rows, need_subject=False)]
    one, two = FactGraph(link="fuzzy"), FactGraph(link="fuzzy")
    one.add(facts[:90])
    two.add(facts)
    two.remove_last(len(facts) - 90)
    questions = [r[c] for r in rows for c in ("update", "rephrase", "mhop", "loc") if r[c]]
    assert [one.paths(q) for q in questions] == [two.paths(q) for q in questions]
    assert one.edges == two.edges and dict(one.relations.used_by) == dict(two.relations.used_by)
    assert one.names.owners == two.names.owners and one.names.lengths == two.names.lengths


def test_a_killed_run_of_the_graph_resumes_with_its_threshold_and_scores(tmp_path, monkeypatch):
    from wbe.editors.memory.connected import graph_memory

    more = dict(timesteps=(1, 2), max_edits=190, axes=("multi-hop",), ask_lasting=3)
    whole = toy()
    expected = run_lifelong(plan("graph", **more), tmp_path / "a", whole, progress=False)
    real = BenchmarkStudy.ask

    def killed(self, moment, timestep):
        if moment == "step" and timestep == 2:
            raise KeyboardInterrupt
        return real(self, moment, timestep)

    monkeypatch.setattr(BenchmarkStudy, "ask", killed)
    with pytest.raises(KeyboardInterrupt):
        run_lifelong(plan("graph", **more), tmp_path / "b", toy(), progress=False)
    monkeypatch.undo()
    lm = toy()
    resumed = run_lifelong(plan("graph", **more), tmp_path / "b", lm, progress=False)
    columns = ["edit_id", "axis", "scored_at", "moment", "log_probability"]
    assert resumed.scores[columns].equals(expected.scores[columns])
    assert graph_memory(lm).threshold == graph_memory(whole).threshold and graph_memory(lm).threshold.edits > 100


def test_the_graph_shows_both_hops_of_the_sample_benchmark_and_little_else(rows):
    from wbe.editors.memory.connected import graph_memory

    lm = toy()
    with editor("graph").edit(lm, requests_from_rows(rows, need_subject=False)).on(lm):
        find = graph_memory(lm).find
        chains = [(find(r["mhop"]), r) for r in rows if r["mhop"]]
        both = [[x[1] for x in got] == [r["ans"], r["mhop_ans"]] for got, r in chains]
        shown = [bool(find(r["loc"])) for r in rows if r["loc"]]
    assert len(both) >= 10 and sum(both) >= 0.8 * len(both) and sum(shown) <= 0.1 * len(shown)


def test_an_edit_without_a_subject_is_refused_and_the_others_are_made(tmp_path):
    made = [EditRequest("Who runs Karsk?", "Ann", "Karsk", id="a"), EditRequest("Who runs it?", "Bo", id="b")]
    from wbe.records import BadArgument

    with pytest.raises(BadArgument, match=r"edit \(b\).*no subject"):
        editor("graph").edit(toy(), made)
