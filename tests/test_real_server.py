"""Writers and a judge against a real server with the OpenAI protocol: `transformers serve`, started and stopped here.

One process has two servers: one is pinned to the tiny model, the other loads the models that it is asked for. What they
do differently from OpenAI's is in tests/openai_server.py (`transformers=True`), so that other tests meet it offline.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from wbe.writers.base import Hop, Request
from wbe.writers.judge import JudgeRequest, OpenAIJudge, judge_answers
from wbe.writers.ledger import WriterError
from wbe.writers.llm import OpenAIWriter
from wbe.writers.requests import prompt_for

pytestmark = pytest.mark.extra("serve")

TINY = Path(__file__).parents[1] / "data_samples" / "wbe-tiny"
MAYOR = Hop("P6", "head of government", "Nadia Bellweather", "person")
REQUESTS = [Request(f"{s}/P6/update", "update", s, (MAYOR,), "place") for s in ("Orland", "Karsk", "Arvik", "Marl")]
# the tiny model reads 192 tokens, so it is shown the end of the last message only, in the form that it was trained with
TEMPLATE = "{{ messages[-1]['content'][-60:] }}\nQ:"
WHOLE = "{{ messages[-1]['content'] if messages[-1]['content']|length > 1000 else messages[-1]['content'][-60:] }}\nQ:"
SCRIPT = """
import sys
from transformers.cli.serve import Serve
options = dict(host="127.0.0.1", device="cpu", dtype="float32")
Serve(port=int(sys.argv[2]), force_model=sys.argv[1], non_blocking=True, **options)
Serve(port=int(sys.argv[3]), **options)
"""


def write_generation(folder: Path, stops: list[int], template: str = TEMPLATE):
    "Where texts end, and how a message becomes a prompt."
    (folder / "chat_template.jinja").write_text(template)
    (folder / "generation_config.json").write_text(json.dumps(dict(eos_token_id=stops, pad_token_id=1)))


def make_writer_model(folder: Path, template: str = TEMPLATE) -> Path:
    "The tiny model, with a chat template; a text ends with its first question mark."
    shutil.copytree(TINY, folder)
    vocabulary = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    write_generation(folder, [0, vocabulary["?"]], template)
    return folder


def make_judge_model(folder: Path) -> Path:
    "The tiny model with another word and a last layer that says nothing but this word: right."
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(TINY), AutoModelForCausalLM.from_pretrained(TINY)
    tokenizer.add_tokens(["right"])
    model.resize_token_embeddings(len(tokenizer))
    word = tokenizer.convert_tokens_to_ids("right")
    with torch.no_grad():
        model.transformer.wte.weight[word] = 1.0
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.fill_(1.0)
    for part in (tokenizer, model):
        part.save_pretrained(folder)
    write_generation(folder, [word])
    return folder


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(url: str, process: subprocess.Popen, log: Path):
    "Wait until a server is healthy."
    for _ in range(600):
        try:
            return urllib.request.urlopen(f"{url}/health", timeout=5).read()
        except OSError:
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
    raise AssertionError(log.read_text())


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    "Addresses and models of the two servers."
    folder = tmp_path_factory.mktemp("served")
    tiny, long = make_writer_model(folder / "writer"), make_writer_model(folder / "long", WHOLE)
    ports = free_port(), free_port()
    env = os.environ | dict(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    log = folder / "log.txt"
    with open(log, "w") as out:
        words = [sys.executable, "-c", SCRIPT, str(tiny), *map(str, ports)]
        process = subprocess.Popen(words, env=env, stdout=out, stderr=subprocess.STDOUT)
    try:
        judge = make_judge_model(folder / "judge")  # while the servers start
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        for url in urls:
            wait_for(url, process, log)
        pinned, free = (f"{url}/v1" for url in urls)
        yield SimpleNamespace(pinned=pinned, free=free, writer=str(tiny), judge=str(judge), long=str(long))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def writer(url, model, cache, **options) -> OpenAIWriter:
    defaults = dict(prices=(1, 4), confirm=True, max_tokens=40, backoff=0.05, retries=1, timeout=30)
    return OpenAIWriter(model, url, cache=cache, **defaults | options)


@pytest.fixture(scope="module")
def local_texts(servers):
    "What the same model writes for the same prompts without a server; the stop token is not part of it."
    from wbe.lm.writer import LocalWriter

    local = LocalWriter(servers.writer, 40, dtype="float32", device="cpu")
    return [f"{line}?" for line in local.generate([prompt_for(r) for r in REQUESTS])]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("at_once", [1, 4])
def test_texts_are_those_of_the_model(servers, local_texts, tmp_path, stream, at_once):
    "The server ignores that answers are to be JSON; its texts are those that the model writes without it."
    w = writer(servers.pinned, servers.writer, tmp_path / "c.sqlite", stream=stream, concurrency=at_once)
    texts = list(w.write(REQUESTS))
    assert [t.text for t in texts] == local_texts and all(t.endswith("?") for t in local_texts)
    assert w.stats.calls == len(REQUESTS) and w.stats.input_tokens > w.stats.output_tokens > len(REQUESTS)
    assert w.stats.dollars == pytest.approx((w.stats.input_tokens + 4 * w.stats.output_tokens) / 1e6)
    assert list(writer(servers.pinned, servers.writer, tmp_path / "c.sqlite").write(REQUESTS)) == texts  # cached


def test_the_wrong_model_ends_the_job(servers, tmp_path):
    "A pinned server names the model that it has; the other only says that it failed, and nothing of that is cached."
    w = writer(servers.pinned, "another", tmp_path / "c.sqlite", concurrency=1)
    with pytest.raises(WriterError, match="400: Server is pinned to .*writer'; requested 'another'"):
        list(w.write(REQUESTS))
    assert w.stats.calls == 1
    w = writer(servers.free, "no/such-model", tmp_path / "c.sqlite", retries=0, concurrency=1)
    assert {t.error for t in w.write(REQUESTS)} == {"500: Internal Server Error"}
    assert w.estimate(REQUESTS).new == len(REQUESTS) and w.stats.dollars == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long(servers, local_texts, tmp_path, stream):
    "It fails with a reason, also in the middle of a stream, and the requests beside it are answered."
    requests = [replace(REQUESTS[0], id="long", subject="Orland " * 300), *REQUESTS]
    texts = list(writer(servers.free, servers.long, tmp_path / "c.sqlite", stream=stream, retries=0).write(requests))
    reason = "broken off: the server ended its stream" if stream else "500: Internal Server Error"
    assert texts[0].text is None and texts[0].error.startswith(reason)
    assert [t.text for t in texts[1:]] == local_texts


def test_a_judge_behind_the_server(servers, tmp_path):
    "A model that says right gives verdicts; one that writes questions gives none, with the reason."
    asked = [JudgeRequest("e1", "Who heads Karsk?", "Nadia Bellweather", name) for name in ("N. Bellweather", "Jon")]
    options = dict(prices=(1, 4), confirm=True, backoff=0.05, retries=1, timeout=30, cache=tmp_path / "j.sqlite")
    judge = OpenAIJudge(servers.judge, servers.free, **options)
    verdicts = judge_answers(judge, asked)
    assert [(j.verdict, j.error) for j in verdicts] == 2 * [("right", None)] and judge.stats.calls == 4
    no_judge = OpenAIJudge(servers.writer, servers.free, **options)
    assert all("no verdict" in j.error for j in judge_answers(no_judge, asked))
