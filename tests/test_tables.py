"""Rows of one's own are a benchmark, up to the scores: the forms in which others ship their data, and plain tables."""

import json
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from wbe.benchmark.own import open_benchmark
from wbe.benchmark.validator import validate_source
from wbe.records import BadArgument

# Invented edits in the forms of real files. `expected` is read from each row by plain Python, form by form.
FLAT = [  # EasyEdit and its relatives
    dict(
        case_id=n,
        prompt=f"Who is the mayor of {town}?",
        target_new=new,
        subject=town,
        ground_truth=old,
        rephrase_prompt=f"Who governs {town}?",
        locality_prompt=f"Who is the mayor of {near}?",
        locality_ground_truth=stays,
    )
    for n, (town, new, old, near, stays) in enumerate(
        [("Karsk", "Ann Bell", "Bo Crane", "Holm", "007"), ("Arvik", "1999", "NA", "Pellmar", "null")]
    )
]
NESTED = [  # KnowEdit
    dict(
        subject="Salt Road",
        prompt="Who wrote Salt Road?",
        target_new="Tamsin Ro",
        ground_truth=["Emil Dahl", "E. Dahl"],
        rephrase=["Salt Road was written by whom?", "The author of Salt Road is"],
        portability={
            "Subject_Aliasing": [{"prompt": "Who wrote The Road of Salt?", "ground_truth": "Tamsin Ro"}],
            "Reasoning": [{"prompt": "Where was the author of Salt Road born?", "ground_truth": [["Velmark", "VM"]]}],
        },
        locality={
            "Relation_Specificity": [
                {"prompt": "Salt Road is a", "ground_truth": [["novel", "book"]]},
                {"prompt": "Salt Road appeared in", "ground_truth": ["1931"]},
            ],
            "Forgetfulness": None,
        },
    )
]
ZSRE = [
    dict(
        subject="Pell Hall",
        src="Who designed Pell Hall?",
        pred="Ordo Lenn",
        rephrase="Pell Hall was designed by whom?",
        alt="Mira Castell",
        answers=["Ordo Lenn"],
        loc="nq question: who played the captain in the long tide",
        loc_ans="Ivo Sand",
        cond="Ordo Lenn >> Mira Castell || Who designed Pell Hall?",
    )
]
QAEDIT = [
    dict(
        id=7,
        source="own",
        prompt="What is the largest lake of Orland?",
        target="Lake Ilm",
        subject="largest lake of Orland",
        rephrase="Which lake of Orland is the largest?",
        locality=[dict(loc=f"who is number {n}", loc_ans=str(n)) for n in range(5)],
    )
]
COUNTERFACT = [
    dict(
        case_id=3,
        requested_rewrite=dict(
            prompt="The mother tongue of {} is",
            relation_id="P103",
            subject="Aline Dorsay",
            target_new=dict(str="Velmarkish", id="Q900002001"),
            target_true=dict(str="Orlandic", id="Q900002002"),
        ),
        paraphrase_prompts=["Aline Dorsay spoke the language", "Aline Dorsay, a native"],
        neighborhood_prompts=[f"Neighbour {n} speaks" for n in range(10)],
        generation_prompts=[],
    )
]


def flat_questions(r):
    yield "update", r["prompt"], r["target_new"]
    yield "rephrase", r["rephrase_prompt"], r["target_new"]
    yield "locality", r["locality_prompt"], r["locality_ground_truth"]


def nested_questions(r):
    yield "update", r["prompt"], r["target_new"]
    yield from (("rephrase", q, r["target_new"]) for q in r["rephrase"])
    yield "rephrase", "Who wrote The Road of Salt?", "Tamsin Ro"
    yield "multi-hop", "Where was the author of Salt Road born?", "Velmark"
    yield from (("locality", p["prompt"], a) for p, a in zip(r["locality"]["Relation_Specificity"], ("novel", "1931")))


def zsre_questions(r):
    yield "update", r["src"], r["alt"]
    yield "rephrase", r["rephrase"], r["alt"]
    yield "locality", "who played the captain in the long tide?", r["loc_ans"]


def qaedit_questions(r):
    yield "update", r["prompt"], r["target"]
    yield "rephrase", r["rephrase"], r["target"]
    yield from (("locality", p["loc"], p["loc_ans"]) for p in r["locality"])


def counterfact_questions(r):
    w = r["requested_rewrite"]
    yield "update", w["prompt"].format(w["subject"]), w["target_new"]["str"]
    yield from (("rephrase", p, w["target_new"]["str"]) for p in r["paraphrase_prompts"])
    yield from (("locality", p, w["target_true"]["str"]) for p in r["neighborhood_prompts"])


