"""Parsing a dump to Parquet: speed on one core, and memory, which must not grow with the dump.

    python tests/benchmarks/parse.py [--append] [--two-cores] [SIZE …]

SIZE is the number of entities for the memory runs; default: 10000 30000 100000. The speed is compared with qwikidata
and with plain JSON decoding, in CPU seconds of one process; each measurement is repeated and the best is taken. Larger
dumps repeat the dump of one world. `--two-cores` adds the seconds of the clock of one process and of two on dumps of
3 GB (of 1 GB of disk), three times each: five minutes.
"""

import argparse
import gc
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import msgspec
import psutil
import pyarrow as pa
from leaderboard import append

from wbe.records import Label, Statement, schema
from wbe.wikidata.claims import entity_decoder
from wbe.wikidata.entities import _REGIONS, FALLBACK, parse_lines
from wbe.spool import parquet_piece
from wbe.wikidata.parse import parse_dump
from wbe.wikidata.text import DumpText
from wbe.world.files import World

sys.path.insert(0, str(Path(__file__).parents[1]))
from plain_reader import qwikidata_text  # noqa: E402

LANGUAGES = ("en", *FALLBACK, *_REGIONS["en"])  # as `parse_lines` has them
REAL = Path(__file__).parents[2] / ".." / "shared" / "data" / "wikidata_real_49.json.gz"
PARSE = """
import sys
from wbe.wikidata.parse import parse_dump
parse_dump(sys.argv[1], sys.argv[2], workers=int(sys.argv[3]), progress=False)
"""


def entity_lines(path) -> list[bytes]:
    with gzip.open(path) as f:
        return [line.rstrip(b",\n") for line in f if line.startswith(b"{")]


def copies(lines: list[bytes], times: int, first: int = 0) -> list[bytes]:
    "These entities many times, each time with other ids: a parser drops an entity that it has read before."
    ids = re.compile(rb'"id":"([QP])\d+"')
    return [
        ids.sub(rb'"id":"\g<1>%d"' % (n * 10_000 + i), line, count=1)
        for n in range(first, times)
        for i, line in enumerate(lines, 1)
    ]


def write_dump(path: Path, lines: list[bytes]) -> Path:
    with gzip.open(path, "wb", compresslevel=6) as f:
        f.write(b"[\n" + b",\n".join(lines) + b"\n]\n")
    return path


def with_qwikidata(path, out: Path) -> int:
    "The same statements and labels with qwikidata, as its user would write it, to Parquet."
    import pandas as pd
    from qwikidata.entity import WikidataItem
    from qwikidata.json_dump import WikidataJsonDump

    rows, names = [], []
    for entity in WikidataJsonDump(str(path)):
        if entity["type"] != "item":
            continue
        item = WikidataItem(entity)
        links = item.get_sitelinks()
        names.append(
            (
                item.entity_id,
                item.get_label(),
                item.get_description(),
                item.get_aliases(),
                links.get("enwiki", {}).get("title"),
                len(links),
            )
        )
        for pid, claims in item.get_claim_groups().items():
            for c in claims:
                when = {
                    q: qwikidata_text(qs[0].snak) for q, qs in c.qualifiers.items() if q in ("P580", "P582", "P585")
                }
                others = [q for q in c.qualifiers if q not in when]
                rows.append(
                    (
                        item.entity_id,
                        pid,
                        qwikidata_text(c.mainsnak),
                        c.mainsnak.snak_datatype,
                        c.mainsnak.snaktype,
                        c.rank,
                        when.get("P580"),
                        when.get("P582"),
                        when.get("P585"),
                        bool(others),
                        others,
                        c.claim_id,
                    )
                )
    pd.DataFrame(rows, columns=schema(Statement).names).to_parquet(out / "statements.parquet", compression="zstd")
    pd.DataFrame(names, columns=schema(Label).names).to_parquet(out / "labels.parquet", compression="zstd")
    return len(rows)


