"""Several models in one folder of runs: each is compared with its own unedited value; an open run shows no end."""

import json
import re
from types import ModuleType
from unittest.mock import patch

import pandas as pd
import pytest
from test_frozen import recorded_sections, report_of
from toy_runs import made_up, write
from typer.testing import CliRunner

from wbe.analysis import cost, report, timesteps
from wbe.analysis.headline import headline_table
from wbe.records import BadArgument, WbeError
from wbe.runs.records import EVALUATION_MOMENTS, compare_runs, load_runs

SIZE = dict(timesteps=2, edits=12, sample=6, first=24, every=6)
BEFORE = dict(small=0.37, large=0.65)  # lasting facts of the unedited models
END = {"small-none": 0.37, "small-rag": 0.37, "large-none": 0.65, "large-rag": 0.65, "large-ft": 0.43}


def one_run(name: str):
    "A run whose lasting facts move as it is told; `large-rome` has asked its unedited model and nothing more."
    model, _, editor = name.partition("-")
    run = made_up(editor, seed=dict(small=0, large=1)[model], **SIZE)
    about = dict(name=model, fingerprint=model, parameters=dict(small=10, large=1000)[model])
    run.config = run.config | dict(model=run.config["model"] | about, plan=run.config["plan"] | dict(model=model))
    move = [(0, BEFORE[model]), *((t, END.get(name, 0)) for t in (1, 2))]
    rows = [
        dict(
            scored_at=t, edits_done=12 * t, what=what, metric="exact_match", value=v, low=v - 0.02, high=v + 0.02, n=300
        )
        for t, v in move
        for what in ("lasting facts", "reading")
    ]
    run.ability = pd.DataFrame(rows)
    if name == "large-rome":
        run.scores = run.scores[run.scores.scored_at == 0]
        run.ability, run.moments, run.batches = run.ability[:2], run.moments[:0], run.batches[:0]
        run.config["finished"] = None
    run.config["plan"] |= dict(ability=["reading"])
    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "runs"
    for name in (*END, "large-rome"):
        write(one_run(name), folder / name)
    return folder


@pytest.fixture(scope="module")
def runs(folder):
    return load_runs(folder)


SENTENCES = (
    "Lasting facts: 65.0% before any edit (n = 300). After 24 edits clearly below it: ft 43.0%; not clearly different "
    "from it: rag 65.0%; not yet: rome.",
    "Lasting facts: 37.0% before any edit (n = 300). After 24 edits not clearly different from it: rag 37.0%.",
)


def test_the_report_compares_each_model_with_itself(folder):
    shown = report_of(folder, ("headline", "means", "ability", "tasks", "settings"))
    assert [line for line in shown["texts"]["ability"] if line.startswith("Lasting")] == list(SENTENCES)
    reading = [line for line in shown["texts"]["tasks"] if line.startswith("reading")]
    assert [line.partition(" before")[0].partition(": ")[2] for line in reading] == ["65.0%", "37.0%"]
    assert "not yet: rome" in reading[0] and "rome" not in reading[1]
    heads = [shown["tables"][f"headline-{n}"] for n in (1, 2)]
    at = heads[1][0].index("lasting facts")
    assert [[row[0], row[at]] for row in heads[1][1:]] == [["before any edit", "0.37"], ["rag", "0.37"]]
    assert [row[at] for row in heads[0][1:] if row[0] == "rome"] == ["not yet"]
    update = heads[0][0].index("update")
    assert [row[update] for row in heads[0][1:] if row[0] == "rome"] == ["not yet"]


def test_without_groups_no_value_is_a_mean_of_models(runs):
    table = timesteps.ability_table(runs)
    text = timesteps.summarise_ability(table)
    assert "51" not in text and "clearly below it: ft 43.0% (65.0% before)" in text
    assert "not yet: rome" in text
    tasks = cost.summarise_tasks(cost.task_course(runs))
    assert "ft 43.0% (65.0% before)" in tasks and "51" not in tasks
    means = timesteps.mean_accuracy(runs)
    own = means.groupby(means.editor.str.partition("-")[0]).before.unique()
    shown = timesteps.format_means(means)
    assert set(shown.index) >= {"before any edit"} and len(own)
    first = headline_table(runs)
    assert [i for i in first.index if i.startswith("before")] == [
        "before any edit, large (1,000 parameters)",
        "before any edit, small (10 parameters)",
    ]
    assert first["lasting facts"].tolist()[:2] == [0.65, 0.37]


