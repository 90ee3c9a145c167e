"""A benchmark of more than ten thousand edits, and what editors keep of them on the tiny model, thousand by thousand.

    python data_samples/ten_thousand/make.py FOLDER                  the benchmark, and subjects.csv beside this file
    python data_samples/ten_thousand/make.py FOLDER --edit EDITOR    FOLDER/EDITOR.json, from the beginning
    python data_samples/ten_thousand/make.py FOLDER --edit none      the unedited model
    python data_samples/ten_thousand/make.py FOLDER --merge          into kept.csv and costs.csv, beside this file

The world has the seed of the tiny model's, and eight times as many entities. Its 13,244 edits (10 MB) are not stored
here. An editor makes the first ten thousand in their order, a hundred at a time (FT one at a time). After each
thousand, sixty edits of every thousand so far are asked: the question of the edit and its rephrased form,
teacher-forced and generated. Edits whose question comes back within the ten thousand are not asked. Beside them are
asked facts of the tiny model's own world that it knows and whose subjects have no namesake among those of the edits.
"""

import argparse
import json
import random
import resource
import time
from itertools import islice
from pathlib import Path

import pandas as pd
import torch

from wbe.benchmark.reader import Benchmark
from wbe.benchmark.series import make_benchmark
from wbe.editors.protocol import editor
from wbe.editors.requests import EditRequest
from wbe.editors.results import bytes_beside_weights
from wbe.lm.models import load
from wbe.lm.scoring import score
from wbe.lm.tokens import QAItem
from wbe.lm.ability import static_items
from wbe.metrics.answers import normalised_match
from wbe.runs.study import edit_batches, step_requests
from wbe.runs.checkpoints import Checkpoint
from wbe.world.files import World

HERE = Path(__file__).parent
EDITS, THOUSAND, BATCH, ASKED, LASTING = 10_000, 1_000, 100, 60, 200
AXES = ("update", "rephrase")


def make(folder: Path):
    "Write the world's dumps and their benchmark."
    files = World(seed=7, entities=12_000).write(folder / "world", articles=False, views=False, truth=False)
    about = dict(title="Ten thousand edits of the controlled world", ended="drop")  # as those that are recorded
    make_benchmark(folder / "bench", sorted(files.paths()), **about)
    count_subjects(sampled(first_edits(folder))).to_csv(HERE / "subjects.csv", index=False)


