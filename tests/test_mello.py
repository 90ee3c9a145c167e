"""MeLLo, and MQuAKE with a model behind an endpoint: it answers well or badly, is killed, and has a budget."""

import json
import os
import re

import pytest

pytest.importorskip("torch")
pytest.importorskip("openai")

from openai_server import FaultyServer

from wbe.editors.memory import mello
from wbe.editors.memory.mello import FACT_LABEL, MELLO_INSTRUCTION, _answer_in_rounds, _continue_turns
from wbe.editors.protocol import editor
from wbe.lm.endpoint import EndpointLM, TextEndpoint
from wbe.lm.toys import toy_lm
from wbe.records import BadArgument
from wbe.runs.loop import carry_out
from wbe.runs.mquake import MquakePlan, summarise_mquake
from wbe.writers.ledger import OverBudget, WriterError

RELATIONS = ("child", "spouse", "boss", "friend")
OLD = {(f"Old{n}x{i}", r): f"Old{n}x{i + 1}" for n in range(9) for i, r in enumerate(RELATIONS)}
NEW = {(f"New{n}x{i}", r): f"New{n}x{i + 1}" for n in range(9) for i, r in enumerate(RELATIONS) if i}
WORLD = OLD | NEW  # what the model knows: the child of Old3x0 is Old3x1, and the spouse of New3x1 is New3x2


def single(subject: str, relation: str) -> str:
    return f"Who is the {relation} of {subject}?"


def instance(n: int, hops: int) -> dict:
    "A chain of which the first fact is edited: the child of Old0 becomes New1."
    hop = lambda s, r, o: dict(question=single(s, r), answer=o, answer_alias=[])
    old = [hop(f"Old{n}x{i}", r, f"Old{n}x{i + 1}") for i, r in enumerate(RELATIONS[:hops])]
    new = [hop(f"Old{n}x0" if not i else f"New{n}x{i}", r, f"New{n}x{i + 1}") for i, r in enumerate(RELATIONS[:hops])]
    rewrite = dict(prompt="The child of {} is", relation_id="P40", subject=f"Old{n}x0", question=new[0]["question"])
    asked = "Who is the " + " of the ".join(reversed(RELATIONS[:hops])) + f" of Old{n}x0?"
    return dict(
        case_id=n,
        requested_rewrite=[rewrite | dict(target_new=dict(str=f"New{n}x1", id=f"QN{n}"))],
        questions=[asked, asked.replace("Who is", "Name")],
        answer=f"Old{n}x{hops}",
        new_answer=f"New{n}x{hops}",
        single_hops=old,
        new_single_hops=new,
    )


INSTANCES = [instance(n, hops) for n, hops in enumerate((2, 2, 3, 3, 4, 4))]


def follow(question: str, world: dict) -> list[str]:
    "The entities along the chain that a question asks for."
    path, relations = [re.search(r"(\w+)\?$", question)[1]], re.findall(r"(?:the|of the) (\w+)(?= of)", question)
    for r in reversed(relations):
        path.append(world.get((path[-1], r), "nobody"))
    return path


def in_form(messages: list) -> str:
    "The next turn of a model that follows MeLLo's form and believes the facts that contradict it."
    start = max(n for n, m in enumerate(messages) if m["content"].startswith("Question: "))
    question = messages[start]["content"].removeprefix("Question: ")
    facts = [m["content"] for m in messages[start + 1 :] if m["role"] == "user"]
    told = dict(WORLD)
    for fact in facts:
        r, s, o = re.match(rf"{FACT_LABEL} The (\w+) of (\w+) is (\w+)\.", fact).groups()
        told[s, r] = o
    path, relations = follow(question, told), list(reversed(re.findall(r"the (\w+)(?= of)", question)))
    said = f"Verdict: no contradiction, so the answer is {path[len(facts)]}\n" if facts else ""
    if len(facts) == len(relations):
        return f"{said}Final answer: {path[-1]}"
    s, r = path[len(facts)], relations[len(facts)]
    return f"{said}Subquestion: {single(s, r)}\nTentative answer: {WORLD.get((s, r), 'nobody')}"


