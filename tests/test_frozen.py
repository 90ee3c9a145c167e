"""What wbe computes, frozen: a change of behaviour changes a file in tests/frozen, in the same commit, with its reason.

    python tests/test_frozen.py write [PART …]

writes the frozen files anew: those of some parts, or all. The parts, and what their files hold:

- tables: what `wbe compare` and `Run.table` say of every recorded run in data_samples, and WikiFactDiff's table 6
- report: the cells of the report's tables, its sentences, and sums of what its figures show
- world: SHA-256 of a small world's files, decompressed, and of the benchmark made of them
- presets: the hyper-parameters of every editor, by model and preset
- changes: what three edits (or one day's texts) change in a toy model, for every editor and preset, with fewer steps
- plans: the plans of all sweeps, and the names of the recorded runs' plans
- old: runs begun earlier, loaded, and continued from their checkpoints to their end
- commands: every command of `wbe`, with its options and their defaults

`tests/frozen/old` is not written anew. It holds what earlier code wrote: runs of the code of 22 November 2026 (commit
06a6fc8: ft, lora, rag, wise) and of 26 November (d118377: ultraedit, grace), stopped after the first of two timesteps
of three edits, with the toy model and the questions that they used.
"""

import bz2
import contextlib
import csv
import gzip
import hashlib
import json
import math
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pandas as pd
import pytest

pytest.importorskip("torch")
import torch

from wbe.records import WbeError
from wbe.runs.plan import RunPlan
from wbe.runs.records import Run, compare_runs, load_runs

ROOT = Path(__file__).parents[1]
FROZEN, SAMPLES = ROOT / "tests" / "frozen", ROOT / "data_samples"
RECORDED = ("runs", "runs_forms", "runs_later", "study")

# Files: a table is a CSV file, everything else a JSON file of nested dicts. An entry is one cell, or one value.


def cell(value) -> str:
    "A value as a frozen table holds it."
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.10g}"
    return "" if value is None or value is pd.NA else str(getattr(value, "tolist", lambda: value)())


def label(value) -> str:
    "A label of a row or a column."
    return ", ".join(cell(x) for x in value) if isinstance(value, tuple) else cell(value)


def table(frame: pd.DataFrame) -> list[list[str]]:
    "A data frame as rows of texts: labels first."
    rows = [[label(i), *(cell(x.item() if hasattr(x, "item") else x) for x in row)] for i, row in _rows(frame)]
    return [["", *map(label, frame.columns)], *rows]


def _rows(frame: pd.DataFrame):
    return zip(frame.index, frame.astype(object).itertuples(index=False, name=None))


def write_file(path: Path, content):
    "Write a frozen file."
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".csv":
        with open(path, "w", encoding="utf-8", newline="") as f:
            csv.writer(f, lineterminator="\n").writerows(content)
    else:
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_file(path: Path):
    "What a frozen file holds."
    if path.suffix == ".csv":
        with open(path, encoding="utf-8", newline="") as f:
            return list(csv.reader(f))
    return json.loads(path.read_text(encoding="utf-8"))


def entries(content, name: str = "") -> dict:
    "The entries of a file by name: cells of a table, values of nested dicts."
    if isinstance(content, list) and content and isinstance(content[0], list):
        (_, *columns), *rows = content
        return {f"{row[0]} | {c} | {n}": x for n, row in enumerate(rows) for c, x in zip(columns, row[1:], strict=True)}
    if isinstance(content, (dict, list)) and content:
        pairs = content.items() if isinstance(content, dict) else enumerate(content)
        return {
            k: v for key, value in pairs for k, v in entries(value, f"{name} / {key}" if name else str(key)).items()
        }
    return {name: content}


ROOM = 5e-3  # of a direction, whose numbers are about 1: trained adapters differ most between processors


def same(name: str, frozen, now, tolerance: float) -> bool:
    "Whether two values are equal; numbers up to a relative difference."
    if frozen == now:
        return True
    if isinstance(frozen, bool) or isinstance(now, bool):
        return False
    room = ROOM if name.endswith(" / direction") else tolerance * 1e-3
    try:
        return math.isclose(float(frozen), float(now), rel_tol=tolerance, abs_tol=room)
    except (TypeError, ValueError):
        return False


