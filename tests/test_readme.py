"""The guide's tables are what the package computes now; the demo that it shows takes long, so its cells are slow.

README is one screen: it stays below 8 KB."""

import json
import re
from html import unescape
from pathlib import Path
from types import SimpleNamespace

from conftest import SAMPLE_BENCHMARK

from wbe.demo import Demo, _timestep_table

ROOT = Path(__file__).parents[1]
CELLS = json.loads((ROOT / "nbs" / "guide.ipynb").read_text(encoding="utf-8"))["cells"]
OUTPUTS = [o.get("data", {}) for c in CELLS for o in c.get("outputs", ())]
TEXT = "\n".join("".join(data.get("text/html", "")) for data in OUTPUTS)
MAKE = "run `python nbs/_dev/notebooks.py run --flags slow nbs/guide.ipynb` and commit"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_bytes()) <= 8 * 1024


def cells(kind: str) -> list[list[str]]:
    "The cells (td, or th too) of every row of every table."
    rows = re.findall(r"<tr\b.*?>(.*?)</tr>", TEXT, re.S)
    return [[unescape(c) for c in re.findall(rf"<{kind}>(.*?)</{kind}>", row, re.S)] for row in rows]


def test_the_guide_shows_the_numbers_of_this_code(small_world):
    shown = [row for row in cells("td") if row and re.fullmatch(r"T\d", row[0])]
    table = _timestep_table(small_world)
    assert shown == [[str(x) for x in row] for row in table.values.tolist()], MAKE
    causes = ["the world changed", "heard late", "only the wiki"]
    assert list(table["new"] + table["update"]) == list(table[causes].sum(axis=1))


def test_the_guide_counts_the_traps_of_this_world(small_world):
    counted = small_world.truth("traps").kind.value_counts()
    shown = {row[0]: row[1] for row in cells("t[hd]") if len(row) == 2 and row[0] in counted.index}
    assert len(shown) == 6 and shown == {kind: str(counted[kind]) for kind in shown}, MAKE


def test_the_guide_shows_elections_of_this_world(small_world):
    changes = small_world.truth("changes")
    elections = changes[(changes.kind == "mayoral_election") & (changes.tag == "update")].head(4)
    columns = ["timestep", "subject_id", "property_id", "replaced", "value", "true_from", "late"]
    expected = [[str(i), *map(str, row)] for i, row in zip(elections.index, elections[columns].values.tolist())]
    assert all(row in cells("t[hd]") for row in expected), MAKE


def test_the_guide_shows_an_edit_of_the_benchmark():
    "Of the sample benchmark: tests/test_samples.py makes it anew and compares it."
    example = Demo.example(SimpleNamespace(release=SimpleNamespace(folder=SAMPLE_BENCHMARK)))
    assert len(example) == 5 and all(list(row) in cells("t[hd]") for row in example), MAKE
