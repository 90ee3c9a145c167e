"""Each tutorial is executed with its one marked cell changed, and shows what the change should give.

`nbdev_test` executes them as they are.
"""

import bz2
import importlib.util
import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pandas as pd
import processes
import pytest

ROOT = Path(__file__).parents[1]
FOLDER, SAMPLES = ROOT / "nbs" / "tutorials", ROOT / "data_samples"
TUTORIALS = sorted(p for p in FOLDER.glob("0[1-9]_*.ipynb"))
MARK = "# Change this cell"


def code_cells(name: str) -> list[str]:
    path = next(FOLDER.glob(f"{name}*.ipynb"))
    return [c.source for c in nbformat.read(path, 4).cells if c.cell_type == "code"]


@pytest.fixture
def execute():
    "Execute a tutorial with its marked cell replaced; returns its variables and what it printed."
    from execnb.shell import CaptureShell
    from IPython.core import pylabtools

    images = {name: getattr(pylabtools, name) for name in ("print_figure", "retina_figure")}
    undrawn = load_script("nbs/_dev/notebooks.py").draw_once()
    start, before, path, main = Path.cwd(), dict(os.environ), list(sys.path), sys.modules["__main__"]

    def run(name: str, cell: str, until: str = "") -> tuple[dict, str]:
        os.chdir(FOLDER)
        shell, printed = CaptureShell(mpl_format="png"), []
        shell.system = processes.shell_line
        for source in code_cells(name):
            if until and until in source:
                break
            for output in shell.run(cell if MARK in source else source):
                printed.append("".join(output.get("text", [])))
            assert not (shell.exc or undrawn), f"{source}\n{shell.exc or undrawn}"
        return shell.user_ns, "\n".join(printed)

    yield run
    os.chdir(start)
    sys.path[:] = path
    sys.modules["__main__"] = main
    sys.modules.pop("my_editor", None)
    vars(pylabtools).update(images)
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.stem)
def test_form(path):
    "A goal in one sentence, one marked cell, an error shown, what to change, where to go; nothing is exported."
    nb = nbformat.read(path, 4)
    prose = "\n".join(c.source for c in nb.cells if c.cell_type == "markdown")
    first = nb.cells[0].source
    assert re.match(r"# .+\n\n> [^\n]+\.\n\n\[Open in Colab\]\([^\n]+\n\nYou need ", first), first
    assert [MARK in c.source for c in nb.cells].count(True) == 1
    for heading in ("## What can go wrong", "## What to change", "## Where to go next"):
        assert heading in prose
    visible = [c for c in nb.cells if c.cell_type == "code" and "#| hide" not in c.source and MARK not in c.source]
    silent = [c for c in visible if not c.outputs]
    assert len(silent) <= 3, [c.source for c in silent]
    assert max(len(c.source.splitlines()) for c in visible) <= 26
    assert "#| export" not in "".join(c.source for c in nb.cells)


def test_there_are_six():
    assert [p.stem[:2] for p in TUTORIALS] == ["01", "02", "03", "04", "05", "06"]
    overview = nbformat.read(FOLDER / "00_overview.ipynb", 4)
    linked = set(re.findall(r"\]\((\d\d_\w+)\.ipynb\)", "\n".join(c.source for c in overview.cells)))
    assert linked == {p.stem for p in TUTORIALS}


def test_one_fact_with_another_editor(execute):
    "Retrieval changes no weight: the new answer is there, and other subjects keep theirs."
    ns, _ = execute("01", 'EDITOR = "rag"')
    shown = ns["table"].set_index("question")
    assert not ns["result"].in_weights
    assert shown.after["What is the capital of Kibordesh?"] == "Silpur"
    kept = shown[shown.kind.isin(["same subject", "other subject"])]
    assert len(kept) == 4 and (kept.before == kept.after).all()


@pytest.fixture
def llama(tmp_path):
    "A folder with a Llama of three layers, with random weights, as `save_pretrained` writes it."
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(SAMPLES / "wbe-tiny")
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4)
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=256, eos_token_id=tokenizer.eos_token_id,
                         bos_token_id=tokenizer.bos_token_id, pad_token_id=tokenizer.pad_token_id, **sizes)  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    tokenizer.save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def test_own_model_of_another_family(execute, llama):
    "A random model knows nothing before the edits; the run is about it, and errors name its layers."
    ns, printed = execute("02", f"from pathlib import Path\n\nMODEL = Path({str(llama)!r})")
    assert ns["lm"].family.name == "llama" and ns["lm"].layers == 3
    assert ns["exact"]["MODEL"].max() == 0 and ns["exact"]["wbe-tiny"]["locality"] > 0.5
    run = ns["run"]
    assert run.missing == [] and run.config["model"]["name"] == str(llama) and run.batches.edits.sum() == 10
    assert run.config["hparams"]["layer"] in range(3)
    assert "layers 0 to 2" in printed


