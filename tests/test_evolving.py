"""A benchmark of edits and texts: killed, extended, from HTML, from passages with a scripted model, read by runs."""

import bz2
import gzip
import html
import io
import json
import os
import re
import shutil
import signal
import tarfile

import processes
import pytest
from stored import served

from shared_cells import shared
from wbe.benchmark.evolving import EvolvingQuestion
from wbe.benchmark.evolving_series import evolve_benchmark, evolving_table
from wbe.benchmark.reader import Benchmark
from wbe.benchmark.release import retired_probes
from wbe.benchmark.validator import validate_benchmark
from wbe.records import read_table
from wbe.texts import split_sentences
from wbe.wikipedia.texts import SourceText, write_wiki_texts
from wbe.world.files import World

check_release = shared("06_benchmark/09_release.ipynb", "wbe.benchmark.release").check_release

DAYS = ["2024-02-01", "2024-02-20", "2024-03-01"]
SMALL = dict(least=60, unchanged=30, tuning=30)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with served():  # that of 16_evolving_series
        return World(7, 600).write(
            tmp_path_factory.mktemp("world"), dates=DAYS, formats=("json.gz",), views=False, progress=False
        )


@pytest.fixture(scope="module")
def dumps(world):
    "The two dumps of each day."
    return list(zip(world.paths("dumps"), world.paths("articles")))


def flat(pairs):
    return [path for pair in pairs for path in pair]