FORMS = {
    "flat": (FLAT, flat_questions),
    "nested": (NESTED, nested_questions),
    "zsre": (ZSRE, zsre_questions),
    "qaedit": (QAEDIT, qaedit_questions),
    "counterfact": (COUNTERFACT, counterfact_questions),
}


def questions(bench) -> Counter:
    "Every question of a benchmark, with how often it is asked."
    probes = bench.probes()
    assert not probes.duplicated(["edit_id", "axis", "probe"]).any()
    return Counter(zip(probes.axis, probes.question, probes.expected))


@pytest.mark.parametrize(
    "form, suffix",
    [(f, s) for f in FORMS for s in (".json", ".jsonl", ".parquet") if (f, s) != ("nested", ".parquet")],
)  # Parquet cannot hold a text and a list of texts in one column
def test_a_file_of_each_form_loads_as_it_is(form, suffix, tmp_path):
    rows, expected = FORMS[form]
    path = tmp_path / f"{form}{suffix}"
    if suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        path.write_text(json.dumps(rows) if suffix == ".json" else "\n".join(map(json.dumps, rows)))
    bench = open_benchmark(path)
    assert questions(bench) == Counter(q for r in FORMS[form][0] for q in expected(r))
    assert bench.timesteps == [form] and not bench.source.set_aside
    assert validate_source(path).ok


def test_a_table_as_a_spreadsheet_writes_it(tmp_path):
    "Semicolons, a byte order mark, quoted line breaks, numbers and words that other readers take for nothing."
    path = tmp_path / "own edits.csv"
    text = 'Frage;Antwort;Entity\r\n"Who, or what,\r\nis Karsk?";007;Karsk\r\n'
    text += "What is Holm?;NA;Holm\r\nWhen?;1999;\r\n"
    path.write_bytes(text.encode("utf-8-sig"))
    bench = open_benchmark(path, ["Frage=question", "Antwort=answer"])
    assert bench[0].edits["ans"].to_pylist() == ["007", "NA", "1999"]
    assert bench[0].edits["update"][0].as_py() == "Who, or what,\r\nis Karsk?"
    path.write_bytes(text.replace("Holm", "Hölm").encode("latin-1"))
    with pytest.raises(ValueError, match="own edits.csv, line 4.*UTF-8"):
        open_benchmark(path, ["Frage=question", "Antwort=answer"])


@pytest.fixture(scope="module")
def toy():
    pytest.importorskip("torch")
    from wbe.lm.toys import toy_lm

    return lambda: toy_lm("gpt2", n_positions=256)


PARAPHRASED = pd.DataFrame(
    [
        ("Who is the mayor of Karsk?", "Ann Bell", "Karsk", "Who governs Karsk?", "Karsk has which mayor?"),
        ("Who wrote Salt Road?", "Tamsin Ro", "Salt Road", "The author of Salt Road is", None),
        ("Where is Luma Works?", "", "Luma Works", "Luma Works is where?", None),
        ("Who is the mayor of karsk now?", "Bo\nCrane", "karsk", None, None),
    ],
    columns=["question", "answer", "subject", "paraphrase", "paraphrase 2"],
)


def test_two_paraphrases_of_a_row_are_two_scored_questions(toy, tmp_path):
    from wbe.metrics.intervals import bootstrap_interval
    from wbe.metrics.summary import summarise
    from wbe.runs.loop import run_lifelong
    from wbe.runs.plan import RunPlan
    from wbe.runs.records import compare_runs

    path = tmp_path / "edits.csv"
    PARAPHRASED.to_csv(path, index=False)
    run = run_lifelong(RunPlan(benchmark=str(path), editor="rag", ask_lasting=5), tmp_path / "r", toy(), progress=False)
    scores = run.scores[run.scores.moment == "current"]
    asked = run.questions.merge(scores, on=["edit_id", "axis", "probe"], suffixes=("", "_"))
    assert sorted(asked.question[asked.axis == "rephrase"]) == [
        "Karsk has which mayor?",
        "The author of Salt Road is",
        "Who governs Karsk?",
    ]
    assert set(scores.subject_id) == {"~karsk", "~salt road"}
    rephrase = scores[scores.axis == "rephrase"]
    assert list(rephrase.groupby("subject_id").size()) == [2, 1]
    table = summarise(scores, by=["axis"])
    values = rephrase.token_accuracy.to_numpy()
    assert np.isclose(table.loc["rephrase", "token_accuracy"], values.mean())
    by_hand = bootstrap_interval(list(values), list(rephrase.subject_id))
    assert table.loc["rephrase", "subjects"] == 2 == by_hand.subjects
    # set aside: the row without an answer when the table is read, the answer with a line break when it is asked
    assert run.config["benchmark"]["source"]["reasons"] == {"the answer is empty": 1}
    assert run.config["benchmark"]["set_aside"]["reasons"] == {"the answer has a line break": 1}
    told = " ".join(compare_runs([run]).attrs["set_aside"])
    assert "1 of 4 rows of edits.csv were skipped" in told and "1 questions could not be asked" in told


