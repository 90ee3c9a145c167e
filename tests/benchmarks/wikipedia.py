"""From two Wikipedia dumps to a diffset: ours beside mwxml and mwparserfromhell on both whole dumps; memory by size.

    python tests/benchmarks/wikipedia.py [ARTICLES …] [--form xml] [--workers N] [--rounds N] [--ours]

The dumps are written here from seeds: articles with boxes, references, tables, lists and links, most of them short, a
few very long; a tenth of them differs between the two. The table gives the characters of one dump, the median and the
longest article. The plain way parses every article of both dumps, as a user of the two libraries would; ours is the
whole way to the diffset. Seconds are CPU seconds of all processes, starting Python and imports included; memory is the
highest sum of all processes. `--form xml` leaves out bzip2, whose share is the same for both.
"""

import argparse
import bz2
import json
import os
import random
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from statistics import median

import psutil

PLAIN = """
import bz2, json, sys, time, mwparserfromhell, mwxml, resource
open_dump = bz2.open if sys.argv[1].endswith("bz2") else open
characters = 0
for path in sys.argv[1:3]:
    with open_dump(path, "rt", encoding="utf-8") as f:
        for page in mwxml.Dump.from_file(f):
            if page.namespace == 0 and not page.redirect:
                characters += sum(len(mwparserfromhell.parse(r.text or "").strip_code()) for r in page)
print(json.dumps(dict(characters=characters)))
"""
OURS = """
import json, sys
from pathlib import Path
from wbe.wikipedia.comparison import compare_wikipedia
from wbe.wikipedia.diffs import write_diffset
from wbe.wikipedia.pages import parse_wikipedia
folder, workers = Path(sys.argv[3]), int(sys.argv[4])
options = dict(workers=workers, progress=False)
snapshots = [parse_wikipedia(p, folder / str(i), **options) for i, p in enumerate(sys.argv[1:3])]
compared = compare_wikipedia(*snapshots, folder / "compared", **options)
diffset = write_diffset(compared, folder / "diffset", **options)
print(json.dumps(dict(compared.counts) | dict(characters=diffset.counts.get("characters", 0))))
"""


def sentence(rng: random.Random) -> str:
    "A sentence of random words, some of them links, numbers and dates."
    words = []
    for _ in range(rng.randint(8, 22)):
        kind, word = rng.random(), "".join(rng.choices("aeioulnrstdmk", k=rng.randint(2, 9)))
        if kind < 0.08:
            word = f"[[{word.title()} {word}|{word}]]" if kind < 0.05 else f"[[{word.title()}]]"
        elif kind < 0.12:
            word = rng.choice(["''%s''", "{{convert|%d|km|mi}}", "{{nowrap|%d people}}", "%d&nbsp;m", "{{lang|la|%s}}"])
            word = word % (rng.randint(1, 90_000) if "%d" in word else "verbum")
        words.append(word)
    text = " ".join(words).capitalize() + "."
    if rng.random() < 0.5:
        title = " ".join(rng.choices(words, k=5)).replace("[", "").replace("]", "").replace("{", "").replace("}", "")
        text += (
            f"<ref>{{{{cite web|url=https://example.org/{rng.random()}|title={title.replace('|', ' ')}|date=5 May 2023"
            "|access-date=1 June 2023|last=Doe|first=Jane|publisher=[[Example]]}}</ref>"
        )
    return text


def paragraph(rng: random.Random) -> str:
    return " ".join(sentence(rng) for _ in range(rng.randint(2, 6)))


def paragraphs_of(rng: random.Random) -> list[str]:
    "The paragraphs of an article: their number follows a lognormal distribution, as the lengths of real ones do."
    return [paragraph(rng) for _ in range(min(150, 1 + round(rng.lognormvariate(1.5, 0.9))))]


def edited(paragraphs: list[str], rng: random.Random) -> list[str]:
    "The paragraphs after an edit: one gets a sentence more, another is new."
    out, at = list(paragraphs), rng.randrange(len(paragraphs))
    out[at] += " " + sentence(rng)
    out.insert(rng.randint(0, len(out)), paragraph(rng))
    return out


def article(n: int, paragraphs: list[str]) -> str:
    "An article in the style of Wikipedia: a box, sections of a few paragraphs, files, a table, a list, notes."
    rng, first, *rest = random.Random(-1 - n), *paragraphs
    box = "".join(f"| field{i} = {{{{start date|19{i:02}|1|{i + 1}}}}} [[Place {i}]]\n" for i in range(12))
    rows = "".join(f"|-\n| [[Name {i}]] || {i * 37} || {{{{sort|{i}|value {i}}}}}\n" for i in range(8))
    table = f'{{| class="wikitable"\n! Name !! Number !! Value\n{rows}|}}\n' if len(rest) > 3 else ""
    items = "".join(f"* [[Person {i}]], {sentence(rng)}\n" for i in range(min(6, len(rest))))
    sections = "".join(
        f"== Section {i} ==\n[[File:A {n} {i}.jpg|thumb|A [[view]] of it]]\n" + "\n\n".join(rest[i : i + 3]) + "\n\n"
        for i in range(0, len(rest), 3)
    )
    return (
        f"{{{{Short description|thing}}}}\n{{{{Infobox thing\n{box}}}}}\n'''Article {n}''' is a thing. {first}\n\n"
        f"{sections}== List ==\n{table}{items}\n== References ==\n{{{{reflist}}}}\n{{{{Navbox thing|a=[[b]]}}}}\n"
        "[[Category:Things]]\n"
    )