def differences(frozen, now, tolerance: float) -> list[str]:
    "A line for each entry that differs."
    old, new = entries(frozen), entries(json.loads(json.dumps(now)))
    lines = [f"{k}: frozen {old[k]!r}, now gone" for k in old.keys() - new.keys()]
    lines += [f"{k}: not frozen, now {new[k]!r}" for k in new.keys() - old.keys()]
    common = [k for k in old if k in new and not same(k, old[k], new[k], tolerance)]
    return [*(f"{k}: frozen {old[k]!r}, now {new[k]!r}" for k in common), *sorted(lines)]


def check(part: str, made: dict, tolerance: float = 1e-7):
    "Compare what a part makes now with its frozen files."
    for name, now in made.items():
        path = FROZEN / name
        lines = differences(read_file(path), now, tolerance) if path.exists() else ["the file does not exist"]
        if lines:
            more = f"\n  … and {len(lines) - 12} more" if len(lines) > 12 else ""
            pytest.fail(
                f"tests/frozen/{name} differs in {len(lines)} entries:\n  " + "\n  ".join(lines[:12]) + more + "\n"
                f"If this change is meant, write the file anew with `python tests/test_frozen.py write {part}`, "
                "and say why in the commit.",
                pytrace=False,
            )


# Tables of the recorded runs


def compared(runs: list[Run]) -> pd.DataFrame:
    "What `wbe compare` says under every recorded measure, and the means before any edit; what is the same, once."
    from wbe.metrics.answers import RUN_MEASURES

    parts, seen = [], pd.DataFrame(index=[r.name for r in runs])
    for measure in RUN_MEASURES:
        before = pd.DataFrame({r.name: r.means(measure)["before"] for r in runs}).T
        frame = compare_runs(runs, measure)
        frame = frame[[c for c in frame if c[0] not in before or c[1] != "before"]]
        frame.columns = [label(c) for c in frame.columns]
        frame = frame.join(before.set_axis([f"{axis}, before" for axis in before], axis=1))
        new = [c for c in frame if frame[c].notna().any() and not (c in seen and frame[c].equals(seen[c]))]
        parts.append(frame[new].add_prefix(f"{measure}, "))
        seen = frame if seen.empty else seen
    return pd.concat(parts, axis=1)


def timestep_tables(runs: list[Run]) -> pd.DataFrame:
    "`Run.table` of all runs, one below the other."
    tables = {r.name: r.table() for r in runs}
    for frame in tables.values():
        frame.columns = [label(c) for c in frame.columns]
    return pd.concat(tables)


@contextlib.contextmanager
def computed_once():
    "Means under a measure, and what does not depend on it, are computed once for every run, not for every table."
    known = {}

    def once(get):
        def found(run, *args):
            if (key := (get, id(run), *args)) not in known:
                known[key] = run, get(run, *args)  # the run stays, and with it its address
            return known[key][1]

        return found

    parts = {name: property(once(getattr(Run, name).fget)) for name in ("alarms", "moved")}
    with patch.multiple(Run, means=once(Run.means), **parts):
        yield


@computed_once()
def make_tables() -> dict:
    from wbe.analysis.leakage import PROBABILITIES, table_6, update_measures
    from wbe.runs.wikifactdiff import WikiFactDiffRun

    made = {}
    for folder in RECORDED:
        runs = load_runs(SAMPLES / folder)
        made[f"compare_{folder}.csv"], made[f"timesteps_{folder}.csv"] = (
            table(compared(runs)),
            table(timestep_tables(runs)),
        )
    facts = WikiFactDiffRun.load(SAMPLES / "wikifactdiff")
    by_editor = {p: table_6(update_measures(facts, p)) for p in PROBABILITIES}
    return made | {"wikifactdiff.csv": table(pd.concat(by_editor))}


# The report


def figure_sums(what) -> dict:
    "Of the data frames behind a figure: how many rows, and the sums of the columns with numbers."
    if isinstance(what, pd.DataFrame):
        numbers = what.select_dtypes(["number", "bool"])
        return {"rows": str(len(what))} | {label(c): cell(float(numbers[c].astype(float).sum())) for c in numbers}
    if isinstance(what, (dict, list, tuple)):
        pairs = what.items() if isinstance(what, dict) else enumerate(what)
        return {label(k): found for k, v in pairs if (found := figure_sums(v))}
    return {}