def test_a_run_on_a_data_frame_is_resumable_and_describes_itself(toy, tmp_path):
    from wbe.runs.loop import run_lifelong
    from wbe.runs.plan import RunPlan

    rows = PARAPHRASED.head(2).rename(columns=dict(question="frage")).assign(year=[1999, None], notes=["a", None])
    make = lambda table: RunPlan(benchmark=table, map=dict(frage="update"), editor="prompt", ask_lasting=5)
    first = run_lifelong(make(rows), tmp_path / "r", toy(), progress=False)
    again = run_lifelong(make(rows), tmp_path / "r", toy(), progress=False)
    assert again.scores.equals(first.scores)
    stored = open_benchmark(first.config["plan"]["benchmark"], first.config["plan"]["map"])
    assert stored[0].digest == first.config["benchmark"]["files"]["1"]
    assert first.config["benchmark"]["source"]["unread"] == ["year", "notes"]
    with pytest.raises(BadArgument, match="not what it was when this run was begun"):
        run_lifelong(make(rows.assign(answer="Ida")), tmp_path / "r", toy(), progress=False)
    assert open_benchmark(first.config["plan"]["benchmark"], dict(frage="update"))[0].digest == stored[0].digest


def test_without_subjects_an_editor_that_needs_them_refuses_before_anything(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from wbe.runs import loop, study
    from wbe.runs.plan import RunPlan

    monkeypatch.setattr(study, "load_planned", lambda plan: pytest.fail("the model was loaded"))
    rows = PARAPHRASED.drop(columns="subject").head(2)
    with pytest.raises(BadArgument, match="rome .*subject"):
        loop.run_lifelong(RunPlan(benchmark=rows, editor="rome"), tmp_path / "r", progress=False)
    assert not (tmp_path / "r").exists()


def test_several_timesteps_of_a_table_are_asked_in_their_order(toy, tmp_path):
    from wbe.runs.loop import run_lifelong
    from wbe.runs.plan import RunPlan

    rows = PARAPHRASED.head(2).assign(timestep=[10, 9])
    run = run_lifelong(RunPlan(benchmark=rows, editor="prompt", ask_lasting=5), tmp_path / "r", toy(), progress=False)
    assert run.config["benchmark"]["timesteps"] == {"1": "9", "2": "10"}
    past = run.scores[run.scores.moment == "past"]
    assert set(past.timestep) == {"9"} and set(past.scored_at) == {2}


def test_a_sweep_names_the_columns(tmp_path):
    from wbe.runs.sweep import read_sweep

    (tmp_path / "sweep.toml").write_text(
        f'folder = "{tmp_path}"\n[common]\nbenchmark = "mine.csv"\nmap = {{frage = "question"}}\n'
        '[[run]]\neditor = ["none", "prompt"]\n'
    )
    assert [p.map for p in read_sweep(tmp_path / "sweep.toml")[1].values()] == [dict(frage="question")] * 2


@pytest.mark.parametrize("changes, code", [({}, 0), (dict(answer=""), 1), (dict(loc="Where?"), 1)])
def test_validate_exits_as_it_always_did(changes, code, tmp_path, capsys):
    import typer

    from wbe.cli.bench import _validate as validate
    from wbe.cli.tables import TableOutput

    path = tmp_path / "mine.csv"
    pd.DataFrame([dict(question="Who leads Karsk?", answer="Ann", subject="Karsk", loc=None) | changes]).to_csv(path)
    try:
        validate(str(path), out=TableOutput())
        got = 0
    except typer.Exit as e:
        got = e.exit_code
    assert got == code
    assert "question → update (the question)" in capsys.readouterr().out


def test_a_column_that_could_be_two_things_is_an_error():
    rows = [dict(question="Who?", prompt="Who then?", answer="Ann")]
    with pytest.raises(BadArgument, match="'question' and 'prompt' both may be update"):
        open_benchmark(rows)
    assert open_benchmark(rows, dict(prompt="update"))[0].edits["update"].to_pylist() == ["Who then?"]