def obedient(body: dict) -> str:
    "A model that knows WORLD, follows MeLLo's form, and believes pairs that stand in front of a question."
    if body["messages"][0]["content"] == MELLO_INSTRUCTION:
        return in_form(body["messages"])
    pairs = re.findall(r"Q: (.+?) A:(?: (.+))?", body["messages"][-1]["content"])
    told = {(re.search(r"(\w+)\?$", q)[1], re.search(r"the (\w+) of", q)[1]): a for q, a in pairs[:-1]}
    answer = follow(pairs[-1][0], WORLD | told)[-1]
    cot = any("So the answer is" in m["content"] for m in body["messages"][:-1])
    return f"Let me see. So the answer is {answer}." if cot else answer


@pytest.fixture
def chains(tmp_path) -> str:
    (tmp_path / "chains.json").write_text(json.dumps(INSTANCES))
    return str(tmp_path / "chains.json")


def plan(chains, server, editor="mello", **more) -> MquakePlan:
    where = dict(cache=os.path.join(os.path.dirname(chains), "texts.sqlite"), backoff=0.01, timeout=5.0, concurrency=4)
    spending = where | more.pop("spending", {})
    return MquakePlan(chains, editor, model="scripted", endpoint=server.url, spending=spending, **more)


def run(chains, tmp_path, server, name="run", **more):
    return carry_out(plan(chains, server, **more), tmp_path / name, progress=False)


def test_a_model_in_form_answers_every_chain_and_every_edit_is_retrieved(chains, tmp_path):
    with FaultyServer(reply=obedient) as server:
        frame = run(chains, tmp_path, server, k=(1, 6))
    table = summarise_mquake(frame)
    assert table.loc[0, ["instance_wise", "multi_hop"]].tolist() == [100, 100]
    for k in (1, 6):
        assert table.loc[k, ["multi_hop", "retrieved"]].tolist() == [100, 100]
        assert frame[frame.k == k].edit_wise.isna().all()
    assert frame[frame.k == 1].answers.map(len).tolist() == [1] * 6  # right at the first wording


@pytest.mark.parametrize("rounds, right", [(3, {2}), (4, {2, 3}), (5, {2, 3, 4})])
def test_a_chain_of_n_facts_needs_n_and_one_rounds(chains, tmp_path, rounds, right):
    with FaultyServer(reply=obedient) as server:
        frame = run(chains, tmp_path, server, hparams=dict(rounds=rounds))
    solved = frame[frame.k == 1].groupby("hops").multi_hop.all()
    assert set(solved[solved].index) == right
    assert frame[frame.k == 1].retrieved.all()  # what was cut off is the final answer, not the retrieval


