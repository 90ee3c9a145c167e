"""A real model as EvolvingQA's writer and checker: questions from passages, two versions of a passage among them.

    python data_samples/real_models/passages.py MODEL OUTPUT.csv

MODEL is a folder of a transformers model (SmolLM2-135M-Instruct). It gets passages of two days of the controlled world
(EACH that are new, edited and unchanged), and passages about well-known things, in our words; once with the prompts as
they are, whose last example is a question, and once with their examples in the other order, so that the last one says
that there is nothing to ask. OUTPUT.csv has every answer, what is wrong with it, and for a question that passes the
rules the verdict of the same model as checker.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import torch

from wbe.benchmark.evolving import _passage_request, _row_of_passage, changed_passages, filter_questions
from wbe.benchmark.evolving import unchanged_passages
from wbe.lm.models import load
from wbe.lm.writer import LocalChecker, LocalPassageWriter
from wbe.wikipedia.comparison import compare_wikipedia
from wbe.wikipedia.diffs import changed_set
from wbe.wikipedia.pages import parse_wikipedia
from wbe.wikipedia.texts import snapshot_articles
from wbe.world.files import World
from wbe.writers.judge import pair_fault, read_pair
from wbe.writers.requests import prompt_file

EACH, TOKENS = 20, 80  # passages of each kind; tokens of an answer
KNOWN = [  # title, older version (empty for a new passage), newer version
    ("Mount Everest", "",
     "Mount Everest lies on the border of Nepal and China. Edmund Hillary reached its top in 1953."),
    ("Marie Curie", "", "Marie Curie was born in Warsaw in 1867. She won the Nobel Prize in Physics in 1903."),
    ("Hamlet", "", "Hamlet is a tragedy by William Shakespeare. It is set in Denmark."),
    ("Amazon River", "", "The Amazon River flows through Brazil and ends in the Atlantic Ocean."),
    ("Telephone", "", "Alexander Graham Bell was granted a patent for the telephone in 1876."),
    ("United Kingdom", "The prime minister is Boris Johnson.", "The prime minister is Rishi Sunak."),
    ("Twitter", "Its chief executive is Jack Dorsey.", "Its chief executive is Elon Musk."),
    ("FIFA World Cup", "The champion is France.", "The champion is Argentina."),
    ("Kazakhstan", "The capital was renamed Nur-Sultan in 2019.", "The capital was renamed Astana in 2022."),
    ("Germany", "Angela Merkel is the chancellor of Germany.", "Olaf Scholz is the chancellor of Germany."),
]  # fmt: skip


def world_requests(folder: Path):
    "Passages of two days of a world, EACH of a kind."
    how = dict(formats=("json.gz",), views=False, progress=False)
    world = World(7, 1500).write(folder / "world", dates=["2024-04-01", "2024-05-01"], **how)
    wikis = [parse_wikipedia(p, folder / p.name, progress=False) for p in world.paths("articles")]
    compared = compare_wikipedia(*wikis, folder / "compared", progress=False)
    moved = {a.title for a in compared.rows()}
    found = [r for article in changed_set(compared.rows(), 0) for r in changed_passages(article)]
    stayed = (a for a in snapshot_articles(wikis[1]) if a.title not in moved)
    found += [r for article in stayed for r in unchanged_passages(article)]
    for kind in ("new", "edited", "unchanged"):
        some = [r for r in found if r.id.startswith(kind)]
        yield from some[:: len(some) // EACH][:EACH]


def known_requests():
    "Passages about well-known things."
    for n, (title, older, newer) in enumerate(KNOWN):
        yield _passage_request(f"{'edited' if older else 'new'}/known/{n}", title, newer, older)


def fault_of(request, text) -> str | None:
    "What is wrong with what was written; None if it is a question that passes the rules."
    if text.text is None:
        return "not in the form asked for"
    found = read_pair(text.text)
    return pair_fault(request, found) if found else "none: nothing to ask"


def turned(name: str):
    "A prompt with its examples in the other order."
    file = prompt_file(name)
    return replace(file, examples=file.examples[::-1])


def recorded(lm, requests: list, order: str, folder: Path) -> list[tuple]:
    "A row for each passage."
    writer, checker = LocalPassageWriter(lm, folder / f"{order}.sqlite", TOKENS), LocalChecker(lm, ":memory:")
    with patch("wbe.writers.judge.prompt_file", turned if order == "none" else prompt_file):
        prompts = [r.prompt() for r in requests]
    out = []
    for request, prompt, answer in zip(requests, prompts, writer.generate(prompts), strict=True):
        text = writer._as_text(request.id, prompt, answer)
        fault, checked = fault_of(request, text), None
        if fault is None:
            _, lost = filter_questions([_row_of_passage(request, text, read_pair(text.text))], checker)
            checked = ", ".join(lost) or "passes"
        kind, source, _ = request.id.split("/")
        told = request.title, request.outdated, request.passage
        source = "well known" if source == "known" else "world"
        out.append((order, source, kind, *told, answer, text.text, text.error, fault, checked))
    return out


if __name__ == "__main__":
    torch.set_num_threads(1)
    lm, rows = load(sys.argv[1], dtype="float32", device="cpu"), []
    with tempfile.TemporaryDirectory() as tmp:
        requests = [*known_requests(), *world_requests(Path(tmp))]
        for order in ("question", "none"):
            rows += recorded(lm, requests, order, Path(tmp))
    columns = ["last_example", "source", "kind", "title", "older", "passage", "answer", "text", "error"]
    pd.DataFrame(rows, columns=[*columns, "fault", "checked"]).to_csv(sys.argv[2], index=False)
