"""What MEND's network adds to its learned rates, and what a longer training adds: mend_checks.csv, beside this file.

    python data_samples/mend_checks.py FOLDER       about half an hour of a core; a stopped one continues

The network of wbe-tiny (600 steps), the same training of 1,350 steps, and one of the rates alone (300 steps with the
network's own learning rate at 0) on the same 256 checks, whose subjects no training example is about. FOLDER gets the
trained networks; only the answers are stored here.
"""

import sys
from pathlib import Path

import pandas as pd
import torch

from wbe.benchmark.own import open_benchmark
from wbe.benchmark.wikifactdiff import read_updates
from wbe.editors.protocol import frozen_model
from wbe.editors.training import mend_training as training
from wbe.editors.training.mend import MendNetwork, read_network
from wbe.lm.models import builtin_folder, load

HERE, CHECKS = Path(__file__).parent, 256
NETWORKS = {"rates alone": dict(steps=300, lr=0.0, rate_lr=3e-4), "600 steps": None, "1,350 steps": dict(steps=1350)}


def right_and_losses(lm, example, network) -> dict:
    "Whether an edit is learnt, was known before, and the other fact stays, and both losses."
    done = training._updated_pass(lm, [example], network, network.matrices)
    (learnt, stays), (edit, local) = training._right_shares(done), training._mend_losses(done)
    known, _ = training._right_shares(done._replace(again_after=done.again_before))
    found = dict(tokens=len(done.again[0].answer), known=int(known), learnt=int(learnt), stays=int(stays))
    return found | dict(edit=round(edit.item(), 4), local=round(local.item(), 4))


if __name__ == "__main__":
    lm, folder, out = load("wbe-tiny", device="cpu"), Path(sys.argv[1]), []
    edits = [r for step in open_benchmark(HERE / "benchmark") for r in step.edits.to_pylist()]
    examples = training.world_examples(edits, updates=read_updates(HERE / "wikifactdiff.parquet"))
    for name, changed in NETWORKS.items():
        where = builtin_folder("wbe-tiny") / "mend"
        if changed:
            where = folder / name.replace(" ", "-").replace(",", "")
            training.train_network(
                training.MendTrainer, lm, examples, where, training.mend_training(lm, **changed), every=20
            )
        with frozen_model(lm), torch.no_grad():
            network, _ = read_network(MendNetwork, where)
            for n in range(CHECKS):
                out.append(dict(network=name, example=n) | right_and_losses(lm, examples("check", n), network))
    pd.DataFrame(out).drop(columns="known").to_csv(HERE / "mend_checks.csv", index=False)
