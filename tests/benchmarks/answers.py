"""How long a model with retrieved edits takes to answer, beside the unedited one, and where the time goes.

    python tests/benchmarks/answers.py [--csv FILE] [--append] [--model NAME] [--edits N] [--rounds N] [KEYS …]

The memory holds the first edits of the sample benchmark and half a million questions about invented people; asked are
all questions about those edits, under the prompt format of a run. `ignore` prepends the two nearest pairs to every
question, as the paper does, `require` (our default) only those about an entity that the question names. `--model shape`
is random weights in the shape of GPT-2 (92 million with a vocabulary of 8,192).

Processor time on one thread. The three are measured by turns in each round, and a ratio is the median over the rounds
of the ratio within one. `alone` is one question after the other with eight generated tokens, `forced` is `score`
without generated text, `text` with eight tokens of it. Before anything is measured, the pairs that were found are
compared with a plain sort of all similarities, and afterwards texts alone with texts in batches.
"""

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # must be set before torch is imported
import numpy as np
import pandas as pd
import torch
import transformers
from leaderboard import append
from retrieval import invented_facts

from wbe.benchmark.own import open_benchmark
from wbe.benchmark.reader import row_probes
from wbe.editors.memory.retrieval import QAPair, _PairRetriever
from wbe.lm.cost import _NEVER
from wbe.lm.models import LM, load
from wbe.lm.scoring import ask, score
from wbe.lm.sharing import _build_token_tree, _common_prefix
from wbe.lm.tokens import QAItem, encode_items
from wbe.lm.toys import toy_tokenizer

TOKENS, PROTOCOL, ALONE = 8, "paper", 10  # ALONE: questions that are asked one after the other
SETTINGS = dict(k=2, threshold=None, replace=False, embedder="hashed", index="exact")
SAMPLE = Path(__file__).parents[2] / "data_samples" / "benchmark"


def model(name: str) -> LM:
    if name != "shape":
        return load(name, device="cpu")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=12, n_embd=768, n_head=12, vocab_size=8_192, n_positions=512)
    return LM.of(transformers.GPT2LMHeadModel(config).eval(), toy_tokenizer(), "GPT-2's shape")


def material(keys: int, edits: int) -> tuple[list[QAPair], list[QAItem]]:
    "The pairs of the memory, and the questions."
    rows = [r for step in open_benchmark(SAMPLE) for r in step.edits.to_pylist()][:edits]
    pairs = [QAPair(r["update"], r["ans"], f"own {n}", r["subject"]) for n, r in enumerate(rows)]
    facts = enumerate(invented_facts(keys - len(rows)))
    pairs += [QAPair(p.questions[0].replace("{s}", s), "Ada Tamm", str(n), s) for n, (s, p) in facts]
    return pairs, [QAItem(p.question, p.answer) for r in rows for p in row_probes(r)]


def seconds(work) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def same_as_sorted(retriever: _PairRetriever, asked: list[str]):
    "Whether the pairs of `ignore` are those of a plain sort of all similarities."
    for q, found in zip(asked, retriever.memory.nearest(asked, 2)):
        sims = np.round(retriever.memory.index.vectors @ retriever.memory.embedder.embed([q])[0], 5)
        assert np.allclose([s for _, s in found], -np.sort(-sims)[:2], atol=2e-5), q


def one_round(lm: LM, items: list[QAItem]) -> dict:
    "Milliseconds of a question in three ways."
    some = [x.question for x in items[:: max(1, len(items) // ALONE)]][:ALONE]
    quiet = dict(progress=False)
    with lm.state.changed(stop_tokens=_NEVER):
        alone = seconds(lambda: [ask(lm, q, PROTOCOL, TOKENS, **quiet) for q in some])
        text = seconds(lambda: score(lm, items, PROTOCOL, generate=True, max_tokens=TOKENS, **quiet))
    forced = seconds(lambda: score(lm, items, PROTOCOL, **quiet))
    return dict(alone=1e3 * alone / len(some), forced=1e3 * forced / len(items), text=1e3 * text / len(items))


def about(lm: LM, items: list[QAItem], retriever: _PairRetriever | None) -> dict:
    "Tokens of a prompt, those that a tree of all prompts computes, and the search, together and alone."
    coded = encode_items(lm, items, PROTOCOL)
    start = len(_common_prefix(coded))
    tree = len(_build_token_tree(sorted(c.ids[start:] for c in coded))[0])
    row = dict(prompt_tokens=sum(c.prompt_length for c in coded) / len(items), tree_tokens=tree / len(items))
    search = lambda some: 1e3 * seconds(lambda: [retriever(x) for x in some]) if retriever else 0.0
    alone = items[:: max(1, len(items) // ALONE)]
    return row | dict(search=search([items]) / len(items), search_alone=search([[x] for x in alone]) / len(alone))


def main(keys: int, name: str, edits: int, rounds: int) -> pd.DataFrame:
    lm, (pairs, items) = model(name), material(keys, edits)
    ways = {"none": None} | {f"rag, {s}": _PairRetriever(SETTINGS | dict(subjects=s)) for s in ("require", "ignore")}
    vectors = ways["rag, ignore"].memory.embedder.embed([p.question for p in pairs])
    for retriever in filter(None, ways.values()):
        retriever.memory.add(pairs, vectors)
    same_as_sorted(ways["rag, ignore"], [x.question for x in items[:5]])
    taken, notes = {w: [] for w in ways}, {}
    for n in range(rounds):
        for way, retriever in ways.items():
            lm.item_hooks[:] = [retriever] if retriever else []
            if not n:
                notes[way] = about(lm, items, retriever)
                texts = score(lm, items[:8], PROTOCOL, generate=True, max_tokens=TOKENS, progress=False)["answer"]
                assert texts == [ask(lm, x.question, PROTOCOL, TOKENS, progress=False) for x in items[:8]]
            taken[way].append(one_round(lm, items))
    lm.item_hooks[:] = []
    frames, rows = {w: pd.DataFrame(t) for w, t in taken.items()}, []
    for way, frame in frames.items():
        ratio = (frame / frames["none"]).median().add_suffix("_ratio")
        rows.append(dict(keys=keys, model=name, editor=way) | notes[way] | frame.median().to_dict() | ratio.to_dict())
    return pd.DataFrame(rows)


def line_of(row: dict, plain: dict) -> dict:
    "A line of the leaderboard; `tokens` is the ratio of the tokens that are computed when all prompts are together."
    ratios = {way: row[f"{way}_ratio"] for way in ("alone", "forced", "text")}
    about = {"search": row["search"], "search alone": row["search_alone"], "rounds": row["rounds"]}
    tokens = row["tree_tokens"] / plain["tree_tokens"]
    return dict(model=Path(row["model"]).name, editor=row["editor"], tokens=tokens) | about | ratios


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keys", nargs="*", type=lambda n: int(n.replace(",", "")), default=[500_000])
    parser.add_argument("--model", default="wbe-tiny")
    parser.add_argument("--edits", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--append", action="store_true", help="add the lines to LEADERBOARD.md")
    args = parser.parse_args()
    table = pd.concat([main(n, args.model, args.edits, args.rounds) for n in args.keys])
    print(table.round(2).T.to_string(header=False))
    if args.append:
        plain, *others = table.to_dict("records")[-3:]  # of the largest memory
        append("Answers with retrieval", [line_of(row | dict(rounds=args.rounds), plain) for row in others])
    if args.csv:
        old = [pd.read_csv(args.csv)] if args.csv.exists() else []
        pd.concat([*old, table.round(3)]).to_csv(args.csv, index=False)
