"""A real model as writer of questions: our prompts and those of WikiBigEdit's appendix A, behind the OpenAI protocol.

    python data_samples/real_models/writers.py MODEL FOLDER OUTPUT.csv [FACTS]

MODEL is a folder of a transformers model (SmolLM2-135M-Instruct). The facts are the two of the paper's table 3 and
FACTS edits of a controlled world, half of them with a second hop. A server on this machine answers the calls that wait
together in one pass. FOLDER keeps every answer; OUTPUT.csv has every text with the check that it failed.
"""

import sys
import threading
from pathlib import Path
from queue import Empty, Queue

import torch

from wbe.benchmark.series import make_world_benchmark
from wbe.benchmark.writers_compared import _fact_row, compare_writers, facts_to_compare, series_facts
from wbe.lm.models import load
from wbe.lm.writer import LocalWriter
from wbe.writers.base import make_writer
from wbe.writers.requests import ChatPrompt

sys.path.append(str(Path(__file__).parents[2] / "tests"))
from openai_server import FaultyServer

TOKENS, AT_ONCE = 100, 64  # the paper's limit of an answer; calls at a time
KINDS = ("update", "multihop", "rephrase", "persona")  # a locality question is written as an update is


def table_3():
    "The two facts of the paper's table 3."
    use = "current state of use of the subject"
    airport = _fact_row("Lea County Regional Airport", "state of use", "in use", property_id="P5817")
    found = dict(property="discoverer or inventor", object="Marc Buie", property_id="P61", object_kind="person")
    asteroid = _fact_row("2004 VS75", **found, property2="sex or gender", object2="male", property2_id="P21")
    return [airport | dict(property_description=use), asteroid]


def reply_with(model):
    "A function that answers a call; calls that wait at the same time share a pass of the model."
    writer, waiting = LocalWriter(load(model, dtype="float32", device="cpu"), TOKENS), Queue()

    def work():
        while True:
            some = [waiting.get()]
            try:
                while len(some) < AT_ONCE:
                    some.append(waiting.get(timeout=0.5))
            except Empty:
                pass
            prompts = [ChatPrompt("", "", tuple(messages), "in plain text: ") for messages, _ in some]
            for (_, answer), text in zip(some, writer.generate(prompts), strict=True):
                answer.put(text)

    threading.Thread(target=work, daemon=True).start()

    def reply(body):
        answer = Queue()
        waiting.put((body["messages"], answer))
        return answer.get()

    return reply


def main(model, folder, output, facts=6):
    torch.set_num_threads(1)
    folder = Path(folder)
    how = dict(dates=["2024-04-01", "2024-05-01"], ended="drop", progress=False)
    make_world_benchmark(folder / "world", 800, **how)
    rows = [*table_3(), *facts_to_compare(series_facts(folder / "world"), int(facts))]
    with FaultyServer(reply=reply_with(model), structured="text") as server:
        how = dict(model="SmolLM2-135M-Instruct", base_url=server.url, cache=folder / "texts.sqlite", confirm=True)
        how |= dict(concurrency=AT_ONCE, timeout=3600, retries=0, max_tokens=TOKENS, temperature=0.0)
        writers = {"templates": make_writer("template")}
        writers |= {f"prompts: {name}": make_writer("openai", prompts=name, **how) for name in ("paper", "ours")}
        writers["prompts: ours"].repairs = False  # the first attempts alone: the paper's prompts have no second
        compared = compare_writers(rows, writers, folder / "compared", kinds=KINDS, log=print)
    columns = ["writer", "prompt", "id", "kind", "facts", "answer", "attempt", "text", "failed", "error"]
    compared.texts[columns].to_csv(output, index=False)
    print(compared.by_kind())


if __name__ == "__main__":
    main(*sys.argv[1:])
