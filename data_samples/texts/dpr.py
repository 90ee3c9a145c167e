"""A dense retriever in the manner of DPR for the small world: the tiny model's own weights, trained on pairs.

The vector of a text is the mean of its tokens' last hidden states. A pair is a question about a fact of the first day
and a passage of that day that states it; in a step each question should be nearest to its own passage among those of
all pairs. As in EvolvingQA nothing is trained again in later months. `make.py` trains it when a method needs it.
"""

import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoModel, AutoTokenizer

from wbe.editors.memory.embed import MeanPooledEmbedder, _mean_of_tokens
from wbe.lm.models import builtin_folder
from wbe.tiny.facts import facts_at, sample_question
from wbe.tiny.training import learning_rate_share
from wbe.world.files import World
from wbe.world.cast import SeededRandom

STEPS, PAIRS, RATE, TEMPERATURE, LENGTH = 60, 32, 3e-4, 0.05, 96


class WorldRetriever(MeanPooledEmbedder):
    "The embedder of a folder; `make.py` says which. Most passages are the same in every interval, so vectors are kept."

    folder: Path | None = None

    def __init__(self):
        super().__init__(str(self.folder))
        self.kept = {}

    def embed(self, texts, progress: bool = False) -> np.ndarray:
        "One vector of length 1 for each text."
        new = sorted({t for t in texts if t not in self.kept}, key=len)
        for start in range(0, len(new), 64):
            some = new[start : start + 64]
            with torch.inference_mode():  # cut as in training
                self.kept |= dict(zip(some, vectors(self.model, self.tokenizer, some).numpy()))
        return np.array([self.kept[t] for t in texts], np.float32).reshape(-1, self.size)


def asked_passages(passages: dict[str, list[str]]) -> list[tuple]:
    "Facts of the first day with the passages that state them, from the passages of each title."
    by_subject = {}
    for fact in facts_at(World(7, 1500))[0]:
        by_subject.setdefault(fact.subject, []).append(fact)
    out = []
    for title, some in passages.items():
        for fact in by_subject.get(title.partition(" (")[0], ()):
            out += [(fact, text) for text in some if fact.answer in text.removeprefix(title)]
    return out


def vectors(model, tokenizer, texts: list[str]) -> torch.Tensor:
    "Unit vectors of texts."
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
    return F.normalize(_mean_of_tokens(model(**inputs).last_hidden_state, inputs["attention_mask"]), dim=-1)


def train_retriever(folder: Path, passages: dict[str, list[str]], steps: int = STEPS):
    "Train the retriever and save it in a folder; one that is there stays."
    if (folder / "config.json").exists():
        return
    source, pairs, begun = builtin_folder("wbe-tiny"), asked_passages(passages), time.process_time()
    tokenizer, model = AutoTokenizer.from_pretrained(source), AutoModel.from_pretrained(source).float().train()
    optimiser = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01)
    print(f"retriever: {len(pairs)} pairs", flush=True)
    for step in range(steps):
        rng = SeededRandom(f"retriever {step}")
        some = [rng.pick(pairs) for _ in range(PAIRS)]
        questions, texts = [sample_question(fact, rng) for fact, _ in some], [text for _, text in some]
        sims = vectors(model, tokenizer, questions) @ vectors(model, tokenizer, texts).T / TEMPERATURE
        same = torch.tensor([[a == b for b in texts] for a in texts]) & ~torch.eye(PAIRS, dtype=torch.bool)
        loss = F.cross_entropy(sims.masked_fill(same, -torch.inf), torch.arange(PAIRS))
        optimiser.param_groups[0]["lr"] = RATE * learning_rate_share(step, steps)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 20 == 19:
            print(f"retriever, step {step + 1}: {loss.item():.3f}, {time.process_time() - begun:.0f} CPU s", flush=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
