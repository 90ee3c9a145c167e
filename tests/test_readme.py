"""The README's tables are what the package computes now."""

import re
from pathlib import Path

from wbe.demo import timestep_table

TEXT = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def cells(kind: str) -> list[list[str]]:
    "The cells (td, or th too) of every row of every table."
    return [re.findall(rf"<{kind}>(.*?)</{kind}>", row, re.S) for row in re.findall(r"<tr>(.*?)</tr>", TEXT, re.S)]


def test_the_readme_shows_the_numbers_of_this_code(small_world):
    shown = [row for row in cells("td") if row and re.fullmatch(r"T\d", row[0])]
    assert shown == [[str(x) for x in row] for row in timestep_table(small_world).values.tolist()], (
        "run `make notebooks readme` and commit"
    )
