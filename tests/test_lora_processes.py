"""LoRA and whole runs over two processes of one group.

They give the adapters and scores of one process, and an error in one process ends both.
"""

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("accelerate")
from conftest import first_edits
from test_scoring_processes import run_processes

from wbe.runs.records import Run

SAMPLES = Path(__file__).parents[1] / "data_samples"
SCRIPT = """
import json, sys
from dataclasses import replace
import pyarrow as pa
import torch
torch.set_num_threads(1)
import wbe.editors.training.lora as lora
from wbe.editors.protocol import editor
from wbe.editors.requests import EditRequest
from wbe.runs import questions
from wbe.runs.loop import run_lifelong
from wbe.lm.scoring import process_rank
from wbe.lm.toys import toy_lm
from wbe.runs.plan import RunPlan

folder, bench, lasting = sys.argv[1:]
names = ["Paris", "Jon Ashdown", "Nadia"]
edits = [EditRequest(f"Who rules {'Karsk ' * (n % 4 + 1)}{n}?", names[n % 3], id=str(n)) for n in range(9)]
lm = toy_lm("llama")
rank, world = process_rank(lm)
# the last batch has one edit, so not every process has a share
trained = lambda **more: editor("lora", rate=0.3, epochs=4, batch_size=4, **more).edit(lm, edits)
one, out = trained(dropout=0.0), dict(rank=rank, world=world)
out["adapters"] = {str(key): [t.tolist() for t in pair] for key, pair in one.adapters.items()}
out["losses"], out["dropped"] = one.losses, sum(float(b.sum()) for _, b in trained(dropout=0.5).adapters.values())
plain, out["error"] = lora.answer_cross_entropy, None
def broken(*given):
    if rank == world - 1:
        raise RuntimeError("broken on purpose")
    return plain(*given)
lora.answer_cross_entropy = broken
try:
    trained()
except Exception as e:
    out["error"] = f"{type(e).__name__}: {e}"
lora.answer_cross_entropy = plain
more = dict(benchmark=bench, model="toy", device="cpu", axes=("update",), sample=5, lasting=lasting, ask_lasting=5)
def run(name, **plan):
    lm = toy_lm("gpt2", n_positions=256)
    run_lifelong(RunPlan(**more, **plan), f"{folder}/{name}", lm=lm, progress=False, checkpoint_seconds=0.0)
run("lora", editor="lora", hparams=dict(rate=0.3, epochs=2, dropout=0.0), max_edits=12, batch=6, every=6, curve=4)
for last in (1, 2):  # started, then continued
    run("rag", editor="rag", hparams=dict(embedder="hashed", index="exact"), timesteps=(1, last))
plain_score = questions.score
def knowing(lm, items, *more, **how):
    "Scores of a model that knows every third edit."
    got = plain_score(lm, items, *more, **how)
    known = pa.array([len(i.question) % 3 == 0 for i in items])
    table = got.table.drop_columns("exact_match").append_column("exact_match", known)
    return replace(got, table=table)
questions.score = knowing
run("known/unknown", editor="rag", hparams=dict(embedder="hashed", index="exact"), timesteps=(1, 2), unknown=True)
json.dump(out, open(f"{folder}/{rank}.json", "w"))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[int, tuple[Path, list[dict]]]:
    "For one and for two processes: the folder, and the results of each process."
    folder, out = tmp_path_factory.mktemp("processes"), {}
    (folder / "work.py").write_text(SCRIPT)
    first_edits(folder / "bench", 10)
    env = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", PYTHONPATH=str(Path(__file__).parents[1]))
    for n in (1, 2):
        (folder / str(n)).mkdir()
        words = [folder / "work.py", folder / str(n), folder / "bench", SAMPLES / "lasting_facts.parquet"]
        run_processes(n, words, env, timeout=400)
        out[n] = folder / str(n), [json.loads((folder / str(n) / f"{r}.json").read_text()) for r in range(n)]
    return out


def apart(a, b) -> float:
    return max(map(apart, a, b)) if isinstance(a, list) else abs(a - b)


def test_two_processes_train_the_adapters_that_one_trains(found):
    (one,), (first, second) = found[1][1], found[2][1]
    assert [(t["rank"], t["world"]) for t in (first, second)] == [(0, 2), (1, 2)]
    assert (
        first["adapters"] == second["adapters"]
        and first["losses"] == second["losses"]
        and first["dropped"] == second["dropped"]
    )
    assert (
        max(apart(one["adapters"][k], first["adapters"][k]) for k in one["adapters"]) < 1e-4
        and apart(one["losses"], first["losses"]) < 1e-4
    )
    assert max(apart(pair[1], [[0.0] * len(row) for row in pair[1]]) for pair in one["adapters"].values()) > 0.01, (
        "something was learnt"
    )


def test_an_error_in_one_process_is_raised_in_all(found):
    assert [t["error"] for t in found[2][1]] == [
        "ProcessError: 1 of 2 processes failed in training",
        "RuntimeError: broken on purpose",
    ]


@pytest.mark.parametrize("name", ["lora", "rag", "known/unknown"])
def test_a_run_over_two_processes_has_the_scores_of_one(found, name):
    one, two = (Run.load(found[n][0] / name) for n in (1, 2))
    assert one.missing == two.missing == []
    same = ["edit_id", "axis", "moment", "scored_at", "edits_done", "edited_at", "exact_match"]
    assert one.scores[same].equals(two.scores[same]) and len(one.scores) > 30
    assert (one.scores.log_probability - two.scores.log_probability).abs().max() < 1e-3
    assert (
        one.batches.edits.tolist() == two.batches.edits.tolist()
        and one.moments.moment.tolist() == two.moments.moment.tolist()
    )
    refused = [[*run.refused.get("edit_id", ())] for run in (one, two)]
    assert refused[0] == refused[1] and (name == "known/unknown") == bool(refused[0])
    for run in (one, two):
        assert (run.folder / "log.txt").read_text().count(" finished ") == (2 if name == "rag" else 1), (
            "one process keeps the log"
        )
