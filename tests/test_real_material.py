"""Real Wikidata entities that are not part of the project: these tests run where the file is at hand."""

import gzip
import json
import re
from pathlib import Path

import pytest
from notebook_runner import definitions

from wbe.world.dumps import EntityEncoder, json_line
from wbe.writers.properties import kind_of_classes

REAL = Path(__file__).parents[2] / "shared" / "data" / "wikidata_real_49.json.gz"
pytestmark = pytest.mark.skipif(not REAL.exists(), reason="no real entities at hand")


@pytest.fixture(scope="module")
def entities():
    with gzip.open(REAL, "rt", encoding="utf-8") as f:
        return [json.loads(line.rstrip().rstrip(",")) for line in f if line[0] == "{"]


def key_paths(x, at=""):
    "The positions of keys; P-ids, languages and wikis count as one key each."
    for key, value in x.items() if isinstance(x, dict) else ():
        if key[:1] == "P" and key[1:].isdigit():
            key = "P"
        elif at in (".labels", ".descriptions", ".aliases"):
            key = "language"
        elif key.endswith("wiki"):
            key = "wiki"
        yield f"{at}.{key}"
        yield from key_paths(value, f"{at}.{key}")
    for value in x if isinstance(x, list) else ():
        yield from key_paths(value, at + "[]")


def test_the_world_writes_the_keys_of_real_dumps(entities, small_world_lines):
    ours = {path for line in small_world_lines for path in key_paths(json.loads(line))}
    theirs = {path for e in entities for path in key_paths(e)}
    assert len(ours) > 30
    assert ours - theirs <= {".pageid", ".ns", ".title", ".lastrevid", ".modified"}  # dumps got them later


@pytest.fixture(scope="module")
def small_world_lines():
    from wbe.world.cast import Cast
    from wbe.world.dayone import initial_state

    encoder = EntityEncoder()
    return [json_line(encoder, e) for e in initial_state(Cast(7, 1500), 0).entities]


def test_kinds_of_real_entities(entities):
    "The kind of each entity by its classes, read by hand."
    kinds = {}
    for e in entities:
        claims = e["claims"].get("P31", []) if isinstance(e["claims"], dict) else []
        values = [c["mainsnak"].get("datavalue", {}).get("value", {}) for c in claims]
        name = e["labels"].get("en", {}).get("value")
        kinds[name] = kind_of_classes([f"Q{v['numeric-id']}" for v in values if "numeric-id" in v])
    by_hand = dict(Scotland="place", Belgium="place", Berlin="place", Poznań="place", Tours="place", French="thing")
    by_hand |= {"George Washington": "person", "Il Canto degli Italiani": "work", "Eurovision Song Contest": "event"}
    found = {name: kinds[name] for name in by_hand if name in kinds}
    assert len(found) > 5 and found == {name: by_hand[name] for name in found}


ROWS = REAL.parent / "wikibigedit_real_1500.json"
RETRIEVAL = Path(__file__).parents[1] / "nbs" / "09_editors" / "memory" / "04_retrieval.ipynb"


@pytest.mark.skipif(not ROWS.exists(), reason="no published rows at hand")
def test_retrieval_on_published_rows():
    "The test of subjects finds more rephrases than the two nearest, and lets almost no locality question through."
    from wbe.benchmark.own import open_benchmark

    study = definitions(RETRIEVAL, "retrieval_outcomes", "shares_at_threshold")
    rows = [r for step in open_benchmark(ROWS) for r in step.edits.to_pylist()]
    assert len(rows) == 1500
    by_similarity, by_name = (study.retrieval_outcomes(rows, subjects) for subjects in ("ignore", "require"))
    shares = study.shares_at_threshold(by_similarity)
    assert shares["let_through"] == 1 and abs(shares["found"] - 0.934) < 0.01
    shares = study.shares_at_threshold(by_similarity, 0.5)
    assert abs(shares["found"] - 0.911) < 0.01 and abs(shares["let_through"] - 0.788) < 0.02
    shares = study.shares_at_threshold(by_name)
    assert abs(shares["found"] - 0.937) < 0.01 and shares["let_through"] < 0.02