@pytest.fixture(scope="module")
def calm(dumps, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evolving") / "calm"
    with served():
        evolve_benchmark(folder, flat(dumps), **SMALL, progress=False)
    return folder


def released(folder) -> dict:
    "The files of a release, without the manifests, which hold times."
    return {p.name: p.read_bytes() for p in (folder / "release").iterdir() if not p.name.endswith(".manifest.json")}


def questions(folder, name) -> list[dict]:
    return read_table(folder / "release" / f"{name}.parquet", EvolvingQuestion).to_pylist()


def test_a_release_is_whole_and_valid(calm):
    assert check_release(calm / "release") == []
    report = validate_benchmark(calm / "release", strict=True)
    assert report.ok, report
    table = evolving_table(calm / "release")
    assert len(table) == 2 and (table.new > 10).all() and (table.edited > 2).all() and (table.unchanged == 30).all()


def test_extended_by_a_month_it_is_what_it_is_made_at_once(calm, dumps, tmp_path):
    folder = tmp_path / "grown"
    evolve_benchmark(folder, flat(dumps[:2]), **SMALL, progress=False)
    first = released(folder)
    evolve_benchmark(folder, dumps[2], progress=False)
    assert released(folder) == released(calm)
    assert {n: b for n, b in first.items() if "20240201_20240220" in n}.items() <= released(folder).items()
    before, after = ({json.dumps(r) for r in rows} for rows in (_rows(first), questions(folder, "unchanged")))
    assert len(before & after) > 0.8 * len(before)
    evolve_benchmark(folder, progress=False)
    assert released(folder) == released(calm)


def _rows(files: dict) -> list[dict]:
    import io

    import pyarrow.parquet as pq

    return pq.read_table(io.BytesIO(files["unchanged.parquet"])).to_pylist()


DYING = """
import os, signal, sys
from pathlib import Path
import wbe.store as store
from contextlib import contextmanager
whole, left = store.os.replace, int(sys.argv[1])
def replace(a, b):
    global left
    if left == 0: os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    whole(a, b)
store.os.replace = replace
from wbe.benchmark.evolving_series import evolve_benchmark
evolve_benchmark(sys.argv[2], sys.argv[3:], least=60, unchanged=30, tuning=30, progress=False)
"""


def test_killed_at_any_file_it_ends_with_the_same_bytes(calm, dumps, tmp_path):
    def run(files):
        return processes.run(["-c", DYING, files, tmp_path / "killed", *flat(dumps)])

    codes = [run(files).returncode for files in (9, 25, 12)]
    assert codes == [-signal.SIGKILL] * 3
    assert run(10**6).returncode == 0
    assert released(tmp_path / "killed") == released(calm)
    assert not [p for p in (tmp_path / "killed").rglob("*") if ".part" in p.name]


def test_what_is_edited_was_true_and_is_no_longer(calm, world):
    changes = world.truth("changes")
    for n, name in enumerate(Benchmark.load(calm / "release").timesteps, 1):
        month = changes[changes.timestep == n]
        now = set(zip(month.subject_id, month.property_id, month.value))
        before = {(c.subject_id, c.property_id, p) for c in month.itertuples() for p in c.previous}
        rows = questions(calm, f"evolving_{name}")
        assert {(r["subject_id"], r["property_id"], r["object_id"]) for r in rows} <= now
        edited = [r for r in rows if r["category"] == "edited"]
        assert {(r["subject_id"], r["property_id"], r["previous_id"]) for r in edited} <= before
        for r in edited:
            assert r["answer"] in r["passage"] and r["outdated"] in r["outdated_passage"]
            assert r["answer"] not in r["question"] and r["outdated"] not in r["question"]


def as_html(wikitext: str) -> str:
    "An article of the world as Parsoid writes it: paragraphs with a name in bold."
    escaped = html.escape(wikitext.strip(), quote=False)
    bold = re.sub("'{3}(.+?)'{3}", r"<b>\1</b>", escaped)
    return "<body>" + "".join(f"<p>{part}</p>" for part in bold.split("\n\n")) + "</body>"


def write_enterprise(dump, path, bad=()):
    "The articles of a dump as an Enterprise dump in two files, with bad lines between the articles."
    from wbe.wikipedia.pages import read_pages

    lines = [
        json.dumps(
            dict(
                name=page.title,
                identifier=page.id,
                namespace=dict(identifier=page.ns),
                version=dict(identifier=page.revision),
                date_modified=page.timestamp,
                article_body=dict(html=as_html(page.wikitext)),
            )
        ).encode()
        for page in read_pages(bz2.decompress(dump.read_bytes())).pages
        if page.wikitext
    ]
    lines[40:40] = bad
    with tarfile.open(path, "w:gz") as archive:
        for n, some in enumerate((lines[:100], lines[100:])):
            data = b"".join(line + b"\n" for line in some)
            info = tarfile.TarInfo(f"enwiki_namespace_0_{n}.ndjson")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def test_html_gives_the_benchmark_that_wikitext_gives(calm, dumps, tmp_path):
    from typer.testing import CliRunner

    from wbe.cli.main import app

    bad = [
        b'{"name": "Karsk", "identif',
        b'{"name": "Karsk", "identifier": 1}',
        b'{"name": "Vellmar", "identifier": 2, "x": "\xff\xfe"}',
    ]
    name = "enwiki-NS0-{}-ENTERPRISE-HTML.json.tar.gz"
    pages = [
        write_enterprise(path, tmp_path / name.format(day.replace("-", "")), bad if day == DAYS[0] else ())
        for day, (_, path) in zip(DAYS, dumps[:2])
    ]
    folder = tmp_path / "html"
    first = "20240201_20240220"
    for part in ("parsed", f"{first}/changes", f"{first}/screened", f"{first}/facts"):  # of Wikidata: the same
        if (calm / "work" / part).exists():
            shutil.copytree(calm / "work" / part, folder / "work" / part)
    words = [str(folder), *map(str, [path for path, _ in dumps[:2]] + pages)]
    words += [f"--set={name}={n}" for name, n in SMALL.items()]
    result = CliRunner().invoke(app, ["data", "evolve", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    here, there = released(folder), released(calm)
    same = [n for n in there if first in n or n in ("wiki_articles_20240201.parquet", "wiki_articles_20240220.parquet")]
    assert len(same) >= 6 and [n for n in same if here.get(n) != there[n]] == []
    parsed = folder / "work" / "pages" / "20240201"
    counts = json.loads((parsed / "wikipedia.manifest.json").read_text())["counts"]
    assert sum(n for reason, n in counts.items() if reason.startswith("rejected")) == 3, counts
    rejected = [json.loads(line) for line in gzip.open(parsed / "rejected.jsonl.gz", "rt")]
    assert [r["line"] for r in rejected] == [41, 42, 43] and "article_body" in rejected[1]["reason"]


def text_days(pairs) -> dict:
    return {day.replace("-", ""): [path] for day, (_, path) in zip(DAYS, pairs)}


def test_texts_stopped_at_any_file_end_with_the_same_bytes(dumps, tmp_path, monkeypatch):
    "And `wbe run --set texts=` finds them: every timestep of the same days has its texts."
    from typer.testing import CliRunner

    from wbe.cli.main import app
    from wbe.editors.text.training import text_steps

    wikipedia = [str(path) for _, path in dumps]

    def texts(folder, files):
        result = CliRunner().invoke(app, ["data", "texts", str(folder), *files], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return {p.name: p.read_bytes() for p in folder.glob("*.parquet")}

    calm, replace, left = texts(tmp_path / "calm", wikipedia[:2]), os.replace, [0]

    def stop(*paths):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        replace(*paths)

    for files in (1, 4, 3):
        left[0] = files
        with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
            m.setattr(os, "replace", stop)
            write_wiki_texts(text_days(dumps[:2]), tmp_path / "stopped", progress=False)
    assert texts(tmp_path / "stopped", wikipedia[:2]) == calm and len(calm) == 3
    assert calm.items() <= texts(tmp_path / "stopped", wikipedia[2:]).items()
    names = ["20240201_20240220", "20240220_20240301"]
    first = {t.id: t.text for t in text_steps(tmp_path / "stopped", names)[0].first}
    for step in text_steps(tmp_path / "stopped", names):
        now = {t.id: t.text for t in step.articles}
        written = [(t.id, sentence.strip()) for t in step.diff for sentence in split_sentences(t.text)]
        assert len(written) > 20 and all(s in now[i] and s not in first.get(i, "") for i, s in written)
        first = now


def scripted(body: dict) -> str:
    "A model that asks for the last candidates, and thinks that what has a digit is not supported."
    prompt = body["messages"][-1]["content"]
    f = dict(re.findall(r"^([^:\n]+): (.+)$", prompt, re.M))
    if "choose from" in f:
        same = f.get("first answer") == f.get("second answer")
        yes = not re.search(r"\d", f["answer"]) if "text" in f else same
        return json.dumps(dict(item=f["item"], verdict="true" if yes else "false"))
    lists = [v.split("; ")[-1] for k, v in f.items() if k.startswith("choose the")]
    named = f["title"] if f["title"] not in lists else f.get("passage", f.get("newer version", "")).split()[0]
    return json.dumps(dict(item=f["item"], pair=f"What is told of {named}? => {' => '.join(lists)}"))


def test_from_passages_by_a_model_without_wikidata(dumps, tmp_path, monkeypatch):
    from openai_server import FaultyServer

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    how, wikipedia = dict(prices=(1, 1), confirm=True), [articles for _, articles in dumps]
    with FaultyServer(reply=scripted) as server:
        model = dict(name="openai", model="m", base_url=server.url.replace("//", "//ann:s3cret@"))
        named = dict(source="passages", writer=model, checker=model, writer_options=how)
        evolve_benchmark(tmp_path / "b", wikipedia[:2], **named, **SMALL, progress=False)
        asked = server.asked.total()
        evolve_benchmark(tmp_path / "b", wikipedia[:2], **named, progress=False)
        assert asked > 60 and server.asked.total() == asked
        with pytest.raises(ValueError, match="the password is not stored"):
            evolve_benchmark(tmp_path / "b", wikipedia[2:], writer_options=how, progress=False)
        evolve_benchmark(tmp_path / "b", wikipedia[2:], **named, progress=False)
    stored = [p.read_bytes() for p in (tmp_path / "b").rglob("*") if p.is_file()]
    assert not any(b"s3cret" in content for content in stored)
    bench = Benchmark.load(tmp_path / "b" / "release")
    rows = [r for name in bench.timesteps for r in questions(tmp_path / "b", f"evolving_{name}")]
    assert {r["category"] for r in rows} == {"new", "edited"} and len(bench) == 2
    assert not any(re.search(r"\d", r["answer"]) for r in rows)  # the checker's doing
    assert all(r["answer"] in r["passage"] and r["answer"] != r["outdated"] for r in rows)
    counts = json.loads(
        (tmp_path / "b" / "work" / bench.timesteps[0] / "questions" / "questions.manifest.json").read_text()
    )
    assert counts["counts"]["supported, by the model"] > 0
    articles = read_table(tmp_path / "b" / "release" / "wiki_articles_20240301.parquet", SourceText).to_pylist()
    now, gone = (
        {a["title"]: a["text"] for a in articles},
        retired_probes(tmp_path / "b" / "release", bench.timesteps[1]),
    )
    outdated = set()
    for i, edit in zip(bench[0].edit_ids, bench[0].edits.to_pylist()):
        row = next(r for r in rows if (r["subject"], r["question"]) == (edit["subject"], edit["update"]))
        said = [s.strip() for s in split_sentences(row["passage"]) if edit["ans"] in s]
        if not any(s in now[row["title"]] for s in said):
            outdated.add((i, "update"))
    assert gone == outdated and 0 < len(gone) < len(bench[0])


def test_editors_and_text_learners_read_it_without_a_folder_of_texts(calm, tmp_path):
    torch = pytest.importorskip("torch")
    from wbe.lm.toys import toy_lm
    from wbe.runs.loop import run_lifelong
    from wbe.runs.plan import RunPlan

    torch.set_num_threads(1)
    same = dict(benchmark=str(calm / "release"), model="toy", device="cpu", timesteps=(1, 2), sample=3, ask_lasting=3)
    quick = {"text-diff": dict(steps=2, length=48, batch_size=4), "ft": dict(steps=1)}
    for name, hparams in quick.items():
        plan = RunPlan(editor=name, hparams=hparams, axes=("update",), generate=("update",), **same)
        run = run_lifelong(plan, tmp_path / name, lm=toy_lm("gpt2", n_positions=256), progress=False)
        assert run.missing == [] and (run.ability.what == "lasting facts").any()
    learnt = run_lifelong(plan, tmp_path / "ft", lm=toy_lm("gpt2", n_positions=256), progress=False)
    assert learnt.missing == []
