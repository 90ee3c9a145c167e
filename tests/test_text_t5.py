"""Text learners and encoder-decoders: they learn what was written, are restored, resumed, and score as other models."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")
import torch

from wbe.benchmark.reader import Benchmark
from wbe.editors.protocol import editor
from wbe.editors.results import commit_edits
from wbe.editors.text.training import text_steps
from wbe.lm.families import ModelError
from wbe.lm.scoring import score
from wbe.editors.text.training import masked_loss, masked_rows
from wbe.lm.toys import toy_lm
from wbe.runs.loop import run_lifelong
from wbe.runs.plan import RunPlan
from wbe.wikipedia.diffs import SENTINEL
from wbe.wikipedia.texts import SourceText, write_texts

QUICK = dict(length=48, batch_size=4, steps=6, rate=0.01)
LEARNERS = {
    "text-diff": QUICK,
    "text-full": QUICK | dict(objective="random"),
    "text-recadam": QUICK | dict(anneal_t0=1.0, gamma=0.1),
    "text-mix-review": QUICK,
    "text-lora": QUICK | dict(rate=0.2),
    "text-k-adapter": QUICK | dict(heads=2, rate=0.2),
}


def toy_t5(family="t5"):
    torch.set_num_threads(1)
    lm = toy_lm(family, vocab=520)
    lm.tokenizer.add_special_tokens(dict(additional_special_tokens=[SENTINEL.format(i) for i in range(100)]))
    return lm


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    "What was written in a timestep."
    folder, name = tmp_path_factory.mktemp("texts"), "20240201_20240220"
    rows = [SourceText(n, f"Town {n}", "new", f"The mayor of Town {n} is Nadia Bellweather.") for n in range(8)]
    write_texts(folder / f"wiki_texts_{name}.parquet", rows)
    for day in name.split("_"):
        write_texts(folder / f"wiki_articles_{day}.parquet", rows)
    return folder


@pytest.fixture
def step(folder):
    return text_steps(folder, ["20240201_20240220"])[0]


def gap_loss(lm, step, objective="salient") -> float:
    rows = masked_rows(lm, step.diff, 48, objective)
    with torch.no_grad():
        return (masked_loss(lm, rows) / sum(len(r.target) for r in rows)).item()


@pytest.mark.parametrize("name", LEARNERS)
def test_a_learner_fills_gaps_better_and_leaves_the_model_as_it_was(step, name):
    lm, hparams = toy_t5("t5-gated"), LEARNERS[name]
    values = {n: p.detach().clone() for n, p in lm.model.named_parameters()}
    objective = hparams.get("objective", "salient")
    before = gap_loss(lm, step, objective)
    result = editor(name, **hparams).learn(lm, step)
    assert all(torch.equal(p, values[n]) for n, p in lm.model.named_parameters())
    with result.on(lm):
        after = gap_loss(lm, step, objective)
        assert score(lm, [("Who is the mayor of Town 3?", "Nadia Bellweather")], progress=False)["finite"]
    assert after < before - 1
    assert gap_loss(lm, step, objective) == before
    assert result.work["steps"] == 6 and result.work["tokens"] > 50


@pytest.mark.parametrize("name", ["text-lora", "text-k-adapter"])
def test_adapters_leave_the_encoder_alone(step, name):
    lm = toy_t5()
    ids = torch.tensor([lm.tokenizer("The mayor of Town 3")["input_ids"]])
    encode = lambda: lm.model.get_encoder()(input_ids=ids).last_hidden_state
    with torch.no_grad():
        before = encode()
    editor(name, **LEARNERS[name]).learn(lm, step).apply(lm)
    commit_edits(lm)
    with torch.no_grad():
        assert torch.equal(encode(), before)


def test_a_k_adapter_reads_the_padding_of_the_decoder(step):
    "With another row beside it, a row of the decoder has the same loss."
    lm = toy_t5()
    rows = masked_rows(lm, step.diff, 48)[:1] + masked_rows(lm, step.diff, 12)[:1]
    result = editor("text-k-adapter", **LEARNERS["text-k-adapter"] | dict(gain=1.0)).learn(lm, step)
    with result.on(lm), torch.no_grad():
        apart = sum(masked_loss(lm, [r]).item() for r in rows)
        assert masked_loss(lm, rows).item() == pytest.approx(apart, rel=1e-4)


def test_without_sentinels_it_is_refused_before_anything_is_read(step):
    for name in LEARNERS:
        with pytest.raises(ModelError, match="its tokenizer has no sentinels"):
            editor(name).learn(toy_lm("t5"), step)


def test_a_whole_run_of_an_encoder_decoder_is_resumed(tmp_path, folder):
    import json
    from pathlib import Path

    samples = Path(__file__).parents[1] / "data_samples" / "benchmark"
    [path] = samples.glob("wiki_big_edit_20240201_20240220.json")
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / path.name).write_text(json.dumps(json.loads(path.read_text())[:4]))
    assert Benchmark.load(tmp_path / "bench").timesteps == ["20240201_20240220"]
    plan = RunPlan(benchmark=str(tmp_path / "bench"), model="toy", device="cpu", texts_dir=str(folder), ask_lasting=2)
    plan = replace(plan, editor="text-diff", hparams=QUICK, axes=("update",), generate=("update",), sample=2)

    class Stop(BaseException):
        pass

    def stop(event, data):
        if event == "kept":
            raise Stop

    whole = run_lifelong(plan, tmp_path / "whole", lm=toy_t5(), progress=False)
    with pytest.raises(Stop):
        run_lifelong(plan, tmp_path / "stopped", lm=toy_t5(), progress=False, callbacks=[stop])
    resumed = run_lifelong(plan, tmp_path / "stopped", lm=toy_t5(), progress=False)
    same = [run.scores.drop(columns="seconds") for run in (whole, resumed)]
    assert whole.missing == [] and same[0].equals(same[1])
    means = whole.scores.groupby("moment").log_probability.mean()
    assert means["before"] != means["current"]
