"""The notebooks of the analysis on other data: one cell is changed, and they execute to their end.

Once with another world's benchmark, another model (random weights) and runs of three editors, and once with a table
of one's own that has no ids, no dates and two axes. There, a notebook whose question needs what the table lacks stops
with one clear line, and no other way.
"""

import ast
import json
import os
import re
from pathlib import Path

import pandas as pd
import processes
import pytest
import torch

from wbe.analysis.report import make_report
from wbe.benchmark.reader import Benchmark
from wbe.benchmark.series import make_benchmark
from wbe.lm.toys import toy_lm
from wbe.runs.loop import run_lifelong
from wbe.runs.plan import RunPlan
from wbe.world.files import World

pytest.importorskip("execnb", reason="the package for development is not installed")
TESTS = Path(__file__).parent
NBS = TESTS.parent / "nbs"
SETTINGS = ("RUNS", "BENCHMARK", "MODEL", "LASTING", "DUMPS", "CORPUS", "VIEWS")
NOTEBOOKS = [
    path
    for path in sorted([*NBS.glob("11_analysis/*.ipynb"), *NBS.glob("research/*.ipynb")])
    if re.search(rf'"(?:{"|".join(SETTINGS)}) = ', path.read_text(encoding="utf-8"))
]
NEED_NO_IDS = (
    "00_overview",
    "08_cost",
    "01_editors_over_time",
)
EDITOR_NOTEBOOKS = [NBS / "09_editors" / f"{name}.ipynb" for name in ("06_trials", "weights/03_rome")]
# a report is made below, on a table
ON_ANOTHER_WORLD = [p for p in [*NOTEBOOKS, *EDITOR_NOTEBOOKS] if p.stem != "14_report"]
DAYS = ["2024-02-01", "2024-03-01", "2024-04-01"]
# what a table without ids, dates, tags and other axes than update and rephrase cannot answer
STOPS = {
    "03_statistics": "have no dates",
    "06_timesteps": "a figure over the timesteps needs two of them",
    "07_hops": "has no multi-hop questions",
    "09_kinds": "no update whose old answer is known",
    "17_outdated_answers": "no update whose old answer is known",
    "18_two_hops": "has no multi-hop questions",
    "10_gradients": "does not say which facts are new",
    "11_headline": "does not say which facts are new",
}
# those that stop, and the half of the others that uses most of a table; a report on the table is made below
ON_TABLES = [path for path in NOTEBOOKS if path.stem in (*STOPS, *NEED_NO_IDS)]


def few_edits(bench: Benchmark, folder: Path, replaced: int = 10, new: int = 14) -> Path:
    "Some edits of each timestep, as files of the same form."
    folder.mkdir()
    for step in bench:
        rows = [{k: v for k, v in row.items() if v is not None} for row in step.edits.to_pylist()]
        kinds = [[r for r in rows if r["tag"] == tag] for tag in ("update", "new")]
        (folder / f"{step.path.stem}.json").write_text(json.dumps(kinds[0][:replaced] + kinds[1][:new], default=str))
    return folder


