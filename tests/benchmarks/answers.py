"""How long a model with retrieved edits takes to answer, beside the unedited one, and where the time goes.

    python tests/benchmarks/answers.py [--csv FILE] [--questions N] [KEYS …]

Random weights in the shape of GPT-2 (92 million with a vocabulary of 8,192), one thread. The memory holds 1,000 and
100,000 questions about invented people; a part of them is asked in other words. Each answer has eight tokens. `ignore`
prepends the two nearest pairs to every question, `require` only those about a person whom the question names. Times are
medians of five repetitions: alone is one question after the other, together is `score` with generated text.
"""

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # must be set before torch is imported
import pandas as pd
import torch
import transformers
from retrieval import invented_facts, questions

from wbe.editors.protocol import editor
from wbe.editors.requests import EditRequest
from wbe.lm.cost import _never_stopping, time_rounds, timing_summary
from wbe.lm.models import LM
from wbe.lm.scoring import score
from wbe.lm.tokens import QAItem, encode_items
from wbe.lm.toys import toy_tokenizer

TOKENS, ROUNDS, PROTOCOL = 8, 5, "zero-shot"
WAYS = {"ignore": dict(subjects="ignore"), "require": dict(subjects="require")}


def shaped() -> LM:
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=12, n_embd=768, n_head=12, vocab_size=8_192, n_positions=512)
    return LM.of(transformers.GPT2LMHeadModel(config).eval(), toy_tokenizer(), "GPT-2's shape")


def together(lm: LM, asked: list[str]) -> float:
    "CPU milliseconds of a question among others, with its generated text."
    items, took = [QAItem(q, "?") for q in asked], []
    with _never_stopping(lm):
        for _ in range(ROUNDS + 1):
            start = time.process_time()
            score(lm, items, PROTOCOL, generate=True, max_tokens=TOKENS, progress=False)
            took.append(time.process_time() - start)
    return sorted(took[1:])[ROUNDS // 2] / len(asked) * 1e3


def measure(lm: LM, asked: list[str]) -> dict:
    "Milliseconds of a question: alone up to its first token, for each later one, in all; and together with others."
    length = [c.prompt_length for c in encode_items(lm, [QAItem(q, "?") for q in asked], PROTOCOL)]
    retriever = lm.edits.attached.get("retrieval")
    rounds = time_rounds(lm, asked, PROTOCOL, TOKENS, ROUNDS)
    if retriever:
        retriever.seconds = retriever.questions = 0
        encode_items(lm, [QAItem(asked[0], "?")], PROTOCOL)
        retriever.seconds = retriever.questions = 0
        for q in asked:
            encode_items(lm, [QAItem(q, "?")], PROTOCOL)
    search = retriever.seconds / retriever.questions * 1e3 if retriever else 0.0
    timed = timing_summary(rounds)
    whole, token = timed["question_seconds"] * 1e3, timed["token_seconds"] * 1e3
    first = sorted(r["first_seconds"] / r["questions"] for r in rounds)[ROUNDS // 2] * 1e3
    row = dict(prompt_tokens=sum(length) / len(length), search_ms=search, first_ms=first, token_ms=token)
    row |= dict(alone_ms=whole, low_ms=timed["question_low"] * 1e3, high_ms=timed["question_high"] * 1e3)
    return row | dict(together_ms=together(lm, asked))


def main(sizes: list[int], count: int, out: Path | None):
    lm, rows = shaped(), []
    for n in sizes:
        asked = questions(n)[1][:count]
        rows.append(dict(keys=n, editor="none") | measure(lm, asked))
        facts = enumerate(invented_facts(n))
        requests = [EditRequest(p.questions[0].replace("{s}", s), "Ada Tamm", s, id=str(i)) for i, (s, p) in facts]
        for way, options in WAYS.items():
            ed = editor("rag", embedder="hashed", index="exact", **options)
            with ed.edit(lm, requests).on(lm):
                rows.append(dict(keys=n, editor=f"rag, {way}") | measure(lm, asked))
    table = pd.DataFrame(rows)
    start = table[table.editor == "none"].set_index("keys")
    for column in ("alone", "together"):
        table[f"{column}_ratio"] = table[f"{column}_ms"] / table["keys"].map(start[f"{column}_ms"])
    print(table.round(2).to_string(index=False))
    if out:
        table.round(4).to_csv(out, index=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keys", nargs="*", type=lambda n: int(n.replace(",", "")), default=[1_000, 100_000])
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    main(args.keys, args.questions, args.csv)
