"""All methods that learn from texts, over the eight intervals of the small world, on a tiny model.

    python data_samples/texts/make.py FOLDER [--model wbe-tiny] [--only METHOD …] [--set NAME=VALUE …]
    python data_samples/texts/make.py FOLDER --merge [NAME] | --readers | --search | --rates RATE … | --gradients
    python data_samples/texts/make.py FOLDER --tuning

The world that the tiny model knows from its first day is written here, with its Wikidata and Wikipedia on nine days. A
method learns one interval after the other; after each, perplexities are taken, and answers after light tuning. FOLDER
gets a file for each method, and a method that has one is not run again, so a killed recording goes on. The other calls
write one table each:

    --merge      months.csv (or NAME) from the files of the methods, and counts.csv: what an interval is made of
    --readers    readers.csv: what a passage in front of an edited question helps, with and without a reader's training
    --search     search.csv: how often the first passage that is found has the answer, by words and by vectors
    --rates      rates.csv: LoRA after the first interval with some rates
    --gradients  gradients.csv: the loss of each passage behind a question, and the norm of its gradient
    --tuning     tuning.csv: answers of the first interval after light tuning with either optimiser and some rates
"""

import argparse
import json
from dataclasses import replace
from datetime import datetime
from functools import cache, partial
from itertools import product
from pathlib import Path

import dpr
import pandas as pd
import torch
import transformers
from measures import MONTH_METHODS, Month, TuningHParams, answer_scores, evolving_answers, follow_months, light_tuning
from measures import passages_by_title, probe_answers, reader_tuning, record_months, stating_passage
from measures import text_gradient_norms, write_month_rows

from wbe.benchmark.evolving_series import EvolvingQuestion, evolve_benchmark
from wbe.benchmark.evolving import make_probes
from wbe.editors.protocol import editor
from wbe.editors.results import EditResult
from wbe.editors.memory.embed import embedder
from wbe.editors.text.passages import BM25Index, DenseIndex, article_passages
from wbe.editors.text.training import text_steps
from wbe.editors.text.training import text_rows
from wbe.lm.models import load
from wbe.lm.scoring import ask
from wbe.records import read_table
from wbe.wikidata.changes import compare_snapshots
from wbe.wikidata.parse import parse_dump
from wbe.wikipedia.comparison import WikipediaComparison
from wbe.wikipedia.diffs import Diffset
from wbe.wikipedia.pages import WikipediaSnapshot
from wbe.wikipedia.texts import SourceText
from wbe.wikipedia.texts import write_wiki_texts
from wbe.world.files import World

WORDS = 45  # of a passage, so that every prompt fits
DENSE = "dpr:WorldRetriever"  # the embedder of dpr.py, for --only BM25 --set search=dense embedder=dpr:WorldRetriever
SIZES = dict(stayed=60, probes=40, unchanged=100, tuning=400)
TUNING = TuningHParams(rate=3e-4, clip=1.0, optimizer="adafactor-scaled")
READING = replace(TUNING, rate=5e-4, epochs=4)
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
    sizes = dict(unchanged=SIZES["unchanged"], tuning=SIZES["tuning"], ended="drop")
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
        about = Month(step, staying, probes[step.name], asked[step.name] + kept, first, tuning)
        out.append(replace(about, dated=f"As of {datetime.strptime(step.name[9:], '%Y%m%d'):%B %Y},"))
    return out


@cache
def tuned_once(model: str, kind: str, data: Path):
    "A model tuned before the first month, on questions alone or with passages in front of them; kept in DATA."
    folder = data / "tuned" / f"{Path(model).name}, {kind}"
    if not folder.exists():
        lm, [first, *_] = load(model, device="cpu"), make_months(data)
        if kind == "light tuning":
            result = light_tuning(lm, first.tuning, TUNING)
        else:
            passages = passages_by_title(first.texts.first, WORDS)
            result = reader_tuning(lm, first.tuning, passages, READING, swapped=kind == "swapped answers")
        result.save(folder)
    return EditResult.load(folder)


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


def merge(folder: Path, name: str, model: str, data: Path, methods):
    "Write the table of the methods from their files; beside months.csv also counts.csv, and so beside months_t5.csv."
    files = [folder / f"{method}.csv" for method in methods]
    if missing := [f.name for f in files if not f.exists()]:
        raise SystemExit(f"{folder} lacks {', '.join(missing)}; record these methods first, or name others with --only")
    table = pd.concat(map(pd.read_csv, files), ignore_index=True).round(dict(seconds=1, cpu=1))
    table.to_csv(folder / name, index=False, float_format="%.6g")
    if name.startswith("months"):
        write_month_rows(folder / name.replace("months", "counts"), month_counts(model, data))


def retriever(data: Path) -> str:
    "The dense retriever of the world, trained when it is not there."
    dpr.WorldRetriever.folder = data / "retriever"
    dpr.train_retriever(data / "retriever", passages_by_title(make_months(data)[0].texts.first, WORDS))
    return DENSE