OWN_COLUMNS = dict(ask="frage", now="antwort", about="thema", in_other_words="anders gefragt", leave_alone="bleibt",
                   leave_alone_answer="bleibt wie")  # fmt: skip


def test_own_edits_from_another_csv(execute, tmp_path):
    "Eight rows with German column names, semicolons, an empty answer, and another editor, up to the page."
    rows = pd.read_csv(FOLDER / "sixteen_edits.csv").drop(columns="was").rename(columns=OWN_COLUMNS).head(8)
    rows.loc[8] = dict(rows.loc[0]) | dict(frage="Who chairs Kibordesh?", antwort="")
    rows.to_csv(tmp_path / "meine.csv", index=False, sep=";")
    columns = dict(frage="question", antwort="answer", thema="subject", bleibt="locality")
    columns |= {"anders gefragt": "rephrase", "bleibt wie": "locality_answer"}
    ns, _ = execute("03", f"ROWS, MAP, EDITORS = {str(tmp_path / 'meine.csv')!r}, {columns!r}, ('prompt',)")
    assert ns["bench"][0].to_pandas()["update"].tolist() == rows.frage.head(8).tolist()
    assert len(ns["bench"].source.set_aside) == 1
    runs = {run.name: run for run in ns["load_runs"](ns["runs"])}
    assert set(runs) == {"none", "prompt"} and runs["prompt"].batches.edits.sum() == 8
    asked = runs["prompt"].scores.query("moment == 'current'").groupby("axis").size()
    assert asked.to_dict() == {"update": 8, "rephrase": 8, "locality": 8}
    assert runs["none"].scores.query("axis == 'locality'").exact_match.all()
    page = ns["page"].read_text(encoding="utf-8")
    assert "My own edits" in page and "meine.csv" in page


def test_own_edits_from_json(execute, tmp_path):
    "Rows as JSON, with names that are known: nothing is mapped, and only what is there is asked."
    rows = pd.read_csv(FOLDER / "sixteen_edits.csv").head(5)
    rows = [dict(prompt=r.ask, target_new=r.now, subject=r.about) for r in rows.itertuples()]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    cell = f"ROWS, MAP, EDITORS = {str(tmp_path / 'rows.json')!r}, {{}}, ('ft',)"
    ns, _ = execute("03", cell, until="make_report")
    run = next(r for r in ns["load_runs"](ns["runs"]) if r.name == "ft")
    assert set(run.scores.axis) == {"update"} and run.batches.edits.sum() == 5
    before, after = (run.scores.query(f"moment == '{m}'").exact_match.mean() for m in ("before", "current"))
    assert before == 0 and after > 0.5


FACTS_IN_FRONT = """%%writefile my_editor.py
from wbe.editors.memory.retrieval import PromptEdit, format_fact
from wbe.editors.protocol import Editor


class FactsOfSubject(PromptEdit):
    def context_for(self, question):
        return [format_fact(r, "pair") for r in self.facts if r.subject in question]


class Mine(Editor):
    "Facts about the subject of a question stand in front of it."

    def _edit(self, lm, requests, hparams):
        return FactsOfSubject(facts=list(requests))
"""


def test_own_editor_of_another_kind(execute):
    "It changes no weights, answers many edits, and leaves questions about other subjects exactly as they were."
    ns, _ = execute("04", FACTS_IN_FRONT)
    runs = {run.name: run for run in ns["load_runs"]("runs")}
    assert set(runs) == {"mine", "mine-at-once", "none", "ft"}
    assert runs["mine"].config["plan"]["editor"] == "my_editor:Mine" and not ns["result"].in_weights
    right = {name: run.means()["just edited"] for name, run in runs.items()}
    assert right["mine"]["update"] > 0.3 and right["none"]["update"] == 0
    answers = {n: run.scores.query("axis == 'locality' and moment == 'current'") for n, run in runs.items()}
    assert answers["mine"].answer.tolist() == answers["none"].answer.tolist()
    assert right["mine"].equals(right["mine-at-once"])  # the batches do not matter to this editor