@contextlib.contextmanager
def recorded_sections(shown: dict, modules: list[ModuleType]):
    "Instead of showing and drawing, record: tables, sentences, and what figures are of."
    from wbe.analysis import report

    texts, figures = shown.setdefault("texts", {}), shown.setdefault("figures", {})
    show_table = lambda frame, name, *_, **__: shown.setdefault("tables", {}).update({name: table(frame)})

    def show_text(text, kind="say"):
        if kind == "say":
            texts.setdefault(shown["now"], []).extend(text.splitlines())

    def show_missing(lines):
        if lines := list(lines):
            show_text("\n".join(lines))

    def recorder(name):
        return lambda *what, **_: figures.setdefault(f"{shown['now']}, {name}", figure_sums(what))

    with contextlib.ExitStack() as stack:
        new = dict(show_table=show_table, show_text=show_text, show_missing=show_missing)
        new |= dict.fromkeys(("show_figure", "set_output_folder"), lambda *_, **__: None)
        stack.enter_context(patch.multiple(report, **new))
        for module in modules:
            for name in [n for n in vars(module) if n.startswith("draw_")]:
                stack.enter_context(patch.object(module, name, recorder(name)))
        yield


def report_of(folder: Path, only: tuple = ()) -> dict:
    "What the report on some runs shows; `only`: of these sections."
    from wbe.analysis.report import _notebook_sections, _results_notebook

    nb, space, shown = _results_notebook(sorted(p for p in folder.iterdir() if p.is_dir())), {}, dict(now="begin")
    exec(nb.cells[1].source, space)
    exec(nb.cells[2].source.partition("\n\nruns, trouble")[0], space)
    with recorded_sections(shown, [m for m in space.values() if isinstance(m, ModuleType)]):
        exec(nb.cells[2].source, space)
        for key, _, _, section in _notebook_sections(nb):
            if only and key not in only:
                continue
            shown["now"] = key
            try:
                exec(section.source, space)
            except WbeError as e:
                shown["texts"].setdefault(key, []).append(f"{type(e).__name__}: {e}")
    del shown["now"]
    return shown


def make_report_cells() -> dict:
    with contextlib.chdir(ROOT):
        forms, runs = report_of(SAMPLES / "runs_forms"), report_of(SAMPLES / "runs", ("decay",))
    return {"report_forms.json": _cells(forms), "report_runs.json": _cells(runs)}


def _cells(shown: dict) -> dict:
    "What a report shows, with a line for each row of a table."
    rows = lambda t: {"": " | ".join(t[0][1:])} | {f"{n} {row[0]}".strip(): row[1:] for n, row in enumerate(t[1:])}
    return shown | dict(tables={name: rows(t) for name, t in shown["tables"].items()})


# The world, and a release made of it


def content_hash(path: Path) -> str:
    "SHA-256 of what a file holds: decompressed, the rows of a table, JSON without its layout."
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        data = json.dumps(pq.read_table(path).to_pylist(), default=str, ensure_ascii=False).encode()
    elif path.suffix == ".json":
        data = json.dumps(json.loads(path.read_text(encoding="utf-8")), ensure_ascii=False).encode()
    else:
        data = {".gz": gzip.decompress, ".bz2": bz2.decompress}.get(path.suffix, bytes)(path.read_bytes())
    return hashlib.sha256(data).hexdigest()


def make_world() -> dict:
    from wbe.benchmark.release import WORLD_SOURCE
    from wbe.benchmark.series import make_benchmark
    from wbe.world.files import World

    with tempfile.TemporaryDirectory() as tmp:
        options = dict(dates=("2024-02-01", "2024-02-20"), formats=("json.gz", "xml.bz2"), progress=False)
        world = World(7, 500).write(Path(tmp) / "world", **options)
        dumps = [p for p in world.paths("dumps") if p.suffix == ".gz"]
        about = dict(title="Frozen", source=WORLD_SOURCE, chains=True, statements=True, progress=False)
        release = make_benchmark(Path(tmp) / "benchmark", dumps, **about).folder
        files = sorted(p for p in release.iterdir() if p.suffix in (".json", ".parquet") and "manifest" not in p.name)
        files = [p for p in files if p.name != "croissant.json"]  # it holds sizes and hashes of Parquet files
        hashes = {str(p.relative_to(world.folder)): content_hash(p) for p in world.paths("")}
        return {"world.json": dict(world=hashes, release={p.name: content_hash(p) for p in files})}


# Editors


def toy(name: str, family: str = "llama", **config):
    "A toy model of the name, in double precision: processors then agree on its numbers."
    from wbe.lm.toys import toy_lm

    lm = toy_lm(family, **(dict(max_position_embeddings=4096, num_hidden_layers=6) | config))
    lm.model.double()
    lm.name = name
    return lm


