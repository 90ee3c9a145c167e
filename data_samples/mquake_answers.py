"""The answers behind MQuAKE's tables: the tiny model with chains, and wbe-tiny, on chains of the sample world.

    python data_samples/mquake_answers.py FOLDER

FOLDER gets the model, the chains and a folder for each run; a repeated call goes on with what is missing. At the end
`mquake_answers.parquet` is written beside this file: a row for each run, k and chain with its questions, the names that
are right, and the answers. About an hour on one core. research/19_mquake_tables shows the tables.

Parts: `fresh` (chains of two timesteps that share no edited fact with each other, with and without unedited facts),
`recalled` (200 chains of which the model recalls every fact, three wordings), `many` (1,000 chains edited together).
"""

import json
import sys
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import torch

from wbe.benchmark.series import make_benchmark
from wbe.lm.models import load
from wbe.runs.loop import carry_out
from wbe.runs.mquake import MquakePlan, _instance_groups, read_instances
from wbe.tiny.corpus import TrainingCorpus, _sample_told_chain
from wbe.tiny.training import train_tiny
from wbe.world.cast import SeededRandom

HERE = Path(__file__).parent
PER_SET = 25  # chains of a timestep and set
FIRST, SECOND = "20240401_20240501", "20240501_20240601"
WEIGHTS = ("ft", "mend", "rome", "memit")


def make_inputs(folder: Path) -> tuple[Path, Path, Path]:
    "The model with chains; the benchmark that the graph was tuned on; the benchmark whose chains are asked."
    model, tuned, later = folder / "wbe-tiny-chains", folder / "tuned", folder / "later"
    if not (model / "training.json").exists():
        train_tiny(model, chains=True, start="wbe-tiny", progress=False)
    dumps = sorted((HERE / "world").glob("*.bz2"))
    for path, some in ((tuned, dumps[:3]), (later, dumps[4:7])):
        if not list((path / "release").glob("chains_*_CF.json")):
            make_benchmark(path, some, chains=True, ended="drop", progress=False)
    return model, tuned, later


def edited(x: dict) -> set[tuple]:
    "The edited facts of an instance: subject and property."
    return {tuple(t[:2]) for t in x["orig"]["edit_triples"]}


def one_per_edit(instances: list[dict], n: int, seen: set) -> list[dict]:
    "Instances in random order that share no edited fact with each other, or with those seen."
    out, taken = [], set(seen)
    for (x,) in _instance_groups(instances, 1):
        if len(out) < n and not edited(x) & taken:
            out, taken = [*out, x], taken | edited(x)
    return out


def fresh_sets(tuned: Path, later: Path) -> dict:
    "{(set, timestep): instances} that share no edited fact with each other or with the first timestep."
    first = sorted((tuned / "release").glob("chains_20240201_20240220_*.json"))
    seen = {e for path in first for x in read_instances(path) for e in edited(x)}
    parts = {}
    for step in (FIRST, SECOND):
        for style in ("T", "CF"):
            found = one_per_edit(read_instances(later / f"release/chains_{step}_{style}.json"), PER_SET, seen)
            parts[style, step] = found
            seen |= set().union(*map(edited, found))
    return parts


def chains_of_training() -> dict[tuple, set]:
    "The chains that the model read while it was trained: {(subject, *properties): answers}."
    corpus, read = TrainingCorpus(0, chains=True, begun=True), {}
    for rng in [SeededRandom(0, "document", step, i) for step in range(640) for i in range(32)]:
        if corpus.sample_kind(rng) == "chain_reading":
            facts = _sample_told_chain(corpus.told_chains, rng, rng.pick((2, 2, 3, 4))).facts
            read.setdefault((facts[0].subject_id, *(f.property_id for f in facts)), set()).add(facts[-1].answer)
    return read


def facts_of(later: Path, step: str, share: float = 1) -> str:
    "The unedited facts of a timestep, or a random part of them."
    path = later / f"work/{step}/facts/static_facts.parquet"
    if share < 1:
        table = pq.read_table(path)
        rows = pd.Series(range(len(table))).sample(frac=share, random_state=0).sort_values()
        path = path.with_name(f"facts_{share}.parquet")
        pq.write_table(table.take(rows.tolist()), path)
    return str(path)


