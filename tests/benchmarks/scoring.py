"""Scoring edits on five axes: the engine compared with one item at a time, as other frameworks do it.

    python tests/benchmarks/scoring.py [EDITS]        default: 200 edits on models of 5 and 92 million parameters

The plain way runs a forward pass for each question with logits for every position, and reads the accuracy from them;
with text, it also calls `generate` for each question. Both ways score the same questions with the paper's protocol on
one thread, one after the other, and must agree. Times are CPU seconds; the ratios matter.
"""

import os
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # must be set before torch is imported
import torch
import transformers

from wbe.lm.models import LM
from wbe.lm.tokens import get_protocol
from wbe.lm.scoring import score
from wbe.lm.toys import toy_tokenizer

SHAPES = {
    "5 million (6 layers, width 256)": dict(n_layer=6, n_embd=256, n_head=4, vocab_size=2_048),
    "92 million (12 layers, width 768)": dict(n_layer=12, n_embd=768, n_head=12, vocab_size=8_192),
}


ASKED = (
    "heads the government of",
    "founded",
    "wrote",
    "is the spouse of",
    "designed",
    "owns",
    "discovered",
    "was the doctoral advisor of",
    "composed",
    "directs",
    "is the chairperson of",
    "trained",
)


def questions(edits: int, names: list[str]) -> list[tuple[str, str]]:
    """Five questions per edit, in the form and length of the benchmark's; twelve relations in turn.

    The axes are update, rephrase, persona, locality and multi-hop.
    """
    out = []
    for n in range(edits):
        a, b, c = (names[(7 * n + k) % len(names)] for k in (0, 3, 5))
        what = ASKED[n % len(ASKED)]
        out += [
            (f"Who {what} {a}?", b),
            (f"Which person is known as the one who {what} {a}?", b),
            (f"Listen, I need to know one thing about {a}: who is it that {what} it?", b),
            (f"Who {what} {c}?", a),
            (f"Where was the person born who {what} {a}?", c),
        ]
    return out


def trained(texts: list[str], vocab: int):
    "A byte-level tokenizer that is trained on these texts."
    toy = toy_tokenizer("byte-level")
    return toy.train_new_from_iterator(texts, vocab, show_progress=False)


def plainly(lm: LM, items, under) -> list[float]:
    "Token accuracy, one question at a time."
    out = []
    for question, answer in items:
        prompt = under.render(question).text
        n = len(lm.tokenizer(prompt)["input_ids"])
        ids = lm.tokenizer(prompt + under.join + answer, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            best = lm.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.argmax(-1)
        out.append((best[0, n - 1 : -1] == ids[0, n:]).float().mean().item())
    return out


def texts_plainly(lm: LM, items, under, most: int) -> None:
    "Text, one question at a time."
    for question, _ in items:
        given = lm.tokenizer(under.render(question).text, return_tensors="pt")
        lm.model.generate(
            input_ids=given["input_ids"],
            attention_mask=given["attention_mask"],
            max_new_tokens=most,
            do_sample=False,
            eos_token_id=lm.tokenizer.eos_token_id,
            pad_token_id=0,
        )


def cpu(work) -> tuple[float, object]:
    start = time.process_time()
    out = work()
    return time.process_time() - start, out


def peak(size: int = 1024) -> float:
    "Floating-point operations per second of this thread in a float32 matrix product; the best of eight."
    a, best = torch.randn(size, size), 0.0
    for _ in range(8):
        best = max(best, 2 * size**3 / cpu(lambda: a @ a)[0])
    return best


def measured(name: str, shape: dict, names: list[str], items) -> dict:
    "Both ways on one model."
    torch.manual_seed(0)
    tokenizer, under = (
        trained([f"{q} {a}\n" for q, a in questions(len(names), names)], shape["vocab_size"]),
        get_protocol("paper"),
    )
    lm = LM.of(
        transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, n_positions=256, eos_token_id=1)), tokenizer, name
    )
    few = items[: max(40, len(items) // 20)]
    score(lm, few, progress=False), plainly(lm, few[:5], under)  # warm up
    one, accuracy = cpu(lambda: plainly(lm, items, under))
    tree, scores = cpu(lambda: score(lm, items, progress=False))
    prefix, _ = cpu(lambda: score(lm, items, share="prefix", progress=False))
    bare, _ = cpu(lambda: score(lm, items, share="nothing", progress=False))
    assert sum(abs(a - b) > 1e-6 for a, b in zip(accuracy, scores["token_accuracy"])) <= len(items) // 200, (
        "the two ways disagree"
    )
    one_text, _ = cpu(lambda: texts_plainly(lm, few, under, 8))
    all_text, _ = cpu(lambda: score(lm, few, generate=True, max_tokens=8, progress=False))
    lengths = [len(tokenizer(under.render(q).text + " " + a)["input_ids"]) for q, a in items]
    work = (
        2
        * sum(p.numel() for n, p in lm.model.named_parameters() if p.dim() > 1 and "wte" not in n and "wpe" not in n)
        * sum(lengths)
    )
    most, per, per_text = peak(), 1e3 / len(items), 1e3 / len(few)
    return {
        "model": name,
        "parameters": f"{lm.parameters / 1e6:.1f} million",
        "questions": len(items),
        "tokens a question": sum(lengths) / len(lengths),
        "one at a time, ms": one * per,
        "engine, ms": tree * per,
        "  prefix shared, no tree, ms": prefix * per,
        "  nothing shared, ms": bare * per,
        "ratio": one / tree,
        "  prefix shared, no tree": one / prefix,
        "  nothing shared": one / bare,
        "share of the peak, nothing shared": work / bare / most,
        "share of the peak, one at a time": work / one / most,
        "with text: one at a time, ms": one_text * per_text,
        "with text: engine, ms": all_text * per_text,
        "ratio with text": one_text / all_text,
    }


def main(edits: int = 200):
    import pandas as pd

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    from wbe.world.files import World

    with tempfile.TemporaryDirectory() as folder:
        world = World(7, 500).write(folder, dates=["2024-02-01"], articles=False, views=False, progress=False)
        names = world.truth("entities")["label"].dropna().tolist()
    rows = [measured(name, shape, names, questions(edits, names)) for name, shape in SHAPES.items()]
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, one thread, CPU time")
    print(pd.DataFrame(rows).set_index("model").T.map(lambda x: f"{x:.2f}" if isinstance(x, float) else x).to_string())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
