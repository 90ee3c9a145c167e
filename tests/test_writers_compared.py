"""Several writers: each for a kind of question in a benchmark, and compared on the same facts."""

import json
import re

import pandas as pd
import pytest

pytest.importorskip("openai")

from openai_server import FaultyServer

from wbe.benchmark.series import Series, extend_benchmark, make_benchmark
from wbe.benchmark.writers_compared import (
    compare_writers,
    _comparison_requests,
    _fact_row,
    facts_to_compare,
    series_facts,
)
from wbe.records import BadArgument
from wbe.world.files import World
from wbe.writers.base import make_kind_writer, make_writer, parse_writers
from wbe.writers.judge import OpenAIJudge
from wbe.writers.llm import OpenAIWriter

DATES = ("2024-05-01", "2024-06-01", "2024-06-20")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    "A benchmark whose personas a model wrote, and all other questions the templates; the server that it asked."
    folder = tmp_path_factory.mktemp("mixed")
    dumps = World(7, 500).write(folder / "w", DATES, articles=False, views=False, progress=False).paths("dumps")
    with FaultyServer() as server:
        writers = parse_writers(["template", f"persona=openai:tiny@{server.url}"])
        options = dict(confirm=True, prices=(1, 4), budget=5, cache=folder / "texts.sqlite")
        make_benchmark(folder / "bench", dumps[:2], writers, options, progress=False)
        yield folder / "bench", dumps, writers, options, server


def rows_of(folder) -> pd.DataFrame:
    return pd.concat(map(pd.read_parquet, sorted((folder / "release").glob("wiki_big_edit_*.parquet"))))


def test_each_kind_by_its_writer(mixed):
    "The model was asked for personas and nothing else; the rows and the card say who wrote what."
    folder, _, _, _, server = mixed
    rows = rows_of(folder)
    assert {body["messages"][-1]["content"].split("\n")[1].split(":")[0] for body in server.bodies} == {"question"}
    assert rows.personas.dropna().str.startswith("Say it again: ").all() and len(rows.personas.dropna()) > 5
    assert not rows["rephrase"].dropna().str.startswith("Say it again").any()
    with_persona = rows[rows.personas.notna()]
    assert set(with_persona.writer) == {"template; persona: openai"} and set(with_persona.model) == {"persona: tiny"}
    prompts = with_persona.prompt.str.extract(r"^[^;]+; persona: persona-(\w+)/", expand=False)
    assert (prompts == with_persona.persona).all()
    card = (folder / "release" / "README.md").read_text(encoding="utf-8")
    written = re.search(r"Written by: (.*)\.", card)[1].split(", ")
    assert sum(w.startswith("template ") for w in written) == 1
    assert {re.sub("/.*", "", w) for w in written if w.endswith("(persona)")} == {
        f"openai tiny persona-{p}" for p in set(with_persona.persona)
    }


def test_the_writers_are_settings_of_the_benchmark(mixed):
    "Other writers are another benchmark; the same ones continue, and a new timestep has them too."
    folder, dumps, writers, options, server = mixed
    assert Series.load(folder).settings["writer"] == writers
    with pytest.raises(BadArgument, match="begun with other settings"):
        make_benchmark(folder, dumps[:2], dict(name="template"), progress=False)
    asked = server.asked.total()
    make_benchmark(folder, dumps[:2], writers, options, progress=False)
    assert server.asked.total() == asked
    extend_benchmark(folder, dumps[2], options, progress=False)
    assert server.asked.total() > asked
    assert rows_of(folder).personas.dropna().str.startswith("Say it again: ").all()


@pytest.mark.parametrize("kinds", [dict(personas=dict(name="template")), dict(update=dict(name="tempalte"))])
def test_wrong_kinds_are_found_before_a_dump_is_read(tmp_path, kinds):
    with pytest.raises(BadArgument, match="did you mean"):
        make_benchmark(tmp_path / "b", ["no-such-dump"], dict(name="template", kinds=kinds), progress=False)
    assert not (tmp_path / "b").exists()


def test_facts_of_a_benchmark(mixed, tmp_path):
    "The texts of templates for the facts of a benchmark are those of its rows."
    folder = mixed[0]
    every = series_facts(folder)
    facts, chains = facts_to_compare(every, 30), [f for f in every if f["object2_id"]]
    assert len(facts) == 30 and chains and all(f in facts for f in chains[:15])
    texts = compare_writers(
        facts, dict(templates=make_writer("template")), tmp_path, kinds=["update", "locality"]
    ).texts
    newest = max((folder / "release").glob("wiki_big_edit_*.parquet"))
    rows = pd.read_parquet(newest).set_index(["subject_id", "relation_id", "object_id"])
    assert {(f["subject_id"], f["property_id"], f["object_id"]) for f in every} == set(rows.index)
    for t in texts[texts.failed.isna()].itertuples():
        *key, kind = t.id.split("/")
        assert t.text == rows.loc[tuple(key)]["update" if kind == "update" else "loc"]
    assert texts.failed.isna().sum() > 30