def short_runs(folder: Path, benchmark: Path, model: Path, editors: dict, **options):
    for editor, hparams in editors.items():
        plan = RunPlan(benchmark=str(benchmark), model=str(model), editor=editor, hparams=hparams, batch=8, **options)
        run_lifelong(plan, folder / editor, progress=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    "A model with random weights; while it is used, torch has one thread, which is faster for such a small one."
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    lm, folder = toy_lm("gpt2", n_positions=512), tmp_path_factory.mktemp("model") / "toy"
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    yield folder
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def another_world(tmp_path_factory, model) -> dict:
    "A small world, its benchmark of two timesteps, runs of three editors, and all that a setting can name."
    tmp = tmp_path_factory.mktemp("another")
    files = World(seed=11, entities=500).write(
        tmp / "world", formats=("json.gz",), dates=DAYS, articles=False, truth=False, progress=False
    )
    dumps = sorted(files.paths("dumps"))
    whole = make_benchmark(tmp / "made", dumps, title="another", source="another world").folder
    bench = few_edits(Benchmark.load(whole), tmp / "another")
    lasting = whole.parent / "lasting_facts.parquet"
    editors = {"none": {}, "ft": dict(steps=2), "rag": dict(embedder="hashed", index="exact")}
    common = dict(every=16, first=32, curve=4, sample=6, ask_lasting=10, generate=("update", "locality"))
    short_runs(tmp / "runs", bench, model, editors, lasting=str(lasting), **common)
    facts = pd.read_parquet(lasting)
    (tmp / "corpus.txt").write_text("\n".join(f"{r.subject}: {r.property}, {r.object}" for r in facts.itertuples()))
    given = dict(RUNS=tmp / "runs", BENCHMARK=bench, MODEL=model, LASTING=lasting, CORPUS=tmp / "corpus.txt")
    given = {name: str(path) for name, path in given.items()}
    return given | dict(
        DUMPS=[str(dumps[0]), str(dumps[1])], VIEWS=[str(p) for p in sorted(files.paths("pageviews"))][:1]
    )


@pytest.fixture(scope="module")
def own_table(tmp_path_factory, another_world, model) -> dict:
    "A table with a question, another wording, its answer and its subject; no ids, no dates, no other axis."
    tmp = tmp_path_factory.mktemp("own")
    rows = pd.DataFrame(Benchmark.load(another_world["BENCHMARK"])[0].edits.to_pylist())
    columns = dict(subject="subject", update="question", rephrase="paraphrase", ans="answer")
    rows.rename(columns=columns)[list(columns.values())].head(24).to_csv(tmp / "mine.csv", index=False)
    short_runs(tmp / "runs", tmp / "mine.csv", model, {"none": {}, "ft": dict(steps=2)}, sample=8, ask_lasting=20)
    return another_world | dict(RUNS=str(tmp / "runs"), BENCHMARK=str(tmp / "mine.csv"))


def executed(settings: dict, tmp: Path, notebooks) -> dict:
    "What came of each notebook with these settings."
    job = dict(settings=settings, notebooks=[str(p) for p in notebooks], out=str(tmp))
    (tmp / "job").write_text(json.dumps(job))
    how = os.environ | dict(OMP_NUM_THREADS="1", MPLBACKEND="agg", TOKENIZERS_PARALLELISM="false")
    script = "import sys; sys.path.insert(0, sys.argv[1]); from notebook_runner import run_job; run_job(sys.argv[2])"
    done = processes.run(["-c", script, TESTS, tmp / "job"], env=how)
    assert done.returncode == 0, done.stderr[-3000:]
    return {p.stem: json.loads((tmp / f"{p.stem}.json").read_text()) for p in notebooks}


@pytest.fixture(scope="module")
def on_another_world(another_world, tmp_path_factory) -> dict:
    settings = another_world | dict(FAMILY="gpt2", LAYER=2, LAYERS=(1, 2))
    return executed(settings, tmp_path_factory.mktemp("executed"), ON_ANOTHER_WORLD)


@pytest.fixture(scope="module")
def on_own_table(own_table, tmp_path_factory) -> dict:
    return executed(own_table, tmp_path_factory.mktemp("executed"), ON_TABLES)


def test_every_notebook_that_reads_samples_has_settings():
    reads = [p.stem for p in sorted(NBS.glob("11_analysis/*.ipynb")) if "../data_samples/" in p.read_text()]
    # their runs were asked more (FORM_RUNS); test_more_measures.py has the same functions on other runs
    fixed = {"02_tables", "12_leakage", "16_rankings"}
    assert set(reads) - fixed <= {p.stem for p in NOTEBOOKS} and len(NOTEBOOKS) >= 18


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_samples_are_named_in_one_cell(path):
    cells = [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
    sources = ["".join(c["source"]) for c in cells]
    named = [s for s in sources if re.search(r'"(?:\.\./)+data_samples', s) and "#| export" not in s]
    named = [s for s in named if "#| slow" not in s]
    assert len(named) == 1
    assert all(isinstance(line, ast.Assign) and line.targets[0].id.isupper() for line in ast.parse(named[0]).body)


@pytest.mark.parametrize("name", [p.stem for p in ON_ANOTHER_WORLD])
def test_on_another_world(on_another_world, name):
    found = on_another_world[name]
    assert found["kind"] is None, found["where"]
    assert found["used"], "no setting was changed"


@pytest.mark.parametrize("name", [p.stem for p in ON_TABLES])
def test_on_a_table_of_ones_own(on_own_table, name):
    found = on_own_table[name]
    if name not in STOPS:
        assert found["kind"] is None, found["where"]
    else:
        assert found["kind"] == "BadArgument" and re.search(STOPS[name], found["message"]), found["where"]
        assert "\n" not in found["message"]


def test_report_folds_what_a_table_cannot_show(own_table, tmp_path):
    pytest.importorskip("nbclient", reason="the extra 'report' is not installed")
    from test_report import numbers_and_questions

    text = make_report([own_table["RUNS"]], tmp_path / "report.html").read_text(encoding="utf-8")
    found, _ = numbers_and_questions(text)
    assert {"kinds", "benchmark"} <= set(found.section[found.to != ""])
    shown = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert not re.search(r"\w+Error\b|argmax|Traceback", shown)
    folded = re.search(r"<p>Not shown: (.*?)</p>", text)[1]
    assert "When did the facts begin?" in folded and "have no dates" in folded
    assert 'id="decay"' not in text and 'id="means"' in text and text.count("<p>Not shown: ") == 1
    assert "a figure over the timesteps needs two of them; here is one" in shown
