"""Scores over two processes: the same rows in order; an error in one ends both.

`accelerate launch` starts the command; the other pairs are forked with the variables that it sets.
"""

import json
import os
import socket
from pathlib import Path

import processes
import pytest

pytest.importorskip("accelerate")

SAMPLES = Path(__file__).parents[1] / "data_samples"
LAUNCH = [
    "-m",
    "accelerate.commands.launch",
    "--multi_gpu",  # accelerate's word for several processes, on a CPU as well
    "--num_processes",
    "2",
    "--num_machines",
    "1",
    "--mixed_precision",
    "no",
    "--dynamo_backend",
    "no",
    "--main_process_port",
    "0",
]
SCRIPT = """
import json, sys
import torch
torch.set_num_threads(1)
from wbe.lm.scoring import ask, process_rank, score
from wbe.lm.toys import toy_lm
import wbe.lm.scoring as scoring

lm = toy_lm("gpt2")
answers = ["Paris", "Jon Ashdown", "Nadia Bellweather", "1957"]
items = [(f"Who heads the government of {'Karsk ' * (n % 7 + 1)}{n}?", answers[n % 4]) for n in range(61)]
rank, world = process_rank(lm)
done, fail, plain = [], False, scoring.teacher_forced_all
def watched(lm, coded, *more):
    done.append(len(coded))
    if fail and rank == 1:
        raise RuntimeError("broken on purpose")
    return plain(lm, coded, *more)
scoring.teacher_forced_all = watched
s = score(lm, items + items[:5], generate=True, max_tokens=6, progress=False)
result = dict(rank=rank, world=world, done=list(done), error=None)
result["texts"] = ask(lm, [q for q, _ in items], max_tokens=6, progress=False)
result["rows"] = s.table.select([c for c in s.table.column_names if c != "seconds"]).to_pylist()
fail = True
try:
    score(lm, items, progress=False)
except Exception as e:
    result["error"] = f"{type(e).__name__}: {e}"
json.dump(result, open(f"{sys.argv[1]}-{rank}.json", "w"))
"""


def run_processes(count: int, words, env: dict, timeout: float = 240):
    "One process, or several of one group, which all succeed; forked, so that they need not import everything."
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    group = dict(WORLD_SIZE=str(count), LOCAL_WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    started = []
    for rank in range(count):
        mine = dict(group, RANK=str(rank), LOCAL_RANK=str(rank)) if count > 1 else {}
        started.append(processes.Process(words, env=env | mine))
    for process in started:
        out, err = process.communicate(timeout)
        assert process.returncode == 0, err[-3000:]


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[int, list[dict]]:
    "For one and for two processes: the results of each process."
    folder = tmp_path_factory.mktemp("processes")
    script = folder / "work.py"
    script.write_text(SCRIPT)
    env = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", PYTHONPATH=str(Path(__file__).parents[1]))
    out = {}
    for n in (1, 2):
        run_processes(n, [script, folder / str(n)], env)
        out[n] = [json.loads((folder / f"{n}-{r}.json").read_text()) for r in range(n)]
    return out


def close(a, b) -> bool:
    "The same but for rounding: another batch sums in another order."
    if isinstance(a, float):
        return abs(a - b) <= 1e-4 * max(1, abs(a))
    if isinstance(a, list):
        return len(a) == len(b) and all(map(close, a, b))
    return a == b


def test_two_processes_give_what_one_gives(found):
    (one,), two = found[1], found[2]
    assert [(t["rank"], t["world"]) for t in two] == [(0, 2), (1, 2)]
    parts = [t["done"][0] for t in two]
    # equal items are computed once, the others are divided between the processes
    assert one["done"] == [61] and sum(parts) == 61 and min(parts) > 20
    for t in two:
        assert len(t["rows"]) == 66 and t["texts"] == one["texts"]
        for a, b in zip(one["rows"], t["rows"], strict=True):
            assert all(close(a[k], b[k]) for k in a), (a, b)


def test_an_error_in_one_process_is_raised_in_all(found):
    assert found[1][0]["error"] is None
    assert [t["error"] for t in found[2]] == [
        "ProcessError: process 1 of 2 failed: RuntimeError: broken on purpose",
        "RuntimeError: broken on purpose",
    ]


def test_the_command_gives_the_same_answers_from_two_processes(tmp_path):
    from wbe.lm.scoring import BenchmarkAnswers
    from wbe.lm.toys import toy_lm

    toy = toy_lm("gpt2", n_positions=256)
    toy.model.save_pretrained(tmp_path / "toy")
    toy.tokenizer.save_pretrained(tmp_path / "toy")
    (tmp_path / "b").mkdir()
    sample = next((SAMPLES / "benchmark").glob("wiki_big_edit_*.json"))
    (tmp_path / "b" / sample.name).write_text(json.dumps(json.loads(sample.read_text())[:30]))
    env = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", PYTHONPATH=str(Path(__file__).parents[1]))
    command = ["-m", "wbe", "score", str(tmp_path / "b"), "--model", str(tmp_path / "toy")]
    command += ["--set", "device=cpu", "--set", "generate=no", "--limit", "30", "-o"]
    found = []
    for name, words in (("one", []), ("two", LAUNCH)):
        run = processes.run([*words, *command, tmp_path / name], env=env, timeout=240)
        assert run.returncode == 0, run.stderr[-3000:]
        assert run.stdout.count("The unsolved share") == 1
        found.append(BenchmarkAnswers.load(tmp_path / name).frame)
    one, two = found
    assert (
        one.edit_id.tolist() == two.edit_id.tolist()
        and one.exact_match.tolist() == two.exact_match.tolist()
        and len(one) > 100
    )
    assert (one.log_probability - two.log_probability).abs().max() < 1e-3
