"""What the extras add: each is used once as a user would, offline. Skipped where an extra is not installed.

Spark and Infini-gram have files of their own; notebooks mark their cells with `#| extra NAME`.
"""

import json
import re
import struct
import sys
import time
from pathlib import Path

import nbformat
import numpy as np
import pytest
from conftest import APART, packages_of_extras

ROOT = Path(__file__).parents[1]
# What `make test` installs: these need no mark, because their tests are never skipped.
ALWAYS_INSTALLED = {"lm", "llm", "hub", "report", "docs", "dev"}


def test_every_extra_is_tested():
    "An extra that `make test` does not install has marked tests or notebook cells."
    tests = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "tests").glob("test_*.py"))
    marked = {name for names in re.findall(r"mark\.extra\(([^)]*)\)", tests) for name in re.findall(r"\w+", names)}
    flagged = set()
    for path in (ROOT / "nbs").rglob("*.ipynb"):
        if not any(part[0] in "._" for part in path.relative_to(ROOT / "nbs").parts):
            text = "\n".join(c.source for c in nbformat.read(path, 4).cells)
            flagged |= {
                name for names in re.findall(r"^#\| *extra\b(.*)$", text, re.M) for name in names.split() or [""]
            }
    needed = set(packages_of_extras()) - ALWAYS_INSTALLED
    assert flagged <= needed <= marked | flagged


def test_extras_apart_are_neither_installed_nor_executed_with_the_others():
    sys.path.insert(0, str(ROOT / "nbs" / "_dev"))
    import extras

    assert extras.APART == APART and not APART & set(extras.extras())
    assert all(extras.extras_of(path) - APART for path in extras.notebooks())
    mixed = [p for p in extras.NBS.rglob("*.ipynb") if extras.extras_of(p) & APART and extras.extras_of(p) - APART]
    assert not mixed, "a notebook with cells of both kinds would be executed where one is missing"


def test_the_light_environment_is_what_the_makefile_installs():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    installed = set(re.search(r"-e '\.\[([\w,]+)\]'", makefile)[1].split(","))
    assert installed == ALWAYS_INSTALLED


@pytest.fixture(scope="module")
def tiny_embedder(tmp_path_factory):
    "The folder of a random model for sentence-transformers."
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("embedder")
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "?", *letters, *(f"##{x}" for x in letters)]
    (folder / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder / "bert")
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder / "bert")
    layers = [Transformer(str(folder / "bert")), Pooling(32)]
    SentenceTransformer(modules=layers, device="cpu").save(str(folder / "model"))
    return folder / "model"


@pytest.mark.extra("retrieval")
def test_a_neural_embedder_from_a_folder(tiny_embedder):
    import torch
    from transformers import AutoModel, AutoTokenizer

    from wbe.editors.memory.embed import embedder

    texts = ["Who heads Karsk?", "Which river runs through Orland?"]
    vectors = embedder(str(tiny_embedder), device="cpu").embed(texts)
    model, tokenizer = AutoModel.from_pretrained(tiny_embedder), AutoTokenizer.from_pretrained(tiny_embedder)
    with torch.inference_mode():  # the mean over tokens, as in the definition of this pooling
        means = [model(**tokenizer(t, return_tensors="pt")).last_hidden_state[0].mean(0).numpy() for t in texts]
    expected = np.stack([m / np.linalg.norm(m) for m in means])
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


@pytest.mark.extra("retrieval")
def test_the_rag_editor_with_a_neural_embedder_and_faiss(tiny_embedder):
    "A question that is asked again finds its own pair, so the answers are those with exact search."
    from wbe.benchmark.reader import Benchmark
    from wbe.editors.protocol import editor
    from wbe.editors.requests import requests_from_rows
    from wbe.lm.models import load
    from wbe.lm.scoring import score

    lm, bench = load("wbe-tiny", device="cpu"), Benchmark.load(ROOT / "data_samples" / "benchmark")
    requests = requests_from_rows(bench[0].edits.slice(0, 12))
    items = [(r.question, r.answer) for r in requests]
    correct = lambda: score(lm, items, progress=False)["exact_match"]
    before = correct()
    with editor("rag", embedder=str(tiny_embedder), index="faiss", k=1).edit(lm, requests).on(lm):
        found = correct()
    with editor("rag", embedder="hashed", index="exact", k=1).edit(lm, requests).on(lm):
        assert found == correct()
    assert sum(found) >= 10 > 3 > sum(before)