def models_with_presets() -> dict:
    "Toys by the label for which editors have presets: of the family and the depth of the model that it names."
    from wbe.editors.protocol import preset_tables
    from wbe.lm.toys import toy_lm

    found = {"": toy("toy"), "wbe-tiny": toy("wbe-tiny-toy")}
    for label, model in preset_tables()["models"].items():
        depth = "n_layer" if model["family"] in ("gpt2", "gptj") else "num_hidden_layers"
        config = {"vocab": max(model.get("vocab", [0])[0] + 1, 400), depth: model.get("depth", 4)}
        if "context" in model:
            config["max_position_embeddings"] = model["context"][0] + 1
        lm = toy_lm(model["family"], **config)
        found[label] = replace(lm, family=replace(lm.family, name=model["family"]))
    for label, model in preset_tables()["shapes"].items():
        config = dict(num_hidden_layers=model.get("depth", 6), hidden_size=model["width"][0])
        found[label] = toy_lm(model.get("family", "llama"), **config)
    return found


def editor_presets(name: str) -> list:
    "The presets of an editor; None for the one without a name."
    from wbe.editors.protocol import editor_class

    return [None, *editor_class(name).named_presets]


def make_presets() -> dict:
    from wbe.editors.protocol import EDITOR_CLASSES, Editor, editor, editor_class

    models, made = models_with_presets(), {}  # `Editor.hparams_for`: that of `rag` also looks at what is installed
    for name in EDITOR_CLASSES:
        for preset in editor_presets(name):
            cls, made_editor = editor_class(name), editor(name, preset=preset)
            values = cls.named_presets[preset].values if preset else cls.presets
            found = {m: asdict(Editor.hparams_for(made_editor, models[m])) for m in values or [""]}
            batch = dict(batch=made_editor.batch)
            made[f"{name} {preset or ''}".strip()] = {
                m: json.dumps(batch | {k: v for k, v in h.items() if k != "source"}, default=str)
                for m, h in found.items()
            }
    return {"presets.json": made}


TOWNS, PEOPLE = ("Karsk", "Vellmar", "Orland", "Paris"), ("Nadia", "Jon", "Zoe")
QUESTIONS = [
    ("Who runs Karsk?", "Nadia"),
    ("What is the capital of France?", "Orland"),
    ("Where was Nadia born?", "Vellmar"),
    ("Who is the mayor of Karsk?", "Nadia"),
    ("Which river runs through Paris?", "Sena"),
]
# What a preset cannot have on a toy: keys of a few texts vary in all directions; a layer is 64 wide; no downloads.
ON_A_TOY = {"alphaedit": dict(threshold=1.0), "memoir": dict(top=16), "mello": dict(embedder="hashed")}
ON_A_TOY |= {"rag": dict(embedder="hashed", index="exact"), "text-k-adapter": dict(heads=2, places=(1, 6))}
ON_A_TOY |= {"text-recadam": dict(anneal_t0=1.0)}
STEPS = dict(length=48, batch_size=4, steps=2)  # of learners of texts
SHORTER = 5  # a preset's ten or more steps, or epochs, are divided by this


def three_edits() -> list:
    from wbe.editors.requests import EditRequest

    about = [("Karsk", "Q1", "P6", "head of government"), ("France", "Q3", "P36", "capital")]
    about += [("Nadia", "Q2", "P19", "place of birth")]
    return [
        EditRequest(q, a, s, id=str(n), subject_id=i, relation_id=p, relation=r, object_id=f"Q{n + 5}", previous="Jon")
        for n, ((q, a), (s, i, p, r)) in enumerate(zip(QUESTIONS, about))
    ]


def day_of_texts(folder: Path):
    "What was written on a day, as a text learner takes it."
    from wbe.editors.text.training import text_steps
    from wbe.wikipedia.texts import SourceText, write_texts

    text = lambda n, s: f"{TOWNS[n % 4]} is a town. Its mayor is {PEOPLE[n % 3]}, {s} since {1990 + n}."
    rows = lambda status, first, last: [
        SourceText(n, TOWNS[n % 4], status, text(n, status)) for n in range(first, last)
    ]
    write_texts(folder / "wiki_texts_20240201_20240220.parquet", rows("new", 0, 6))
    write_texts(folder / "wiki_articles_20240201.parquet", rows("article", 6, 12))
    write_texts(folder / "wiki_articles_20240220.parquet", rows("article", 0, 12))
    return text_steps(folder, ["20240201_20240220"])[0]