def first_edits(folder: Path) -> pd.DataFrame:
    "The first ten thousand edits, with their ids and their thousands."
    steps = Benchmark.load(folder / "bench" / "release")
    rows = pd.concat([s.to_pandas().rename_axis("edit_id").reset_index() for s in steps], ignore_index=True)[:EDITS]
    return rows.assign(thousand=rows.index // THOUSAND + 1)


def first_requests(folder: Path, need_subject: bool) -> list[EditRequest | None]:
    "The requests of these edits; None for one that cannot be made."
    steps = Benchmark.load(folder / "bench" / "release")
    made = (r for step in steps for r in step_requests(step, len(step.edits), need_subject))
    return [r if isinstance(r, EditRequest) else None for r in islice(made, EDITS)]


def sampled(edits: pd.DataFrame) -> pd.DataFrame:
    "Sixty edits of each thousand whose questions come only once."
    once = edits[~edits["update"].duplicated(keep=False)]
    return once.groupby("thousand").sample(ASKED, random_state=0)


def count_subjects(sample: pd.DataFrame) -> pd.DataFrame:
    "How many edits of each thousand are asked, and how many different subjects they and all before them have."
    counts = sample.groupby("thousand").agg(asked=("edit_id", "size"), subjects=("subject_id", "nunique"))
    so_far = [sample[sample.thousand <= n].subject_id.nunique() for n in counts.index]
    return counts.assign(subjects_so_far=so_far).reset_index()


def ask(lm, items: list) -> pd.DataFrame:
    "Both measures, one row for each item."
    scores = score(lm, items, "paper", generate=True, too_long="truncate", progress=False).to_pandas()
    same = [normalised_match(text, [item.answer]) for text, item in zip(scores.answer, items)]
    natural = scores.natural_end.astype(bool)
    columns = dict(tokens=scores.token_accuracy, forced=scores.exact_match.astype(bool))
    return pd.DataFrame(columns | dict(generated=natural & pd.Series(same).astype(bool), natural=natural))


def known_facts(lm, edits: pd.DataFrame) -> list:
    "Facts of the tiny model's own world that it knows, without namesakes of edited subjects."
    items = static_items(HERE.parent / "lasting_facts.parquet", 10 * LASTING)
    names = set(edits.subject)
    items = [x for x in items if not any(name in x.question for name in names)][: 2 * LASTING]
    right = ask(lm, items).generated
    return [x for x, known in zip(items, right) if known][:LASTING]


def kept(lm, sample: pd.DataFrame, lasting: list, done: int) -> list[dict]:
    "Counts and sums of each thousand in a sample, and of the lasting facts."
    groups = {(n, axis): part for n, part in sample.groupby("thousand") for axis in AXES}
    items = {(n, axis): [QAItem(*x) for x in zip(part[axis], part.ans)] for (n, axis), part in groups.items()}
    items[0, "lasting"] = lasting
    asked, rows, start = ask(lm, [x for part in items.values() for x in part]), [], 0
    for (n, axis), part in items.items():
        mine, start = asked[start : start + len(part)], start + len(part)
        rows.append(dict(after=done, of=n, axis=axis, asked=len(part)) | mine.sum().round(4).to_dict())
    return rows


def cpu() -> float:
    "The CPU seconds of this process."
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def follow(folder: Path, name: str, preset: str | None):
    "Make the edits of an editor, and ask after each thousand."
    torch.manual_seed(0)
    random.seed(0)
    torch.set_num_threads(1)
    lm, edits = load("wbe-tiny", device="cpu"), first_edits(folder)
    sample, lasting = sampled(edits), known_facts(lm, edits)
    label = f"{name}-{preset}" if preset else name
    rows, costs, path = [], [], folder / f"{label}.json"
    if name == "none":
        rows = kept(lm, sample, lasting, 0)
        path.write_text(json.dumps(dict(editor=label, rows=rows, costs=[], hparams="", batch=None)))
        return
    ed = editor(name, **(dict(preset=preset) if preset else {}))
    ed = ed if ed.batch == 1 else editor(name, batch=BATCH, **(dict(preset=preset) if preset else {}))
    ed.check_for(lm)
    ed.prepare(lm)
    checkpoint, done, refused = Checkpoint(folder / f".{label}"), 0, 0
    requests = first_requests(folder, ed.needs_subject)
    wall, used = time.perf_counter(), cpu()
    for batch in edit_batches(requests, ed.batch, score_due=lambda n: n % BATCH == 0):
        made = [r for r in batch if r]
        if made:
            checkpoint.record(lm, ed.edit(lm, made).apply(lm))
        done, refused = done + len(batch), refused + len(batch) - len(made)
        if done % THOUSAND:
            continue
        cost = dict(after=done // THOUSAND, seconds=time.perf_counter() - wall, cpu_seconds=cpu() - used)
        costs.append(cost | dict(bytes_beside=bytes_beside_weights(lm), refused=refused))
        used = cpu()
        rows += kept(lm, sample[sample.thousand <= done // THOUSAND], lasting, done // THOUSAND)
        costs[-1]["asking_cpu_seconds"] = cpu() - used
        hparams = ed.hparams_for(lm).source
        path.write_text(json.dumps(dict(editor=label, rows=rows, costs=costs, hparams=hparams, batch=ed.batch)))
        wall, used = time.perf_counter(), cpu()


def merge(folder: Path):
    "Put what was followed into the tables beside this file, in place of the same editors' earlier rows."
    found = [json.loads(p.read_text()) for p in sorted(folder.glob("*.json"))]
    answers = pd.concat([pd.DataFrame(f["rows"]).assign(editor=f["editor"]) for f in found if f["rows"]])
    parts = [pd.DataFrame(f["costs"]).assign(editor=f["editor"], batch=f["batch"]) for f in found if f["costs"]]
    for name, new in (("kept.csv", answers), ("costs.csv", pd.concat(parts).round(3))):
        table = pd.read_csv(HERE / name) if (HERE / name).exists() else new[:0]
        table = pd.concat([table[~table.editor.isin(new.editor)], new]).sort_values("editor", kind="stable")
        table[["editor", *table.columns.drop("editor")]].to_csv(HERE / name, index=False, float_format="%.6g")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--edit", metavar="EDITOR")
    parser.add_argument("--preset")
    parser.add_argument("--merge", action="store_true")
    args = parser.parse_args()
    if args.merge:
        merge(args.folder)
    elif args.edit:
        follow(args.folder, args.edit, args.preset)
    else:
        make(args.folder)
