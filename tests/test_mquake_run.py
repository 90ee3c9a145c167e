"""MQuAKE's protocol: groups of k instances, edits undone after each, a killed run, conflicts, the oracle's facts."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from wbe.editors.protocol import editor
from wbe.editors.requests import requests_from_mquake
from wbe.lm.tokens import QAItem
from wbe.lm.toys import toy_lm
from wbe.records import BadArgument
from wbe.runs import mquake
from wbe.runs.loop import carry_out
from wbe.runs.mquake import MquakePlan, _find_conflicts, read_instances, summarise_mquake
from wbe.runs.records import Run

CHAINS = Path(__file__).parents[2] / "shared" / "data" / "mquake_real_120.json"


def instance(case: int, s: str, middle: str, end: str) -> dict:
    "A two-hop instance: the town of a person and the river of the town; the first hop is edited."
    hop = lambda q, a: dict(question=q, answer=a, answer_alias=[])
    path = [hop(f"Where does {s} live?", middle), hop(f"Which river flows through {middle}?", end)]
    old = [hop(f"Where does {s} live?", "Oldby"), hop("Which river flows through Oldby?", "Olda")]
    ids = [[f"Q{s}", "P551", f"Q{middle}"], [f"Q{middle}", "P206", f"Q{end}"]]
    rewrite = dict(prompt="{} lives in", relation_id="P551", subject=s, question=f"Where does {s} live?")
    return dict(
        case_id=case,
        requested_rewrite=[rewrite | dict(target_new=dict(str=middle, id=f"Q{middle}"))],
        questions=[f"Which river flows through the town where {s} lives?", f"{s}'s town is on which river?"],
        answer="Olda",
        new_answer=end,
        single_hops=old,
        new_single_hops=path,
        orig=dict(new_triples=ids, edit_triples=ids[:1]),
    )


INSTANCES = [instance(n, f"Person{n}", f"Town{n % 3}", f"River{n % 3}") for n in range(1, 8)]


@pytest.fixture
def chains(tmp_path) -> str:
    (tmp_path / "chains.json").write_text(json.dumps(INSTANCES))
    return str(tmp_path / "chains.json")


def toy():
    return toy_lm("gpt2", n_positions=256)


def read_context(lm, texts, *_, **__):
    "A model that repeats what stands in front: the answer of the last fact, after as many facts as were given."
    items = [QAItem(q, "x") for q in texts]
    for hook in lm.item_hooks:
        items = hook(items)
    return [x.context[-1][1] if x.context else "nothing" for x in items]


@pytest.mark.parametrize("name, expected", [("oracle", (100, 100, 100)), ("prompt", (100, 0, 0))])
def test_a_model_that_repeats_the_facts_in_front_is_as_good_as_they_are(chains, tmp_path, monkeypatch, name, expected):
    monkeypatch.setattr(mquake, "ask", read_context)
    hparams = {} if name == "oracle" else dict(form="pair", most=None, which="subject")
    plan = MquakePlan(chains, editor=name, hparams=hparams, k=(1, 3), protocol="zero-shot")
    table = summarise_mquake(carry_out(plan, tmp_path / "run", toy(), progress=False))
    assert table.loc[0, ["instance_wise", "multi_hop"]].tolist() == [0, 0]
    for k in (1, 3):
        assert tuple(table.loc[k, ["edit_wise", "instance_wise", "multi_hop"]]) == expected, k
        assert table.loc[k, "instances"] == len(INSTANCES)


def test_a_killed_run_continues_with_the_next_group_and_asks_none_twice(chains, tmp_path, monkeypatch):
    plan = MquakePlan(chains, editor="graph", k=(2,), protocol="zero-shot")
    whole = carry_out(plan, tmp_path / "a", toy(), progress=False)
    real, scored = mquake._score_group, []

    def counted(lm, made, group, *how):
        if len(scored) == 2:
            raise KeyboardInterrupt
        scored.append([x["case_id"] for x in group])
        return real(lm, made, group, *how)

    monkeypatch.setattr(mquake, "_score_group", counted)
    lm = toy()
    with pytest.raises(KeyboardInterrupt):
        carry_out(plan, tmp_path / "b", lm, progress=False)
    assert not lm.item_hooks
    monkeypatch.setattr(mquake, "_score_group", lambda *a: scored.append(a) or real(*a))
    resumed = carry_out(plan, tmp_path / "b", toy(), progress=False)
    assert len(scored) == 4  # seven instances in groups of two, each once
    assert resumed.astype(str).equals(whole.astype(str))


def refuses(monkeypatch, which, reason="no key of {}"):
    "Let an editor refuse the edits of some questions."
    real = mquake.edited

    def edited(lm, made, batches, refused):
        make = made.edit

        def edit(lm, batch):
            if bad := [r.question for r in batch if which(r.question)]:
                raise BadArgument(reason.format(bad[0]))
            return make(lm, batch)

        monkeypatch.setattr(made, "edit", edit, raising=False)
        return real(lm, made, batches, refused)

    monkeypatch.setattr(mquake, "edited", edited)


@pytest.mark.parametrize("reason", ["no key of {}", "no key of any"])  # of one edit, under several k: the same reason
def test_an_edit_that_cannot_be_made_leaves_the_others_and_its_chain_is_asked(chains, tmp_path, monkeypatch, reason):
    monkeypatch.setattr(mquake, "ask", read_context)
    hparams = dict(form="pair", most=None, which="subject")
    plan = MquakePlan(chains, editor="prompt", hparams=hparams, k=(1, 3), protocol="zero-shot")
    refuses(monkeypatch, lambda q: "Person3" in q or "Person5" in q, reason)
    frame = carry_out(plan, tmp_path / "run", toy(), progress=False)
    right = frame[frame.k > 0].groupby("case").edit_wise.mean()
    assert right.to_dict() == {n: float(n not in (3, 5)) for n in range(1, 8)}
    refused = Run.load(tmp_path / "run").refused
    assert len(refused) == 4 and set(refused.k) == {1, 3} and "no key of" in refused.reason[0]


def test_the_same_reason_twice_before_any_edit_ends_the_run(chains, tmp_path, monkeypatch):
    refuses(monkeypatch, lambda q: True, "the layer is not there")
    with pytest.raises(BadArgument, match="the layer is not there"):
        carry_out(MquakePlan(chains, editor="prompt", protocol="zero-shot"), tmp_path / "run", toy(), progress=False)


def test_another_file_or_setting_is_not_continued_and_more_k_are(chains, tmp_path):
    lm, first = toy(), MquakePlan(chains, editor="prompt", k=(1,), protocol="zero-shot", sample=2)
    carry_out(first, tmp_path / "run", lm, progress=False)
    more = MquakePlan(chains, editor="prompt", k=(1, 2), protocol="zero-shot", sample=2)
    assert set(carry_out(more, tmp_path / "run", lm, progress=False).k) == {0, 1, 2}
    for other in (dict(sample=3), dict(editor="graph"), dict(questions=1)):
        wanted = dict(editor="prompt", k=(1,), protocol="zero-shot", sample=2) | other
        with pytest.raises(BadArgument, match="was begun with {"):
            carry_out(MquakePlan(chains, **wanted), tmp_path / "run", lm, progress=False)
    Path(chains).write_text(json.dumps(INSTANCES[:3]))
    with pytest.raises(BadArgument, match="the file that is asked about is not what it was"):
        carry_out(first, tmp_path / "run", lm, progress=False)


def test_all_is_the_number_of_instances_of_the_run(chains, tmp_path):
    usual = dict(editor="graph", protocol="zero-shot", sample=3, questions=1)
    frame = carry_out(MquakePlan(chains, k=(2, "all"), **usual), tmp_path / "run", toy(), progress=False)
    assert frame.groupby("k").size().to_dict() == {0: 3, 2: 3, 3: 3}
    assert len(carry_out(MquakePlan(chains, k=(3,), **usual), tmp_path / "run", toy(), progress=False)) == 9
    with pytest.raises(BadArgument, match="k is"):
        MquakePlan(chains, k=("every",))


def test_the_limit_on_popularity_and_the_relations_reach_the_chains_and_nothing_else_does(tmp_path, monkeypatch):
    from types import SimpleNamespace

    from wbe.benchmark import series
    from wbe.benchmark.paths import MQUAKE_RELATIONS

    calls = []
    monkeypatch.setattr(series, "find_chains", lambda *a, **k: calls.append(k))
    monkeypatch.setattr(
        series, "write_chains", lambda *a, **k: [(a[2] / f"chains_{s}.json").write_text("[]") for s in ("T", "CF")]
    )
    (tmp_path / "work/chains").mkdir(parents=True)
    (tmp_path / "release").mkdir()
    step = SimpleNamespace(
        name="20240201_20240220", facts=(1, 2), work=tmp_path / "work", parsed=tmp_path, older=tmp_path
    )
    monkeypatch.setattr(series, "WikipediaSnapshot", Path)
    monkeypatch.setattr(series, "count_links", lambda pages, path: (pages, path))
    linked = dict(seed=0, popular=0.2, links=tmp_path)
    for settings in (linked, dict(seed=0), dict(seed=0, popular=0.2), dict(seed=0, relations="mquake")):
        series._build_chains(SimpleNamespace(settings=settings, folder=tmp_path), step, None, {})
    by_links, *other, relations = calls
    assert by_links["views"] == (tmp_path / "work/pages_20240220", tmp_path / "work/chains/links.parquet")
    assert other == [dict(seed=0), dict(seed=0, popular=0.2, labels=tmp_path / "labels.parquet")]
    assert {*relations["kind"]} == {*MQUAKE_RELATIONS} and len(MQUAKE_RELATIONS) == 37
    assert sorted(p.name for p in (tmp_path / "release").iterdir()) == [
        f"chains_{step.name}_{s}.json" for s in ("CF", "T")
    ]


def test_weights_are_unedited_after_every_group(chains, tmp_path):
    import torch

    lm = toy()
    before = {k: v.clone() for k, v in lm.model.state_dict().items()}
    plan = MquakePlan(chains, editor="ft", hparams=dict(steps=2), k=(4,), protocol="zero-shot", sample=4)
    frame = carry_out(plan, tmp_path / "run", lm, progress=False)
    assert len(frame) == 8 and all(torch.equal(v, before[k]) for k, v in lm.model.state_dict().items())


def test_contradictions_within_a_group_are_edited_one_after_the_other_and_marked(chains, tmp_path):
    two = [instance(1, "Ida", "Town1", "River1"), instance(2, "Ida", "Town2", "River2")]
    Path(chains).write_text(json.dumps(two))
    plan = MquakePlan(chains, editor="graph", k=(1, 2), protocol="zero-shot")
    frame = carry_out(plan, tmp_path / "run", toy(), progress=False)
    assert frame.groupby("k").conflict.sum().to_dict() == {0: 0, 1: 0, 2: 2}
    assert json.loads((tmp_path / "run" / "config.json").read_text())["conflicts"] == {"edit": 2}
    assert summarise_mquake(frame, conflicts=False).index.tolist() == [0, 1]


def test_edits_of_an_instance_hold_the_chain_only_for_the_oracle():
    assert not any(r.probes for r in requests_from_mquake(INSTANCES[0]))
    result = editor("oracle").edit(toy(), requests_from_mquake(INSTANCES[0], probes=True))
    facts = result.truths[0]
    assert [len(facts[q]) for q in INSTANCES[0]["questions"]] == [2, 2]
    assert facts["Which river flows through Town1?"] == [("Which river flows through Town1?", "River1")]


@pytest.mark.skipif(not CHAINS.exists(), reason="no published chains at hand")
def test_published_instances_are_read_and_run(tmp_path):
    instances = read_instances(CHAINS)
    assert len(instances) == 120
    edits = {}
    for x in instances:
        for s, p, o in x["orig"]["edit_triples"]:
            edits.setdefault((s, p), set()).add(o)
    assert bool(_find_conflicts(instances)) == any(len(o) > 1 for o in edits.values())
    plan = MquakePlan(str(CHAINS), editor="graph", k=(2,), protocol="zero-shot", sample=2, questions=1)
    frame = carry_out(plan, tmp_path / "run", toy_lm("gpt2", n_positions=512), progress=False)
    assert len(frame) == 4 and set(frame.hops) == {4}


def test_the_command_prints_the_tables_and_continues(chains, tmp_path):
    from typer.testing import CliRunner

    from wbe.cli.main import app

    Path(chains).write_text(json.dumps([*INSTANCES, instance(8, "Person1", "Town2", "River2")]))
    words = ["run", chains, "--schedule", "mquake", "-e", "graph", "--set", "mquake.k=1,2", "--sample", "2"]
    words += ["--protocol", "zero-shot"]
    where = ["--runs", str(tmp_path / "runs"), "--name", "a", "--table", str(tmp_path / "out.json")]
    result = CliRunner().invoke(app, words + where)
    assert result.exit_code == 0, result.output
    assert "In chains.json 2 pairs of instances contradict each other: edit 2" in result.output
    table = json.loads((tmp_path / "out.json").read_text())
    assert [r["k"] for r in table["k"]] == [0, 1, 2] and {r["hops"] for r in table["hops"]} == {2}
    assert [(r["k"], r["edits"], r["instances"]) for r in table["edits"]] == [(k, 1, 2) for k in (0, 1, 2)]
    assert CliRunner().invoke(app, words + where).exit_code == 0
    bad = CliRunner().invoke(app, ["run", chains, "--schedule", "mquake", "--set", "mquake.k=1;2"])
    assert bad.exit_code != 0 and "must be a whole number" in str(bad.exception)


def test_runs_lists_a_run_of_mquake_compare_leaves_it_out_and_report_has_a_section(chains, tmp_path):
    from typer.testing import CliRunner

    from wbe.cli.main import app

    runs = tmp_path / "runs"
    carry_out(
        MquakePlan(chains, editor="graph", k=(2,), protocol="zero-shot", sample=2), runs / "m", toy(), progress=False
    )
    old = json.loads((runs / "m" / "config.json").read_text())
    assert old.pop("kind") == "mquake"
    (runs / "before").mkdir()
    (runs / "before" / "config.json").write_text(json.dumps(old))  # of a version that wrote no kind
    listed = CliRunner().invoke(app, ["status", str(runs), "--table", "json"])
    assert listed.exit_code == 0, listed.output
    found = json.loads(listed.stdout)["runs"]
    assert [(r["run"], r["schedule"], r["editor"], r["recorded"]) for r in found] == [
        ("before", "mquake", "graph", 0),
        ("m", "mquake", "graph", 4),
    ]
    why = str(CliRunner().invoke(app, ["compare", str(runs)]).exception)
    assert "left out; a run of the schedule mquake" in why and "'benchmark'" not in why
    made = CliRunner().invoke(app, ["report", str(runs), "-o", str(tmp_path / "r.html")])
    assert made.exit_code == 0, made.output
    page = (tmp_path / "r.html").read_text()
    assert page.count("<section ") == 1 and "2 hops" in page and "left out" not in page
    assert page.count("<tr><td>m</td>") == 4 and "<td>before</td>" not in page


def contradicting_chains():
    "A chain from the dumps, and one with an invented edit of a fact that the first one passes through."
    from wbe.benchmark.chains import Chain

    town, river = ("Q2", "Karsk"), ("Q3", "Olda")
    about = dict(
        hops=2, subject_id="Q1", subject="Ida", property_ids=["P551", "P206"], properties=["residence", "river"]
    )
    old = [("Q8", "Berg"), ("Q9", "Lind")]
    for style, edited, after in (("T", [1], [town, river]), ("CF", [2], [town, ("Q4", "Vara")])):
        before = old if style == "T" else [town, river]
        paths = [list(x) for pairs in (before, after) for x in zip(*pairs)]
        was = [[before[i - 1][n] for i in edited] for n in (0, 1)]
        yield Chain(style, *about.values(), *paths, edited, *was, before[-1][1], after[-1][1])


def test_each_file_of_chains_is_free_of_contradictions(tmp_path):
    import pyarrow as pa

    from wbe.benchmark.chains import Chain
    from wbe.benchmark.chains import write_chains
    from wbe.records import to_table
    from wbe.store import write_table

    write_table(tmp_path / "chains.parquet", to_table(list(contradicting_chains()), Chain))
    labels = [dict(id=f"Q{n}", label=f"Label{n}", aliases=["other"]) for n in range(1, 10)]
    write_table(tmp_path / "labels.parquet", pa.Table.from_pylist(labels))
    counts = write_chains(tmp_path / "chains.parquet", tmp_path / "labels.parquet", tmp_path).counts
    assert (counts["instances"], counts["T"], counts["CF"]) == (2, 1, 1)
    parts = [read_instances(MquakePlan(str(tmp_path), style=style).chains) for style in ("T", "CF")]
    assert [_find_conflicts(part) for part in parts] == [[], []]
    both = parts[0] + parts[1]
    assert [(c["case"], c["other"]) for c in _find_conflicts(both)] == [(1, 2)]
    (tmp_path / "one.json").write_text(json.dumps(both))  # a file of an older build
    assert [x["case_id"] for x in read_instances(tmp_path / "one.json")] == [1, 2]
    assert [x["case_id"] for x in read_instances(tmp_path / "one.json", "CF")] == [2]
    with pytest.raises(BadArgument, match="style"):
        read_instances(tmp_path / "one.json", "X")
    with pytest.raises(BadArgument, match="give --set style=T"):
        MquakePlan(str(tmp_path))
