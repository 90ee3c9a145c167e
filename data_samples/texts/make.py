"""All methods that learn from texts, over the eight intervals of the small world, on a tiny model.

    python data_samples/texts/make.py FOLDER [--model wbe-tiny] [--only METHOD …]
    python data_samples/texts/make.py FOLDER --merge

The world that the tiny model knows from its first day is written here, with its Wikidata and Wikipedia on nine days. A
method learns one interval after the other; after each, perplexities are taken, and answers after light tuning. FOLDER
gets a file for each method, and a method that has one is not run again, so a killed recording goes on. `readers.csv`
shows what a passage in front of a question helps: models with and without a reader's training, edited questions of the
first two intervals with five contexts. `--merge` puts the files of the methods together as months.csv, and counts in
counts.csv what an interval is made of.
"""

import argparse
from functools import cache, partial
from pathlib import Path

import pandas as pd
import torch
import transformers

from wbe.benchmark.evolving_series import EvolvingQuestion, evolve_benchmark
from wbe.benchmark.probes import make_probes
from wbe.editors.text.answers import TuningHParams, answer_scores, light_tuning
from wbe.editors.protocol import editor
from wbe.editors.text.by_month import MONTH_METHODS, Month, record_months, write_month_rows
from wbe.editors.text.passages import BM25Index, article_passages
from wbe.editors.text.reader import passages_by_title, reader_tuning, stating_passage
from wbe.editors.text.sources import text_steps
from wbe.editors.text.training import text_rows
from wbe.lm.models import load
from wbe.lm.scoring import ask
from wbe.records import read_table
from wbe.wikidata.changes import compare_snapshots
from wbe.wikidata.parse import parse_dump
from wbe.wikipedia.comparison import WikipediaComparison
from wbe.wikipedia.diffs import Diffset
from wbe.wikipedia.snapshot import WikipediaSnapshot
from wbe.wikipedia.written import write_wiki_texts
from wbe.world.files import World

WORDS = 45  # of a passage, so that every prompt fits
SIZES = dict(stayed=60, probes=40, unchanged=100, tuning=400)
TUNING = TuningHParams(rate=3e-4, clip=1.0)
READING = TuningHParams(rate=5e-4, clip=1.0, epochs=4)
READERS = ("light tuning", "passages as they are", "swapped answers")


def questions(release: Path, name: str) -> list[dict]:
    return read_table(release / f"{name}.parquet", EvolvingQuestion).to_pylist()


def month_probes(data: Path, days: list[str], parsed: dict) -> dict[str, list[dict]]:
    "Facts that each interval changed or kept, and that its texts state."
    out, work = {}, data / "wiki_work"
    for old, new in zip(days, days[1:]):
        name = f"{old}_{new}"
        compare_snapshots(parsed[old], parsed[new], data / f"changes_{name}")
        stages = (
            WikipediaSnapshot(work / f"pages_{new}"),
            WikipediaComparison(work / f"compared_{name}"),
            Diffset(work / f"diffset_{name}"),
        )
        found = make_probes(data / f"changes_{name}", parsed[new] / "labels.parquet", *stages, share=0.2).probes
        kinds = [[p for p in found if (p["category"] == "unchanged") == kept] for kept in (True, False)]
        out[name] = [p for some in kinds for p in some[: SIZES["probes"]]]
    return out


