"""The API writer against a server that fails: no request is lost or repeated, budgets hold, and the key never leaks."""

import json
import logging
import random
import re
import signal
import sqlite3
import sys
import time
from pathlib import Path

import processes
import pytest

pytest.importorskip("openai")

from openai_server import FaultyServer

from wbe.benchmark.questions import write_checked
from wbe.records import BadArgument, MissingPackage
from wbe.writers.base import Hop, Request, parse_writer, parse_writers
from wbe.writers.checks import first_failed_check
from wbe.writers.ledger import AnswerCache, WriterError
from wbe.writers.llm import OpenAIWriter

HERE = Path(__file__).parent
MAYOR = Hop("P6", "head of government", "Nadia Bellweather", "person", "head of the executive power of a city")
KEY = "secret-0123456789abcdef"  # not in the form that log filters recognise


def towns(n: int, name: str = "Town") -> list[Request]:
    # the dot: no name is part of another
    return [Request(f"{name}{i}/P6/update", "update", f"{name} {i}.", (MAYOR,), "place") for i in range(n)]


def writer(server, tmp_path, **options) -> OpenAIWriter:
    defaults = dict(
        base_url=server.url,
        cache=tmp_path / "texts.sqlite",
        prices=(1, 4),
        confirm=True,
        backoff=0.01,
        timeout=20.0,  # a crowded machine may be slow
        retries=4,
        batch_poll=0.03,
    )
    return OpenAIWriter("tiny", **defaults | options)


def billed(server, price=(1, 4)) -> float:
    live = server.input_tokens * price[0] + server.output_tokens * price[1]
    return (live + (server.batch_input_tokens * price[0] + server.batch_output_tokens * price[1]) / 2) / 1e6


def elsewhere(script: str, *args) -> processes.Process:
    "Run a script with this module's names in another process."
    start = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from types import SimpleNamespace as N
