"""Damage of every kind, tried by a list: nothing that a dump could not give is ever taken for what was not there.

`TABLE` holds the kinds. Each is tried in several forms of a dump (JSON of Wikidata, also with spaces, gzip, bzip2, XML;
XML of a Wikipedia, in one stream and in several; HTML of an Enterprise dump, packed and plain), as the older and as the
newer of two dumps, and says what must come of it:

- stops: an error in one line that names the file and the remedy; with `insist` it is used, and gives no false fact;
- left out: what was hurt is left out on both sides and counted, and the rest is as it was;
- same: the result is that of the whole dumps.
"""

import bz2
import gzip
import io
import json
import re
import tarfile

import processes
import pytest

from wbe.benchmark.series import make_benchmark
from wbe.records import BadArgument
from wbe.wikidata.build import DamagedDump, build_facts, check_pair, check_snapshot
from wbe.wikidata.changes import compare_snapshots
from wbe.wikidata.parse import parse_dump
from wbe.wikipedia.comparison import compare_wikipedia
from wbe.wikipedia.pages import parse_wikipedia, read_pages
from wbe.world.files import World

OLD, NEW = "2024-02-01", "2024-02-20"
FEW, MANY = 4, 40  # records that are hurt: so few that a dump is used, so many that it is refused


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    options = dict(formats=("json.gz", "xml.bz2"), views=False, truth=False, progress=False)
    return World(5, 600).write(folder, dates=[OLD, NEW], **options)


@pytest.fixture(scope="module")
def dumps(world):
    return [p for p in world.paths("dumps") if p.name.endswith(".json.gz")]


# ---- the forms of a dump: how its records are joined to a text, and how the text is packed