@cache
def make_months(data: Path) -> list[Month]:
    "The eight intervals of the world."
    world = World(7, 1500).write(data / "world", formats=("json.gz",), views=False, truth=False, progress=False)
    days = [p.name.split("-")[1] for p in world.paths("articles")]
    dumps = [*world.paths("dumps"), *world.paths("articles")]
    sizes = dict(unchanged=SIZES["unchanged"], tuning=SIZES["tuning"])
    release = evolve_benchmark(data / "bench", dumps, least=0, progress=False, **sizes).folder
    wiki = write_wiki_texts(dict(zip(days, world.paths("articles"))), data / "wiki", data / "wiki_work", progress=False)
    parsed = {
        d: parse_dump(p, data / f"wikidata_{d}", progress=False).folder for d, p in zip(days, world.paths("dumps"))
    }
    steps, probes = text_steps(wiki, [f"{a}_{b}" for a, b in zip(days, days[1:])]), month_probes(data, days, parsed)
    changed = {t.id for s in steps for t in s.diff}
    staying = [t for t in steps[0].first if t.id not in changed]
    staying = staying[:: len(staying) // SIZES["stayed"]][: SIZES["stayed"]]
    asked, kept, tuning = (
        {s.name: questions(release, f"evolving_{s.name}") for s in steps},
        *(questions(release, n) for n in ("unchanged", "tuning")),
    )
    out = []
    for n, step in enumerate(steps):
        later = {(r["subject_id"], r["property_id"]) for s in steps[1 : n + 1] for r in asked[s.name]}
        first = [r for r in asked[steps[0].name] if (r["subject_id"], r["property_id"]) not in later]
        out.append(Month(step, staying, probes[step.name], asked[step.name] + kept, first, tuning))
    return out


@cache
def tuned_once(model: str, kind: str, data: Path):
    "A model tuned before the first month: on questions alone, or with passages in front of them."
    lm, [first, *_] = load(model, device="cpu"), make_months(data)
    if kind == "light tuning":
        return light_tuning(lm, first.tuning, TUNING)
    passages = passages_by_title(first.texts.first, WORDS)
    return reader_tuning(lm, first.tuning, passages, READING, swapped=kind == "swapped answers")


def edited_questions(months: list[Month]) -> list[dict]:
    "Edited questions of some months, with contexts in which their answer stands, and with the passage that is found."
    out = []
    for month in months:
        by_title = passages_by_title(month.texts.articles, WORDS)
        every = [p for some in by_title.values() for p in some]
        asked = [r for r in month.asked if r["outdated"]]
        for row, [best] in zip(asked, BM25Index(every).search([r["question"] for r in asked], 1)):
            states, gold = row["passage"].split("\n")[0], stating_passage(row, by_title)
            contexts = {"nothing": None, "question and answer": [(row["question"], row["answer"])]}
            contexts |= {"sentence": [states], "passage of the answer": gold and [gold], "BM25": [every[best]]}
            out.append(row | dict(contexts=contexts, found=row["answer"] in every[best]))
    return [row for row in out if row["contexts"]["passage of the answer"]]


def record_readers(path: Path, model: str, data: Path):
    "What a context helps the edited questions, and what it costs the unchanged ones, in percent."
    months, out = make_months(data)[:2], []
    rows, lm = edited_questions(months), load(model, device="cpu")
    kept = [r for r in months[0].asked if r["category"] == "unchanged"]
    passages = [p for a in months[0].texts.articles for p in article_passages(a, WORDS)]
    near = [[passages[n] for n in best] for best in BM25Index(passages).search([r["question"] for r in kept], 1)]
    told = lambda rows, context: ask(
        lm, [r["question"] for r in rows], "zero-shot", max_tokens=16, context=context, progress=False
    )
    for reader in READERS:
        with tuned_once(model, reader, data).on(lm):
            for name in rows[0]["contexts"]:
                scores = answer_scores(rows, told(rows, [r["contexts"][name] for r in rows]))
                about = dict(reader=reader, context=name, questions=len(rows))
                out.append(about | {q: scores["EM", q] for q in ("updated", "outdated")})
                if name in ("nothing", "BM25"):
                    got = told(kept, near if name == "BM25" else None)
                    out[-1]["unchanged"] = answer_scores(kept, got)["EM", "unchanged"]
                out[-1]["found"] = 100 * sum(r["found"] for r in rows) / len(rows)
    write_month_rows(path, out)


def month_counts(model: str, data: Path) -> list[dict]:
    "How many questions, facts and articles an interval has, and rows of tokens to learn from."
    lm, out = load(model, device="cpu"), []
    h = editor("text-full").hparams_for(lm)
    for n, month in enumerate(make_months(data), 1):
        kinds = [r["category"] if not r["outdated"] else "edited" for r in month.asked]
        probes = [p["category"] == "unchanged" for p in month.probes]
        row = dict(month=n) | {k: kinds.count(k) for k in ("new", "edited", "unchanged")}
        row |= {"first month": len(month.first), "tuning": len(month.tuning), "stayed articles": len(month.stayed)}
        row |= {"changed facts": probes.count(False), "unchanged facts": probes.count(True)}
        row |= {"rows, FULL": len(text_rows(lm, month.texts.articles, h))}
        out.append(row | {"rows, DIFF": len(text_rows(lm, month.texts.diff, h))})
    return out


def merge(folder: Path, model: str, data: Path):
    "Write months.csv and counts.csv from the files of the methods."
    files = [folder / f"{name}.csv" for name in MONTH_METHODS]
    if missing := [f.name for f in files if not f.exists()]:
        raise SystemExit(f"{folder} lacks {', '.join(missing)}; record these methods first")
    table = pd.concat(map(pd.read_csv, files), ignore_index=True).drop(columns="cpu", errors="ignore")
    table.assign(seconds=table.seconds.round(1)).to_csv(folder / "months.csv", index=False, float_format="%.6g")
    write_month_rows(folder / "counts.csv", month_counts(model, data))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("folder", type=Path)
    p.add_argument("--model", default="wbe-tiny")
    p.add_argument("--data", type=Path, help="where the world is written; FOLDER/data by default")
    p.add_argument("--only", nargs="*", choices=list(MONTH_METHODS), default=list(MONTH_METHODS))
    p.add_argument("--months", type=int, help="the first intervals only")
    p.add_argument("--after", type=int, nargs="*", help="measure after these intervals only, counted from 1")
    p.add_argument(
        "--steps", type=int, help="steps of the optimiser in an interval, in place of what follows from the texts"
    )
    p.add_argument("--gain", type=float, help="of K-Adapter's layer norm, at first")
    p.add_argument("--merge", action="store_true", help="put the recorded methods together, and nothing else")
    p.add_argument("--readers", action="store_true", help="record readers.csv first")
    args = p.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    data = args.data or args.folder / "data"
    if args.merge:
        return merge(args.folder, args.model, data)
    if args.readers:
        record_readers(args.folder / "readers.csv", args.model, data)
    methods = {name: MONTH_METHODS[name] for name in args.only}
    if args.steps:
        methods = {name: (m[0], m[1] | dict(steps=args.steps)) for name, m in methods.items() if m}
    if args.gain is not None and "K-Adapter" in methods:
        name, options = methods["K-Adapter"]
        methods["K-Adapter"] = name, options | dict(gain=args.gain)
    once = {"BM25": lambda lm: tuned_once(args.model, "swapped answers", data)}
    months = make_months(data)[: args.months]
    record_months(args.folder, partial(load, args.model, device="cpu"), months, TUNING, methods, once, args.after)


if __name__ == "__main__":
    main()
