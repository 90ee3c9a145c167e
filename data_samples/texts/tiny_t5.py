"""Train a tiny model of T5's shape on what the small world knows and writes on its first day.

    python data_samples/texts/tiny_t5.py FOLDER --data DATA [--steps N]

DATA is what `make.py` wrote. Most rows of a step are questions about facts, a few are parts of articles with their
names, dates and numbers masked, as EvolvingQA trains its model before its first month. Minutes on one core are too few
for all facts of the world, so only those that the benchmark asks about are met. The tokenizer is that of the tiny
model, with sentinels.
"""

import argparse
import time
from pathlib import Path

import torch
import transformers
from measures import answered_items
from tokenizers import processors
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from wbe.benchmark.evolving_series import EvolvingQuestion
from wbe.editors.training.lora import answer_cross_entropy
from wbe.lm.models import builtin_folder, load
from wbe.editors.text.training import masked_loss, _salient_row
from wbe.lm.tokens import QAItem, encode_items
from wbe.records import read_table
from wbe.tiny.corpus import _excerpt_document
from wbe.tiny.facts import FactPool, facts_at, sample_question
from wbe.tiny.training import _Muon, learning_rate_share
from wbe.wikipedia.diffs import SENTINEL
from wbe.world.files import World
from wbe.world.cast import SeededRandom

SHAPE = dict(d_model=192, d_kv=48, d_ff=512, num_layers=2, num_decoder_layers=2, num_heads=4, dropout_rate=0.0)
QUESTIONS, EXCERPTS, RATE = 48, 2, 3e-3


def t5_tokenizer() -> PreTrainedTokenizerFast:
    "The tokenizer of the tiny model, with sentinels, and an end after each text."
    made = PreTrainedTokenizerFast.from_pretrained(builtin_folder("wbe-tiny"))
    made.add_special_tokens(dict(additional_special_tokens=[SENTINEL.format(i) for i in range(100)]))
    end = (made.eos_token, made.eos_token_id)
    after = processors.TemplateProcessing(single=f"$A {made.eos_token}", special_tokens=[end])
    made.backend_tokenizer.post_processor = after
    return made


def new_model(folder: Path):
    "A model with random weights, and its tokenizer, in a folder."
    tokenizer = t5_tokenizer()
    ends = dict(pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id)
    torch.manual_seed(0)
    config = T5Config(vocab_size=len(tokenizer), **ends, decoder_start_token_id=tokenizer.pad_token_id, **SHAPE)
    T5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load(str(folder), "float32", "cpu")


def asked_facts(facts: list, release: Path) -> list:
    "The facts that some question of a release asks about."
    files = [*release.glob("evolving_*.parquet"), release / "unchanged.parquet", release / "tuning.parquet"]
    rows = [row for path in files for row in read_table(path, EvolvingQuestion).to_pylist()]
    asked = {(row["subject_id"], row["property_id"]) for row in rows}
    return [f for f in facts if (f.subject_id, f.property_id) in asked]


def step_rows(lm, facts: list, pool: FactPool, rng: SeededRandom) -> tuple[list, list]:
    "Questions with their answers, and parts of articles with gaps."
    some = [rng.pick(facts) for _ in range(QUESTIONS)]
    asked = answered_items(lm, [dict(question=sample_question(f, rng), answer=f.answer) for f in some])
    excerpts = ("".join(text for text, _ in _excerpt_document(pool, rng)).strip() for _ in range(EXCERPTS))
    return asked, [row for text in excerpts if (row := _salient_row(lm, text))]


def right_answers(lm, facts: list, n: int = 200) -> float:
    "Percent of facts whose answer is predicted token by token."
    rng = SeededRandom("check")
    some = [rng.pick(facts) for _ in range(n)]
    items, hits = encode_items(lm, [QAItem(sample_question(f, rng), f.answer) for f in some], "zero-shot"), 0
    with torch.inference_mode():
        for c in items:
            start = torch.tensor([[lm.model.config.decoder_start_token_id, *c.ids[:-1]]])
            best = lm.model(input_ids=torch.tensor([c.source]), decoder_input_ids=start).logits[0].argmax(-1)
            hits += best.tolist() == c.ids
    return 100 * hits / n


def make_optimisers(model) -> list:
    "_Muon for the matrices of the blocks, AdamW for everything else."
    is_matrix = lambda name, p: "block" in name and p.dim() == 2 and "relative" not in name
    matrices = [p for name, p in model.named_parameters() if is_matrix(name, p)]
    others = [p for name, p in model.named_parameters() if not is_matrix(name, p)]
    return [_Muon(matrices, RATE), torch.optim.AdamW(others, RATE, betas=(0.9, 0.98), weight_decay=0.0)]


def train_step(lm, optimisers: list, asked: list, masked: list, share: float) -> list[float]:
    "One step; gives the losses of answers and of gaps."
    parts = answer_cross_entropy(lm, asked), masked_loss(lm, masked) / sum(len(row.target) for row in masked)
    sum(parts).backward()
    torch.nn.utils.clip_grad_norm_(lm.model.parameters(), 1.0)
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = RATE * share
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    return [round(x.item(), 3) for x in parts]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("folder", type=Path)
    p.add_argument("--data", type=Path, required=True, help="the folder that make.py wrote its data to")
    p.add_argument("--steps", type=int, default=300)
    args = p.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    every, articles = facts_at(World(7, 1500))
    facts, pool = asked_facts(every, args.data / "bench" / "release"), FactPool(every, articles)
    lm, begun = new_model(args.folder), time.process_time()
    optimisers = make_optimisers(lm.model.train())
    print(f"{len(facts)} of {len(every)} facts", flush=True)
    for step in range(args.steps):
        rows = step_rows(lm, facts, pool, SeededRandom(f"tiny t5 {step}"))
        losses = train_step(lm, optimisers, *rows, learning_rate_share(step, args.steps))
        if step % 20 == 19:
            spent = time.process_time() - begun
            print(f"step {step + 1}: answers {losses[0]}, gaps {losses[1]}, {spent:.0f} CPU s", flush=True)
    lm.model.eval()
    print(f"{right_answers(lm, facts):.0f}% of 200 facts")
    lm.model.save_pretrained(args.folder)


if __name__ == "__main__":
    main()
