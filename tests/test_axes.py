"""An axis is added with one row of the table: it is read, checked, counted, released and asked like the others."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROW = '    "date": Axis("when", "the year of the edit", "when_ans"),\n'
USES = """
import json, sys
from datetime import date
from pathlib import Path
from wbe.benchmark.own import open_benchmark
from wbe.benchmark.questions import BenchmarkRow, _benchmark_row
from wbe.benchmark.reader import Benchmark, read_edits
from wbe.benchmark.release import add_timestep, finish_release, timestep_numbers
from wbe.benchmark.validator import validate_source
from wbe.metrics.summary import summarise
from wbe.records import Edit, Score, order_axes, read_table, to_table
from wbe.store import write_table
from wbe.writers.base import WrittenText

folder, samples = Path(sys.argv[1]), Path(sys.argv[2])
rows = json.loads((samples / "wiki_big_edit_20240201_20240220.json").read_text())[:3]
rows[0] |= dict(when="In which year?", when_ans="2024")
rows[1] |= dict(when="And here?", when_ans=None)
path = folder / "wiki_big_edit_20240201_20240220.json"
names = Edit.__dataclass_fields__
path.write_text(json.dumps([{k: v for k, v in {**rows[2], **r}.items() if k in names} for r in rows]))

# read: a question where there are question and answer
asked = Benchmark.load(path).probes("date")
assert list(zip(asked.question, asked.expected)) == [("In which year?", "2024")], asked
assert round(Benchmark.load(path).summary()["date"].item(), 2) == 0.33
# checked: half a probe is found, and a number is no text
assert ("half a probe", "when_ans") in {(f.kind, f.field) for f in validate_source(path).findings}
path.write_text(json.dumps([rows[0] | dict(when=7)]))
assert ("wrong type", "when") in {(f.kind, f.field) for f in validate_source(path).findings}
# files from before have none
assert len(Benchmark.load(samples)[0].probes("date")) == 0 and len(Benchmark.load(samples)[0].probes()) > 300
# a table of one's own, by its name or by a map
own = [dict(question="Who?", answer="Ann", subject="x", when=["1?", "2?"], when_ans=["1", "2"], jahr="3?")]
assert open_benchmark(own).probes("date").expected.tolist() == ["1", "2"]
assert "date 2" in "".join(validate_source(own).description)
assert "when (the year of the edit)" in "".join(validate_source(own, dict(jahr="when")).description)
# written and released, with its share in the table and its column in the card
gathered = dict(subject_id="Q1", property_id="P6", object_id="Q2", subject="Karsk", object="Ann", tag="new")
gathered |= dict(property="mayor")
texts = {f"Q1/P6/Q2/{kind}": WrittenText("", f"{kind}?", "x", "", "1") for kind in ("update", "date")}
row = _benchmark_row(gathered, texts, None) | dict(when_ans="2024", statement_id="Q1$1")
write_table(folder / "questions.parquet", to_table([row], BenchmarkRow))
release = folder / "release"
add_timestep(folder / "questions.parquet", date(2024, 2, 1), date(2024, 2, 20), release)
card = finish_release(release)
assert card.table().loc["T1", "date"] == "100.0%" and "`when_ans`" in (release / "README.md").read_text()
assert Benchmark.load(release).probes("date").question.tolist() == ["date?"]
assert timestep_numbers(next(samples.glob("*.parquet")))["when"] == 0
# summarised, in its place
score = dict(edit_id="e", edited_at=1, scored_at=1, answer=None, token_accuracy=1.0, exact_match=True)
scores = [score | dict(axis=a, log_probability=0.0, seconds=0.0) for a in ("date", "update")]
table = summarise(to_table(scores, Score))
assert list(table.index.get_level_values("axis")) == ["update", "date"]
assert order_axes(["other", "date", "update"]) == ["update", "date", "other"]
"""


def test_one_row_of_the_table_adds_an_axis(tmp_path):
    shutil.copytree(ROOT / "wbe", tmp_path / "wbe", ignore=shutil.ignore_patterns("__pycache__"))
    records = tmp_path / "wbe" / "records.py"
    before = records.read_text()
    assert before.count('    "statement": Axis(') == 1
    records.write_text(before.replace('    "statement": Axis(', ROW + '    "statement": Axis('))
    command = [sys.executable, "-c", USES, str(tmp_path), str(ROOT / "data_samples" / "benchmark")]
    done = subprocess.run(
        command, env=os.environ | dict(PYTHONPATH=str(tmp_path)), capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