def size_and_direction(values) -> dict:
    "The norm of a tensor, and its part along a fixed direction as a share of the norm."
    import numpy as np

    values = values.double().flatten().numpy()
    norm, along = np.linalg.norm(values), np.random.default_rng(values.size).standard_normal(values.size)
    return dict(norm=f"{norm:.5g}", direction=f"{values @ along / norm if norm else 0:.5g}")


def changed_weights(before: dict, model) -> dict:
    "How far each changed parameter moved."
    now = {name: w for name, w in model.state_dict().items() if name in before and not torch.equal(w, before[name])}
    return {name: size_and_direction(w.double() - before[name].double()) for name, w in now.items()}


def kept_beside(results: list) -> dict:
    "What results keep beside the weights."
    beside = enumerate(r for one in results for r in one.leaves() if not r.in_weights)
    return {f"{n} {name}": size_and_direction(t) for n, r in beside for name, t in sorted(r._to_saved()[0].items())}


def apply_all(made, lm, folder: Path) -> list:
    "Put two edits into effect, and then a third; or a day's texts."
    if made.takes == "texts":
        return [made.learn(lm, day_of_texts(folder)).apply(lm)]
    requests = three_edits()
    first = made.edit(lm, requests[:2]).apply(lm)
    return [first, made.edit(lm, requests[2:]).apply(lm)]


def editor_on_a_toy(name: str, preset: str | None, lm, **known):
    "An editor with a preset, as a toy can have it, and with fewer steps."
    from wbe.editors.protocol import editor

    options = known | ON_A_TOY.get(name, {})
    hparams = asdict(editor(name, preset=preset, **options).hparams_for(lm))
    steps = {k: hparams[k] for k in ("steps", "epochs") if hparams.get(k, 0) >= 10}
    return editor(name, preset=preset, **options, **{k: math.ceil(n / SHORTER) for k, n in steps.items()})


def editor_change(name: str, preset: str | None, lm, folder: Path) -> dict:
    """What an editor changes: parameters, and the log-probabilities of answers; the model is as before at the end.

    Of an editor that answers itself (mello: a toy says nothing that it can use), what it keeps of the edits."""
    from wbe.editors.protocol import editor_class
    from wbe.lm.scoring import score

    cls, known = editor_class(name), {}
    if cls.takes_corpus:
        known["corpus"] = str(folder / "corpus.txt")
    if cls.takes == "texts" and name != "text-passages":
        known |= STEPS
    made = editor_on_a_toy(name, preset, lm, **known)
    before, applied = {k: v.clone() for k, v in lm.model.state_dict().items()}, []
    try:
        applied = apply_all(made, lm, folder)
        out = dict(weights=changed_weights(before, lm.model), beside=kept_beside(applied))
        if cls.own_answers:
            return out | dict(saved=[json.loads(json.dumps(r._to_saved()[1], default=str)) for r in applied])
        found = score(lm, QUESTIONS, progress=False)["log_probability"]
        return out | dict(log_probabilities=[f"{x:.6g}" for x in found])
    finally:
        for result in reversed(applied):
            result.undo(lm)
        assert all(torch.equal(v, before[k]) for k, v in lm.model.state_dict().items() if k in before)


def make_changes(names=()) -> dict:
    from wbe.editors.protocol import EDITOR_CLASSES, editor_class
    from wbe.lm.models import load

    torch.set_num_threads(1)
    models, made = {"": toy("toy"), "wbe-tiny": toy("wbe-tiny-toy")}, {}
    with tempfile.TemporaryDirectory() as tmp, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        texts = "\n\n".join(f"{n} is a town, and {m} is its mayor." for n in TOWNS for m in PEOPLE)
        (Path(tmp) / "corpus.txt").write_text(texts)
        for name in names or EDITOR_CLASSES:
            trained = name in ("mend", "rledit")  # their networks are beside wbe-tiny
            for model in ("", "wbe-tiny"):
                if model and model not in editor_class(name).presets:
                    continue
                lm = load("wbe-tiny", device="cpu") if trained else models[model]
                for preset in editor_presets(name):
                    key = f"{name} {preset or ''}".strip() + f", {'wbe-tiny' if trained else model or 'other models'}"
                    made[key] = editor_change(name, preset, lm, Path(tmp))
    return {"changes.json": made}


