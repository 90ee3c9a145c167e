"""What runs in bounded memory gives the same as a plain loop over everything, also after it was killed."""

import math
import signal
from collections import Counter
from pathlib import Path

import processes
import pyarrow.parquet as pq
import pytest

from wbe.benchmark.locality import find_locality
from wbe.wikidata.build import build_facts
from wbe.world.files import World


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    options = dict(articles=False, views=False, truth=False, progress=False)
    world = World(11, 700).write(tmp_path_factory.mktemp("world"), dates=["2024-04-01", "2024-05-01"], **options)
    return world.paths("dumps")


@pytest.fixture(scope="module")
def built(dumps, tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    build_facts(*dumps, folder, rules=False, progress=False)
    return folder


def files(built):
    return [built / "facts" / f"{name}.parquet" for name in ("facts", "static_facts")]


def best_per_edit(edits, docs, vectors):
    "For every edit the highest cosine among the candidates of its property, and who has it; in plain Python."
    by_property, out = {}, {}
    for d in docs:
        by_property.setdefault(d["property_id"], []).append(d)
    for e in edits:
        q, found = vectors[e["subject_id"]], []
        for d in by_property.get(e["property_id"], ()):
            about = d["subject_id"] in (e["subject_id"], e["object_id"], e["previous_id"])
            about = about or d["object_id"] == e["subject_id"]
            same = d["object_id"] == e["object_id"] or d["object"].lower() == e["object"].lower()
            if not about and not same and d["subject"].lower() != e["subject"].lower():
                v = vectors[d["subject_id"]]
                found.append((sum(w * v.get(k, 0) for k, w in q.items()), d["subject_id"]))
        top = max((c for c, _ in found), default=0)
        out[e["subject_id"], e["property_id"]] = (
            (top, {s for c, s in found if c > top - 1e-5}) if top > 0 else (0, set())
        )
    return out


def candidates(edits, static):
    "The rules about a static fact alone, as a loop."
    key = lambda r: (r["subject"].lower(), r["property_id"])
    names, edited = Counter(map(key, static)), {key(r) for r in edits}
    pairs = {(r["subject_id"], r["property_id"]) for r in edits}
    usable = lambda r: names[key(r)] == 1 and key(r) not in edited and r["valid_until"] is None
    return [r for r in static if usable(r) and (r["subject_id"], r["property_id"]) not in pairs]


def weighed(features):
    "TF-IDF vectors of length 1; `features` has a counter for each subject."
    found = Counter(f for counts in features.values() for f in counts)
    out = {}
    for s, counts in features.items():
        v = {f: n * (math.log((1 + len(features)) / (1 + found[f])) + 1) for f, n in counts.items()}
        out[s] = {f: w / math.hypot(*v.values()) for f, w in v.items()}
    return out


def trigrams(rows):
    padded = {r["subject_id"]: f" {r['subject']} ".casefold() for r in rows}
    return {s: Counter(t[i : i + 3] for i in range(len(t) - 2)) for s, t in padded.items()}


def neighbourhoods(rows, sources):
    "The subject itself, its objects, its pairs of property and object: from the first source that knows the subject."
    out = {}
    for s in {r["subject_id"] for r in rows}:
        triples = next((source[s] for source in sources if s in source), set())
        out[s] = Counter([s, *(o for _, o in triples), *triples])
    return out


def by_subject(rows, subject, prop, value):
    out = {}
    for r in rows:
        out.setdefault(r[subject], set()).add((r[prop], r[value]))
    return out


@pytest.mark.parametrize("method", ["name", "graph"])
def test_locality_equals_a_loop_over_all_pairs(built, tmp_path, method):
    facts, static = files(built)
    edits, known = (pq.read_table(f).to_pylist() for f in (facts, static))
    docs = candidates(edits, known)
    statements = sorted((built / "parsed").glob("*/statements.parquet"))
    find_locality(facts, static, tmp_path, method=method, statements=statements, postings=None, progress=False)
    if method == "name":
        vectors = weighed(trigrams(edits + docs))
    else:
        sources = []
        for path in statements:
            rows = pq.read_table(path).to_pylist()
            rows = [r for r in rows if r["value_type"] == "item" and r["rank"] != "deprecated" and r["snak"] == "value"]
            sources.append(by_subject(rows, "subject", "property", "value"))
        vectors = weighed(neighbourhoods(edits + docs, sources))
    want = best_per_edit(edits, docs, vectors)
    rows = pq.read_table(tmp_path / "locality.parquet").to_pylist()
    got = {(r["subject_id"], r["property_id"]): r for r in rows}
    assert len(edits) > 50 and len(docs) > 1000
    for pair, (top, subjects) in want.items():
        r = got.get(pair)
        if top > 1e-5:
            assert r["probe_property_id"] == pair[1] and r["probe_subject_id"] in subjects, pair
            assert abs(r["similarity"] - top) < 1e-5 and r["property_similarity"] == 1
        else:
            assert r is None or r["probe_property_id"] != pair[1]


KILLED = """
import os, signal, sys
import wbe.benchmark.locality as locality
left, among = int(sys.argv[1]), locality._LocalitySearch.among
def dying(self, *args):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return among(self, *args)
locality._LocalitySearch.among = dying
spool = locality.Spool.append
def stored(self, piece):
    spool(self, piece)
    self.checkpoint()
locality.Spool.append = stored
locality.find_locality(*sys.argv[2:], progress=False)
"""


def test_locality_continues_after_it_was_killed(built, tmp_path):
    find_locality(*files(built), tmp_path / "calm", progress=False)
    paths = list(map(str, [*files(built), tmp_path / "killed"]))
    ended, written = [], []
    for searches in (5, 5, 1000):
        ended.append(processes.run(["-c", KILLED, searches, *paths]).returncode)
        work = tmp_path / "killed" / ".locality" / "candidates.parquet"
        written += [work.stat().st_mtime_ns] if work.exists() else []
    assert ended == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert len(written) == 2 and written[0] == written[1]
    assert (tmp_path / "killed" / "locality.parquet").read_bytes() == (
        tmp_path / "calm" / "locality.parquet"
    ).read_bytes()
    assert sorted(p.name for p in (tmp_path / "killed").iterdir()) == ["locality.manifest.json", "locality.parquet"]


def test_roles_are_parsed_only_when_asked_for(dumps, built, tmp_path):
    parsed = sorted((built / "parsed").iterdir())
    assert not any((p / "roles.parquet").exists() for p in parsed)
    first = build_facts(*dumps, tmp_path, rules=False, progress=False, roles=True)
    roles = sorted(tmp_path.glob("parsed/*/roles.parquet"))
    assert len(roles) == 2 and first.audit().supported == 1
    was = [p.stat().st_mtime_ns for p in roles]
    again = build_facts(*dumps, tmp_path, rules=False, progress=False)  # roles that are there are kept
    assert [p.stat().st_mtime_ns for p in roles] == was and again.counts == first.counts
    for name in ("facts", "static_facts"):
        one, other = (Path(f) / "facts" / f"{name}.parquet" for f in (built, tmp_path))
        assert one.read_bytes() == other.read_bytes()


def mixed(x: int) -> int:
    "SplitMix64 with whole numbers of any size, as its author wrote it."
    mask = 2**64 - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def test_lasting_facts_are_those_with_the_smallest_hashes(built, tmp_path):
    from wbe.benchmark.series import _smallest_hashes

    rows = pq.read_table(files(built)[1], columns=["subject_id", "property_id", "object_id"])
    pq.write_table(rows, tmp_path / "ids.parquet", row_group_size=300)
    number = lambda i: int(i[1:]) + (0 if i[0] == "Q" else 1 << 39)

    def key(row):
        out = 0
        for column in ("subject_id", "property_id", "object_id"):
            out = mixed((out + number(row[column])) % 2**64)
        return out

    want = sorted(rows.to_pylist(), key=key)[:100]
    assert _smallest_hashes(tmp_path / "ids.parquet", 100).to_pylist() == want