def record_search(path: Path, data: Path):
    "How often the first passage that is found has the answer, in percent, in the first and the last interval."
    found = {name: {} for name in ("BM25", "hashed", "trained")}
    embed = {name: embedder(source) for name, source in (("hashed", "hashed"), ("trained", retriever(data)))}
    for n, month in enumerate(make_months(data)[:: len(make_months(data)) - 1]):
        passages = [p for article in month.texts.articles for p in article_passages(article, WORDS)]
        asked = [r for r in month.asked if n == 0 or r["category"] != "unchanged"]
        for name, hits in found.items():
            index = DenseIndex(embed[name].embed(passages), embed[name]) if name in embed else BM25Index(passages)
            for row, [best] in zip(asked, index.search([r["question"] for r in asked], 1)):
                hits.setdefault(row["category"], []).append(row["answer"] in passages[best])
    rows = [dict(search=name) | {k: 100 * sum(v) / len(v) for k, v in hits.items()} for name, hits in found.items()]
    write_month_rows(path, rows)


def record_rates(path: Path, rates: list[float], model: str, data: Path):
    "LoRA after the first interval with some rates."
    name, options = MONTH_METHODS["LoRA"]
    rows = []
    for rate in rates:
        method = name, options | dict(rate=rate)
        [row] = follow_months(load(model, device="cpu"), method, make_months(data)[:1], TUNING)
        rows.append(dict(rate=rate) | row)
        write_month_rows(path, rows)


def record_gradients(path: Path, model: str, data: Path):
    "The loss of each passage behind a question, and the norm of its gradient, on the unedited model."
    lm, rows, seen = load(model, device="cpu"), [], set()
    for n, month in enumerate(make_months(data), 1):
        for r in month.asked:
            key = r["title"], r["passage"]
            if key not in seen and not seen.add(key):
                kind = "edited" if r["outdated"] else r["category"]
                text = SourceText(0, r["title"], kind, r["passage"])
                for found in text_gradient_norms(lm, [text]):
                    rows.append(dict(month=n) | {k: found[k] for k in ("status", "tokens", "loss", "norm")})
    write_month_rows(path, rows)


def record_tuning(path: Path, model: str, data: Path):
    "What the optimiser and the rate of light tuning change in the answers of the first interval."
    rows, [first, *_] = [], make_months(data)
    for name in ("Initial", "DIFF"):
        lm = load(model, device="cpu")
        if method := MONTH_METHODS[name]:
            editor(method[0], **method[1]).learn(lm, first.texts).apply(lm)
        for optimizer, rate in product(("adafactor", "adafactor-scaled"), (1e-5, 3e-5, 3e-4)):
            tuned = light_tuning(lm, first.tuning, replace(TUNING, optimizer=optimizer, rate=rate))
            with tuned.on(lm):
                scores = evolving_answers(lm, first.asked)
            facts = probe_answers(
                lm,
                first.probes,
                [r | dict(object=r["answer"]) for r in first.tuning],
                replace(TUNING, optimizer=optimizer, rate=rate),
            )
            scores |= {("F1", f"{k} facts"): facts["F1", k] for k in ("unchanged", "new")}
            rows.append(dict(method=name, optimizer=optimizer, rate=rate) | {" ".join(k): v for k, v in scores.items()})
            write_month_rows(path, rows)


def as_json(value: str):
    "A value of the command line: JSON, or a word."
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def chosen_methods(args, data: Path) -> dict:
    "The methods of the command line, with the given hyper-parameters."
    given = {name: as_json(value) for name, value in (pair.split("=", 1) for pair in args.set)}
    methods = {name: MONTH_METHODS[name] for name in args.only}
    methods = {name: m and (m[0], m[1] | given) for name, m in methods.items()}
    if given.get("embedder") == DENSE:
        retriever(data)
    return methods


def command_line():
    "The arguments."
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("folder", type=Path)
    p.add_argument("--model", default="wbe-tiny")
    p.add_argument("--data", type=Path, help="where the world is written; FOLDER/data by default")
    p.add_argument("--only", nargs="*", choices=list(MONTH_METHODS), default=list(MONTH_METHODS))
    p.add_argument("--set", nargs="*", default=[], help="hyper-parameters of the methods: steps=24 mixed=none")
    p.add_argument("--months", type=int, help="the first intervals only")
    p.add_argument("--after", type=int, nargs="*", help="measure after these intervals only, counted from 1")
    what = p.add_mutually_exclusive_group()
    what.add_argument("--merge", nargs="?", const="months.csv", metavar="NAME", help="put the methods' files together")
    what.add_argument("--readers", action="store_true", help="record readers.csv")
    what.add_argument("--search", action="store_true", help="record search.csv")
    what.add_argument("--rates", type=float, nargs="+", help="record rates.csv")
    what.add_argument("--gradients", action="store_true", help="record gradients.csv")
    what.add_argument("--tuning", action="store_true", help="record tuning.csv")
    return p.parse_args()


def main():
    args = command_line()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    folder, data = args.folder, args.data or args.folder / "data"
    if args.merge:
        return merge(folder, args.merge, args.model, data, args.only)
    if args.readers:
        return record_readers(folder / "readers.csv", args.model, data)
    if args.search:
        return record_search(folder / "search.csv", data)
    if args.rates:
        return record_rates(folder / "rates.csv", args.rates, args.model, data)
    if args.gradients:
        return record_gradients(folder / "gradients.csv", args.model, data)
    if args.tuning:
        return record_tuning(folder / "tuning.csv", args.model, data)
    methods, months = chosen_methods(args, data), make_months(data)[: args.months]
    reader = lambda lm: tuned_once(args.model, "swapped answers", data)
    loaded = partial(load, args.model, device="cpu")
    record_months(folder, loaded, months, TUNING, methods, dict(BM25=reader), args.after)


if __name__ == "__main__":
    main()
