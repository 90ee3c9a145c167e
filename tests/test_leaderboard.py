"""Runs of anyone on one page: one protocol in one table, checks that fail where they should, and runs from the hub."""

import re
from pathlib import Path

import pytest
import yaml
from toy_runs import made_up, write

from wbe.analysis import leaderboard
from wbe.analysis.leaderboard import _find_runs, make_leaderboard, _verify_run
from wbe.analysis.tables import runs_by_protocol
from wbe.runs.records import load_runs
from wbe.store import StoreError

SIZE = dict(timesteps=2, edits=12, sample=5, every=6, first=24)
WORKFLOW = Path(__file__).parents[1] / ".github" / "workflows" / "leaderboard.yml"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    "The runs of two people; the second asked another sample in one of them."
    tmp = tmp_path_factory.mktemp("people")
    for editor in ("none", "rome", "rag"):
        write(made_up(editor, **SIZE), tmp / "one" / editor)
    write(made_up("memit", **SIZE), tmp / "two" / "mine" / "memit")
    other = made_up("ft", **SIZE)
    other.config["plan"]["sample"] = 7
    write(other, tmp / "two" / "ft")
    return [tmp / "one", tmp / "two"]


def test_one_protocol_one_table(folders):
    runs = [r for f in folders for p, _ in _find_runs([f]) for r in load_runs(p)]
    assert [sorted(r.editor for r in g) for g in runs_by_protocol(runs)] == [["memit", "none", "rag", "rome"], ["ft"]]


def test_the_page(folders, tmp_path):
    text = make_leaderboard(folders, tmp_path / "page.html", "Ours & yours").read_text(encoding="utf-8")
    assert "<h1>Ours &amp; yours</h1>" in text and text.count('<section id="protocol-') == 2
    first = text[text.index('<section id="protocol-1"') : text.index('<section id="protocol-2"')]
    assert "two/mine/memit" in first and "two/ft" not in first
    scores = made_up("rag", **SIZE).scores
    share = scores[(scores.moment == "current") & (scores.axis == "persona")].exact_match.mean()
    short, row = re.findall(r"<tr><td>rag</td>.*?</tr>", first)[:2]
    assert f'data-value="{share:.12g}">{share:.1%} <small>[' in row and f'data-value="{share:.12g}"' not in short
    assert row.startswith("<tr><td>rag</td><td>5 of 6") and "5 of 6" in short
    assert re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', text) == []


def test_a_run_that_lost_questions_is_found(folders):
    runs = load_runs(folders[0])
    rag = next(r for r in runs if r.editor == "rag")
    others = [r for r in runs if r is not rag]
    assert False not in _verify_run(rag, others).values()
    whole = rag.scores
    try:
        rag.__dict__["scores"] = whole[~((whole.moment == "current") & (whole.edit_id == "t1e3"))]
        assert [k for k, v in _verify_run(rag, others).items() if v is False] == ["each once"]
        rag.__dict__["scores"] = whole.assign(exact_match=True)
        assert [k for k, v in _verify_run(rag, others).items() if v is False] == ["consistent", "answers", "same model"]
    finally:
        rag.__dict__["scores"] = whole


def forged(editor: str, columns: dict, texts: bool = True):
    "A made-up run with texts for answers, some columns of which were changed afterwards."
    run = made_up(editor, **SIZE)
    expected = run.questions.drop_duplicates(["edit_id", "axis"]).set_index(["edit_id", "axis"]).expected
    right = expected.reindex(list(zip(run.scores.edit_id, run.scores.axis))).to_numpy()
    answers = [e if x else f"not {e}" for e, x in zip(right, run.scores.exact_match)] if texts else None
    run.scores = run.scores.assign(answer=answers).assign(**columns)
    return run