def cpu(work, times: int) -> float:
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def speeds(name: str, path: Path, small: Path, folder: Path) -> dict:
    "MB of JSON a second on one core; `small` is a shorter dump of the same entities, for the slow reader."
    lines, few = entity_lines(path), entity_lines(small)
    assert len({bytes(msgspec.json.decode(x, type=dict[str, msgspec.Raw])["id"]) for x in lines}) == len(lines)
    mb, few_mb = sum(map(len, lines)) / 1e6, sum(map(len, few)) / 1e6
    typed = entity_decoder(LANGUAGES).decode

    def from_lines():
        parsed = parse_lines(lines)
        assert parsed.counts["duplicates"] == 0 == parsed.counts["rejected"]
        parquet_piece(parsed.statements), parquet_piece(parsed.labels)

    def from_file(roles=False):
        shutil.rmtree(folder / "out", ignore_errors=True)
        parse_dump(path, folder / "out", workers=1, progress=False, roles=roles)

    qwikidata, inflated, untyped, decoding, piece, whole, roles = (
        few_mb / cpu(lambda: with_qwikidata(small, folder), 2),
        mb / cpu(lambda: [len(text) for text in DumpText(path)], 3),
        mb / cpu(lambda: [msgspec.json.decode(line) and None for line in lines], 2),
        mb / cpu(lambda: [typed(line) and None for line in lines], 3),
        mb / cpu(from_lines, 3),
        mb / cpu(from_file, 3),
        mb / cpu(lambda: from_file(True), 2),
    )
    return {
        "entities": name,
        "MB of JSON": mb,
        "qwikidata: file to the same tables": qwikidata,
        "file inflated, no more": inflated,
        "msgspec: lines decoded, no types": untyped,
        "msgspec: lines decoded, our types": decoding,
        "wbe: lines to Parquet": piece,
        "wbe: file to Parquet": whole,
        "wbe: file to Parquet, with roles": roles,
        "wbe / qwikidata, from file": whole / qwikidata,
        "wbe / msgspec without types, from lines": piece / untyped,
        "wbe / msgspec with our types, from lines": piece / decoding,
    }


def where_time_goes(name: str, path: Path, folder: Path) -> dict:
    "Processor seconds of a parsed dump, and the shares of its steps, each done alone for all lines."
    import wbe.wikidata.entities as steps

    lines, decode = entity_lines(path), entity_decoder(LANGUAGES).decode
    out = folder / "out"
    parse = lambda: (shutil.rmtree(out, ignore_errors=True), parse_dump(path, out, workers=1, progress=False))
    whole = cpu(parse, 3)

    def measure() -> dict:
        found = {}

        def add(step, work, *args):
            start = time.process_time()
            made = work(*args)
            found[step] = found.get(step, 0) + time.process_time() - start
            return made

        each = lambda work, *columns: [work(*row) for row in zip(*columns)]
        names_of = lambda e: (steps._entity_terms(e), steps._sitelinks(e.sitelinks))
        add("inflating", lambda: [len(text) for text in DumpText(path)])
        made = []
        for at in range(0, len(lines), steps.LINES_PER_SLICE):
            some, part = lines[at : at + steps.LINES_PER_SLICE], steps._LineSlice(LANGUAGES, False)
            entities = add("decoding", each, decode, some)
            terms = add("names", each, names_of, entities)
            add("statements", each, part.statements.add_entity, entities, some)
            part.labels = [(e.id, *names, *links) for e, (names, links) in zip(entities, terms)]
            made.append(add("arrays", part.batches))
        for table in ("statements", "labels"):
            add("Parquet", parquet_piece, pa.Table.from_batches([batches[table] for batches in made]))
        return found

    gc.disable()
    rounds = [measure() for _ in range(3)]
    gc.enable()
    found = {step: min(one[step] for one in rounds) for step in rounds[0]}
    shares = {step: seconds / whole for step, seconds in found.items()}
    return dict(entities=name, seconds=whole) | shares | dict(other=1 - sum(shares.values()))


def memory(path: Path, entities: int, workers: int, folder: Path) -> dict:
    "Parse in a separate process and measure its memory and its children's."
    start, peak = time.perf_counter(), 0
    process = subprocess.Popen([sys.executable, "-c", PARSE, str(path), str(folder / "out"), str(workers)])
    while process.poll() is None:
        used = 0
        try:
            for p in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
                used += p.memory_full_info().uss  # memory unique to the process: shared libraries are not counted twice
        except psutil.Error:
            pass
        peak = max(peak, used)
        time.sleep(0.05)
    seconds = time.perf_counter() - start
    assert process.returncode == 0
    shutil.rmtree(folder / "out")
    return {"entities": entities, "processes": workers, "seconds": seconds, "peak memory, MB": peak / 1e6}