def fields_of(body) -> dict:
    return dict(re.findall(r"^([^:\n]+): (.+)$", body["messages"][-1]["content"], re.M))


def test_numbers_by_hand(tmp_path):
    "Four facts: one text passes at once, one after feedback, one never, one is refused; the judge likes one of two."
    facts = [_fact_row(f"{name} City", "capital", f"{name}ville") for name in ("Ann", "Ben", "Cid", "Dan")]

    def write(body):
        f = fields_of(body)
        again = "thrown out" in body["messages"][-1]["content"]
        leaks = f["subject"] == "Cid City" or (f["subject"] == "Ben City" and not again)
        end = f", {f['answer']}" if leaks else ""
        return json.dumps(dict(item=f["item"], question=f"What is the capital of {f['subject']}{end}?"))

    def judge(body):
        f = fields_of(body)
        return json.dumps(dict(item=f["item"], verdict="wrong" if "Ben" in f["question"] else "right"))

    with FaultyServer({"Dan City": "refusing!"}, reply=write) as w, FaultyServer(reply=judge) as j:
        options = dict(cache=tmp_path / "c.sqlite", prices=(1, 4), confirm=True, backoff=0.01)
        writers = dict(m=OpenAIWriter("m", w.url, **options), templates=make_writer("template"))
        judges = OpenAIJudge("j", j.url, **options)
        call = lambda: compare_writers(facts, writers, tmp_path / "out", judges, ["update"])
        compared = call()
        row, free = compared.table().loc["m"], compared.table().loc["templates"]
        assert (row.asked, row.at_once, row.passed, row.right, row.words) == (4, 0.25, 0.5, 0.5, 7)
        assert row.dollars == pytest.approx((w.input_tokens + 4 * w.output_tokens) / 1e6) and row.model == "m"
        assert (free.passed, free.dollars, free.input_tokens, free.model) == (1.0, 0.0, 0, "")
        own = compared.texts[compared.texts.writer == "m"]
        assert own[own.attempt == 2].failed.fillna("passes").tolist() == [
            "passes",
            "answer given away",
            "nothing written",
        ]
        assert own[own.error.notna()].error.str.startswith("refused").all() and len(own) == 7
        assert [tuple(x) for x in compared.reasons().loc["m"].reset_index().values] == [
            ("update", "answer given away", 1),
            ("update", "refused", 1),
        ]
        asked = w.asked.total(), j.asked.total()
        assert call().table().drop(columns="seconds").equals(compared.table().drop(columns="seconds"))
        assert (w.asked.total(), j.asked.total()) == asked  # a refusal is cached, too
        w.plan.clear()
        writers["m"].retry_failed = True
        assert call().table().passed["m"] == 0.75  # what failed because of the server's answer is asked again


def test_a_budget_for_all(tmp_path):
    "Two writers and a judge of one job spend of one limit, whoever is first."
    facts = [_fact_row(f"Town {i}.", "capital", f"Ville {i}.") for i in range(20)]
    with FaultyServer() as server:
        options = dict(cache=tmp_path / "c.sqlite", prices=(1, 4), confirm=True, budget=0.02, job="all")
        writers = {m: OpenAIWriter(m, server.url, **options) for m in ("a", "b")}
        writers["a"].share_budget([writers["b"]])
        table = compare_writers(facts, writers, tmp_path / "out", kinds=["update"]).table()
        spent = (server.input_tokens + 4 * server.output_tokens) / 1e6
        assert 0.01 < spent <= 0.02 and table.dollars.sum() == pytest.approx(spent)
        assert table.passed["a"] > 0 and table.passed.mean() < 1


def test_a_budget_for_all_kinds_in_pieces(tmp_path):
    "A benchmark is written piece by piece: what one writer spends in a piece, the others lack in the next."
    prices = dict.fromkeys("ab", (1, 4))
    options = dict(cache=tmp_path / "c.sqlite", prices=prices, confirm=True, budget=0.03, job="all")
    with FaultyServer() as server:
        settings = parse_writers([f"openai:a@{server.url}", f"multihop=openai:b@{server.url}"])
        writer, texts = make_kind_writer(settings, options), []
        for piece in range(6):
            rows = [_fact_row(f"Town {piece} {i}.", "mayor", "Ann", "birthplace", "Arvik") for i in range(5)]
            texts += writer.write(_comparison_requests(rows, ["update", "multihop"]))
        spent = (server.input_tokens + 4 * server.output_tokens) / 1e6
        assert 0.015 < spent <= 0.03 and sum((t.error or "").startswith("budget") for t in texts) > 10