def versions(n: int) -> tuple[str, str]:
    "An article in both dumps; every tenth differs."
    rng = random.Random(n)
    paragraphs = paragraphs_of(rng)
    old = article(n, paragraphs)
    return old, article(n, edited(paragraphs, rng)) if n % 10 == 0 else old


def write_dumps(folder: Path, articles: int, end: str) -> tuple[list[Path], list[int]]:
    "Two dumps, a tenth of whose articles differ; their files, and the lengths of the older one's articles."
    from wbe.world.dumps import XML_TAIL, xml_head, xml_page

    paths, lengths = [folder / f"enwiki-{t}.xml{end}" for t in (0, 1)], []
    open_dump = bz2.open if end else open
    with open_dump(paths[0], "wt", encoding="utf-8") as old, open_dump(paths[1], "wt", encoding="utf-8") as new:
        for f in (old, new):
            f.write(xml_head("enwiki"))
        for n in range(articles):
            texts = versions(n)
            lengths.append(len(texts[0]))
            for t, (f, text) in enumerate(zip((old, new), texts)):
                revision = n * 10 + t * (texts[0] != texts[1])
                f.write(xml_page(f"Article {n}", 0, n + 1, revision, 1, text, "wikitext", "text/x-wiki"))
        for f in (old, new):
            f.write(XML_TAIL)
    return paths, lengths


def family_memory(process: psutil.Process) -> int:
    "Bytes of a process and its children."
    total = 0
    for p in [process, *process.children(recursive=True)]:
        try:
            total += p.memory_info().rss
        except psutil.Error:
            pass
    return total


def measured(script: str, *args) -> dict:
    "Run a script: CPU seconds of all its processes, wall seconds, peak memory, and what it printed."
    import resource
    import time

    before, start, peak = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter(), 0
    p = subprocess.Popen([sys.executable, "-c", script, *map(str, args)], stdout=subprocess.PIPE, text=True)
    family = psutil.Process(p.pid)
    while p.poll() is None:
        try:
            peak = max(peak, family_memory(family))
        except psutil.Error:
            break
        time.sleep(0.05)
    out = p.stdout.read()
    assert p.wait() == 0, "the script failed"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return dict(cpu=cpu, wall=time.perf_counter() - start, memory=peak / 1e6, **json.loads(out.splitlines()[-1]))


def measured_ways(paths: list[Path], folder: Path, workers: int, rounds: int, with_plain: bool) -> list[dict]:
    "Both ways by turns, or ours alone: the least CPU seconds, the highest memory."
    ours, plain = [], []
    for i in range(rounds):
        ours.append(measured(OURS, *paths, folder / f"ours{i}", workers))
        plain += [measured(PLAIN, *paths)] if with_plain else []
    best = lambda runs: dict(cpu=min(r["cpu"] for r in runs), memory=max(r["memory"] for r in runs))
    return [runs[0] | best(runs) for runs in (ours, plain) if runs]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("articles", type=int, nargs="*", default=[4_000, 12_000, 36_000])
    parser.add_argument("--form", choices=("bz2", "xml"), default="bz2", help="compressed as published, or not")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes of our way")
    parser.add_argument("--ours", action="store_true", help="ours alone, to see the memory at large sizes")
    parser.add_argument("--rounds", type=int, default=1, help="of both ways, by turns; the fewest seconds count")
    args = parser.parse_args()
    print(f"wbe with {args.workers} workers; mwxml {version('mwxml')}, mwparserfromhell {version('mwparserfromhell')}")
    columns = ("articles", "text, MB", "median", "longest", "ours, s", "ours, MB", "plain, s", "plain, MB", "ratio")
    print("".join(f"{c:>11}" for c in columns[: 6 if args.ours else None]), flush=True)
    for n in args.articles:
        with tempfile.TemporaryDirectory() as d:
            paths, lengths = write_dumps(Path(d), n, ".bz2" if args.form == "bz2" else "")
            ours, *plain = measured_ways(paths, Path(d), args.workers, args.rounds, not args.ours)
            assert ours["changed"] == (n + 9) // 10, ours
            cells = [f"{n:,}", f"{sum(lengths) / 1e6:,.1f}", f"{median(lengths):,.0f}", f"{max(lengths):,}"]
            cells += [f"{ours['cpu']:,.1f}", f"{ours['memory']:,.0f}"]
            for way in plain:
                cells += [f"{way['cpu']:,.1f}", f"{way['memory']:,.0f}", f"{way['cpu'] / ours['cpu']:.1f}"]
            print("".join(f"{c:>11}" for c in cells), flush=True)


if __name__ == "__main__":
    main()