def test_lines_of_figures_are_of_a_model(runs):
    fig = timesteps.draw_ability(timesteps.ability_table(runs))
    levels = {y for ax in fig.axes for line in ax.lines for y in line.get_ydata() if len(set(line.get_ydata())) == 1}
    assert 0.37 in levels and 0.65 in levels and not any(abs(y - 0.51) < 0.1 for y in levels if y not in END.values())
    fig = timesteps.draw_course(timesteps.accuracy_course(runs))
    assert sum(line.get_label().startswith("before any edit") for line in fig.axes[0].lines) == 2


def test_compare_shows_an_open_run_as_open(folder, runs):
    table = compare_runs(runs)
    assert pd.isna(table.loc["large-rome", ("lasting facts", "at the end")])
    assert table.loc["large-rome", ("lasting facts", "before")] == 0.65
    assert pd.isna(table.loc["large-rome", ("reading, exact_match", "at the end")])
    assert {("update", "before"), ("locality", "before")} <= set(table.columns)  # each run beside its own model
    from wbe.cli import main  # noqa: F401  it registers the commands
    from wbe.cli.app import app

    out = CliRunner().invoke(app, ["compare", str(folder)], env=dict(COLUMNS="400")).output
    rows = {line.partition("  ")[0]: line for line in out.splitlines()}
    for name in ("update: just edited", "locality: earlier edits", "lasting facts: at the end"):
        assert rows[name].count("not yet") == 1 and "65.0%" in rows["lasting facts: before"]


# ---- two protocols, one model


PROTOCOLS = {
    "paper-none": "paper@1",
    "paper-rag": "paper@1",
    "chat-none": "zero-shot@1",
    "chat-rag": "zero-shot@1",
    "chat-ft": "zero-shot@1",
}
OF_NO_PROMPT = {"common", "unlike", "surroundings", "health", "norms"} | {"cost-1", "cost-2"}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("protocols") / "runs"
    for name, protocol in PROTOCOLS.items():
        run = made_up(name.partition("-")[2], **SIZE)
        run.config = run.config | dict(protocol=protocol)
        write(run, folder / name)
    return folder


def shown_tables(folder, files) -> dict:
    "The tables of a report by name: what is displayed, and what is said of their numbers; figures are not drawn."
    nb, space, shown, real = report._results_notebook(sorted(folder.iterdir()), files=files), {}, {}, report.show_table
    exec(nb.cells[1].source, space)
    exec(nb.cells[2].source.partition("\n\nruns, trouble")[0], space)
    modules = [m for m in space.values() if isinstance(m, ModuleType) and m.__name__.startswith("wbe.")]
    named = lambda frame, name, *more, **how: (shown.setdefault(name, []), real(frame, name, *more, **how))
    keep = lambda data, kind, **about: kind == "table" and shown[list(shown)[-1]].append((data, about["asked"]))
    report.set_output_folder(files)
    with recorded_sections(dict(now=""), modules), patch.multiple(report, show_table=named, _display=keep):
        exec(nb.cells[2].source, space)
        for _, _, _, section in report._notebook_sections(nb):
            try:
                exec(section.source, space)
            except WbeError:
                pass
    report.set_output_folder(None)
    return {name: found[0] for name, found in shown.items() if found}