@pytest.mark.skipif(not ROWS.exists(), reason="no published rows at hand")
def test_subjects_of_published_rows_against_a_search_for_each_of_them():
    "Names with at least one word that no question form has; the oracle is one regular expression for each name."
    from wbe.editors.requests import SubjectIndex, _question_words

    rows = json.loads(ROWS.read_text(encoding="utf-8"))[:300]
    names = list(
        dict.fromkeys(r["subject"] for r in rows if not set(r["subject"].lower().split()) <= _question_words())
    )
    index = SubjectIndex()
    for n, name in enumerate(names):
        index.add(n, [name])
    patterns = [re.compile(rf"(?<!\w){re.escape(name)}(?!\w)") for name in names]
    texts = [r[key] for r in rows for key in ("prompt", "rephrase_prompt", "locality_prompt")]
    found = [{n for m in index._mentions(t) for n in m.owners} for t in texts]
    exact = [{n for n, p in enumerate(patterns) if p.search(t)} for t in texts]
    assert all(a >= b for a, b in zip(found, exact)) and sum(map(len, exact)) > 500
    more = [(t, names[n]) for t, a, b in zip(texts, found, exact) for n in a - b]
    assert len(more) < 20 and all(name.casefold() in t.casefold() or not name.isascii() for t, name in more)


CHAINS = REAL.parent / "mquake_real_120.json"


@pytest.mark.skipif(not CHAINS.exists(), reason="no published chains at hand")
@pytest.mark.parametrize("phrases, ids, least", [(True, True, 0.97), (False, True, 0.93), (False, False, 0.93)])
def test_the_graph_finds_all_four_edits_of_published_questions(phrases, ids, least):
    from dataclasses import replace

    from wbe.editors.memory.graph import FactGraph, graph_fact
    from wbe.editors.requests import requests_from_mquake

    instances = json.loads(CHAINS.read_text(encoding="utf-8"))
    chains = [requests_from_mquake(x) for x in instances]
    for x, chain in zip(instances, chains):
        assert [[r.subject_id, r.relation_id, r.object_id] for r in chain] == x["orig"]["edit_triples"]
    edits = {r.question: r for chain in chains for r in chain}.values()
    blank = {} if ids else dict.fromkeys(("subject_id", "relation_id", "relation", "object_id"), "")
    graph, right = FactGraph(phrases=phrases), []
    graph.add(graph_fact(replace(r, **blank)) for r in edits)
    for x, chain in zip(instances, chains):
        for question in x["questions"]:
            found = [graph.facts[n].question for p in graph.paths(question)[:1] for n in p.numbers]
            right.append(found == [r.question for r in chain])
    assert len(right) == 360 and sum(right) >= least * len(right)


ITEMS = REAL.parent / "wikidata_real_500.json.gz"


def best_items(e, pid):
    "The items of the best rank of a property of an entity, and all that are not deprecated: read from the dump alone."
    claims = [c for c in (e.get("claims") or {}).get(pid, []) if c["rank"] != "deprecated"]
    preferred = [c for c in claims if c["rank"] == "preferred"]
    ids = [
        {
            f"{'PQ'[v['entity-type'] == 'item']}{v['numeric-id']}"
            for c in some
            if isinstance(v := c["mainsnak"].get("datavalue", {}).get("value"), dict) and "numeric-id" in v
        }
        for some in (preferred or claims, claims)
    ]
    return ids


def item_stub(id, label, claims=()):
    names = {"en": dict(language="en", value=label)}
    e = dict(type="item", id=id, labels=names, descriptions={}, aliases={}, claims=dict(claims), sitelinks={})
    return e | dict(type="property", datatype="wikibase-item") if id[0] == "P" else e


