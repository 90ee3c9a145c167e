"""Scores by the audit's verdict, and the cost of a sweep: against numbers computed from the recorded runs by hand."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from wbe.analysis.rankings import read_verdicts, scores_by
from wbe.cli.main import app
from wbe.runs.records import Run
from wbe.store import Stage, StoreError, sha256_of, write_table

SAMPLES = Path(__file__).parents[1] / "data_samples"
RELEASE = SAMPLES / "benchmark" / "wiki_big_edit_20240201_20240220.json"


def audit_of(folder: Path, file: Path, verdicts: dict) -> Path:
    "An audit by hand: the verdict of each subject."
    import pyarrow as pa

    edits = Run.load(SAMPLES / "runs" / "rome").questions.drop_duplicates("edit_id")
    rows = edits[["subject_id", "relation_id", "object_id"]].assign(verdict=edits.subject_id.map(verdicts))
    stage = Stage(folder, "audit", {}, [file])
    with stage:
        write_table(folder / "verdicts.parquet", pa.Table.from_pandas(rows.dropna(), preserve_index=False))
        stage.outputs.append(folder / "verdicts.parquet")
        stage.counts.update(rows=len(rows), supported=0)
    return folder


@pytest.fixture(scope="module")
def rome() -> Run:
    return Run.load(SAMPLES / "runs" / "rome")


def test_means_by_verdict_are_those_computed_by_hand(tmp_path, rome):
    subjects = sorted(rome.questions.subject_id.unique())
    verdicts = {s: "other value" if n % 3 else "supported beside others" for n, s in enumerate(subjects[:300])}
    audit = audit_of(tmp_path / "audits" / "one", RELEASE, verdicts)
    table = scores_by(rome, read_verdicts([audit.parent]), "token_accuracy")
    scores = rome.scores[(rome.scores.moment == "current") & (rome.scores.axis == "persona")]
    by_hand = scores.groupby(scores.subject_id.map(verdicts).fillna("not audited")).token_accuracy.mean()
    found = table[(table.axis == "persona") & (table.when == "just edited")].set_index("group")
    for verdict, mean in by_hand.items():
        assert found.value[verdict] == pytest.approx(mean)
        assert found.low[verdict] <= mean <= found.high[verdict]
    assert found.value["all not supported"] == pytest.approx(by_hand["other value"])
    assert found.n.drop(["all supported", "all not supported"]).sum() == len(scores)


def test_the_audit_of_the_very_file_counts_first(tmp_path, rome):
    files = rome.config["benchmark"]["files"] | {"1": sha256_of(RELEASE)}
    rome = Run(rome.folder, rome.config | dict(benchmark=rome.config["benchmark"] | dict(files=files)))
    first = rome.questions[rome.questions.asked_of == 1].subject_id.unique()
    other = tmp_path / "other.json"
    shutil.copyfile(RELEASE, other)
    other.write_text(other.read_text() + "\n")
    audit_of(tmp_path / "a", other, dict.fromkeys(first, "other value"))
    audit_of(tmp_path / "b", RELEASE, dict.fromkeys(first, "supported as the only value"))
    table = scores_by(rome, read_verdicts([tmp_path / "a", tmp_path / "b"]))
    asked = (rome.scores.moment == "current") & (rome.scores.axis == "update") & (rome.scores.asked_of == 1)
    row = table[(table.axis == "update") & (table.when == "just edited")].set_index("group").n
    assert row["supported as the only value"] == asked.sum()


def test_compare_prints_them_and_says_where_no_audit_is(tmp_path, rome):
    audit = audit_of(tmp_path / "audit", RELEASE, dict.fromkeys(rome.questions.subject_id, "property absent"))
    words = ["compare", str(rome.folder), "--audit", str(audit), "--table", str(tmp_path / "t.csv")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and "property absent" in done.output and "By the audit's verdict" in done.output
    with pytest.raises(StoreError, match="no audit here"):
        read_verdicts([tmp_path / "nowhere"])


def test_the_estimate_of_a_sweep_is_the_measured_rate_times_the_work(tmp_path):
    text = f'[common]\nbenchmark = "{SAMPLES / "benchmark"}"\nmax_edits = 50\ntimesteps = "1"\naxes = ["update"]\n'
    (tmp_path / "s.toml").write_text(text + '[[run]]\neditor = ["rome", "prompt"]\nname = "{editor}"\n')
    words = ["sweep", str(tmp_path / "s.toml"), "--estimate", "--measured", str(SAMPLES / "runs" / "rome")]
    done = CliRunner().invoke(app, [*words, "--table", str(tmp_path / "e.json")])
    assert done.exit_code == 0, done.output
    assert "1 of 2 runs" in done.output and "were not measured" in done.output
    assert not (tmp_path / "runs").exists() and not Path("runs/rome").exists()
    rome = Run.load(SAMPLES / "runs" / "rome")
    spent = rome.moments[["seconds", "model_seconds"]].max(axis=1).sum() / rome.moments.questions.sum()
    hours = (50 * rome.batches.seconds.sum() / rome.batches.edits.sum() + 100 * spent) / 3600
    from wbe.runs.sweep import estimate_sweep

    table = estimate_sweep(tmp_path / "s.toml", [rome]).set_index("run")
    assert list(estimate_sweep(tmp_path / "s.toml", [rome], "2/2").run) == list(table.index)[1::2]
    assert table.hours["rome"] == pytest.approx(hours)
    assert pd.isna(table.hours["prompt"])