from test_llm_writer import *
"""
    return processes.Process(["-c", start + script, HERE, *args])


def test_nothing_is_lost_and_nothing_asked_twice(tmp_path):
    "120 requests; half of them meet one to three faults of all kinds, some of which are permanent."
    rng, troubles = (
        random.Random(5),
        ["429", "429:0.02", "500", "cut", "malformed", "broken", "empty", "nothing", "wrong", "statement"],
    )
    requests = towns(120)
    plan = {r.subject: [rng.choice(troubles) for _ in range(rng.randint(1, 3))] for r in requests[::2]}
    plan |= {
        requests[3].subject: ["late"],
        requests[7].subject: ["500!"],
        requests[11].subject: ["refusing!"],
        requests[13].subject: ["wrong!"],
        requests[15].subject: ["filtered!"],
        requests[17].subject: ["400!"],
        requests[19].subject: ["long!"],
    }
    reasons = {7: "500", 11: "refused", 13: "wrong item", 15: "refused", 17: "400", 19: "too long"}
    with FaultyServer(plan, late=4.0) as server:
        w = writer(server, tmp_path, concurrency=16, timeout=2.0)
        texts = list(w.write(requests))
        assert [t.id for t in texts] == [r.id for r in requests]
        assert {n: t.error.split(":")[0] for n, t in enumerate(texts) if t.error} == reasons
        assert all(
            t.text == f"What is the head of government of {r.subject}?" for t, r in zip(texts, requests) if not t.error
        )
        assert all(t.model == "tiny" and t.prompt.startswith("question/1-") and t.writer == "openai" for t in texts)
        assert max(server.answered.values()) == 1 and len(server.asked) == 120
        assert (
            w.stats.failures == {"500": 1, "refused": 2, "wrong item": 1, "400": 1, "too long": 1}
            and w.stats.texts == 114
        )
        assert billed(server) <= w.stats.dollars
        before = server.asked.copy()
        assert [t.text for t in writer(server, tmp_path).write(requests)] == [t.text for t in texts]
        repeated = {text.split("subject: ")[1].split("\n")[0] for text in server.asked - before}
        assert repeated == {requests[7].subject, requests[17].subject}  # only temporary errors are asked again


def test_an_error_with_status_200_is_a_failure_of_the_server(tmp_path):
    with FaultyServer({"Town 1.": ["reported"] * 2, "Town 2.": "reported!"}) as server:
        w = writer(server, tmp_path, retries=2)
        texts = list(w.write(towns(3)))
        assert [t.error for t in texts] == [None, None, "502: the model is overloaded"]
        assert billed(server) == pytest.approx(w.stats.dollars)  # nothing for what failed
        server.plan.clear()
        assert list(writer(server, tmp_path).write(towns(3)))[2].text  # and it is asked again


def test_the_call_of_a_killed_process_is_not_waited_for_for_ever(tmp_path):
    with FaultyServer() as server:
        w, (request,) = writer(server, tmp_path, timeout=0.3), towns(1)
        key = w._request_key(request)
        other = AnswerCache(tmp_path / "texts.sqlite")  # its process lives, and will never settle the call
        other.begin(key, 0.1)
        (text,) = w.write([request])
        assert text.text and server.asked.total() == 1


def test_a_second_run_asks_nothing(tmp_path):
    with FaultyServer() as server:
        first = list(writer(server, tmp_path).write(towns(30) + towns(30)))  # each twice
        asked = server.asked.total()
        assert asked == 30
        w = writer(server, tmp_path)
        assert list(w.write(towns(30) + towns(30))) == first and server.asked.total() == asked
        assert w.stats.calls == 0 and w.stats.dollars == 0 and w.estimate(towns(30)).new == 0
        another = OpenAIWriter("another", base_url=server.url, cache=tmp_path / "texts.sqlite")
        assert another.estimate(towns(30)).new == 30  # the model is part of the cache key


def test_two_processes_with_one_cache_share_the_work(tmp_path):
    script = (
        "w = writer(N(url=sys.argv[2]), Path(sys.argv[3]))\nprint(sum(t.text is not None for t in w.write(towns(60))))"
    )
    with FaultyServer(delay=0.02) as server:
        both = [elsewhere(script, server.url, tmp_path) for _ in range(2)]
        assert [p.communicate(timeout=60)[0].strip() for p in both] == ["60", "60"]
        assert max(server.asked.values()) == 1 and len(server.asked) == 60


def test_killed_in_the_middle(tmp_path):
    "Answers that had arrived are not requested again, and calls in flight count as spent."
    script = "list(writer(N(url=sys.argv[2]), Path(sys.argv[3]), concurrency=4).write(towns(60)))"
    with FaultyServer(delay=0.05) as server:
        victim = elsewhere(script, server.url, tmp_path)
        while server.answered.total() < 20:
            assert victim.poll() is None
            time.sleep(0.01)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        with sqlite3.connect(tmp_path / "texts.sqlite") as db:
            under_way = db.execute("SELECT count(*), total(dollars) FROM calls WHERE state = 'sent'").fetchone()
            there = db.execute("SELECT count(*) FROM answers").fetchone()[0]
        db.close()
        assert 1 <= under_way[0] <= 4 and under_way[1] > 0 and there >= 15
        time.sleep(0.1)
        asked = server.asked.total()
        w = writer(server, tmp_path, budget=10)
        spent = w._cache.paid_for([w._request_key(r) for r in towns(60)])
        assert f"of which ${spent:.4f} are spent" in str(w.estimate(towns(60)))
        assert all(t.text for t in w.write(towns(60)))
        assert server.asked.total() - asked == 60 - there and len(server.asked) == 60
        assert sum(n - 1 for n in server.asked.values()) <= under_way[0]  # only calls in flight are repeated
        assert w._cache.paid_for([w._request_key(r) for r in towns(60)]) >= billed(server)


@pytest.mark.parametrize("budget", [0.0, 0.002, 0.011, 0.03])
def test_the_budget_is_never_exceeded(tmp_path, budget):
    rng = random.Random(3)
    plan = {r.subject: [rng.choice(["late", "cut", "malformed", "wrong", "500", "empty"])] for r in towns(80)[::3]}
    with FaultyServer(plan, late=0.6) as server:
        for _ in range(2):  # the second run of the same job has no budget of its own
            w = writer(server, tmp_path, budget=budget, concurrency=16, timeout=0.4, retries=20)
            texts = list(w.write(towns(80)))
            time.sleep(0.4)
            assert billed(server) <= w._cache.paid_for([w._request_key(r) for r in towns(80)]) <= budget + 1e-12
            assert len(texts) == 80 and all(t.text or t.error.startswith("budget: $") for t in texts)
        # a budget below the highest price of one call allows no call
        assert (server.answered.total() > 0) == (budget > 0.01)


@pytest.mark.parametrize("batch", [False, True])
def test_a_job_has_one_budget_for_all_pieces_and_runs(tmp_path, batch):
    with FaultyServer() as server:
        for run in range(3):
            w = writer(server, tmp_path, budget=0.02, job="all", batch=batch)
            for piece in range(3):
                list(w.write(towns(12, f"Run {run} piece {piece} town")))
                assert billed(server) <= 0.02
        assert w._cache.spent_by("all") == pytest.approx(billed(server)) and billed(server) > 0.015
        assert writer(server, tmp_path, job="other", budget=0.02).estimate(towns(1)).paid == 0


def test_retry_after_is_honoured(tmp_path):
    "One of four calls gets a Retry-After of half a second: no thread calls until then, and all continue soon after."
    requests = towns(40)
    with FaultyServer({requests[5].subject: ["429:0.5"]}, delay=0.03) as server:
        assert all(t.text for t in writer(server, tmp_path, concurrency=4).write(requests))
        told = next(at for at, prompt in server.times if requests[5].subject in prompt)
        times = sorted(at - told for at, _ in server.times)
        assert not [t for t in times if 0.3 < t < 0.5]  # calls in flight may still arrive
        assert sum(t >= 0.5 for t in times) > 10 and min(t for t in times if t >= 0.5) < 5


def test_the_rate_is_kept(tmp_path):
    with FaultyServer() as server:
        list(writer(server, tmp_path, requests_per_minute=1500, concurrency=8).write(towns(25)))
        times = [at for at, _ in server.times]
        assert times[-1] - times[0] >= 24 * 0.04 - 0.03
        # ten in 0.4 s, with a tolerance for the time to reach the server
        assert all(sum(t <= x < t + 0.4 for x in times) <= 16 for t in times)


def test_concurrency_is_limited(tmp_path):
    with FaultyServer(delay=0.03) as server:
        list(writer(server, tmp_path, concurrency=5).write(towns(30)))
        assert 2 <= server.most_at_once <= 5


@pytest.mark.parametrize("batch", [False, True])
def test_the_key_is_nowhere(tmp_path, monkeypatch, caplog, capfd, batch):
    "The server repeats the key in its errors, but no file, log, text, name or error of ours holds it."
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    requests = towns(6)
    with FaultyServer(
        {requests[2].subject: ["400!"], requests[3].subject: ["500!"], requests[4].subject: ["refusing!"]}
    ) as server:
        w = writer(server, tmp_path, retries=1, batch=batch)
        texts = [
            repr(w),
            str(w.key()),
            str(w.estimate(requests)),
            str(list(w.write(requests))),
            str(w.stats),
            str(vars(w) | {"client": ""}),
        ]
        assert server.keys == {f"Bearer {KEY}"}
    with FaultyServer({"item": "401!"}) as server:
        with pytest.raises(WriterError, match="does not accept the key") as e:
            list(writer(server, tmp_path, cache=tmp_path / "none.sqlite", retries=1).write(requests))
        texts.append(str(e.getrepr(style="long")))
    texts += [
        caplog.text,
        *capfd.readouterr(),
        *(p.read_bytes().decode("latin-1") for p in tmp_path.rglob("*") if p.is_file()),
    ]
    assert not any(KEY in text for text in texts) and len(caplog.text) > 1000


def test_a_local_server_needs_no_key(tmp_path):
    with FaultyServer() as server:
        assert next(writer(server, tmp_path).write(towns(1))).text
        assert server.keys == {"Bearer none"}
    with pytest.raises(BadArgument, match="OPENAI_API_KEY"):
        OpenAIWriter("gpt-4o-mini", cache=tmp_path / "texts.sqlite")


def test_without_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingPackage, match="needs the package openai: pip install 'openai"):
        OpenAIWriter("gpt-4o-mini", cache=tmp_path / "texts.sqlite")


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("structured", ["schema", "json", "text"])
def test_servers_that_understand_less(tmp_path, structured, batch):
    with FaultyServer(structured=structured, limit_name="max_completion_tokens") as server:
        assert all(t.text for t in writer(server, tmp_path, batch=batch).write(towns(10)))
        assert max(server.answered.values()) == 1


def test_nothing_is_spent_without_confirmation(tmp_path, monkeypatch):
    from wbe.writers.ledger import confirm_at_keyboard

    seen = []
    with FaultyServer() as server:
        w = writer(server, tmp_path, confirm=lambda estimate: seen.append(estimate))
        with pytest.raises(WriterError, match="not confirmed"):
            list(w.write(towns(5)))
        assert seen[0].new == 5 and seen[0].dollars == pytest.approx(5 * (560 + 4 * 21) / 1e6, rel=0.25)
        monkeypatch.setattr(sys, "stdin", None)
        monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
        with pytest.raises(WriterError, match="confirm=True"):
            list(writer(server, tmp_path, confirm=confirm_at_keyboard).write(towns(5)))
        assert not server.asked


def test_an_abandoned_job_keeps_what_was_paid_for(tmp_path):
    with FaultyServer(delay=0.02) as server:
        texts = writer(server, tmp_path).write(towns(50))
        next(texts)
        texts.close()
        asked = server.asked.total()
        assert asked < 50
        w = writer(server, tmp_path)
        assert len(w._cache.lookup([w._request_key(r) for r in towns(50)])) == asked


def test_batches_with_everything_that_goes_wrong(tmp_path):
    """The first batch fails as a whole, the second expires, the third loses a line and contains errors.

    Once, the answer to a batch's creation is lost.
    """
    requests = towns(40)
    plan = {
        requests[1].subject: ["500"],
        requests[2].subject: ["malformed", "wrong"],
        requests[4].subject: ["refusing!"],
        requests[5].subject: ["500!"],
    }
    with FaultyServer(
        plan, batch_plan=[dict(fail=True), dict(expire_after=12), dict(lose=[0, 3])], batch_polls=2, lose_create=1
    ) as server:
        w = writer(server, tmp_path, batch=True)
        texts = list(w.write(requests))
        assert [t.id for t in texts] == [r.id for r in requests]
        assert {n: t.error.split(":")[0] for n, t in enumerate(texts) if t.error} == {4: "refused", 5: "500"}
        assert max(server.answered.values()) == 1
        paid = w._cache.paid_for([w._request_key(r) for r in requests])
        assert w.stats.dollars == pytest.approx(billed(server)) == paid
        n = len(server.batches)
        again = list(writer(server, tmp_path, batch=True).write(requests[:5] + requests[6:]))
        assert len(server.batches) == n and [t.text for t in again] == [t.text for t in texts[:5] + texts[6:]]


def test_a_batch_outlives_the_process(tmp_path):
    script = "list(writer(N(url=sys.argv[2]), Path(sys.argv[3]), batch=True, batch_size=8).write(towns(20)))"
    with FaultyServer(batch_polls=10**6) as server:
        victim = elsewhere(script, server.url, tmp_path)
        while sum(b["polls"] > 0 for b in server.batches.values()) < 3:
            assert victim.poll() is None
            time.sleep(0.01)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        assert len(server.batches) == 3
        server.batch_polls = 1
        assert all(t.text for t in writer(server, tmp_path, batch=True, budget=1).write(towns(20)))
        assert len(server.batches) == 3 and max(server.asked.values()) == 1
        w = writer(server, tmp_path)
        assert w._cache.paid_for([w._request_key(r) for r in towns(20)]) == pytest.approx(billed(server))


def test_killed_at_any_step_of_submission(tmp_path):
    "Stopped after each step that the server sees: the next run creates no batch twice and repeats no request."
    from wbe.writers.ledger import AnswerCache
    from wbe.writers.llm import _BatchJobs

    moments = (
        (_BatchJobs, "plan", 1),
        (AnswerCache, "begin", 3),
        (_BatchJobs, "_create", 1),
        (_BatchJobs, "_note", 2),
        (_BatchJobs, "_note", 3),
        (_BatchJobs, "submit", 1),
    )
    for where, step, time_ in moments:
        with FaultyServer() as server:
            folder, done, original = tmp_path / f"{step}{time_}", [], getattr(where, step)

            def dies(self, *args, original=original, done=done, time_=time_, **kwargs):
                out = original(self, *args, **kwargs)
                done.append(1)
                if len(done) == time_:
                    raise KeyboardInterrupt
                return out

            setattr(where, step, dies)
            try:
                with pytest.raises(KeyboardInterrupt):
                    list(writer(server, folder, batch=True).write(towns(5)))
            finally:
                setattr(where, step, original)
            w = writer(server, folder, batch=True, budget=0.1)
            assert (
                all(t.text for t in w.write(towns(5))) and len(server.batches) == 1 and max(server.asked.values()) == 1
            )
            assert w._cache.paid_for([w._request_key(r) for r in towns(5)]) == pytest.approx(billed(server)), step


def test_the_budget_of_batches(tmp_path):
    with FaultyServer() as server:
        w = writer(server, tmp_path, batch=True, budget=0.01)
        texts = list(w.write(towns(60)))
        assert 0 < billed(server) <= 0.01 and 0 < w.stats.texts < 60
        assert all(t.text or t.error.startswith("budget: $") for t in texts)
        list(writer(server, tmp_path, batch=True, budget=0.01).write(towns(60)))
        assert billed(server) <= 0.01


def test_the_prompts_are_in_the_package():
    import wbe.writers
    from wbe.writers.requests import PROMPT_NAMES, prompt_file

    folder = Path(wbe.writers.__file__).parent
    names = {p.stem for p in (folder / "prompt_files").glob("*.md")}
    others = {"judge", "judge-question", "same-meaning", "supported", "passage", "passage-edit", "sentences"}
    others |= {"paper-question", "paper-rephrase", "paper-persona"}
    assert names == {*PROMPT_NAMES, *others}
    assert all(prompt_file(n).name == n for n in names)
    assert json.loads((folder / "prices.json").read_text())["as_of"]


def paper_reply(body):
    "Answers to the prompts of WikiBigEdit's appendix A, read from their last lines; Ann's pair answers something else."
    text = body["messages"][-1]["content"]
    if fact := re.search(
        r"^Fact Triplet: (.+), (.+), (.+)\nRelation Description: .+$", text[text.rfind("Task:") :], re.M
    ):
        subject, relation, answer = fact.groups()
        leak = f", {answer}" if subject == "Leak" else ""
        return f"Q: Who is the {relation} of {subject}{leak}?\nA: {'Bo' if answer == 'Ann' else answer}"
    if "item: " in text:  # our prompt, for a chain
        return json.dumps(dict(item=text.split("\n")[0][6:], question="Where was the head of Orland born?"))
    question = re.findall(r"^Original Question: (.+)$", text, re.M)[-1]
    voice = "Arr! " if "pirate" in text else ""
    return f"Reformulated Question: {voice}Tell me: {question}" if voice or "Answer:" in text else "So,\nwhat?"


@pytest.mark.parametrize("batch", [False, True])
def test_the_prompts_of_the_paper(tmp_path, batch):
    "One message without a schema, in every form; a chain keeps our prompt; nothing is repeated with feedback."
    hop = lambda name: (Hop("P6", "head of government", name, "person"),)
    facts = [
        Request(f"{s}/update", "update", s, hop(o)) for s, o in (("Orland", "Cy"), ("Marl", "Ann"), ("Leak", "Di"))
    ]
    voices = [
        Request(f"{p}/persona", "persona", "Orland", hop("Cy"), question="Who leads Orland?", persona=p)
        for p in ("pirate", "caveman")
    ]
    rephrase = Request("r/rephrase", "rephrase", "Orland", hop("Cy"), question="Who leads Orland?")
    chain = Request("c", "multihop", "Orland", (*hop("Cy"), Hop("P19", "place of birth", "Karsk", "place")))
    with FaultyServer(reply=paper_reply) as server:
        w = writer(server, tmp_path, prompts="paper", batch=batch, retries=0)
        assert w.estimate(facts).output_tokens > 0
        texts = list(w.write([*facts, *voices, rephrase, chain]))
        assert [t.text for t in texts] == [
            "Who is the head of government of Orland?",
            None,
            "Who is the head of government of Leak, Di?",
            "Arr! Tell me: Who leads Orland?",
            None,
            "Tell me: Who leads Orland?",
            "Where was the head of Orland born?",
        ]
        assert [t.error for t in texts if t.error] == [
            "wrong answer: the pair answers something else",
            "malformed answer: more than one line",
        ]
        assert first_failed_check(facts[2], texts[2].text).name == "answer given away"
        assert [t.prompt.split("/")[0] for t in texts[2:5]] == ["paper-question", "paper-persona", "paper-persona"]
        bodies = server.bodies or [
            json.loads(x)["body"] for x in next(iter(server.files.values())).decode().splitlines()
        ]
        plain = [body for body in bodies if "item: " not in body["messages"][-1]["content"]]
        assert len(plain) == 6 and all(len(b["messages"]) == 1 and "response_format" not in b for b in plain)
        asked = len(server.asked)
        assert write_checked(w, facts)[2] == 0 and len(server.asked) == asked
    assert w.key()["prompts"] != writer(server, tmp_path).key()["prompts"]


def test_the_paper_s_prompts_by_name():
    about = dict(name="openai", model="gpt", base_url="http://a/v1", prompts="paper")
    assert parse_writer("openai+paper:gpt@http://a/v1") == about
    assert parse_writers(["persona=local+paper:m"])["kinds"]["persona"]["prompts"] == "paper"
    for wrong in ("openai+papers:gpt", "template+paper"):
        with pytest.raises(BadArgument, match="prompts"):
            parse_writer(wrong)


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_ignores_json(tmp_path, stream):
    "As `transformers serve` (tests/test_real_server.py): its first answer counts, and later calls do not ask for JSON."
    with FaultyServer(transformers=True) as server:
        w = writer(server, tmp_path, stream=stream, concurrency=1)
        texts = list(w.write(towns(6)))
        assert [t.text for t in texts] == [f"What is the head of government of {r.subject}?" for r in towns(6)]
        assert ["response_format" in body for body in server.bodies] == [True] + 5 * [False]
        assert (w.stats.calls, w.stats.input_tokens) == (6, server.input_tokens)
        assert w.stats.dollars == pytest.approx(billed(server))
    with FaultyServer({"Town 3.": ["400"]}, transformers=True) as server:
        w = writer(server, tmp_path / "errors", stream=stream, concurrency=1)
        assert [t.error for t in w.write(towns(5)) if t.error] == ["400: Incorrect: Bearer none"]  # `detail` is read


def test_a_server_that_writes_json_is_held_to_it(tmp_path):
    "A bare question after an answer in JSON is a bad answer, not a server that ignores the format."
    right = lambda body: json.dumps(
        dict(item=body["messages"][-1]["content"].split("\n")[0][6:], question="Who is it?")
    )
    with FaultyServer(reply=lambda body: "Who, me?" if "Town 2." in str(body) else right(body)) as server:
        w = writer(server, tmp_path, concurrency=1, retries=1)
        assert [t.text for t in w.write(towns(4))] == ["Who is it?", "Who is it?", None, "Who is it?"]
        assert all("response_format" in body for body in server.bodies)


def test_a_model_that_a_server_does_not_have_ends_the_job(tmp_path):
    with FaultyServer(transformers=True, only_model="another") as server:
        w = writer(server, tmp_path, concurrency=1)
        with pytest.raises(WriterError, match="400: Server is pinned to 'another'; requested 'tiny'"):
            list(w.write(towns(50)))
        assert w.stats.calls == 1 and w.stats.dollars == 0


def test_a_stream_that_breaks_off(tmp_path):
    "The call counts with the most that it can have cost, and is made again."
    plan = {"Town 1.": ["breaks"], "Town 2.": ["cut"], "Town 3.": "breaks!"}
    with FaultyServer(plan, refused_fields=["stream_options"]) as server:
        w = writer(server, tmp_path, stream=True, retries=2)
        errors = [t.error for t in w.write(towns(5))]
        assert [e and e.split(" (")[0] for e in errors] == 3 * [None] + [
            "broken off: the server ended its stream with an error",
            None,
        ]
        assert "index out of range" in errors[3] and "stream_options" in w._dialect.refused
        assert billed(server) <= w.stats.dollars  # without counts, every call costs the most that it can


def test_calls_after_an_error_get_a_new_connection(tmp_path):
    "A server may close its connections after an error without a word; no later call is lost on one of them."
    plan = {r.subject: ["500"] for r in towns(12)}
    with FaultyServer(plan, transformers=True) as server:
        w = writer(server, tmp_path, concurrency=1, retries=1, backoff=0)
        assert all(t.text for t in w.write(towns(12)))
        assert w.stats.calls == 24 and w.stats.dollars == pytest.approx(billed(server))
