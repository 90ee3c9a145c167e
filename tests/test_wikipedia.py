"""Diffsets of all eight intervals of the world against its truth, and a comparison that is killed."""

import gzip
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter

import pytest

from wbe.wikipedia.comparison import compare_wikipedia
from wbe.wikipedia.diffs import write_diffset
from wbe.wikipedia.plain import plain_text
from wbe.wikipedia.sentences import split_sentences
from wbe.wikipedia.snapshot import parse_wikipedia
from wbe.world.articles import ARTICLE_SENTENCES

MONTHS = "January February March April May June July August September October November December".split()


@pytest.fixture(scope="module")
def snapshots(small_world, tmp_path_factory):
    "Every month's articles."
    folder = tmp_path_factory.mktemp("wikipedia")
    return [parse_wikipedia(p, folder / str(t), progress=False) for t, p in enumerate(small_world.paths("articles"))]


def names_in(path) -> dict:
    "The name of every entity in a dump of Wikidata."
    with gzip.open(path, "rt", encoding="utf-8") as f:
        entities = [json.loads(line.rstrip(",\n")) for line in f if len(line) > 3]
    return {e["id"]: e["labels"].get("en", next(iter(e["labels"].values())))["value"] for e in entities if e["labels"]}


def in_words(value: str, kind: str, names: dict) -> str | None:
    if kind == "time":
        year, month, day = map(int, re.match(r"\+(\d+)-(\d\d)-(\d\d)", value).groups())
        return " ".join(str(x) for x in (day, month and MONTHS[month - 1], year) if x)
    if kind == "quantity":
        return f"{int(value.split()[0]):,}"
    return names.get(value) if kind == "item" else value if kind == "string" else None


def sentences(texts) -> set:
    return {s.strip() for t in texts for s in split_sentences(t)}


def test_no_changed_fact_is_lost_in_any_interval(small_world, snapshots, tmp_path):
    entities, changes = small_world.truth("entities"), small_world.truth("changes")
    kinds, titles = dict(zip(entities.id, entities.kind)), dict(zip(entities.id, entities.enwiki))
    dumps = [p for p in small_world.paths("dumps") if p.name.endswith(".json.gz")]
    found, lost = Counter(), []
    for t in range(1, len(snapshots)):
        compared = compare_wikipedia(*snapshots[t - 1 : t + 1], tmp_path / f"compared{t}", progress=False)
        diffset = write_diffset(compared, tmp_path / f"diffset{t}", progress=False)
        now = {a.title: sentences(a.paragraphs) for a in compared.rows()}
        was = {a.title: sentences(a.previous) for a in compared.rows()}
        new = {r.title: sentences(r.texts) for r in diffset.rows()}
        names = names_in(dumps[t])
        for c in changes[(changes.timestep == t) & changes.tag.isin(["new", "update"])].itertuples():
            forms = ARTICLE_SENTENCES.get((c.property_id, kinds[c.subject_id]))
            forms = forms or ARTICLE_SENTENCES.get((c.property_id, ""), ())
            o, title = in_words(c.value, c.value_type, names), titles[c.subject_id]
            texts = {
                f.format(s=names.get(c.subject_id), o=o) for f in forms for f in (f, f.replace(" on {o}", " in {o}"))
            }
            stated = texts & now.get(title, set()) - was.get(title, set())
            if o and stated:
                found[t] += 1
                lost += [(t, title, text) for text in stated - new.get(title, set())]
    assert not lost
    assert min(found[t] for t in range(1, len(snapshots))) > 30


def test_what_stayed_is_in_no_diff(snapshots, tmp_path):
    compared = compare_wikipedia(*snapshots[3:5], tmp_path / "compared", progress=False)
    for row in write_diffset(compared, tmp_path / "diffset", progress=False).rows():
        article = next(a for a in compared.rows() if a.id == row.id)
        assert not sentences(row.texts) & sentences(article.previous)
        assert not sentences(row.dropped) & sentences(article.paragraphs)


def test_all_articles_of_a_snapshot_are_read(snapshots):
    for page in snapshots[0].pages().to_pylist():
        if page["wikitext"]:
            plain = " ".join(p.text for p in plain_text(page["wikitext"]))
            assert plain.split() == page["wikitext"].replace("'''", "").split()


SCRIPT = """
import os, signal, sys
from wbe.spool import Spool
from wbe.wikipedia.comparison import compare_wikipedia
append, left = Spool.append, int(sys.argv[4])
def dying(self, piece):
    global left
    if left == 0: os.kill(os.getpid(), signal.SIGKILL)
    left -= 1; append(self, piece)
Spool.append = dying
compare_wikipedia(*sys.argv[1:4], size=10, workers=1, progress=False, every=0)
"""


def test_a_killed_comparison_ends_with_the_same_bytes(snapshots, tmp_path):
    folders = [str(s.folder) for s in snapshots[:2]]

    def run(name, pieces):
        command = [sys.executable, "-c", SCRIPT, *folders, str(tmp_path / name), str(pieces)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        return subprocess.run(command, env=environment).returncode

    def content(name):
        return hashlib.sha256((tmp_path / name / "articles.parquet").read_bytes()).hexdigest()

    compare_wikipedia(*folders, tmp_path / "calm", size=10, workers=1, progress=False)
    assert run("killed", 4) == -signal.SIGKILL
    assert json.loads((tmp_path / "killed" / ".spool.json").read_text())["done"] == 4
    assert run("killed", 1000) == 0
    assert content("killed") == content("calm")
