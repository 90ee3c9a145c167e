"""Edits or texts: the same facts of one interval of the small world, given to the tiny model in twelve ways.

    python data_samples/texts/ways.py FOLDER [--data DATA] [--only WAY …]

Writes FOLDER/ways.csv, a row for each way as it is done; runs that are there are not made again, and ways that are not
asked for keep their rows. DATA is what `make.py` wrote, made here if it is not there: the light questions that one way
trains a reader of passages with.
"""

import argparse
from pathlib import Path

import make
import pandas as pd
import torch
import transformers
from measures import answer_scores, write_month_rows

from wbe.benchmark.evolving_series import evolve_benchmark
from wbe.benchmark.reader import Benchmark
from wbe.lm.models import load
from wbe.runs.loop import run_lifelong
from wbe.runs.plan import RunPlan
from wbe.world.files import World

DAYS = ["2024-02-01", "2024-02-20"]
WAYS = {  # editor, hyper-parameters, whether the model is a reader of passages
    "unedited": ("none", {}, False),
    "fine-tuning on answers": ("ft", {}, False),
    "MEMIT": ("memit", {}, False),
    "retrieval of edits": ("rag", {}, False),
    "DIFF": ("text-diff", dict(epochs=8), False),
    "RecAdam": ("text-recadam", dict(epochs=8, anneal_t0=8.0), False),
    "Mix-review": ("text-mix-review", dict(epochs=8), False),
    "LoRA": ("text-lora", dict(epochs=8), False),
    "K-Adapter": ("text-k-adapter", dict(epochs=8), False),
    "retrieval of passages": ("text-passages", {}, False),
    "retrieval, with a reader": ("text-passages", dict(words=make.WORDS), True),
    "by vectors, with a reader": (
        "text-passages",
        dict(words=make.WORDS, search="dense", embedder="dpr:WorldRetriever"),
        True,
    ),
}


def make_release(folder: Path) -> Path:
    "The benchmark of one interval."
    options = dict(formats=("json.gz",), views=False, truth=False, progress=False)
    world = World(7, 1500).write(folder / "world", dates=DAYS, **options)
    dumps = [*world.paths("dumps"), *world.paths("articles")]
    sizes = dict(least=100, unchanged=40, tuning=10, ended="drop")
    return evolve_benchmark(folder / "bench", dumps, **sizes, progress=False).folder


def reader_folder(folder: Path, data: Path) -> str:
    "A folder with the tiny model as a reader of passages."
    if not (folder / "config.json").exists():
        lm = load("wbe-tiny", device="cpu")
        make.tuned_once("wbe-tiny", "swapped answers", data).apply(lm)
        lm.model.save_pretrained(folder)
        lm.tokenizer.save_pretrained(folder)
    return str(folder)


def measured(run, release: Path) -> dict:
    "What a run knows after its interval, in percent."
    [step] = Benchmark.load(release)
    rows = step.to_pandas()
    answered = run.scores[(run.scores.scored_at == 1) & (run.scores.moment == "current")]
    texts = answered.drop_duplicates("edit_id").set_index("edit_id").answer.reindex(rows.index).fillna("")
    old = [r.previous if r.tag == "update" else None for r in rows.itertuples()]
    pairs = zip(rows["update"], rows["ans"], old)
    asked = [dict(question=q, answer=a, outdated=o, category="new") for q, a, o in pairs]
    lasting = run.ability[(run.ability.what == "lasting facts") & (run.ability.metric == "exact_match")]
    scores = {" ".join(k): v for k, v in answer_scores(asked, list(texts)).items() if k[1] != "unchanged"}
    kept = lasting[lasting.scored_at <= 1].iloc[-1]
    sizes = dict(questions=len(rows), edited=sum(o is not None for o in old), lasting=int(kept.n))
    return {"EM unchanged": 100 * kept.value} | scores | sizes


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("folder", type=Path)
    p.add_argument("--data", type=Path, help="what make.py wrote; FOLDER/data by default")
    p.add_argument("--only", nargs="+", choices=list(WAYS), default=list(WAYS))
    args = p.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    data = args.data or args.folder / "data"
    if any(WAYS[name][1].get("search") == "dense" for name in args.only):
        make.retriever(data)
    release, path = make_release(args.folder), args.folder / "ways.csv"
    rows = {r["method"]: r for r in pd.read_csv(path).to_dict("records")} if path.exists() else {}
    for name in args.only:
        editor, hparams, reads = WAYS[name]
        model = reader_folder(args.folder / "reader", data) if reads else "wbe-tiny"
        asked = dict(axes=("update",), say=("update",), sample=1, ask_lasting=40)
        plan = RunPlan(benchmark=str(release), model=model, device="cpu", editor=editor, hparams=hparams, **asked)
        run = run_lifelong(plan, args.folder / "runs" / name.replace(" ", "-").replace(",", ""), progress=False)
        seconds = float(run.batches.seconds.sum()) if len(run.batches) else 0.0
        rows[name] = dict(method=name) | measured(run, release) | dict(seconds=round(seconds, 1))
        write_month_rows(path, [rows[way] for way in WAYS if way in rows])
        print(name, flush=True)


if __name__ == "__main__":
    main()
