"""From two Wikipedia dumps to a diffset: ours beside mwxml and mwparserfromhell on both whole dumps; memory by size.

    python tests/benchmarks/wikipedia.py [ARTICLES …]      default: 2000 8000 32000

The dumps are written here: articles with boxes, references, tables, lists and links, of some 8,000 characters; a tenth
of them differs between the two. The plain way parses every article of both dumps, as a user of the two libraries would;
ours is the whole way to the diffset. Seconds are CPU seconds of all processes. The two are also compared without
bzip2, whose share is the same for both.
"""

import bz2
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

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
from wbe.wikipedia.snapshot import parse_wikipedia
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


def article(n: int, seed: int) -> str:
    "An article in the style of Wikipedia; its version depends on the seed only in its last section."
    rng = random.Random(n)
    paragraphs = [" ".join(sentence(rng) for _ in range(rng.randint(2, 6))) for _ in range(9)]
    box = "".join(f"| field{i} = {{{{start date|19{i:02}|1|{i + 1}}}}} [[Place {i}]]\n" for i in range(12))
    rows = "".join(f"|-\n| [[Name {i}]] || {i * 37} || {{{{sort|{i}|value {i}}}}}\n" for i in range(8))
    items = "".join(f"* [[Person {i}]], {sentence(rng)}\n" for i in range(6))
    changed = sentence(random.Random(f"{n} {seed}"))
    return (
        f"{{{{Short description|thing}}}}\n{{{{Infobox thing\n{box}}}}}\n'''Article {n}''' is a thing. "
        + paragraphs[0]
        + "\n\n"
        + "\n\n".join(paragraphs[1:4])
        + f"\n\n== History ==\n[[File:A {n}.jpg|thumb|A [[view]] of it]]\n"
        + "\n\n".join(paragraphs[4:7])
        + f'\n\n== List ==\n{{| class="wikitable"\n! Name !! Number !! Value\n{rows}|}}\n{items}\n== Present ==\n'
        + "\n\n".join([*paragraphs[7:], changed])
        + "\n\n== References ==\n{{reflist}}\n{{Navbox thing|a=[[b]]}}\n[[Category:Things]]\n"
    )


def write_dumps(folder: Path, articles: int) -> list[Path]:
    "Two dumps, a tenth of whose articles differ; plain and with bzip2."
    from wbe.world.dumps import XML_TAIL, xml_head, xml_page

    paths = []
    for t in (0, 1):
        path = folder / f"enwiki-{t}.xml"
        with open(path, "w", encoding="utf-8") as f, bz2.open(f"{path}.bz2", "wt", encoding="utf-8") as packed:
            for text in (xml_head("enwiki"), *(page_text(xml_page, n, t) for n in range(articles)), XML_TAIL):
                f.write(text)
                packed.write(text)
        paths.append(path)
    return paths


def page_text(xml_page, n: int, t: int) -> str:
    seed = t if n % 10 == 0 else 0
    return xml_page(f"Article {n}", 0, n + 1, n, t, article(n, seed), "wikitext", "text/x-wiki")


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


def main(sizes):
    workers = os.cpu_count() or 1
    print(f"{'articles':>9} {'dump, MB':>9} {'form':>5} {'plain, s':>9} {'ours, s':>9} {'times':>6} {'ours, MB':>9}")
    for n in sizes:
        with tempfile.TemporaryDirectory() as d:
            paths = write_dumps(Path(d), n)
            for end in ("", ".bz2"):
                files = [f"{p}{end}" for p in paths]
                ours = measured(OURS, *files, Path(d) / f"ours{end}", workers)
                plain = measured(PLAIN, *files)
                assert ours["changed"] == (n + 9) // 10, ours
                size = paths[0].stat().st_size / 1e6
                times = plain["cpu"] / ours["cpu"]
                print(
                    f"{n:9,} {size:9.1f} {end[1:] or 'xml':>5} {plain['cpu']:9.1f} {ours['cpu']:9.1f} {times:6.1f} "
                    f"{ours['memory']:9.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main([int(a) for a in sys.argv[1:]] or [2_000, 8_000, 32_000])