def methods_of(later: Path, step: str) -> dict:
    "{(what it knows, method): (editor, hyper-parameters)}."
    graph, four, facts = dict(threshold=0.0), dict(k=4), dict(facts=facts_of(later, step))
    half, recall = dict(facts=facts_of(later, step, 0.5)), dict(recall=True)
    rows = {("edits alone", "rag"): ("rag", dict(k=4, replace=True))}
    rows |= {("edits alone", "four rounds"): ("graph", dict(method="rounds", **four))}
    rows |= {("edits alone", "graph"): ("graph", graph), ("edits alone", "graph, recall"): ("graph", graph | recall)}
    rows |= {("edits alone", e): (e, {}) for e in ("memit", "rome")}
    rows |= {("facts too", "nearest"): ("graph", dict(method="nearest", **four, **facts))}
    rows |= {("facts too", "four rounds"): ("graph", dict(method="rounds", **four, **facts))}
    rows |= {("facts too", "graph"): ("graph", graph | facts)}
    rows |= {("facts too", "graph, no phrases"): ("graph", graph | facts | dict(phrases=False))}
    rows |= {("half of the facts", "graph"): ("graph", graph | half)}
    rows |= {("half of the facts", "graph, recall"): ("graph", graph | half | recall)}
    return rows | {("the path", "oracle"): ("oracle", {})}


def rows_of(frame: pd.DataFrame, instances: dict, questions: int, read: dict, **about) -> pd.DataFrame:
    "The rows of a run, with what was asked, what is right, and where a path has its edits."
    out = []
    for r in frame.itertuples():
        x, new = instances[r.case], "new_" if r.k else ""
        names = [x[f"{new}answer"], *(x.get(f"{new}answer_alias") or ())]
        names += list(x.get("answer_extended") or ()) if not r.k else []
        path = x["orig"]["new_triples"]
        answers = read.get((path[0][0], *(t[1] for t in path)), ())
        more = dict(
            subject=x["orig"]["edit_triples"][0][0],
            path="".join("E" if tuple(t[:2]) in edited(x) else "u" for t in path),
            read="answer" if x["new_answer"] in answers else "chain" if answers else "",
            questions=x["questions"][:questions],
            right=list(dict.fromkeys(names)),
        )
        out.append(about | r._asdict() | more)
    return pd.DataFrame(out).drop(columns="Index")


def main(folder):
    torch.set_num_threads(1)
    folder = Path(folder)
    chains_model, tuned, later = make_inputs(folder)
    parts, read, found = fresh_sets(tuned, later), chains_of_training(), []
    models = {"with chains": load(str(chains_model), device="cpu"), "wbe-tiny": load("wbe-tiny", device="cpu")}

    def run(name, model, path, editor, hparams, instances, k, questions, about, **options):
        plan = MquakePlan(str(path), editor, hparams=hparams, k=k, questions=questions, **options)
        where = folder / "runs" / name.replace(", ", "-").replace(" ", "_")
        frame = carry_out(plan, where, models[model], progress=False)
        found.append(rows_of(frame, {x["case_id"]: x for x in instances}, questions, read, model=model, **about))
        print(name, len(frame), flush=True)

    for (style, step), instances in parts.items():
        path = folder / f"{style}_{step}.json"
        path.write_text(json.dumps(instances))
        methods = methods_of(later, step)
        tiny = {("edits alone", e): (e, {}) for e in WEIGHTS}  # the only model with a trained network for MEND
        shared = (("edits alone", "rag"), ("edits alone", "graph"), ("the path", "oracle"))
        tiny |= {key: methods[key] for key in shared}
        for model, some in {"with chains": methods, "wbe-tiny": tiny}.items():
            for (knows, name), (editor, hparams) in some.items():
                about = dict(part="fresh", set=style, step=step, knows=knows, method=name)
                label = f"fresh-{model}-{style}-{step}-{name}-{knows}"
                run(label, model, path, editor, hparams, instances, (1, "all"), 1, about)

    path = later / f"release/chains_{FIRST}_CF.json"
    instances, known = read_instances(path), methods_of(later, FIRST)
    wanted = [("edits alone", "rag"), ("edits alone", "graph, recall"), ("facts too", "graph"), ("the path", "oracle")]
    for knows, name in wanted:
        about = dict(set="CF", step=FIRST, knows=knows, method=name)
        label, edits = f"{name}-{knows}", known[knows, name]
        options = dict(k=(1, 100, "all"), questions=3, sample=200, recall=True)
        run(f"recalled-{label}", "with chains", path, *edits, instances, about=about | dict(part="recalled"), **options)
        options = dict(k=(1000,), questions=1, sample=1000)
        run(f"many-{label}", "with chains", path, *edits, instances, about=about | dict(part="many"), **options)

    table = pd.concat(found, ignore_index=True)
    table.attrs = json.loads((folder / "runs" / "recalled-rag-edits_alone" / "recall.json").read_text())
    table.attrs["kept"] = len(table.attrs["kept"])
    table.to_parquet(HERE / "mquake_answers.parquet", index=False, compression="zstd")
    print(f"{len(table):,} rows")


if __name__ == "__main__":
    main(*sys.argv[1:])