@pytest.mark.skipif(not ITEMS.exists(), reason="no real entities at hand")
def test_a_pair_of_real_items_fact_by_fact(tmp_path):
    "30% of the statements changed: a tenth is new, a tenth has another object, a tenth is gone. No change is lost."
    import copy
    import zlib

    import pyarrow.parquet as pq

    from wbe.wikidata.build import build_facts
    from wbe.wikidata.filters import OPEN_PROPERTIES

    with gzip.open(ITEMS, "rt", encoding="utf-8") as f:
        entities = {e["id"]: e for e in (json.loads(line.rstrip().rstrip(",")) for line in f if line[0] == "{")}
    old, new, stubs, changed = {}, {}, {}, 0
    for id, e in entities.items():
        old[id], new[id] = copy.deepcopy(e), copy.deepcopy(e)
        for pid, group in (e.get("claims") or {}).items() if e["type"] == "item" else ():
            stubs.setdefault(pid, f"property {pid[1:]}")
            kept = {0: [], 1: []}
            for c in group:
                chance, before, after = zlib.crc32(c["id"].encode()) % 10, copy.deepcopy(c), c
                value = before["mainsnak"].get("datavalue", {}).get("value")
                is_item = isinstance(value, dict) and value.get("entity-type") == "item"
                if is_item:
                    stubs.setdefault(f"Q{value['numeric-id']}", f"Item {value['numeric-id']}")
                if chance == 1 and is_item:
                    other = value["numeric-id"] + 900_000_000
                    value |= {"numeric-id": other, "id": f"Q{other}"}
                    stubs[f"Q{other}"] = f"Other {other}"
                kept[0] += [before] if chance != 0 else []
                kept[1] += [after] if chance != 2 else []
                changed += chance < 3
            for side, now in enumerate((old, new)):
                now[id]["claims"] |= {pid: kept[side]}
    more = [item_stub(id, label) for id, label in stubs.items() if id not in entities]
    paths = [tmp_path / f"wikidata-2024{month}01-all.json.gz" for month in ("01", "02")]
    for path, side in zip(paths, (old, new)):
        lines = ",\n".join(json.dumps(e) for e in [*side.values(), *more])
        path.write_bytes(gzip.compress(f"[\n{lines}\n]\n".encode(), 1))
    built = build_facts(*paths, tmp_path / "built", rules=False, progress=False)

    expected = {}
    for id, e in new.items():
        for pid in (e.get("claims") or {}) if e["type"] == "item" else ():
            [best, _], [best_before, stated_before] = best_items(e, pid), best_items(old[id], pid)
            tag = "update" if best_before else "new"
            expected |= {(id, pid, q): (tag, best_before, best) for q in best - stated_before}
    facts = built.facts()
    out = pq.read_table(tmp_path / "built" / "facts" / "dropped.parquet").to_pandas()
    out = out[out.value_type == "item"]
    found = set(zip(facts.subject_id, facts.property_id, facts.object_id))
    left = dict(zip(zip(out.subject, out.property, out.value), out.reason))
    assert changed > 1500 and len(expected) > 800 and len(found) > 200
    assert found | set(left) == {k for k in expected if k[2][0] == "Q"} and not found & set(left)
    assert set(facts.tag) == {"new", "update"}
    name = lambda id: entities[id]["labels"].get("en", {}).get("value") if id in entities else stubs[id]
    for f in facts.itertuples():
        tag, before, best = expected[f.subject_id, f.property_id, f.object_id]
        assert f.tag == tag and best == {f.object_id} and (not before or f.previous_id in before)
        assert (f.subject, f.object) == (name(f.subject_id), name(f.object_id))
        assert max(len(f.subject.split()), len(f.object.split())) < 6
    for (s, p, o), reason in left.items():
        if reason == "several values":
            assert len(expected[s, p, o][2]) > 1 or p in OPEN_PROPERTIES
        if reason == "no label":
            assert not (name(s) and name(o))
        if reason == "long name":
            assert max(len(name(s).split()), len(name(o).split())) > 5