def on_two_cores(name: str, lines: list[bytes], times: int, folder: Path, rounds: int = 5) -> dict:
    "Seconds of the clock, of one process and of two by turns, each a command of its own; the dump repeats the lines."
    path, taken = folder / "long.json.gz", {1: [], 2: []}
    with gzip.open(path, "wb", compresslevel=1) as f:  # piece by piece: it does not fit into memory
        f.write(b"[\n")
        for n in range(times):
            some = copies(lines, n + 1, n)
            f.write(b",\n".join(some) + (b",\n" if n < times - 1 else b"\n]\n"))
    for _ in range(rounds):
        for workers, seconds in taken.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", PARSE, str(path), str(folder / "out"), str(workers)], check=True)
            seconds.append(time.perf_counter() - start)
            shutil.rmtree(folder / "out")
    ratios = [one / two for one, two in zip(*taken.values())]
    found = dict(entities=name, MB=times * sum(map(len, lines)) / 1e6, one=median(taken[1]), two=median(taken[2]))
    return found | dict(ratio=median(ratios), low=min(ratios), high=max(ratios), rounds=rounds)


def line_of(found: dict) -> dict:
    "A line of the leaderboard."
    names = dict(qwikidata="qwikidata: file to the same tables", wbe="wbe: file to Parquet")
    names |= {"ratio": "wbe / qwikidata, from file", "decoding": "msgspec: lines decoded, our types"}
    names |= {"of decoding": "wbe / msgspec with our types, from lines"}
    return dict(entities=found["entities"]) | {short: found[name] for short, name in names.items()}


def main(sizes, add: bool, two_cores: bool):
    import pandas as pd

    pd.set_option("display.width", 200)
    folder = Path(tempfile.mkdtemp())
    try:
        world = World(7, 2500).write(
            folder / "world", dates=["2024-02-01"], articles=False, views=False, truth=False, progress=False
        )
        lines = entity_lines(world.paths("dumps")[0])
        cases = [("the world's", lines, 8, 1)] + ([("real ones", entity_lines(REAL), 30, 2)] if REAL.exists() else [])
        dump = lambda name, some, times: write_dump(folder / f"{name}.json.gz", copies(some, times))
        table = pd.DataFrame(
            [speeds(name, dump("a", some, many), dump("b", some, few), folder) for name, some, many, few in cases]
        )
        times = [where_time_goes(name, dump("a", some, many), folder) for name, some, many, _ in cases]
        two = [on_two_cores(name, some, 30 * many, folder) for name, some, many, _ in cases if two_cores]
        if add:
            append("Dumps", [line_of(found) for found in table.to_dict("records")])
            append("Where the time of a dump goes", times)
            append("Dumps on two cores", two)
        print("MB of JSON a second on one core (CPU time; gzip, one process):")
        print(table.set_index("entities").T.map(lambda x: f"{x:.2f}" if x < 10 else f"{x:.0f}").to_string())
        print("\nprocessor seconds of a dump on one core, and the shares of its steps:")
        print(pd.DataFrame(times).round(2).to_string(index=False))
        if two:
            print("\nseconds of the clock, one process and two:")
            print(pd.DataFrame(two).round(2).to_string(index=False))
        rows = []
        for n in sizes:
            path = write_dump(folder / "a.json.gz", copies(lines, max(1, round(n / len(lines)))))
            rows += [memory(path, n, workers, folder) for workers in sorted({1, os.cpu_count() or 1})]
        print("\nmemory of all processes together:")
        print(pd.DataFrame(rows).round(1).to_string(index=False))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, default=[10_000, 30_000, 100_000])
    parser.add_argument("--append", action="store_true", help="add the speeds to LEADERBOARD.md")
    parser.add_argument("--two-cores", action="store_true", help="also two processes beside one, on 3 GB")
    args = parser.parse_args()
    main(args.sizes, args.append, args.two_cores)
