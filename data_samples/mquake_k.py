"""An editor of weights and many chains at once: wbe-tiny, counterfactual chains of the sample world's fifth timestep.

    python data_samples/mquake_k.py FOLDER EDITOR recalled [K,K,…] [SAMPLE]    chains whose facts the model recalls
    python data_samples/mquake_k.py FOLDER EDITOR all [K,K,…] [SAMPLE]         any chains
    python data_samples/mquake_k.py FOLDER --merge                             into mquake_k.csv, beside this file

Chains that are recalled are asked in three wordings, others in one. FOLDER/EDITOR-WHICH.csv has a row for each k and
instance; k = 0 is the unedited model.
"""

import sys
from pathlib import Path

import pandas as pd
import torch

from wbe.benchmark.series import make_benchmark
from wbe.lm.models import load
from wbe.runs.loop import carry_out
from wbe.runs.mquake import MquakePlan

HERE = Path(__file__).parent
COLUMNS = ["k", "case", "hops", "edits", "edit_wise", "instance_wise", "multi_hop", "conflict"]


def main(folder, editor, which="recalled", ks="1,100,all", sample="200"):
    torch.set_num_threads(1)
    folder, name = Path(folder), f"{editor}-{which}"
    dumps = sorted((HERE / "world").glob("*.bz2"))[4:6]
    make_benchmark(folder / name / "bench", dumps, chains=True, ended="drop", progress=False)
    (chains,) = (folder / name / "bench" / "release").glob("chains_*_CF.json")
    asked = dict(recall=True, questions=3) if which == "recalled" else dict(questions=1)
    numbers = tuple(k if k == "all" else int(k) for k in ks.split(","))
    plan = MquakePlan(str(chains), editor, k=numbers, sample=int(sample), **asked)
    frame = carry_out(plan, folder / name / "run", load("wbe-tiny", device="cpu"), progress=False)
    frame[COLUMNS].assign(editor=editor, which=which).to_csv(folder / f"{name}.csv", index=False)


if __name__ == "__main__":
    if sys.argv[2] == "--merge":
        new = pd.concat([pd.read_csv(p) for p in sorted(Path(sys.argv[1]).glob("*.csv"))])
        stored, key = pd.read_csv(HERE / "mquake_k.csv"), ["editor", "which"]  # rows of the same runs are replaced
        kept = stored[~stored.set_index(key).index.isin(new.set_index(key).index)]
        pd.concat([kept, new]).sort_values(key, kind="stable").to_csv(HERE / "mquake_k.csv", index=False)
    else:
        main(*sys.argv[1:])
