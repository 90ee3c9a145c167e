"""Diffsets of all intervals of the world against its truth, a comparison that is killed, a page of hard markup."""

import gzip
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from wbe.wikipedia.comparison import compare_wikipedia
from wbe.wikipedia.diffs import write_diffset
from wbe.wikipedia.plain import plain_text
from wbe.texts import split_sentences
from wbe.wikipedia.pages import parse_wikipedia
from wbe.world.dumps import ARTICLE_SENTENCES

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
    articles = {a.id: a for a in compared.rows()}
    for row in write_diffset(compared, tmp_path / "diffset", progress=False).rows():
        article = articles[row.id]
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


PAGE = (Path(__file__).parent / "port_haven.wikitext").read_text(encoding="utf-8")
READ = """\
Port Haven (Hafen; c. 1402 – the Haven) is a port in eastern Elbonia, 12.5 to 14 km from the capital. \
It was founded on 3 May 1402 and has 48,210 inhabitants on 31.1 km2.
== History
Its ships, Anna's sisters among them, sailed until October 1931.
A haven is portus; so be it.
== Mayors
* First office:
* held until 1990
* Harbour master, US$1,200 a month
* with 1 1/2 deputies
* one
* two: Bo
* three
* Motto : Salve
* in Latin
== Trade
* Wool
* Salt & herring
* Tar
* Rope
== Demographics
The density is , or H2O for [[every]] soul: 5 m by 2 m. It is denser than before (list).
"""
BOX = ["name | Port Haven", "population_total | 48,210 (as of 2023)", "area_total_km2 | 12 sqmi"]
BOX += ["leader_name | Ann Lee, Bo Ray"]  # neither the file nor the map
ROWS = ["Name | Term | Votes", "Ann Lee | January 2, 1990 | 12,345", "Bo Ray | 2001–2010", "interim", "25%"]


def test_a_page_with_all_that_mediawiki_allows():
    "What a reader of the page would see in its text; the list was written by hand."
    paragraphs = plain_text(PAGE)
    marks = {"heading": "== ", "item": "* ", "text": ""}
    assert "".join(f"{marks[p.kind]}{p.text}\n" for p in paragraphs) == READ
    links = [(p.text[start : start + n], title) for p in paragraphs for start, n, title in p.links]
    assert links[:4] == [("port", "Port city"), ("eastern Elbonia", "Elbonia"), ("Anna", "MV Anna"), ("1990", "1990")]
    assert {("Bo", "Bo Ray"), ("Latin", "Latin"), ("herring", "Herring"), ("list", "Category:Ports of Elbonia")} <= {
        *links
    }
    rows = [p.text for p in plain_text(PAGE, tables=True) if p.kind == "table"]
    assert rows == BOX + ROWS


def test_its_changes_are_found_between_broken_pages(tmp_path):
    "A number in a template and one in a nested list; a page whose XML is broken on one day has no part in the diff."
    from wbe.world.dumps import XML_TAIL, xml_head, xml_page

    edits = {"{{convert|12.5|to": "{{convert|13|to", "{{US$|1200}}": "{{US$|1300}}", "rowspan": "align=left rowspan"}
    edits |= {"<!-- Please": "<!-- Kindly", "last=Doe": "last=Roe", "{{circa|1600}}": "{{circa|1500}}"}
    later = PAGE
    for old, new in edits.items():
        later = later.replace(old, new)

    def page(n, text, day):
        return xml_page(f"Page {n}", 0, n, n, day, text, "wikitext", "text/x-wiki")

    def parse(name, day, text, *damage):
        other = page(3, f"It is the year {day}.", day).replace(*damage)
        pages = page(1, "Here.", 0), page(2, text, day), other, page(4, "Cut.", 0).replace("</page>", "")
        (tmp_path / name).write_text(xml_head("enwiki") + "".join(pages) + page(5, "Last.", 0) + XML_TAIL)
        return parse_wikipedia(tmp_path / name, tmp_path / f"parsed-{name}", progress=False)

    was, now = parse("a.xml", 0, PAGE, "", ""), parse("b.xml", 1, later, "<title>", "<titel>")
    assert [r["reason"] for r in was.rejected()] == ["truncated"]
    assert [r["reason"] for r in now.rejected()] == ["no title", "truncated"]
    compared = compare_wikipedia(was, now, tmp_path / "compared", progress=False)
    assert [a.id for a in compared.rows()] == [2] and compared.counts["unread in the other"] == 1
    [row] = [r for r in write_diffset(compared, tmp_path / "diffset", progress=False).rows() if r.texts]
    opening = READ.partition(" It was founded")[0]
    assert row.texts == [opening.replace("12.5 to", "13 to"), "Harbour master, US$1,300 a month"]
    assert row.dropped == [opening, "Harbour master, US$1,200 a month"]