def multistream(text: bytes) -> bytes:
    "Head, pages and tail in compressed streams of their own, as Wikimedia writes them."
    first, last = text.find(b"  <page>"), text.rfind(b"</mediawiki>")
    middle = text.find(b"  <page>", (first + last) // 2)
    ends = [0, first, middle, last, len(text)]
    return b"".join(bz2.compress(text[a:b]) for a, b in zip(ends, ends[1:]))


def archive(text: bytes) -> bytes:
    "Lines of JSON as an archive of two files."
    out, middle = io.BytesIO(), text.find(b"\n", len(text) // 2) + 1
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for n, some in enumerate((text[:middle], text[middle:])):
            info = tarfile.TarInfo(f"enwiki_namespace_0_{n}.ndjson")
            info.size = len(some)
            tar.addfile(info, io.BytesIO(some))
    return out.getvalue()


gz = lambda text: gzip.compress(text, 1, mtime=0)
FORMS = {  # name of the file, how the text is packed
    "json": ("wikidata-{}-all.json", bytes),
    "json with spaces": ("wikidata-{}-all.json", bytes),
    "json.gz": ("wikidata-{}-all.json.gz", gz),
    "json.bz2": ("wikidata-{}-all.json.bz2", bz2.compress),
    "entities.xml": ("wikidatawiki-{}-pages-articles.xml", bytes),
    "entities.xml.bz2": ("wikidatawiki-{}-pages-articles.xml.bz2", bz2.compress),
    "xml": ("enwiki-{}-pages-articles.xml", bytes),
    "xml.bz2": ("enwiki-{}-pages-articles.xml.bz2", bz2.compress),
    "multistream": ("enwiki-{}-pages-articles-multistream.xml.bz2", multistream),
    "html": ("enwiki-NS0-{}-ENTERPRISE-HTML.json.tar.gz", archive),
    "html lines": ("enwiki-NS0-{}-ENTERPRISE-HTML.json", bytes),
}
JSON, ENTITIES = ("json", "json with spaces", "json.gz", "json.bz2"), ("entities.xml", "entities.xml.bz2")
XML, HTML = ("xml", "xml.bz2", "multistream"), ("html", "html lines")
PACKED = ("json.gz", "json.bz2", "entities.xml.bz2", "xml.bz2", "multistream", "html")


_ID = re.compile(rb'"id": ?"([QP]\d+)"|<title>(?:Property:)?([QP]\d+)<|<id>(\d+)</id>|"identifier": (\d+)')


def id_of(record: bytes):
    "The id of an entity or the number of a page, in a whole record."
    found = [m for m in _ID.search(record).groups() if m][0].decode()
    return found if found[0] in "QP" else int(found)


def kept(record: bytes) -> bool:
    "Whether an entity is one of the half that is tried: small dumps are cheap."
    return int(id_of(record)[1:]) % 2 == 0


def records_of(world, form: str, day: int) -> tuple:
    "Head, records and tail of a dump of the world in a form."
    if form in JSON:
        path = [p for p in world.paths("dumps") if p.name.endswith(".json.gz")][day]
        lines = gzip.decompress(path.read_bytes()).split(b"\n")[1:-2]
        lines = [line.rstrip(b",") for line in lines if kept(line)]
        if form == "json with spaces":
            lines = [json.dumps(json.loads(line)).encode() for line in lines]
        return b"[\n", lines, b"\n]\n"
    paths = (
        [p for p in world.paths("dumps") if p.name.endswith(".xml.bz2")]
        if form in ENTITIES
        else world.paths("articles")
    )
    text = bz2.decompress(paths[day].read_bytes())
    if form in HTML:
        pages = (p for p in read_pages(text).pages if p.wikitext)
        body = lambda p: dict(html="".join(f"<p>{part}</p>" for part in p.wikitext.replace("'''", "").split("\n\n")))
        about = lambda p: dict(name=p.title, identifier=p.id, version=dict(identifier=p.revision))
        rows = (about(p) | dict(namespace=dict(identifier=0), article_body=body(p)) for p in pages)
        return b"", [json.dumps(row).encode() for row in rows], b"\n"
    head, *pages = text.partition(b"</mediawiki>")[0].split(b"  <page>")
    pages = [b"  <page>" + page for page in pages]
    return head, [p for p in pages if form in XML or b"<redirect " not in p and kept(p)], b"</mediawiki>\n"


def joined(form: str, head: bytes, records: list, tail: bytes) -> bytes:
    return head + (b",\n" if form in JSON else b"\n" if form in HTML else b"").join(records) + tail


# ---- what is compared


class Pair:
    "Two whole dumps of a form, parsed, and what is found between them."

    def __init__(self, world, form: str, folder):
        self.form, self.folder, self.tried, self.left_out = form, folder, 0, None
        self.parts = [records_of(world, form, day) for day in (0, 1)]
        self.parsed = [self.parse(joined(form, *parts), day, f"whole{day}") for day, parts in enumerate(self.parts)]
        self.packed = [dump.manifest.input_paths(dump.folder)[0].read_bytes() for dump in self.parsed]
        self.whole = self.compare(*self.parsed)

    def parse(self, text: bytes | None, day: int, name: str, data: bytes | None = None):
        "The dump of a day, from its text or from the bytes of its file, parsed."
        template, pack = FORMS[self.form]
        path = self.folder / name / template.format(("20240201", "20240220")[day])
        path.parent.mkdir(parents=True)
        path.write_bytes(pack(text) if data is None else data)
        folder, how = (
            path.parent / path.name.split("-")[-2 if "NS0" not in path.name else 2],
            dict(progress=False, warn=False),
        )
        folder = path.parent / ("20240201", "20240220")[day]
        if self.form in JSON + ENTITIES:
            return parse_dump(path, folder, **how)
        return parse_wikipedia(path, folder, html=self.form in HTML, **how)

    def compare(self, old, new) -> set:
        "What came: pairs of what a change is about, and the change."
        self.tried += 1
        out = self.folder / f"compared{self.tried}"
        if self.form not in JSON + ENTITIES:
            compared = compare_wikipedia(old, new, out, progress=False)
            self.left_out = compared.counts.get("unread in the other", 0)
            return {(a.id, a.status, *a.paragraphs) for a in compared.rows()}
        compare_snapshots(old.folder, new.folder, out)
        names = dict(
            changed=("subject", "property", "value", "tag", "previous"), removed=("subject", "property", "value")
        )
        names |= dict(demoted=names["removed"], new_entities=("id",))
        return {(*row.values(), n) for n, columns in names.items() for row in rows_of(out / f"{n}.parquet", columns)}

    def changed_records(self, day: int, n: int) -> list[int]:
        "The records of some changed entities or pages, and of others."
        about, records = {c[0] for c in self.whole}, self.parts[day][1]
        first = [i for i, record in enumerate(records) if id_of(record) in about]
        return (first[::2] + first[1::2] + [i for i in range(len(records)) if i not in first])[:n]


def rows_of(path, columns) -> list[dict]:
    import pyarrow.parquet as pq

    return pq.read_table(path, columns=list(columns)).to_pylist()


@pytest.fixture(scope="module")
def pairs(world, tmp_path_factory):
    "The whole pair of each form, made when it is asked for."
    made = {}

    def pair(form: str) -> Pair:
        if form not in made:
            made[form] = Pair(world, form, tmp_path_factory.mktemp("pair"))
        return made[form]

    return pair


# ---- the kinds of damage

PAGE = b"<!DOCTYPE html><html><body>503 Service Unavailable</body></html>"
cut = lambda record: record[: 2 * len(record) // 3]


def replaced(old: bytes, new: bytes, count: int = 1):
    return lambda record: record.replace(old, new, count)


def without_rank(line: bytes) -> bytes:
    entity = json.loads(line)
    for claim in (c for group in entity["claims"].values() for c in group):
        del claim["rank"]
    return json.dumps(entity, separators=(", ", ": ") if b'": ' in line else (",", ":")).encode()


def flipped(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 4]) + data[len(data) // 2 + 1 :]


def broken_header(data: bytes) -> bytes:
    "An archive whose second file has a header that does not agree with its checksum."
    return gz(gzip.decompress(data).replace(b"enwiki_namespace_0_1", b"enwiki_namespace_X_1"))


def unsummed(page: bytes) -> bytes:
    "The page without the checksums of its text."
    return re.sub(rb' sha1="\w+"|<sha1>\w+</sha1>', b"", page)


def thinner(line: bytes) -> bytes:
    "The entity with the first half of its statements."
    entity = json.loads(line)
    entity["claims"] = dict(list(entity["claims"].items())[: len(entity["claims"]) // 2])
    return json.dumps(entity).encode()


FILES = {  # what stands in the file instead of its bytes
    "cut in half": (lambda data: data[: len(data) // 2], ("json", *ENTITIES, *XML, *PACKED[:2], "html")),
    "without its last bytes": (lambda data: data[:-12], PACKED),
    "a flipped byte": (flipped, PACKED),
    "zeros in the middle": (lambda data: data[: len(data) // 2] + bytes(999) + data[len(data) // 2 + 999 :], PACKED),
    "a broken header in the archive": (broken_header, ("html",)),
    "an HTML error page": (lambda data: PAGE, FORMS),
    "a text": (lambda data: b"Hello\n" * 99, ("json", "json.gz", "xml", "html lines")),
    "empty": (lambda data: b"", ("json", "entities.xml", "xml", "html")),
}
TEXTS = {  # what becomes of the records: the file is whole, but what it holds is not
    "half of the records": lambda records: records[: len(records) // 2],
    "a tenth of the records is gone": lambda records: [r for i, r in enumerate(records) if i % 10],
}
_LINES = {  # one line of JSON
    "cut": cut,
    "cut near its beginning": lambda line: line[:60],
    "NaN": lambda line: line[:-1] + b',"x":NaN}',
    "not UTF-8": lambda line: re.sub(rb'"value": ?"', lambda m: m[0] + b"\xff", line, count=1),
    "without rank": without_rank,
    "without its beginning": lambda line: line[line.find(b'"id"') + 20 :],
}
_PAGES = {  # one page of XML
    "without its beginning": replaced(b"<page>", b"<pag>"),
    "without its end": replaced(b"</page>", b"</pag>"),
    "without a title": replaced(b"<title>", b"<titel>"),
    "without a number": replaced(b"<id>", b"<ie>"),
    "a broken escape": replaced(b"</text>", b"&foo;</text>"),
    "a text without end": replaced(b"</text>", b""),
    "not UTF-8": replaced(b"</text>", b"\xff</text>"),
    "a namespace that is no number": replaced(b"<ns>", b"<ns>x"),
    "another letter in its text": lambda page: re.sub(rb"(<text[^>]*>[^a-z]*)[a-z]", rb"\1Z", page),
    "another checksum": lambda page: re.sub(rb'(?<=sha1[=>])"?\w{9}', lambda m: m[0][:-9] + b"0" * 9, page),
    "a letter fewer, and no checksum": lambda page: re.sub(rb"(<text[^>]*>[^a-z]*)[a-z]", rb"\1", unsummed(page)),
    "no text where there was one": lambda page: re.sub(rb"(<text[^>]*)>.*</text>", rb"\1 />", page, flags=re.S),
}
_HTML_LINES = {
    "cut": cut,
    "without HTML": replaced(b'"html"', b'"htm"'),
    "without a number": replaced(b'"identifier"', b'"identifer"'),
    "not UTF-8": lambda line: line[:-1] + b',"x":"\xff"}',
}
_ENTITY_PAGES = {name: _PAGES[name] for name in ("without its beginning", "without its end")}
_ENTITY_PAGES |= {"its JSON cut": lambda page: re.sub(rb"(<text[^>]*>.{99}).*</text>", rb"\1</text>", page, flags=re.S)}
_ENTITY_PAGES |= {
    "its JSON without its beginning": lambda page: re.sub(rb"(<text[^>]*>).*(.{30}</text>)", rb"\1\2", page, flags=re.S)
}
RECORDS = {
    **{(name, JSON[:2]): do for name, do in _LINES.items()},
    **{(name, XML[:1]): do for name, do in _PAGES.items()},
}
RECORDS |= {(name, ENTITIES[:1]): do for name, do in _ENTITY_PAGES.items()}
RECORDS |= {(name, HTML[1:]): do for name, do in _HTML_LINES.items()}
TWICE = {  # records that stand twice, the second time another
    ("fewer statements the second time", JSON[:2]): thinner,
    ("no statements the second time", JSON[:1]): lambda line: json.dumps(json.loads(line) | dict(claims={})).encode(),
    ("another text the second time", XML[:1]): lambda page: re.sub(rb' bytes="\d+"', b"", unsummed(page)).replace(
        b"</text>", b" More.</text>"
    ),
}
HARMLESS = {  # the whole text, and a text that says the same
    "lines that stand twice": lambda form, head, some, tail: (head, [*some, *some[5:20]], tail),
    "blank lines": lambda form, head, some, tail: (head, [r + b"\n" for r in some], tail),
    "a byte order mark": lambda form, head, some, tail: (b"\xef\xbb\xbf" + head, some, tail),
    "another order": lambda form, head, some, tail: (head, some[::-1], tail),
}

FILE_CASES = [(kind, form, side) for kind, (_, forms) in FILES.items() for form in forms for side in (0, 1)]
TEXT_CASES = [
    (kind, form, side) for kind in TEXTS for form in ("json", "entities.xml", "xml", "html") for side in (0, 1)
]
RECORD_CASES = [(*key, form, side) for key in RECORDS for form in key[1] for side in (0, 1)]
TWICE_CASES = [(*key, form, side) for key in TWICE for form in key[1] for side in (0, 1)]
SAME_CASES = [(kind, form) for kind in HARMLESS for form in ("json", "xml", "html lines")]


def test_the_list_is_long():
    assert len(FILE_CASES) + len(TEXT_CASES) + len(RECORD_CASES) + len(TWICE_CASES) + len(SAME_CASES) >= 184
    assert len({*FILES, *TEXTS, *HARMLESS}) + len(RECORDS) + len(TWICE) > 30


def checked(pair: Pair, side: int, hurt, insist: bool = False) -> list[str]:
    "Check a pair of dumps of which one is hurt, as all commands do; returns what was said."
    two, said = list(pair.parsed), []
    two[side] = hurt
    for dump in two:
        check_snapshot(dump, insist, said.append)
    check_pair(*two, insist, said.append)
    return said


def stops(pair: Pair, side: int, hurt, match: str | None = None):
    with pytest.raises(DamagedDump, match=match) as e:
        checked(pair, side, hurt)
    text = str(e.value)
    assert "\n" not in text and hurt.file in text and text.endswith("insist (--set insist=yes)"), text


def found(pair: Pair, side: int, hurt) -> set:
    two = list(pair.parsed)
    two[side] = hurt
    return pair.compare(*two)


@pytest.mark.parametrize("kind,form,side", FILE_CASES)
def test_a_damaged_file_stops(kind, form, side, pairs):
    pair = pairs(form)
    hurt = pair.parse(None, side, f"{kind}{side}", FILES[kind][0](pair.packed[side]))
    stops(pair, side, hurt)
    if form in XML + HTML or (kind == "cut in half" and form in ("json", "entities.xml")):
        assert any("used all the same" in line for line in checked(pair, side, hurt, insist=True))
        assert found(pair, side, hurt) <= pair.whole


@pytest.mark.parametrize("kind,form,side", TEXT_CASES)
def test_a_dump_that_is_not_whole_stops(kind, form, side, pairs):
    pair = pairs(form)
    head, records, tail = pair.parts[side]
    hurt = pair.parse(joined(form, head, TEXTS[kind](records), tail), side, f"{kind}{side}")
    stops(pair, side, hurt)
    assert any("used all the same" in line for line in checked(pair, side, hurt, insist=True))
    assert found(pair, side, hurt) <= pair.whole  # what only the other one has is neither new nor gone


@pytest.mark.parametrize("share", [0.05, 0.08])
def test_an_older_wikipedia_without_its_last_file_stops(share, pairs):
    "Each file of a dump ends as it should; only the newer dump shows that the last one is missing."
    pair = pairs("xml")
    head, pages, tail = pair.parts[0]
    pages = sorted(pages, key=id_of)
    hurt = pair.parse(joined("xml", head, pages[: -int(share * len(pages))], tail), 0, f"without the last {share}")
    stops(pair, 0, hurt, "as they were saved before .* it is not whole")


def test_two_dumps_of_one_size_that_lack_other_entities_stop(pairs):
    pair = pairs("json")
    hurt = [
        pair.parse(joined("json", head, [r for i, r in enumerate(some) if i % 10 != side], tail), side, f"tenth{side}")
        for side, (head, some, tail) in enumerate(pair.parts)
    ]
    with pytest.raises(DamagedDump, match="that .* names, .* lacks"):
        check_pair(*hurt)


def hurt_records(pair: Pair, side: int, name: str, changes) -> tuple:
    "The pair's dump with some changed records, parsed, and what they are about."
    head, records, tail = pair.parts[side]
    places, records = pair.changed_records(side, len(changes)), list(records)
    about = {id_of(records[i]) for i in places}
    for i, change in sorted(zip(places, changes), reverse=True, key=lambda pair: pair[0]):
        made = change(records[i])
        records[i : i + 1] = made if isinstance(made, list) else [made]
    return pair.parse(joined(pair.form, head, records, tail), side, name), about


def left_out(pair: Pair, side: int, hurt, about: set):
    "What is about the hurt records is gone, also as a value that has no name; the rest is as it was."
    said, got = checked(pair, side, hurt), found(pair, side, hurt)
    assert pair.left_out is None or 0 < pair.left_out <= len(about)  # pages that the other side has
    assert any(f"{len(about)} {hurt.what} could not be read" in line for line in said) or (
        pair.left_out and not hurt.unread
    )
    assert got <= pair.whole and not {c for c in got if c[0] in about}
    assert len([c for c in pair.whole if c[0] in about]) >= FEW
    assert all(about & {*c} for c in pair.whole - got)


@pytest.mark.parametrize("kind,forms,form,side", RECORD_CASES)
def test_damaged_records_are_left_out_and_counted(kind, forms, form, side, pairs):
    pair, change = pairs(form), RECORDS[kind, forms]
    hurt, about = hurt_records(pair, side, f"{kind}{side}", [change] * FEW)
    if form in XML + HTML:
        left_out(pair, side, hurt, about)
    assert {
        r["id"] or next(p["id"] for p in pages_of(pair) if p["title"] == r["title"]) for r in hurt.rejected()
    } == about
    if side == 0:
        stops(pair, side, hurt_records(pair, side, f"{kind} many", [change] * MANY)[0], "40 .* could not be read")


def pages_of(pair: Pair) -> list[dict]:
    return [p for dump in pair.parsed for p in dump.pages(["id", "title"]).to_pylist()]


@pytest.mark.parametrize("form", [*JSON[:2], ENTITIES[0]])
@pytest.mark.parametrize("side", [0, 1])
def test_damaged_entities_of_every_kind_make_no_facts(form, side, pairs):
    "All kinds in one dump: a comparison costs more than parsing."
    changes = [change for (_, forms), change in RECORDS.items() if form in forms]
    changes += [lambda r, change=change: [r, change(r)] for (_, forms), change in TWICE.items() if form in forms]
    changes += [lambda r, change=change: [change(r), r] for (_, forms), change in TWICE.items() if form in forms]
    left_out(pairs(form), side, *hurt_records(pairs(form), side, f"all kinds{side}", changes))


@pytest.mark.parametrize("kind,forms,form,side", TWICE_CASES)
def test_records_that_stand_twice_and_differ_are_left_out(kind, forms, form, side, pairs):
    pair, change = pairs(form), TWICE[kind, forms]
    for name, order in (("after", 1), ("before", -1)):
        hurt, about = hurt_records(
            pair, side, f"{kind}{side}{name}", [lambda record, order=order: [record, change(record)][::order]] * FEW
        )
        if form in XML:
            left_out(pair, side, hurt, about)
        else:
            assert {r["id"] for r in hurt.rejected()} == about


def test_a_record_that_shows_neither_number_nor_name_may_be_any(pairs):
    "So nothing that only the other dump has is new, or gone."
    for form, garbage in (("json", b'{"x'), ("xml", b"<page>"), ("html lines", b'{"x')):
        pair = pairs(form)
        for side in (0, 1):
            head, records, tail = pair.parts[side]
            hurt = pair.parse(joined(form, head, [*records[:9], garbage, *records[9:]], tail), side, f"garbage{side}")
            got, ids = found(pair, side, hurt), [{id_of(r) for r in parts[1]} for parts in pair.parts]
            only = ids[1 - side] - ids[side]
            assert hurt.unread == 1 and got == {c for c in pair.whole if c[0] not in only} != pair.whole


@pytest.mark.parametrize("form", ["json", "xml"])
def test_the_dump_of_another_wiki_stops(form, pairs, tmp_path):
    "The same ids, other items."
    pair, other = (
        pairs(form),
        World(6, 600).write(tmp_path, dates=[OLD, NEW], formats=("json.gz",), views=False, truth=False, progress=False),
    )
    for side in (0, 1):
        hurt = pair.parse(joined(form, *records_of(other, form, side)), side, f"other{side}")
        stops(pair, side, hurt)


def test_another_wiki_stops_where_entities_have_no_names(pairs):
    "The same ids, other items: their classes differ."
    pair = pairs("json")

    def nameless(day: int, by: int):
        "A dump without labels whose items bear the numbers of others."
        head, lines, tail = pair.parts[day]
        entities = [json.loads(line) | dict(labels={}) for line in lines]
        items = sorted((e for e in entities if e["type"] == "item"), key=lambda e: int(e["id"][1:]))
        ids = [e["id"] for e in items]
        for e, id in zip(items, ids[by:] + ids[:by]):
            e["id"] = id
        return pair.parse(joined("json", head, [json.dumps(e).encode() for e in entities], tail), day, f"{by} {day}")

    same, other = ([nameless(day, by) for day in (0, 1)] for by in (0, 150))
    check_pair(*same)
    for two in ((same[0], other[1]), (other[0], same[1])):
        with pytest.raises(DamagedDump, match="another class"):
            check_pair(*two)


@pytest.mark.parametrize("kind,form", SAME_CASES)
def test_what_does_no_harm(kind, form, pairs):
    pair = pairs(form)
    two = [
        pair.parse(joined(form, *HARMLESS[kind](form, *parts)), day, f"{kind}{day}")
        for day, parts in enumerate(pair.parts)
    ]
    assert [dump.unread for dump in two] == [0, 0] and checked(pair, 0, two[0]) == checked(pair, 1, two[1]) == []
    assert pair.compare(*two) == pair.whole and len(pair.whole) > 40


# ---- facts, commands, and benchmarks


@pytest.fixture(scope="module")
def whole(dumps, tmp_path_factory):
    return build_facts(*dumps, tmp_path_factory.mktemp("whole"), progress=False)


@pytest.fixture(scope="module")
def facts(whole):
    return triples(whole)


def triples(built) -> set:
    frame = built.facts()
    return set(zip(frame.subject_id, frame.property_id, frame.object_id, frame.tag))


def rewritten(path, folder, change):
    "A copy of a dump whose lines were changed by a function."
    lines = change(gzip.decompress(path.read_bytes()).split(b"\n"))
    folder.mkdir(exist_ok=True)
    (folder / path.name).write_bytes(gzip.compress(b"\n".join(lines), 1))
    return folder / path.name


def damaged_files(path) -> dict:
    return {
        "text.json": b"This is not a dump.\n" * 50,
        "page.json.gz": PAGE,
        "half.json.gz": path.read_bytes()[: path.stat().st_size // 2],
    }


@pytest.mark.parametrize("name", ["text.json", "page.json.gz", "half.json.gz"])
def test_the_command_stops_with_code_3_and_one_line(name, dumps, tmp_path):
    path = tmp_path / f"wikidata-20240201-{name}"
    path.write_bytes(damaged_files(dumps[0])[name])
    got = processes.run(["-m", "wbe", "benchmark", tmp_path / "b", path, dumps[1]])
    lines = [line for line in got.stderr.splitlines() if not line.startswith("· ") and "parsing wiki" not in line]
    assert got.returncode == 3 and len(lines) == 1 and lines[0].startswith("wbe: ") and path.name in lines[0]
    assert not (tmp_path / "b" / "series.json").exists() and not (tmp_path / "b" / "release").exists()
    got = processes.run(["-m", "wbe", "benchmark", tmp_path / "p", path, "--until", "parsed"])
    lines = [line for line in got.stderr.splitlines() if "parsing wiki" not in line]
    assert got.returncode == 3 and len(lines) == 1 and lines[0].startswith("wbe: ") and path.name in lines[0]


def test_an_unreadable_value_costs_its_property_only(dumps, facts, tmp_path):
    "A value that the database may not give out any more: the entity stays, and its property is not compared."
    hit, side = {}, 0

    def change(lines):
        for i, line in enumerate(lines):
            if line.startswith(b"{") and i % 7 == 0:
                e = json.loads(line.rstrip(b","))
                pid = sorted(e["claims"])[0] if e["claims"] else None
                if pid and e["type"] == "item":
                    hit[e["id"]] = pid
                    snak = e["claims"][pid][0]["mainsnak"]
                    snak["datavalue"] = dict(value=None, type="string", error="The value is not valid any more")
                    lines[i] = json.dumps(e).encode() + b","
        return lines

    mine = list(dumps)
    mine[side] = rewritten(dumps[side], tmp_path / "sick", change)
    built = build_facts(*mine, tmp_path / "b", rules=False, progress=False)
    parsed = parse_dump(mine[side], tmp_path / "p", progress=False)
    assert parsed.rejected() == [] and parsed.counts["unreadable"] == len(hit) > 50
    assert triples(built) == {f for f in facts if hit.get(f[0]) != f[1]}


@pytest.mark.parametrize("side", [0, 1])
def test_an_entity_whose_class_is_unreadable_is_not_one_without_a_class(side, dumps, whole, facts, tmp_path):
    "It may be a page of the wiki."
    hit = set()

    def change(lines):
        for i, line in enumerate(lines):
            if line.startswith(b"{") and i % 7 == 0 and b'"P31":[' in line and b'"type":"item"' in line[:20]:
                e = json.loads(line.rstrip(b","))
                e["claims"]["P31"][0]["mainsnak"]["datavalue"] = dict(value=None, type="string", error="Not valid")
                hit.add(e["id"])
                lines[i] = json.dumps(e).encode() + b","
        return lines

    mine = list(dumps)
    mine[side] = rewritten(dumps[side], tmp_path / "sick", change)
    built = build_facts(*mine, tmp_path / "b", progress=False)
    left = (
        {f for f in facts if not hit & {f[0], f[2]}} if side else {f for f in facts if f[0] not in hit or f[1] != "P31"}
    )
    assert len(hit) > 50 and triples(built) == left and (left < facts or side == 0)
    columns = ("subject", "property", "value", "side", "klass")
    got, want = (
        {(*r.values(),) for r in rows_of(b.folder / "rules" / "classified.parquet", columns)} for b in (built, whole)
    )
    assert not {r for r in got if hit & {*r[:3]}} and {r[:4] for r in got} <= {r[:4] for r in want}


def test_lines_that_stand_twice_count_once(dumps, facts, tmp_path):
    def twice(lines):
        items = [x for x in lines if x.startswith(b"{")]
        return [*lines[:300], *items[:200], *lines[300:-2], items[5].rstrip(b","), b"]", b""]

    mine = [rewritten(path, tmp_path / str(i), twice) for i, path in enumerate(dumps)]
    assert triples(build_facts(*mine, tmp_path / "b", rules=False, progress=False)) == facts
    for size in (5_000, 1 << 22):  # one line a batch, or all in one
        parsed = parse_dump(mine[0], tmp_path / f"p{size}", size=size, progress=False)
        assert parsed.counts["duplicates"] == 201
        assert len(set(parsed.table("labels")["id"].to_pylist())) == parsed.entities
        ids = parsed.table()["statement_id"].to_pylist()
        assert len(ids) == len(set(ids)) == parsed.counts["statements"]


def test_unusual_bytes(world, dumps, facts, tmp_path):
    "A NUL in a label, and the XML of 2014, with the text before the model."
    some = {f[0] for f in facts} | {f[2] for f in facts}

    def with_nul(lines):
        label = b'"labels":{"en":{"language":"en","value":"'
        mine = [any(f'"id":"{q}"'.encode() in x[:60] for q in some) for x in lines]
        return [x.replace(label, label + b"\\u0000") if hit else x for x, hit in zip(lines, mine)]

    mine = [rewritten(path, tmp_path / str(i), with_nul) for i, path in enumerate(dumps)]
    made = make_benchmark(tmp_path / "nul", mine, progress=False)
    rows = json.loads((made.folder / "wiki_big_edit_20240201_20240220.json").read_text())
    assert len(rows) > 20 and not any("\0" in str(value) for r in rows for value in r.values())
    xml = next(p for p in world.paths("dumps") if p.name.endswith(".xml.bz2"))
    text = bz2.decompress(xml.read_bytes()).decode()
    pages = []
    for page in text.split("  <page>"):
        model, body = page.find("      <model>"), page.find("      <text ")
        end = page.find("</text>") + len("</text>\n")
        pages.append(page if model < 0 else page[:model] + page[body:end] + page[model:body] + page[end:])
    old = tmp_path / "wikidatawiki-20240201-pages.xml"
    old.write_text("  <page>".join(pages))
    a, b = (parse_dump(p, tmp_path / f"x{i}", progress=False) for i, p in enumerate((xml, old)))
    assert b.table().equals(a.table()) and len(b.table()) > 4_000


def test_a_wrong_argument_leaves_no_trace(dumps, tmp_path):
    with pytest.raises(BadArgument, match="closeness"):
        make_benchmark(tmp_path / "b", dumps, closeness="nme", progress=False)
    with pytest.raises(BadArgument, match="a folder"):
        make_benchmark(tmp_path / "b", [dumps[0], tmp_path], progress=False)
    assert not (tmp_path / "b").exists()