BAD = {
    "chats": lambda body: "That is a good question. It must be somebody's friend.",
    "asks for ever": lambda body: "Subquestion: Who is it?\nTentative answer: nobody",
    "ignores facts": lambda body: (
        in_form([m if not m["content"].startswith(FACT_LABEL) else m | dict(content=f"{FACT_LABEL} The x of y is z.")
                 for m in body["messages"]])
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_model_out_of_form_gets_nothing_right_and_the_run_ends(chains, tmp_path, name):
    reply = lambda body: BAD[name](body) if body["messages"][0]["content"] == MELLO_INSTRUCTION else obedient(body)
    with FaultyServer(reply=reply) as server:
        frame = run(chains, tmp_path, server)
    assert not frame[frame.k == 1].multi_hop.any() and frame[frame.k == 0].multi_hop.all()
    assert frame[frame.k == 1].answers.map(len).tolist() == [2] * 6  # both wordings were tried


def test_facts_that_a_model_invents_are_cut_off_and_the_true_ones_shown(chains, tmp_path):
    def inventive(body):
        text = obedient(body)
        return text if "Final" in text else f"{text}\n{FACT_LABEL} It is nobody.\nFinal answer: nobody"

    with FaultyServer(reply=inventive) as server:
        frame = run(chains, tmp_path, server)
    assert frame[frame.k == 1].multi_hop.all()


def test_a_repeated_run_asks_nothing_and_a_killed_one_pays_nothing_twice(chains, tmp_path, monkeypatch):
    calls = []

    def dying(lm, transcripts, *how):
        calls.append(len(transcripts))
        if len(calls) == 8:
            raise KeyboardInterrupt
        return _continue_turns(lm, transcripts, *how)

    with FaultyServer(reply=obedient) as server:
        monkeypatch.setattr(mello, "_continue_turns", dying)
        with pytest.raises(KeyboardInterrupt):
            run(chains, tmp_path, server)
        monkeypatch.setattr(mello, "_continue_turns", _continue_turns)
        frame = run(chains, tmp_path, server)
        seen = [json.dumps(b["messages"]) for b in server.bodies]
        assert len(seen) == len(set(seen))
        assert run(chains, tmp_path, server).equals(frame) and len(server.bodies) == len(seen)
    assert frame[frame.k == 1].multi_hop.all()


def test_the_budget_ends_a_run_which_goes_on_with_more(chains, tmp_path):
    spending = dict(prices=(1, 4))
    with FaultyServer(reply=obedient) as server:
        dollars = lambda: (server.input_tokens + 4 * server.output_tokens) / 1e6
        with pytest.raises((OverBudget, WriterError), match="budget"):
            run(chains, tmp_path, server, spending=spending | dict(budget=0.02))
        assert 0 < dollars() <= 0.02
        frame = run(chains, tmp_path, server, spending=spending | dict(budget=5.0))
        assert frame[frame.k == 1].multi_hop.all()
        seen = [json.dumps(b["messages"]) for b in server.bodies]
        assert len(seen) == len(set(seen))


def test_a_server_that_is_down_ends_the_run_and_nothing_is_scored(chains, tmp_path):
    with FaultyServer({"Old": "500!"}, reply=obedient) as server:
        with pytest.raises(WriterError, match="500"):
            run(chains, tmp_path, server, spending=dict(retries=1))
    assert not list((tmp_path / "run" / "instances").glob("*.parquet"))


def test_the_address_is_recorded_without_its_parameters(chains, tmp_path):
    with FaultyServer(reply=obedient) as server:
        where = dict(endpoint=f"{server.url}?key=secret", spending=dict(cache=tmp_path / "c"))
        secret = MquakePlan(chains, "none", model="scripted", sample=1, **where)
        try:
            carry_out(secret, tmp_path / "run", progress=False)
        except WriterError as e:  # this server knows no parameters
            assert "secret" not in str(e)
    assert "secret" not in (tmp_path / "run" / "config.json").read_text()


@pytest.mark.parametrize("name, right", [("graph", 100), ("oracle", 100), ("none", None)])
def test_editors_that_only_put_facts_in_front_work_with_an_endpoint(chains, tmp_path, name, right):
    with FaultyServer(reply=obedient) as server:
        table = summarise_mquake(run(chains, tmp_path, server, editor=name, cot=True, k=(3,)))
    assert table.loc[0, ["instance_wise", "multi_hop", "multi_hop_cot"]].tolist() == [100, 100, 100]
    if right:
        assert table.loc[3, ["edit_wise", "retrieved", "multi_hop", "multi_hop_cot"]].tolist() == [right] * 4


def test_editors_of_weights_are_refused_with_the_reason(tmp_path):
    lm = EndpointLM.at(TextEndpoint("scripted", "http://127.0.0.1:9/v1", cache=tmp_path / "c.sqlite"))
    for name in ("rome", "r-rome", "memit", "ft", "ft-l", "wise", "lora"):
        with pytest.raises(Exception, match="its weights are behind an endpoint"):
            editor(name).check_for(lm)


def test_a_local_model_writes_its_lines_and_gets_the_facts(monkeypatch):
    lm, turns = toy_lm("gpt2", n_positions=4096), []

    def lines(lm, texts, line_tokens):
        turns.append(len(texts))
        asked = [t.rsplit("\n\n", 1)[1] for t in texts]
        return [in_form([dict(role="user" if line.startswith(("Q", FACT_LABEL)) else "assistant", content=line)
                         for line in t.strip().splitlines()]) for t in asked]  # fmt: skip

    monkeypatch.setattr(mello, "_write_lines", lines)
    made = editor("mello")
    from wbe.editors.requests import requests_from_mquake

    requests = [r for x in INSTANCES for r in requests_from_mquake(x)]
    with made.edit(lm, requests).on(lm):
        traces = made.answer(lm, [x["questions"][0] for x in INSTANCES])
    assert [t.answer for t in traces] == [x["new_answer"] for x in INSTANCES]
    assert turns == [6, 6, 6, 4, 2]  # two chains end after three rounds, two after four, two after five
    assert all(t.facts[0] == (r.question, r.answer) for t, r in zip(traces, requests))


def test_nothing_is_asked_without_questions_and_without_edits_nothing_is_found():
    assert _answer_in_rounds([], lambda t: pytest.fail(), lambda t: None) == []
    said = iter(["Subquestion: Who?\nTentative answer: Ida", "Final answer: Ida"])
    [trace] = _answer_in_rounds(["Who?"], lambda t: [next(said)], lambda t: None)
    assert (trace.answer, trace.facts) == ("Ida", []) and f"{FACT_LABEL} none" in trace.text


def test_the_recall_filter_keeps_the_chains_that_the_model_knows(chains, tmp_path):
    def forgetful(body):
        asked = body["messages"][-1]["content"]
        return "I forgot" if "the boss of New2x2?" in asked or "the child of Old0x0?" in asked else obedient(body)

    with FaultyServer(reply=forgetful) as server:
        frame = run(chains, tmp_path, server, editor="none", recall=True)
        kept = json.loads((tmp_path / "run" / "recall.json").read_text())
        demonstrated = [b for b in server.bodies if len(b["messages"]) == 18]
        assert demonstrated and len(server.bodies) > len(demonstrated)
        assert run(chains, tmp_path, server, editor="none", recall=True).equals(frame)
    assert set(frame.case) == set(kept["kept"]) == {1, 3, 4, 5} and kept["tried"] == 6
    assert frame.instance_wise.all()


def test_the_command_runs_mello_with_a_budget_and_bad_options_are_clear(chains, tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from wbe.cli.main import app

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with FaultyServer(reply=obedient) as server:
        words = ["run", chains, "--schedule", "mquake", "-e", "mello", "-m", "scripted"]
        words += ["--set", f"endpoint={server.url}", "--set", "mquake.k=2"]
        words += ["--set", "prices=1,4", "--runs", str(tmp_path / "runs"), "--table", str(tmp_path / "out.json")]
        bad = CliRunner().invoke(app, words)
        assert bad.exit_code != 0 and "give a budget in dollars" in str(bad.exception)
        result = CliRunner().invoke(app, [*words, "--set", "budget=5"])
        assert result.exit_code == 0, (result.output, result.exception)
    rows = {r["k"]: r for r in json.loads((tmp_path / "out.json").read_text())["k"]}
    assert (rows[2]["multi_hop"], rows[2]["retrieved"]) == (100, 100)
    vain = CliRunner().invoke(app, [*words, "--set", "cot=yes", "--set", "demonstrations=2", "--set", "edits=cloze"])
    assert str(vain.exception).endswith("leave out cot, demonstrations, edits")
    lost = CliRunner().invoke(app, ["run", chains, "--schedule", "mquake", "--set", "budget=5"])
    assert lost.exit_code != 0 and "behind an endpoint" in str(lost.exception)


def test_a_run_over_timesteps_refuses_it():
    from wbe.runs.plan import RunPlan, plan_editor

    with pytest.raises(BadArgument, match="use wbe run --schedule mquake"):
        plan_editor(RunPlan(benchmark="b", editor="mello"))