def statements(dump: Path) -> dict[str, set]:
    "Subject, property and value of every main statement between items, read without wbe, by rank."
    found = {}
    with bz2.open(dump, "rt", encoding="utf-8") as lines:
        for line in lines:
            line = line.strip().rstrip(",")
            if not line.startswith("{"):
                continue
            entity = json.loads(line)
            for pid, claims in (entity.get("claims") or {}).items():
                for claim in claims:
                    value = claim["mainsnak"].get("datavalue", {}).get("value")
                    if isinstance(value, dict) and "id" in value:
                        found.setdefault(claim["rank"], set()).add((entity["id"], pid, value["id"]))
    return found


def test_two_other_dumps(execute):
    "Every edit is in the newer dump, and replaces something; previous values are in the older dump."
    old, new = "wikidata-20240301-all.json.bz2", "wikidata-20240320-all.json.bz2"
    cell = f'OLD, NEW = "{old}", "{new}"\nCLOSENESS = "graph"\nWRITER = dict(name="template")'
    ns, _ = execute("05", cell)
    edits, facts = ns["edits"], ns["facts"]
    before, after = statements(SAMPLES / "world" / old), statements(SAMPLES / "world" / new)
    triples = set(zip(facts.subject_id, facts.property_id, facts.object_id))
    held = set().union(*(found for rank, found in before.items() if rank != "deprecated"))
    assert len(triples) > 100 and triples <= after["normal"] | after["preferred"]
    assert len(triples & before.get("preferred", set())) == 0
    replaced = facts[facts.tag == "update"]
    assert set(zip(replaced.subject_id, replaced.property_id, replaced.previous_id)) <= held
    assert set(zip(edits.subject_id, edits.relation_id, edits.object_id)) <= triples
    assert ns["bench"].timesteps == ["20240301_20240320"]
    assert json.loads((ns["folder"] / "bench" / "series.json").read_text())["settings"]["closeness"] == "graph"


@pytest.mark.parametrize(("name", "axis"), [("rag", "rephrase"), ("lora-100", "locality"), ("none", "locality")])
def test_another_recorded_run(execute, name, axis):
    "The numbers of lost answers and failed edits are those of the run's own table."
    ns, printed = execute("06", f'RUN, AXIS = "{name}", "{axis}"')
    scores = pd.read_parquet(SAMPLES / "runs" / name / "scores.parquet")
    wide = scores.pivot_table(index=["edit_id", "axis"], columns="moment", values="exact_match", aggfunc="first")
    wide = wide.dropna(subset=["before", "current"]).astype(bool).reset_index()
    known = wide[(wide.axis == axis) & wide.before]
    lost = (~known.current).sum()
    assert f"{lost} of {len(known)} right answers to {axis} questions were lost" in printed
    assert len(pd.read_csv(ns["path"])) == (~wide[wide.axis == "update"].current).sum()
    assert (lost == 0) == (name == "none")


def test_the_journey(tmp_path, capsys):
    "The script that does what the tutorials say, in its quick form and in this environment."
    script, folder = load_script(), tmp_path.resolve()
    script.subprocess = SimpleNamespace(run=forked)
    script.travel(script.Journey(folder, Path(sys.executable)), quick=True)
    assert "mine my_editor:Mine wbe-tiny" in capsys.readouterr().out


def forked(words, cwd, env, timeout, **_):
    "A step of the journey in a process that is forked, because each would import torch again."
    assert words[0] == sys.executable
    return processes.run(words[1:], cwd=cwd, env=env, timeout=timeout)


def test_the_journey_ends_at_a_missing_output(tmp_path):
    journey = load_script().Journey(tmp_path, Path(sys.executable))
    for expected in (dict(code=1), dict(makes=["none.txt"]), dict(says=["nothing"])):
        with pytest.raises(Exception, match="exit code 0"):
            journey.run("a step", "print('something')", **expected)


def test_the_wheel_of_the_journey_is_whole(tmp_path):
    "What the script leaves out of the wheel is no part of the package."
    shutil.copytree(ROOT, tmp_path / "source", ignore=load_script().not_in_wheel)
    for folder in ("wbe", "data_samples/wbe-tiny"):
        files = {
            p.relative_to(ROOT) for p in (ROOT / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts
        }
        assert files == {p.relative_to(tmp_path / "source") for p in (tmp_path / "source" / folder).rglob("*.*")}


def load_script(name: str = "tests/journey.py"):
    spec = importlib.util.spec_from_file_location(Path(name).stem, ROOT / name)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script
