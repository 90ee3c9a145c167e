"""A real model in MeLLo's loop, on a few published chains: what it found, how far it came, whether it was right.

    python data_samples/real_models/mello.py MODEL EMBEDDER CHAINS.json OUTPUT.csv [FORM] [FIRST] [LAST] [MEMORY]

MODEL and EMBEDDER are folders of transformers models (SmolLM2-135M-Instruct, MiniLM), CHAINS a file in MQuAKE's format.
The edits of the first MEMORY chains are in the memory; chains FIRST to LAST are asked in their first wording.
mello.csv is put together from several calls. It holds no text of the chains.
"""

import sys

import pandas as pd
import torch

from wbe.editors.memory import mello
from wbe.editors.memory.embed import InnerProductEmbedder
from wbe.editors.protocol import editor
from wbe.editors.requests import requests_from_mquake
from wbe.lm.models import load
from wbe.metrics.answers import alias_match
from wbe.runs.mquake import read_instances


def main(model, embedder, chains, output, form="as_published", first=0, last=3, memory=120):
    torch.set_num_threads(1)
    mello.embedder = lambda name: InnerProductEmbedder(embedder)
    lm, instances = load(model, device="cpu"), read_instances(chains)
    asked = instances[int(first) : int(last)]
    requests = [r for x in instances[: int(memory)] for r in requests_from_mquake(x)]
    edits = list({(r.question, r.answer): r for r in requests}.values())
    how = editor("mello", form=form, rounds=5 if form == "as_published" else 6, line_tokens=32)
    with how.edit(lm, edits).on(lm):
        traces = how.answer(lm, [x["questions"][0] for x in asked])
    rows = []
    for x, t in zip(asked, traces):
        own = {(r.question, r.answer) for r in requests_from_mquake(x)}
        row = dict(
            form=form, instances=int(memory), edits=len(edits), case=x["case_id"], hops=len(x["new_single_hops"])
        )
        row |= dict(own_edits=len(own), found=len(own & set(t.facts)), subquestions=t.text.count("Subquestion:"))
        right = alias_match(t.answer, [x["new_answer"], *x["new_answer_alias"]])
        rows.append(row | dict(rounds=t.rounds, right=right, answer=t.answer, error=t.error))
    pd.DataFrame(rows).to_csv(output, index=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
