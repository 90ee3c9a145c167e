"""MEND on a real model: what its network adds to the learned rates, on rows that no training example is of.

    python data_samples/real_models/mend.py MODEL ROWS FOLDER       about an hour of a core; a stopped one continues

MODEL is a folder (SmolLM2-135M-Instruct), ROWS are the published rows of `make.py`. Rows 1 to 300 and those after 1,300
are for training, one subject in ten for its checks. Rows 301 to 600 are edited, each alone, with the rates alone (the
network's own learning rate at 0) and with the network. mend.csv has what was learnt and what stayed, without texts,
and how many training rows have the same answer (`trained`); mend.json the settings and the log of each training, and
how many rows there are and share a subject or a locality question with those of the training.
FOLDER gets the trained networks, which are not stored here.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import pandas as pd
import torch
from make import FIELDS, LAST, TUNING

from wbe.benchmark.own import open_benchmark
from wbe.editors.protocol import frozen_model
from wbe.editors.training import mend_training as training
from wbe.editors.training.mend import MendNetwork, read_network
from wbe.lm.models import load

sys.path.append(str(Path(__file__).parents[1]))
from mend_checks import right_and_losses

HERE, EDITED = Path(__file__).parent, 300
TRAINING = "training-rows.jsonl"
COMMON = dict(batch=8, lr=1e-4, rate_lr=1e-4, rank=64, decay=True, check_every=100, checked=96, patience=None)
SHARED = {"subject": "subject", "locality_prompt": "loc"}  # of a published row, and of a benchmark's
NETWORKS = {"rates alone": dict(steps=300, lr=0.0, rate_lr=3e-4), "network": dict(steps=600)}


def training_rows(given: list, folder: Path) -> list[dict]:
    "The rows for training, read as a benchmark."
    rows = [{new: row[old] for old, new in FIELDS.items()} for row in given[:TUNING] + given[LAST:]]
    path = folder / TRAINING
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return [row for step in open_benchmark(str(path)) for row in step.edits.to_pylist()]


def row_counts(examples, edited: list[dict]) -> dict:
    "How many rows are trained on and for checks, and how many edited ones share what with those trained on."
    seen = lambda column: {row[column] for row, _ in examples.trained}
    same = {theirs: sum(row[theirs] in seen(ours) for row in edited) for theirs, ours in SHARED.items()}
    return dict(trained=len(examples.trained), checked=len(examples.checked), edited=len(edited)) | same


def examples_of(row: dict) -> dict:
    "A row as examples: the edit asked again as it was, and in other words."
    ask = lambda question, answer: training.PromptAnswer(row[question], row[answer])
    edit, apart = ask("prompt", "target_new"), ask("locality_prompt", "locality_ground_truth")
    again = dict(update=edit, rephrase=ask("rephrase_prompt", "target_new"))
    return {axis: training.MendExample(edit, asked, apart) for axis, asked in again.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    model, rows, folder = sys.argv[1], json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")), Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    lm, examples = load(model, "float32", "cpu"), training.BenchmarkExamples(training_rows(rows, folder))
    answers = Counter(row["ans"] for row, _ in examples.trained)
    out, about, trained = [], {"rows": row_counts(examples, rows[TUNING : TUNING + EDITED])}, {}
    for name, changed in NETWORKS.items():
        settings = training.mend_training(lm, **COMMON | changed)
        where = folder / name.replace(" ", "-")
        trained[name] = training.train_network(training.MendTrainer, lm, examples, where, settings, every=20)
    for name, where in trained.items():
        network, known = read_network(MendNetwork, where)
        about[name] = {part: known["training"][part] for part in ("settings", "log")}
        about[name]["rates"] = [[*m, round(r, 6)] for m, r in zip(network.matrices, network.rates.tolist())]
        with frozen_model(lm), torch.no_grad():
            for n, row in enumerate(rows[TUNING : TUNING + EDITED], TUNING + 1):
                for axis, example in examples_of(row).items():
                    found = dict(network=name, row=n, axis=axis, trained=answers[row["target_new"]])
                    out.append(found | right_and_losses(lm, example, network))
    pd.DataFrame(out).to_csv(HERE / "mend.csv", index=False)
    (HERE / "mend.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
