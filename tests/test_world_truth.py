"""The world's dumps, read by independent parsers, agree with the world's truth tables."""

import bz2
import json
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict

import pytest
from plain_reader import qwikidata_text
from qwikidata.entity import WikidataItem
from qwikidata.json_dump import WikidataJsonDump

from wbe import records as rec
from wbe.world.cast import PROPERTIES
from wbe.world.state import SNAPSHOTS, TIMESTEPS


@pytest.fixture(scope="session")
def read_by_qwikidata(small_world):
    "Per snapshot: (statement id, subject, property, value, rank) of every item, as qwikidata reads them."
    out = []
    for path in small_world.paths("dumps"):
        if not path.name.endswith(".json.gz"):
            continue
        rows = []
        for entity in WikidataJsonDump(str(path)):
            if entity["type"] == "item":
                item = WikidataItem(entity)
                for pid, group in item.get_claim_groups().items():
                    rows += [(c.claim_id, item.entity_id, pid, qwikidata_text(c.mainsnak), c.rank) for c in group]
        out.append(rows)
    return out


def test_every_statement_agrees_with_the_truth(small_world, read_by_qwikidata):
    truth = small_world.truth("statements")
    rank = {"n": "normal", "p": "preferred", "d": "deprecated"}
    assert len(read_by_qwikidata) == 9
    for t, rows in enumerate(read_by_qwikidata):
        here = truth[truth.ranks.str[t] != "."]
        want = Counter(
            (r.statement_id, r.subject_id, r.property_id, r.value if r.snak == "value" else None, rank[r.ranks[t]])
            for r in here.itertuples()
        )
        assert Counter(rows) == want
        assert len(rows) > 10_000


def test_changes_recomputed_from_the_dumps(small_world, read_by_qwikidata):
    "The definition of a change, applied to the statements from qwikidata, gives exactly the truth's table of changes."

    def sets(rows):
        best, stated = defaultdict(dict), defaultdict(set)
        for _, s, p, v, rank in rows:
            if rank != "deprecated":
                best[s, p].setdefault(rank, []).append(v)
                if v is not None:
                    stated[s, p].add(v)
        truthy = {k: {v for v in (d.get("preferred") or d["normal"]) if v is not None} for k, d in best.items()}
        return truthy, stated

    found = set()
    for t in TIMESTEPS:
        (old_best, old_stated), (new_best, new_stated) = map(sets, read_by_qwikidata[t - 1 : t + 1])
        for key in {*old_best, *new_best}:
            before = old_best.get(key, set())
            found |= {
                (t, *key, v, "update" if before else "new", tuple(sorted(before)))
                for v in new_best.get(key, set()) - old_stated.get(key, set())
            }
            found |= {(t, *key, v, "removed", tuple(sorted(before))) for v in before - new_stated.get(key, set())}
    # an end is a qualifier, which this comparison does not read
    truth = small_world.truth("changes").query("tag != 'ended'")
    want = [(r.timestep, r.subject_id, r.property_id, r.value, r.tag, tuple(r.previous)) for r in truth.itertuples()]
    assert len(want) == len(set(want))
    assert found == set(want)


def test_traps_are_in_the_snapshots_that_the_truth_names(small_world):
    "Qualifier and reference traps are in the first snapshot named, and not in the one before."
    traps = small_world.truth("traps").query("kind in ('qualifier_value', 'reference_value', 'restrictive_qualifier')")
    paths = [p for p in small_world.paths("dumps") if p.name.endswith(".json.gz")]
    seen = []
    for path in paths:
        here = set()
        for entity in WikidataJsonDump(str(path)):
            for claims in entity["claims"].values():
                for c in claims:
                    snaks = [s for group in c.get("qualifiers", {}).values() for s in group]
                    snaks += [s for r in c.get("references", []) for group in r["snaks"].values() for s in group]
                    here |= {
                        (entity["id"], s["property"], s["datavalue"]["value"]["id"], c["id"])
                        for s in snaks
                        if s.get("datatype") == "wikibase-item"
                    }
        seen.append(here)
    assert len(traps) > 1000
    for r in traps.itertuples():
        key = (r.subject_id, r.property_id, r.value, r.statement_id)
        assert key in seen[r.first], r
        assert r.first == 0 or key not in seen[r.first - 1], r


def test_a_person_deleted_or_merged_is_gone(small_world):
    entities = small_world.truth("entities")
    gone = entities[entities["last"] < 8]
    assert gone.redirect_to.notna().any() and gone.redirect_to.isna().any()
    last = [p for p in small_world.paths("dumps") if p.name.endswith("json.gz")][-1]
    ids = {entity["id"] for entity in WikidataJsonDump(str(last))}
    assert not ids & set(gone.id)
    assert ids == set(entities[entities["last"] == 8].id) | set(PROPERTIES)