def test_a_forged_run_is_not_ranked(tmp_path):
    for editor in ("none", "rag", "rome"):
        write(forged(editor, {}), tmp_path / "runs" / editor)
    honest = make_leaderboard([tmp_path / "runs"], tmp_path / "page.html").read_text(encoding="utf-8")
    rows = re.findall(r"<tr><td>([\w-]+)</td><td>(\d of \d)", honest)
    assert rows[0] == ("rag", "6 of 6") and {name for name, _ in rows} == {"rag", "rome"}
    assert "The unedited model (dotted): " in honest and "not ranked" not in honest.lower()
    write(forged("rome", dict(exact_match=True)), tmp_path / "runs" / "best")
    write(forged("rome", dict(exact_match=True, token_accuracy=1.0)), tmp_path / "runs" / "careful")
    write(forged("ft", {}, texts=False), tmp_path / "runs" / "silent")
    page = make_leaderboard([tmp_path / "runs"], tmp_path / "page.html").read_text(encoding="utf-8")
    ranked = page[page.index('data-name="leaderboard-1"') : page.index("Not ranked, because a check failed")]
    named = re.findall(r"<tr><td>([\w-]+)</td><td>([^<]*)", ranked)
    assert [name for name, _ in named][0] == "rag" and {name for name, _ in named} == {"rag", "rome", "ft"}
    assert dict(named)["ft"].endswith("cannot be checked")
    note = page[page.index("Not ranked, because a check failed") :]
    for name in ("best", "careful"):
        line = re.search(rf"<li>{name}[^<]*</li>", note)[0]
        assert "exact match is what the stored answers give" in line


def test_a_run_that_asked_no_updates_is_named_and_left_out(tmp_path):
    run = made_up("ft", **SIZE)
    run.scores = run.scores[run.scores.axis == "locality"]
    run.config["plan"]["axes"] = ["locality"]
    write(run, tmp_path / "runs" / "near")
    with pytest.raises(StoreError, match="near: left out; it asked about no update"):
        make_leaderboard([tmp_path / "runs"], tmp_path / "page.html")
    write(made_up("rag", **SIZE), tmp_path / "runs" / "rag")
    page = make_leaderboard([tmp_path / "runs"], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "near: left out; it asked about no update" in page and page.count('<section id="protocol-') == 1


@pytest.mark.parametrize("left_out, answers", [("wrong", False), ("update", None), ("", False)])
def test_scores_that_were_raised_where_no_answer_is_left_do_not_pass(left_out, answers):
    "Wrong answers were left out, or all answers to updates, or none; all scores after the edits were raised."
    run = forged("rome", {})
    s = run.scores
    later, gone = s.moment != "before", dict(wrong=~s.exact_match.astype(bool), update=s.axis == "update").get(left_out)
    if gone is not None:
        s = s.assign(answer=s.answer.where(~gone))
    run.scores = s.assign(exact_match=s.exact_match | later, token_accuracy=s.token_accuracy.where(~later, 1.0))
    if left_out == "update":  # the other axes are as they were
        run.scores = run.scores.assign(exact_match=run.scores.exact_match.where(s.axis == "update", s.exact_match))
    assert _verify_run(run)["answers"] is answers


def test_runs_from_the_hub(folders, monkeypatch):
    asked = []

    def snapshot(name, revision, patterns):
        asked.append((name, revision, sorted(patterns)))
        return folders[1]

    monkeypatch.setattr(leaderboard, "fetch_dataset", snapshot)
    found = _find_runs(["someone/runs"], "v1")
    assert sorted(origin for _, origin in found) == ["someone/runs/ft", "someone/runs/mine/memit"]
    assert [origin for _, origin in _find_runs(["hf://datasets/someone/runs/mine"])] == [
        "hf://datasets/someone/runs/mine/memit"
    ]
    assert asked[0] == ("someone/runs", "v1", ["*.parquet", "*config.json"])
    assert asked[1] == ("someone/runs", None, ["mine/*.parquet", "mine/*config.json"])
    with pytest.raises(StoreError, match="no folder others"):
        _find_runs(["someone/runs/others"])


def test_the_workflow_calls_a_command_of_ours():
    typer = pytest.importorskip("typer")
    from wbe.cli.main import app

    job = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]["leaderboard"]
    line = next(s["run"] for s in job["steps"] if "wbe leaderboard" in s.get("run", ""))
    words = line.partition("wbe leaderboard ")[2].replace("$RUNS", "someone/runs another/runs").split()
    given = typer.main.get_command(app).commands["leaderboard"].make_context("leaderboard", words).params
    assert given["runs"] == ["someone/runs", "another/runs"] and given["output"] == Path("page/index.html")
    assert "HF_TOKEN" not in str({k: v for k, v in job.items() if k != "steps"})  # only the last step has the secret
    assert ["HF_TOKEN" in str(s) for s in job["steps"]].count(True) == 1
