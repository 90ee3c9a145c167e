"""A real model as writer of sentences that end in an object, from which WikiFactDiff's templates are mined.

    python data_samples/real_models/sentences.py MODEL OUTPUT.csv

MODEL is a folder of a transformers model (SmolLM2-135M-Instruct). It is asked for ten sentences about each of three
well-known facts of eight properties, and about one fact of the controlled world. OUTPUT.csv has its answers.
"""

import sys
from pathlib import Path

import pandas as pd
import torch

from wbe.lm.models import load
from wbe.lm.writer import LocalVerbaliser
from wbe.writers.verbalisation import SentenceRequest

HERE, TOKENS = Path(__file__).parents[1], 160  # of an answer; the paper allows 800
PROPERTIES = {
    "P36": "capital", "P17": "country", "P19": "place of birth", "P27": "country of citizenship",
    "P50": "author", "P106": "occupation", "P169": "chief executive officer", "P38": "currency",
}  # fmt: skip
KNOWN = {
    "P36": "France, Paris; Japan, Tokyo; Kenya, Nairobi",
    "P17": "Mount Fuji, Japan; Big Ben, United Kingdom; Lake Como, Italy",
    "P19": "Albert Einstein, Ulm; Frida Kahlo, Mexico City; Charles Darwin, Shrewsbury",
    "P27": "Pelé, Brazil; Agatha Christie, United Kingdom; Akira Kurosawa, Japan",
    "P50": "Hamlet, William Shakespeare; Emma, Jane Austen; Dracula, Bram Stoker",
    "P106": "Isaac Newton, physicist; Pablo Picasso, painter; Usain Bolt, sprinter",
    "P169": "Apple, Tim Cook; Microsoft, Satya Nadella; Nvidia, Jensen Huang",
    "P38": "Japan, yen; India, rupee; Poland, zloty",
}


def requests():
    "The facts that are asked about, with the source of each."
    world = pd.read_parquet(HERE / "lasting_facts.parquet")
    for pid, label in PROPERTIES.items():
        known = [pair.split(", ") for pair in KNOWN[pid].split("; ")]
        own = world[world.property_id == pid].drop_duplicates("subject")[["subject", "object"]].values.tolist()[:1]
        for source, pairs in (("well known", known), ("world", own)):
            for n, (subject, value) in enumerate(pairs):
                example = tuple(pairs[n - 1]) if len(pairs) > 1 else ()
                yield source, SentenceRequest(f"{source}/{pid}/{n}", pid, subject, label, value, example=example)


def main(model, output):
    torch.set_num_threads(1)
    asked = list(requests())
    writer = LocalVerbaliser(load(model, dtype="float32", device="cpu"), ":memory:", TOKENS)
    prompts, rows = [r.prompt() for _, r in asked], []
    for (source, r), prompt, answer in zip(asked, prompts, writer.generate(prompts), strict=True):
        text = writer._as_text(r.id, prompt, answer)
        rows.append((source, r.property_id, r.subject, r.property, r.object, answer, text.text, text.error))
    columns = ["source", "property_id", "subject", "property", "object", "answer", "text", "error"]
    pd.DataFrame(rows, columns=columns).to_csv(output, index=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