def test_the_xml_dump_has_the_same_statements(small_world, xml_dumps):
    "The XML dump of a snapshot holds the same statements as the JSON dump, and the merged entities as redirects."
    ns = "{http://www.mediawiki.org/xml/export-0.11/}"
    stamp = f"{SNAPSHOTS[5]:%Y%m%d}"
    (xml,) = xml_dumps(SNAPSHOTS[5])
    assert xml.name == f"wikidatawiki-{stamp}-pages-articles.xml.bz2"
    plain = next(p for p in small_world.paths("dumps") if p.name == f"wikidata-{stamp}-all.json.gz")
    pages, redirects = {}, {}
    with bz2.open(xml) as f:
        for _, page in ET.iterparse(f):
            if page.tag == ns + "page":
                text = page.find(f"{ns}revision/{ns}text")
                assert int(text.get("bytes")) == len(text.text.encode())
                entity = json.loads(text.text)
                if page.find(ns + "redirect") is not None:
                    redirects[entity["entity"]] = entity["redirect"]
                else:
                    pages[entity["id"]] = entity
                page.clear()
    from_json = {e["id"]: e for e in WikidataJsonDump(str(plain))}
    assert pages.keys() == from_json.keys()
    for qid, entity in from_json.items():
        ids = [c["id"] for claims in entity["claims"].values() for c in claims]
        claims = pages[qid]["claims"] or {}
        assert [c["id"] for cs in claims.values() for c in cs] == ids
        assert [c["mainsnak"].get("datavalue") for cs in claims.values() for c in cs] == [
            c["mainsnak"].get("datavalue") for cs in entity["claims"].values() for c in cs
        ]
        assert not any("datatype" in c["mainsnak"] for cs in claims.values() for c in cs)
    entities = small_world.truth("entities")
    merged = entities[entities.redirect_to.notna() & (entities["last"] < 5)]
    assert redirects == dict(zip(merged.id, merged.redirect_to))


def test_articles_change_with_facts_and_with_style(small_world):
    "Articles change where a head of government changed and where they were reworded; new entities get articles."
    ns = "{http://www.mediawiki.org/xml/export-0.11/}"

    def texts(path):
        with bz2.open(path) as f:
            return {
                p.find(ns + "title").text: p.find(f"{ns}revision/{ns}text").text
                for _, p in ET.iterparse(f)
                if p.tag == ns + "page"
            }

    old, new = map(texts, small_world.paths("articles")[:2])
    entities, changes, traps = (small_world.truth(t) for t in ("entities", "changes", "traps"))
    title = dict(zip(entities.id, entities.enwiki))
    changed = {t for t in old.keys() & new.keys() if old[t] != new[t]}
    reworded = {title[q] for q in traps[(traps.kind == "rewording") & (traps["first"] == 1)].subject_id}
    changed_heads = {
        title[q]
        for q in changes[(changes.timestep == 1) & (changes.tag == "update") & (changes.property_id == "P6")].subject_id
        if title[q]
    }
    assert reworded <= changed and changed_heads <= changed
    assert set(entities[(entities["first"] == 1) & entities.enwiki.notna()].enwiki) <= new.keys() - old.keys()
    assert len(old) > 1000


def test_page_views_add_up(small_world):
    entities = small_world.truth("entities").set_index("enwiki").fame
    with bz2.open(small_world.paths("pageviews")[0], "rt") as f:
        rows = [line.split() for line in f]
    assert len(rows) > 1000 and len({r[1] for r in rows}) == len(rows)
    for _, name, _, _, total, _ in rows[::50]:
        fame = entities[name.replace("_", " ")]
        assert 0.75 * fame - 1 <= int(total) <= 1.25 * fame + 1


def test_value_types_cover_the_world():
    kinds = {"item", "time", "quantity", "string", "external-id", "url", "media", "coordinate", "text"}
    assert {rec.VALUE_TYPES[p.datatype] for p in PROPERTIES.values()} >= kinds


