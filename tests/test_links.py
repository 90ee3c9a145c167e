"""Relative links work in every notebook and in README.md."""

import importlib.util
import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted(p for p in (ROOT / "nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)|(?:href|src)=\"(?![a-z]+:|#)([^\"]+)\"")


def relative_links(markdown: str) -> list[str]:
    "The relative links of a text, without those in code."
    text = re.sub(r"^```.*?^```|`[^`\n]+`(?!\])", "", markdown, flags=re.S | re.M)
    return [(a or b).partition("#")[0] for a, b in LINK.findall(text)]


def broken(path: Path, texts: list[str]) -> list[str]:
    return [link for text in texts for link in relative_links(text) if not (path.parent / link).exists()]


def markdown_cells(path: Path) -> list[str]:
    return [c.source for c in nbformat.read(path, 4).cells if c.cell_type == "markdown"]


def test_links_are_found():
    text = "See [`a`](x/a.ipynb), [web](https://e.org) and ![f](f.png)."
    text += "\n```\n[no](b.md)\n```\n`[no](c.md)` [part](#top)"
    assert relative_links(text) == ["x/a.ipynb", "f.png"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: str(p.relative_to(ROOT / "nbs")))
def test_links_of_notebooks(path):
    assert broken(path, markdown_cells(path)) == []


def test_links_of_the_readme():
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    assert broken(path, [text]) == [] and len(relative_links(text)) > 10, "run `make readme` and commit"


def test_links_of_the_index_are_turned_for_the_readme():
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "nbs" / "_dev" / "notebooks.py")
    notebooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notebooks)
    text = "[a](10_runs/01_plan.ipynb) [b](../data_samples/x.md) ![c](images/c.png) [d](https://e.org)"
    turned = notebooks.links_from_root(text)
    assert turned == "[a](nbs/10_runs/01_plan.ipynb) [b](data_samples/x.md) ![c](nbs/images/c.png) [d](https://e.org)"


@pytest.mark.parametrize("name", ["llms.txt", "CHANGELOG.md", ".github/CONTRIBUTING.md"])
def test_links_of_other_files(name):
    path = ROOT / name
    assert broken(path, [path.read_text(encoding="utf-8")]) == []


@pytest.mark.parametrize("name", ["llms.txt", "CHANGELOG.md"])
def test_names_of_the_package_are_the_present_ones(name):
    from wbe.api import NAMES

    line = next(x for x in (ROOT / name).read_text(encoding="utf-8").splitlines() if "`import wbe` gives" in x)
    assert re.findall(r"`(\w+)`", line.partition("gives")[2].partition(";")[0]) == list(NAMES)