def test_no_table_of_a_report_has_numbers_of_two_protocols(mixed, tmp_path):
    tables = shown_tables(mixed, tmp_path)
    assert {f"{t}-{n}" for t in ("headline", "means", "kept", "orders", "known") for n in (1, 2)} <= {*tables}
    assert {name for name, (_, about) in tables.items() if not about} <= OF_NO_PROMPT
    for name, (data, about) in tables.items():
        if about:
            assert about["protocol"] == {"1": "zero-shot@1", "2": "paper@1"}[name[-1]]
            assert about["columns"] and all(c["measure"] and c["decoding"] for c in about["columns"].values())
            moments = {w for c in about["columns"].values() for w in c["moment"].split(" and ")}
            assert moments <= set(EVALUATION_MOMENTS)
            assert report.html.escape(json.dumps(about), quote=True) in data["text/html"]
        file = json.loads((tmp_path / f"{name}.json").read_text())
        assert file.pop("rows") and file == about
    rows = json.loads((tmp_path / "means-2.json").read_text())["rows"]
    assert {r["editor"] for r in rows} == {"before any edit", "rag", "n"}  # ft was asked in the other protocol


def test_a_table_of_two_protocols_is_refused(mixed, tmp_path):
    from wbe.cli import main  # noqa: F401  it registers the commands
    from wbe.cli.app import app

    runs = load_runs(mixed)
    with pytest.raises(BadArgument, match="numbers of 2 protocols .* are no table"):
        report.show_table(pd.DataFrame(dict(update=[0.5])), "both", runs=runs, asked=("exact_match", "current"))
    words = ["compare", str(mixed), "--by", "before"]
    shown = CliRunner().invoke(app, words)
    parts = shown.output.split("Asked in the protocol ")[1:]
    assert [p.partition(":")[0] for p in parts] == ["zero-shot@1", "paper@1"] * 2
    assert all(("chat-" in p) == p.startswith("zero") and ("paper-" in p) == p.startswith("paper") for p in parts)
    for name in ("compare.csv", "compare.json"):
        refused = CliRunner().invoke(app, [*words, "--table", str(tmp_path / name)])
        assert refused.exit_code and "numbers of 2 protocols" in refused.output + str(refused.exception)
        assert not (tmp_path / name).exists()
    alone = tmp_path / "alone.json"
    CliRunner().invoke(
        app, ["compare", *(str(mixed / n) for n in ("chat-none", "chat-ft")), *words[2:], "--table", str(alone)]
    )
    tables = json.loads(alone.read_text())
    assert {t: {r["protocol"] for r in tables[t]} for t in ("runs", "differences", "groups")} == dict.fromkeys(
        ("runs", "differences", "groups"), {"zero-shot@1"}
    )


# ---- the four sentences


def told(editor: str):
    "A run over 240 edits, of which each is about its own subject; 50 locality questions are asked."
    run = made_up(editor, timesteps=2, edits=120, sample=10, every=120, first=0)
    number = run.scores.edit_id.str.extract("t(.)e(.*)").astype(int)
    at = 120 * number[0] + number[1]
    one, another, few_more = at % 4 == 0, at % 4 == 1, (at % 4 == 0) | (at % 24 == 1)
    after = dict(none=one, ft=another, lora=few_more, rag=at % 4 < 2, rome=at < 0)[editor]
    right = after.where(run.scores.scored_at > 0, one)
    scores = run.scores.assign(exact_match=right, subject_id=run.scores.edit_id)
    kept = (scores.axis == "update") | (scores.axis == "locality") & (number[1] < 25)
    run.scores = scores[kept & (scores.moment != "past")]
    return run


def test_a_report_says_the_right_one_of_four_sentences(tmp_path):
    for name in ("none", "ft", "lora", "rag", "rome"):
        write(told(name), tmp_path / name)
    update, locality = report_of(tmp_path, ("means",))["texts"]["means"][:2]
    parts = [re.sub(r" [-+][\d.]+ \[.*?\]", "", part) for part in update.removesuffix(".").split("; ")[1:]]
    assert parts == [
        "clearly above the unedited model: rag, lora",  # lora: too little for its own interval, not for the differences
        "not clearly different from the unedited model: ft",
        "clearly below the unedited model: rome (n = 240)",
    ]
    assert locality.endswith("too few questions (n = 50): rag, lora, ft, rome.")