def test_ended_facts_got_an_end_time_in_that_snapshot(small_world):
    "Facts that the truth calls ended carry an end time in the new snapshot and not in the old one, in the dumps."
    paths = [p for p in small_world.paths("dumps") if p.name.endswith(".json.gz")]
    ended = []
    for path in paths:
        ended.append(
            {
                c["id"]
                for e in WikidataJsonDump(str(path))
                for claims in e["claims"].values()
                for c in claims
                if "P582" in c.get("qualifiers", {})
            }
        )
    want = small_world.truth("changes").query("tag == 'ended'")
    assert len(want) > 200 and {"divorce", "death", "mayoral_election"} <= set(want.kind)
    for r in want.itertuples():
        assert r.statement_id in ended[r.timestep] and r.statement_id not in ended[r.timestep - 1], r


def test_the_truth_is_possible(small_world):
    "Nothing ends before it begins, no child is older than its parent, and the dead hold no posts."
    st, changes = small_world.truth("statements"), small_world.truth("changes")
    both = st[st.true_from.notna() & st.true_until.notna()]
    assert len(both) > 300 and (both.true_from <= both.true_until).all()
    dead = (
        st[(st.property_id == "P570") & st.true_from.notna() & (st.snak == "value")]
        .drop_duplicates("subject_id")
        .set_index("subject_id")
        .true_from
    )
    posts = st[
        st.property_id.isin(["P6", "P98", "P169", "P286", "P488", "P1075", "P26"]) & st.value.isin(dead.index) & st.true
    ]
    late = posts[[u is None or u > dead[v] for u, v in zip(posts.true_until, posts.value)]]
    assert len(posts) > 20 and late.empty, late
    births = st[st.property_id == "P569"].drop_duplicates("subject_id").set_index("subject_id").true_from
    merged = set(small_world.truth("events").query("kind == 'merging'").id)
    children = st[(st.property_id == "P40") & (st.snak == "value") & ~st.event.isin(merged)]
    assert len(children) > 50 and (children.true_from == children.value.map(births)).all()
    assert set(changes[changes.late].kind) <= set(changes[changes.real].kind)


def test_the_articles_do_not_tell_what_is_over(small_world):
    ns = "{http://www.mediawiki.org/xml/export-0.11/}"
    with bz2.open(small_world.paths("articles")[-1]) as f:
        texts = {
            p.find(ns + "title").text: p.find(f"{ns}revision/{ns}text").text
            for _, p in ET.iterparse(f)
            if p.tag == ns + "page"
        }
    entities, events = small_world.truth("entities").set_index("id"), small_world.truth("events")
    married = {
        s
        for s in small_world.truth("statements")
        .query("property_id == 'P26' and true_until.isna() and truthy.str.endswith('t')")
        .subject_id
    }
    split = [
        q
        for q in events[events.kind == "divorce"].subject_id
        if q not in married and isinstance(entities.enwiki[q], str)
    ]
    assert len(split) > 3
    for q in split:
        assert "married to" not in texts[entities.enwiki[q]] and "spouse" not in texts[entities.enwiki[q]]


@pytest.mark.parametrize(
    "kind, matches",
    [
        ("non_roman", lambda name: not name.isascii()),
        ("single_character", lambda name: len(name) == 1),
        ("long_name", lambda name: len(name.split()) > 5),
    ],
)
def test_name_traps_are_names_in_the_dump(small_world, kind, matches):
    path = [p for p in small_world.paths("dumps") if p.name.endswith(".json.gz")][-1]
    names = {
        e["id"]: next(iter(e["labels"].values()))["value"] for e in WikidataJsonDump(str(path)) if e["type"] == "item"
    }
    traps = small_world.truth("traps").query("kind == @kind and last == 8")
    assert len(traps) >= 6 and all(matches(names[q]) for q in traps.subject_id)


def test_several_values_are_several_in_the_dump(small_world, read_by_qwikidata):
    traps = small_world.truth("traps").query("kind == 'several_values'")
    for t in (0, 4, 8):
        groups = defaultdict(lambda: defaultdict(list))
        for _, s, p, v, rank in read_by_qwikidata[t]:
            groups[s, p][rank].append(v)
        several = {key for key, ranks in groups.items() if len(ranks.get("preferred") or ranks.get("normal") or ()) > 1}
        listed = set(zip(traps.subject_id, traps.property_id))
        assert several <= listed and len(several) > 50


def test_every_change_has_an_event_of_its_own_timestep(small_world):
    "Also where a value that had ended is overwritten later; and what was never true has no day from which it was."
    changes, events = small_world.truth("changes"), small_world.truth("events").set_index("id")
    assert changes.event.map(events.timestep).tolist() == changes.timestep.tolist()
    assert (changes.tag == "ended").sum() > 100
    statements = small_world.truth("statements")
    assert not (statements.true_from.notna() & ~statements.true).any() and not statements.true.all()