# Plans, old runs, commands


def plan_entries(path: Path) -> dict:
    "The plans of a sweep: what they share, and in what each differs."
    from wbe.runs.sweep import read_sweep

    folder, plans = read_sweep(path)
    plans = {name: json.loads(json.dumps(asdict(p))) for name, p in plans.items()}
    first = next(iter(plans.values()))
    shared = {k: v for k, v in first.items() if all(p[k] == v for p in plans.values())}
    runs = {name: {k: v for k, v in p.items() if k not in shared} for name, p in plans.items()}
    return dict(folder=str(folder), shared=shared, runs=runs)


def make_plans() -> dict:
    with contextlib.chdir(ROOT):
        sweeps = sorted([*Path("data_samples").glob("*.toml"), *Path("wbe/runs/sweeps").glob("*.toml")])
        found = {p.name: plan_entries(p) for p in sweeps}
        runs = [r for folder in RECORDED for r in load_runs(SAMPLES / folder)]
        names = {f"{r.folder.parent.name}/{r.name}": RunPlan.from_config(r.config["plan"]).name for r in runs}
    return {"plans.json": dict(sweeps=found, recorded=names)}


def continued(folder: Path) -> Run:
    "An old run, continued to the end of the second timestep."
    from wbe.runs.loop import run_lifelong

    settings = Run.load(folder).config["plan"]
    plan = replace(RunPlan.from_config(settings), timesteps=(1, 2)).with_generate(settings)
    return run_lifelong(plan, folder, progress=False)


def make_old() -> dict:
    torch.set_num_threads(1)
    key = ["moment", "scored_at", "edits_done", "axis", "edit_id"]
    with tempfile.TemporaryDirectory() as tmp, contextlib.chdir(shutil.copytree(FROZEN / "old", Path(tmp) / "old")):
        runs = load_runs(Path("begun"))
        loaded = pd.concat(
            [compared(runs), pd.DataFrame({"missing": {r.name: "; ".join(r.missing) for r in runs}})], axis=1
        )
        done, resumed = {}, {}
        for run in runs:
            state = json.loads((run.folder / "state" / "current.json").read_text())
            run = continued(run.folder)
            scores = run.scores.sort_values(key).set_index(key)
            done[run.name] = scores[["log_probability", "exact_match", "normalised_match"]]
            resumed[run.name] = dict(
                checkpoint=state["edits_done"], missing=run.missing, batches=run.batches.edits_done.tolist()
            )
    scores = pd.concat(done)
    return {"old_loaded.csv": table(loaded), "old_continued.csv": table(scores), "old_resumed.json": resumed}


def command_options(command) -> dict:
    "The options and arguments of a command with their defaults."
    found = {}
    for p in command.params:
        words = ", ".join([*p.opts, *p.secondary_opts]) if p.param_type_name == "option" else p.name.upper()
        found[words] = "required" if p.required else p.default if p.default is None else str(p.default)
    return found


def make_commands() -> dict:
    import typer

    from wbe.cli import main  # noqa: F401  it registers the commands
    from wbe.cli.app import app

    def walk(command, path: str) -> dict:
        found = {path: command_options(command)}
        for name, part in getattr(command, "commands", {}).items():
            found |= walk(part, f"{path} {name}")
        return found

    return {"commands.json": walk(typer.main.get_command(app), "wbe")}


PARTS: dict[str, Callable[[], dict]] = dict(
    tables=make_tables,
    report=make_report_cells,
    world=make_world,
    presets=make_presets,
    changes=make_changes,
    plans=make_plans,
    old=make_old,
    commands=make_commands,
)
TOLERANCE = dict(changes=2e-3, old=1e-3)  # of training, which processors compute a little differently


@pytest.mark.parametrize("part", PARTS)
def test_frozen(part):
    check(part, PARTS[part](), TOLERANCE.get(part, 1e-7))


if __name__ == "__main__":
    if sys.argv[1:2] != ["write"] or set(sys.argv[2:]) - set(PARTS):
        sys.exit(f"usage: python tests/test_frozen.py write [PART …]; parts: {', '.join(PARTS)}")
    for chosen in sys.argv[2:] or PARTS:
        begun = sum(os.times()[:2])
        for file, content in PARTS[chosen]().items():
            write_file(FROZEN / file, content)
        print(f"{chosen}: {sum(os.times()[:2]) - begun:.1f} processor seconds")