@pytest.mark.extra("annoy")
@pytest.mark.extra("retrieval")
@pytest.mark.parametrize("name", ["annoy", "faiss"])
def test_an_index_finds_the_nearest(name):
    from wbe.editors.memory.index import vector_index

    dice = np.random.default_rng(0)
    vectors = dice.normal(size=(1500, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = vector_index(name, 16)
    index.add(vectors)
    found, cosines = index.search(vectors[:100] + np.float32(1e-4), 1)
    assert (found[:, 0] == np.arange(100)).mean() >= 0.99 and cosines.min() > 0.99


@pytest.mark.extra("tagger")
def test_a_tagger_picks_proper_nouns(tmp_path):
    import spacy

    from wbe.metrics.answers import proper_noun_mask
    from wbe.records import BadArgument

    pipeline = spacy.blank("en")  # those with a tagger are no packages of the index
    pipeline.add_pipe("attribute_ruler").add([[{"TEXT": "karsk"}]], {"POS": "PROPN"})
    pipeline.to_disk(tmp_path / "one_name")
    text = "The mayor of karsk is Ana."
    offsets = [(0, 3), (4, 9), (10, 12), (13, 18), (19, 21), (22, 25)]
    assert proper_noun_mask(text, offsets, str(tmp_path / "one_name")).tolist() == [
        False,
        False,
        False,
        True,
        False,
        False,
    ]
    assert proper_noun_mask(text, offsets).tolist() == [False, False, False, False, False, True]
    with pytest.raises(BadArgument, match="needs spaCy and this pipeline"):
        proper_noun_mask(text, offsets, "no_such_pipeline")


@pytest.mark.extra("quant")
@pytest.mark.parametrize("quant, size", [("4bit", 0.35), ("8bit", 0.6)])
def test_a_quantised_model_is_smaller_and_answers_alike(quant, size):
    from wbe.lm.models import load
    from wbe.lm.scoring import score

    whole, small = load("wbe-tiny", dtype="float16", device="cpu"), load("wbe-tiny", quant=quant, device="cpu")
    weights = [lm.module("mlp_out", 0).weight for lm in (whole, small)]
    assert weights[1].nbytes <= size * weights[0].nbytes
    items = [("Who is the head of government of Karsk?", answer) for answer in ("Paris", "the river", "Mara Oldev")]
    left, right = (score(lm, items, progress=False)["log_probability"] for lm in (whole, small))
    assert np.abs(np.array(left) - np.array(right)).max() < 2 and list(np.argsort(left)) == list(np.argsort(right))


def wandb_records(path: Path):
    "The records of a file of Weights & Biases: LevelDB's log format, with parts in blocks of 32 KiB."
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), 7, b""
    while at < len(data):
        left = 32768 - at % 32768
        if left < 7:  # too little for a header: the block ends here
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole, at = whole + data[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):  # the only part, or the last
            yield Record.FromString(whole)
            whole = b""


@pytest.mark.extra("track")
def test_weights_and_biases_offline(tmp_path, monkeypatch):
    from wbe.runs.loop import TRACKERS

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    folder = tmp_path / "rag-run"
    folder.mkdir()
    log = TRACKERS["wandb"](folder, dict(editor="rag"))
    log(10, {"T1/update": 0.5})
    log(20, {"T1/update": 0.25, "T1/locality": 1.0})
    log(20, None)
    path, records = next(folder.rglob("*.wandb")), []
    deadline = time.monotonic() + 30  # another process of the library closes the file
    while not any(r.WhichOneof("record_type") == "exit" for r in records) and time.monotonic() < deadline:
        records = list(wandb_records(path))
        time.sleep(0.1)
    run = next(r.run for r in records if r.WhichOneof("record_type") == "run")
    assert (run.display_name, run.project) == ("rag-run", "wbe")
    assert {u.key: json.loads(u.value_json) for u in run.config.update}["editor"] == "rag"
    lines = [r.history.item for r in records if r.WhichOneof("record_type") == "history"]
    told = [{i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items} for items in lines]
    names = ("_step", "T1/update", "T1/locality")
    assert [{k: v for k, v in line.items() if k in names} for line in told] == [
        {"_step": 10, "T1/update": 0.5},
        {"_step": 20, "T1/update": 0.25, "T1/locality": 1.0},
    ]


@pytest.mark.extra("track")
def test_tensorboard_reads_what_was_logged(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from wbe.runs.loop import TRACKERS

    log = TRACKERS["tensorboard"](tmp_path, {})
    log(10, {"T1/update": 0.5})
    log(20, {"T1/update": 0.25})
    log(20, None)
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("T1/update")
    assert [(e.step, e.value) for e in found] == [(10, 0.5), (20, 0.25)]


@pytest.mark.extra("harness")
def test_the_harness_on_a_task_of_a_local_file(tmp_path):
    "Its accuracy is that of the log-probabilities that wbe computes."
    from wbe.lm.ability import _run_harness
    from wbe.lm.models import load

    lm, endings = load("wbe-tiny", device="cpu"), [" is a", " zq", " 77"]
    texts = ["Karsk", "Orland", "The town", "Mara", "A river", "The film"]
    rows = [dict(text=t, choices=endings[-i:] + endings[:-i], label=i % 3) for i, t in enumerate(texts)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = dict(
        task="endings",
        dataset_path="json",
        dataset_kwargs=dict(data_files=dict(test=str(tmp_path / "rows.jsonl")), cache_dir=str(tmp_path / "cache")),
        output_type="multiple_choice",
        test_split="test",
        doc_to_text="{{text}}",
        doc_to_choice="choices",
        doc_to_target="label",
        target_delimiter="",
        metric_list=[dict(metric="acc", aggregation="mean", higher_is_better=True)],
        metadata=dict(version=1.0),
    )
    found = _run_harness(lm.model, lm.tokenizer, [task])
    assert found.loc[("endings", "acc"), "value"] == np.mean([best(lm, row) == row["label"] for row in rows])
    assert found.loc[("endings", "acc"), "n"] == len(rows)


@pytest.mark.extra("inspect")
def test_a_folder_of_questions_is_a_benchmark_of_the_hub(tmp_path, monkeypatch):
    "Inspect reads eval.yaml as from the hub, which is asked for this one file; a model that knows all is right."
    import datasets
    import huggingface_hub
    from inspect_ai import eval as evaluate
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    from wbe.benchmark.reader import Benchmark
    from wbe.lm.scoring import probe_table
    from wbe.runs.export import export_tasks

    bench, axes = Benchmark.load(ROOT / "data_samples" / "benchmark"), ("update", "multi-hop")
    folder = export_tasks(bench, tmp_path / "owner" / "name", "inspect", axes=axes, limit=3)
    probes = probe_table(bench, axes, 3)
    monkeypatch.chdir(tmp_path)  # `datasets` takes the folder owner/name for the data set of this name
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # Inspect's; `datasets` may find an older owner/name
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda filename, **_: str(folder / filename))
    known = {}

    def answer(messages, *_):
        usage = ModelUsage(input_tokens=1, output_tokens=1)  # otherwise Inspect fetches a tokenizer to count them
        text = known.get(messages[0].text, "none")
        return ModelOutput.from_content("mockllm", text).model_copy(update=dict(usage=usage))

    for line in map(json.loads, (folder / "update.jsonl").read_text(encoding="utf-8").splitlines()):
        known[line["prompt"]] = line["answer"]
    for axis in axes:
        model = get_model("mockllm/model", custom_outputs=answer)
        log = evaluate(f"hf/owner/name/{axis}", model=model, log_dir=str(tmp_path / "logs"), display="none")[0]
        assert log.status == "success", log.error
        assert len(log.samples) == (probes.axis == axis).sum() > 0
        assert {s.scores["exact"].value for s in log.samples} == ({"C"} if axis == "update" else {"I"})
        assert {s.target for s in log.samples} <= set(probes.expected)


def best(lm, row: dict) -> int:
    "The choice with the highest log-probability after the text."
    import torch

    start, sums = lm.tokenizer(row["text"])["input_ids"], []
    for choice in row["choices"]:
        ids = [*start, *lm.tokenizer(choice, add_special_tokens=False)["input_ids"]]
        with torch.inference_mode():
            logps = lm.model(torch.tensor([ids])).logits[0].log_softmax(1)
        sums.append(sum(float(logps[i - 1, ids[i]]) for i in range(len(start), len(ids))))
    return int(np.argmax(sums))


@pytest.mark.extra("wikipedia")
def test_an_html_dump_gives_the_same_paragraphs_as_wikitext(tmp_path):
    from mwparserfromhtml import Article

    from wbe.wikipedia.comparison import compare_wikipedia
    from wbe.wikipedia.plain import plain_text
    from wbe.wikipedia.pages import parse_wikipedia

    page = (
        '<html><head><base href="//en.wikipedia.org/wiki/"/></head><body><section><p><b>A</b> is a '
        '<a rel="mw:WikiLink" href="./Town">town</a> of {}.<sup class="mw-ref reference">[1]</sup></p>'
        "</section></body></html>"
    )
    folders = []
    for i, number in enumerate(("1,000", "1,200")):
        row = dict(name="A", identifier=1, namespace=dict(identifier=0), version=dict(identifier=i))
        row["article_body"] = dict(html=page.format(number))
        (tmp_path / f"{i}.ndjson").write_text(json.dumps(row))
        folders.append(parse_wikipedia(tmp_path / f"{i}.ndjson", tmp_path / f"html{i}", html=True, progress=False))
    (article,) = compare_wikipedia(*folders, tmp_path / "compared", progress=False).rows()
    texts = [[p.text for p in plain_text(f"'''A''' is a [[town]] of {n}.<ref>x</ref>")] for n in ("1,000", "1,200")]
    assert [article.previous, article.paragraphs] == texts
    assert [article.links, article.link_titles] == [[0, 7, 4], ["Town"]]
    assert list(Article(page.format("1,200")).get_plaintext()) == texts[1]
