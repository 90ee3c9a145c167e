"""A judge of answers against a scripted endpoint that is right, biased, slow and rude; its agreement with others."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("openai")

from openai_server import FaultyServer

from wbe.analysis.rankings import judge_agreement, judge_marks, read_marks
from wbe.metrics.answers import normalised_match
from wbe.metrics.answers import cohen_kappa
from wbe.records import BadArgument
from wbe.runs.judged import judge_runs, judged_table
from wbe.runs.records import Run, compare_runs
from wbe.writers.judge import OpenAIJudge
from wbe.writers.ledger import WriterError

SAMPLES = Path(__file__).parents[1] / "data_samples"
EDITORS = ("rome", "grace-codebook")
TOWNS = [f"Town {i}" for i in range(8)]


@pytest.fixture
def runs(tmp_path) -> list[Run]:
    "Two finished runs over eight edits; the second editor gives half of the answers with a full stop."
    config = dict(
        model=dict(name="m", fingerprint="1"),
        benchmark=dict(name="b", files={"1": "a"}, edits={"1": 8}),
        protocol="paper.1",
        timesteps=[1],
        finished="now",
    )
    about = dict(edit_id=[f"e{i}" for i in range(8)], axis="update", probe=0)
    questions = pd.DataFrame(
        about | dict(question=[f"Who heads {t}?" for t in TOWNS], expected=[f"Head {t}" for t in TOWNS])
    )
    for name, end in zip(EDITORS, ("", ".")):
        folder = tmp_path / name
        folder.mkdir()
        plan = dict(editor=name, sample=1000, seed=0)
        (folder / "config.json").write_text(json.dumps(config | dict(plan=plan)))
        questions.to_parquet(folder / "questions.parquet")
        said = [f"Head {t}{end}" if i % 2 else "Nobody" for i, t in enumerate(TOWNS)]
        moment = dict(
            moment="current", scored_at=1, edits_done=8, edited_at=1, asked_of=1, timestep="t", subject_id="Q1"
        )
        scores = pd.DataFrame(about | moment | dict(token_accuracy=0.5, answer=said, seconds=0.1))
        scores.assign(exact_match=[not end and a != "Nobody" for a in said]).to_parquet(folder / "scores.parquet")
    return [Run.load(tmp_path / name) for name in EDITORS]


def fields(body: dict) -> dict:
    "What a judge is shown."
    return dict(re.findall(r"^([^:\n]+): (.+)$", body["messages"][-1]["content"], re.M))


def good(body: dict) -> str:
    "A judge that forgives what normalised match forgives."
    f = fields(body)
    same = normalised_match(f["given answer"], [f["expected answer"]])
    return json.dumps(dict(item=f["item"], verdict="right" if same else "wrong"))


def judge(server, tmp_path, name="judge.sqlite", **options) -> OpenAIJudge:
    how = dict(prices=(1, 4), confirm=True, backoff=0.01, timeout=30.0, retries=3, base_url=server.url)
    return OpenAIJudge("tiny", cache=tmp_path / name, **how | options)


def test_two_readings_of_each_different_answer_and_no_name(runs, tmp_path):
    with FaultyServer(reply=good) as server:
        tables = judge_runs(runs, judge(server, tmp_path), progress=False)
        texts = [body["messages"][-1]["content"] for body in server.bodies]
    # 12 different answers: 'Nobody' to four questions, four names, and four names with a full stop
    assert len(texts) == len(set(texts)) == 24
    orders = Counter(text.index("given answer:") < text.index("expected answer:") for text in texts)
    assert orders == {True: 12, False: 12}
    everything = json.dumps(server.bodies)
    assert not [name for name in (*EDITORS, "editor", "paper.1") if name in everything]
    assert [rows.verdict.tolist() for rows in tables] == [["wrong", "right"] * 4] * 2
    assert runs[1].scores.judged.tolist() == [0, 1] * 4 and not runs[1].scores.exact_match.any()
    assert Run.load(runs[1].folder).means("judged").loc["update", "just edited"] == 0.5
    table = judged_table(runs)
    assert table.judged.tolist() == [0.5, 0.5] and table.exact_match.tolist() == [0.5, 0]
    assert table.kappa_exact_match["rome"] == 1 and table.kappa_exact_match["grace-codebook"] == 0


def test_a_judge_that_prefers_an_order_calls_nothing_right(runs, tmp_path):
    def biased(body):
        text, item = body["messages"][-1]["content"], fields(body)["item"]
        turned = text.index("given answer:") < text.index("expected answer:")
        return json.dumps(dict(item=item, verdict="wrong" if turned else "right"))

    with FaultyServer(reply=biased) as server:
        rows = judge_runs(runs[:1], judge(server, tmp_path), progress=False)[0]
    assert set(rows.verdict) == {"split"} and runs[0].scores.judged.tolist() == [0] * 8
    table = judged_table(runs[:1]).iloc[0]
    assert table.same_readings == 0 and table.judged == 0


def test_a_slow_busy_and_rambling_server(runs, tmp_path):
    rambling = iter(["Well, that depends.", "not right", ""])
    reply = lambda body: next(rambling, None) or good(body)
    plan = {"Town 1": ["late", "500"], "Town 2": ["429:0.01"], "Town 3": ["cut"], "Town 4": ["broken", "nothing"]}
    with FaultyServer(plan, reply=reply, late=4.0, delay=0.01) as server:
        one = judge(server, tmp_path, timeout=2.0, retries=20)
        tables = judge_runs(runs, one, progress=False)
    assert [rows.verdict.tolist() for rows in tables] == [["wrong", "right"] * 4] * 2
    assert one.stats.calls > 24 and one.stats.texts == 24


def test_what_fails_for_good_has_a_reason_and_counts_nowhere(runs, tmp_path):
    with FaultyServer({"Town 1?": "refusing!", "Town 3?": "filtered!"}, reply=good) as server:
        rows = judge_runs(runs[:1], judge(server, tmp_path), progress=False)[0]
    assert rows.verdict.isna().tolist() == [i in (1, 3) for i in range(8)]
    assert rows.error[1].startswith("refused") and "filter" in rows.error[3]
    assert runs[0].scores.judged.isna().sum() == 2 and judged_table(runs[:1]).no_verdict.item() == 2


def test_a_job_that_was_stopped_continues_and_pays_for_nothing_twice(runs, tmp_path):
    with FaultyServer({"Town 7?": "401!"}, reply=good) as server:
        with pytest.raises(WriterError, match="does not accept the key") as stopped:
            judge_runs(runs, judge(server, tmp_path, concurrency=1), progress=False)
        done = sum(server.answered.values())
    assert "judge.sqlite" in str(stopped.value) and not list(tmp_path.glob("*/verdicts.parquet")) and done > 0
    with FaultyServer(reply=good, port=server.http.server_port) as server:
        again = judge(server, tmp_path)
        judge_runs(runs, again, progress=False)
        assert again.stats.calls == 24 - done
        judge_runs(runs, judge(server, tmp_path), progress=False)
        assert sum(server.asked.values()) == 24 - done
    assert all((r.folder / "verdicts.parquet").exists() for r in runs)


def test_a_budget_holds(runs, tmp_path):
    with FaultyServer(reply=good) as server:
        few = judge(server, tmp_path, budget=0.006, concurrency=1)
        rows = judge_runs(runs[:1], few, progress=False)[0]
        assert 0 < few.stats.dollars <= 0.006 and 0 < rows.verdict.notna().sum() < 8
        assert rows.error.dropna().str.startswith("budget").all()
        judge_runs(runs[:1], judge(server, tmp_path, budget=1), progress=False)
    assert runs[0].scores.judged.notna().all() and len(runs[0].verdicts) == 8


def test_verdicts_are_about_the_answers_that_were_judged(runs, tmp_path):
    with FaultyServer(reply=good) as server:
        judge_runs(runs, judge(server, tmp_path), progress=False)
        judge_runs(runs[:1], OpenAIJudge("b", base_url=server.url, confirm=True, cache=tmp_path / "b"), progress=False)
    first = Run.load(runs[0].folder)
    assert set(first.verdicts.judge) == {"tiny", "b"} and len(first.verdicts) == 16
    about = compare_runs(runs).attrs
    assert about["judged"][1] == "grace-codebook: tiny judged 8 of 8 generated answers"
    assert about["differ"] == ["judges"]  # 'b' is the first by name of two that judged as much
    path = runs[0].folder / "scores.parquet"
    scores = pd.read_parquet(path)
    scores.assign(answer=["Somebody", *scores.answer[1:]]).to_parquet(path)
    assert Run.load(path.parent).scores.judged.isna().tolist() == [True] + [False] * 7


def test_nothing_generated_is_an_error(runs, tmp_path):
    path = runs[0].folder / "scores.parquet"
    pd.read_parquet(path).assign(answer=None).to_parquet(path)
    with FaultyServer(reply=good) as server, pytest.raises(BadArgument, match="wbe run --set generate=AXIS"):
        judge_runs([Run.load(path.parent)], judge(server, tmp_path), progress=False)


def test_the_judge_and_the_reader_of_two_hundred_answers(tmp_path):
    marks = read_marks(SAMPLES / "read_answers.csv")
    marks = marks[marks["mark"] != "partly"].reset_index(drop=True)
    by_text = {(m.question, m.expected, m.answer): m.mark for m in marks.itertuples()}
    one_line = lambda text: " ".join(text.split())
    known = {tuple(map(one_line, key)): mark for key, mark in by_text.items()}

    def as_read(body):
        f = fields(body)
        return json.dumps(dict(item=f["item"], verdict=known[f["question"], f["expected answer"], f["given answer"]]))

    with FaultyServer(reply=as_read) as server:
        read = judge_marks(judge(server, tmp_path), marks)
    table = judge_agreement(read)
    assert table.loc["the judge", ["accuracy", "kappa"]].tolist() == [1, 1]
    reader = (marks["mark"] == "right").to_numpy()
    said = np.array([normalised_match(a, [e]) for a, e in zip(marks.answer, marks.expected)])
    assert table.loc["normalised match, without aliases", "accuracy"] == np.mean(said == reader)
    assert table.loc["equal texts", "kappa"] <= table.loc["normalised match, without aliases", "kappa"] < 1


def test_kappa_from_the_table_of_both():
    "By the general definition: the diagonal of the joint table, and the product of its margins."
    rng = np.random.default_rng(0)
    for n in (5, 40, 300):
        a, b, w = rng.random(n) < 0.4, rng.random(n) < 0.6, rng.integers(1, 5, n)
        joint = pd.crosstab(a, b, w, aggfunc="sum").reindex(index=[False, True], columns=[False, True]).fillna(0)
        joint = joint.to_numpy() / w.sum()
        chance = joint.sum(0) @ joint.sum(1)
        assert cohen_kappa(a, b, w) == pytest.approx((np.trace(joint) - chance) / (1 - chance))
        assert cohen_kappa(a, b) == pytest.approx(cohen_kappa(np.repeat(a, 3), np.repeat(b, 3)))


def test_from_the_command_line(runs, tmp_path, capsys):
    from wbe.cli.runs import _judge as judge
    from wbe.cli.tables import TableOutput

    with FaultyServer(reply=good) as server:
        how = dict(base_url=server.url, prices="1,4", budget=1, yes=True, cache=tmp_path / "cli.sqlite")
        with TableOutput("json") as out:
            judge([tmp_path], "tiny", out=out, **how)
        shown = capsys.readouterr()
        rows = json.loads(shown.out)["judged"]
        assert [r["judged"] for r in rows] == [0.5, 0.5] and "24 calls" in shown.err
        with pytest.raises(BadArgument, match="no runs in"):
            judge([tmp_path / "rome" / "none"], "tiny", out=TableOutput(), **how)
        with pytest.raises(BadArgument, match="did you mean 'current'"):
            judge([tmp_path], "tiny", moments=["curent"], out=TableOutput(), **how)
    with pytest.raises(BadArgument, match="nothing to judge"):
        judge((), "tiny", out=TableOutput())
