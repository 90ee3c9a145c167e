"""The tool that stores outputs in notebooks."""

import base64
import importlib.util
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

DEV = Path(__file__).parents[1] / "nbs" / "_dev" / "notebooks.py"
if not DEV.is_file():
    pytest.skip("the notebooks are not here", allow_module_level=True)
spec = importlib.util.spec_from_file_location("notebooks", DEV)
notebooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(notebooks)
sys.path.insert(0, str(DEV.parent))  # of extras.py and cells.py


def drawn_figure(size: float) -> str:
    "Bands and lines on white, as a notebook stores them."
    from matplotlib.figure import Figure

    fig, rng = Figure(figsize=(size, size), facecolor="white"), np.random.default_rng(0)
    for i, ax in enumerate(fig.subplots(3, 3).flat):
        for colour in ("#A81C00", "#44B6FA", "#2F5D3F"):
            y = rng.random(20)
            ax.plot(y, color=colour)
            ax.fill_between(range(20), y - 0.2, y + 0.2, color=colour, alpha=0.15)
        ax.set_title(f"panel {i}")
    fig.savefig(out := BytesIO(), format="png", dpi=100)
    return base64.b64encode(out.getvalue()).decode()


def pixels(png: str) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(BytesIO(base64.b64decode(png))).convert("RGB")).astype(int)


def test_a_large_figure_gets_a_palette_and_keeps_its_colours():
    png = drawn_figure(9)
    small = notebooks.small_png(png)
    was, now = pixels(png), pixels(small)
    assert len(png) > 150_000 and len(small) < len(png) / 2
    assert len(np.unique(now.reshape(-1, 3), axis=0)) <= 256
    assert (now[(was == 255).all(2)] >= 253).all()
    assert np.abs(now - was).max() <= 40 and np.abs(now - was).mean() < 2
    assert notebooks.small_png(small) == small
    (output,) = notebooks.tidy_outputs([dict(output_type="display_data", data={"image/png": png})])
    assert output["data"]["image/png"] == small


def test_small_and_transparent_figures_stay():
    from PIL import Image

    png = drawn_figure(2)
    assert notebooks.small_png(png) == png
    noise = np.random.default_rng(0).integers(0, 255, (300, 300, 4), dtype=np.uint8)
    Image.fromarray(noise).save(out := BytesIO(), "PNG")
    png = base64.b64encode(out.getvalue()).decode()
    assert notebooks.small_png(png) == png


def test_what_is_printed_in_a_row_is_one_output():
    stream = lambda text, name="stdout": dict(output_type="stream", name=name, text=text)
    shown = dict(output_type="display_data", data={"text/plain": "x"})
    got = notebooks.tidy_outputs([stream("a "), stream("b\n"), stream("!", "stderr"), shown, stream("c"), stream("d")])
    assert [o.get("text") for o in got] == ["a b\n", "!", None, "cd"]
    bar = notebooks.tidy_outputs([stream(" 50%|###"), stream("   | 1/2\rdone\n")])
    assert [o["text"] for o in bar] == [notebooks.tidy_text(" 50%|###   | 1/2\rdone\n")]


SHOWN = "import matplotlib.pyplot as plt\nfig, ax = plt.subplots(layout='constrained')\nax.set_title({!r})\nfig"


@pytest.mark.parametrize("title, fails", [("Scores", False), (r"$\frac{$", True)])
def test_a_shown_figure_is_drawn_without_an_image_and_a_failure_fails_its_cell(title, fails, monkeypatch):
    pytest.importorskip("execnb", reason="the package for development is not installed")
    from execnb.nbio import dict2nb, mk_cell
    from execnb.shell import CaptureShell
    from IPython.core import pylabtools

    for at, name in ((pylabtools, "print_figure"), (pylabtools, "retina_figure"), (CaptureShell, "cell")):
        monkeypatch.setattr(at, name, getattr(at, name))  # as they were, after the test
    notebooks.fail_with_figures()
    shell, nb = CaptureShell(), dict2nb(cells=[mk_cell(SHOWN.format(title))])
    if fails:
        with pytest.raises(ValueError, match="num"):
            shell.run_all(nb, exc_stop=True)
    else:
        shell.run_all(nb, exc_stop=True)
        shown = [output["data"] for output in nb.cells[0].outputs]
        assert shown and all(list(data) == ["text/plain"] for data in shown)


CELLS = """
import math
LIMIT = 3
---
def twice(x):
    return 2 * offset(x)
---
def offset(x):
    return x + 1
---
rows = [twice(n) for n in range(LIMIT)]
---
rows = []
unused = math.pi
---
rows.append(1)
---
test_eq(rows, [1])
---
def total():
    return sum(more)
---
more = [1, 2]
---
more[0] = LIMIT
---
assert total() == 5
---
math.floor(2.5)
"""


def test_cells_that_others_need():
    "By the names in them: a function's own names, later bindings, changes of objects; not what is bound anew."
    from cells import needed

    cells = [s.strip() for s in CELLS.split("---")]
    assert needed(cells, {3}) == {0, 1, 2, 3}
    assert needed(cells, {6}) == {0, 4, 5, 6}  # `rows` of cell 3 is gone; cell 4 needs the import
    assert needed(cells, {10}) == {0, 7, 8, 9, 10}
    assert needed(cells, {11}) == {0, 11}  # a call of a module changes nothing
    assert needed([*cells, "from math import *"], {11}) == {0, 11, 12}  # names that cannot be known
    assert needed([*cells, "%matplotlib inline"], {11}) == {0, 11}
    assert needed([*cells, "#| export\nmore.clear()"], {11}) == {0, 8, 9, 11, 12}
    assert needed([*cells, "no python"], {11}) == {0, 11, 12}
    tried = ["e = []", "try:\n    f()\nexcept OSError as e:\n    e.add(1)", "e", "x = []\nx.append(1)", "x"]
    assert needed(["x = [2]", *tried], {5}) == {4, 5}  # what a cell makes and then changes is its own
    assert needed(tried, {1}) == {1} and needed([*tried, "e.add(2)"], {5}) == {0, 1, 5}


def test_cells_that_follow_from_a_setting():
    from cells import affected

    cells = [s.strip() for s in CELLS.split("---")]
    assert affected(cells, {"LIMIT"}) == {0, 3, 7, 9, 10}  # `rows` of cell 4 is another one
    perhaps = [*cells[:4], "if unused:\n    rows = []", *cells[5:]]
    assert affected(perhaps, {"LIMIT"}) == {0, 3, 5, 6, 7, 9, 10}  # it may still be that of cell 3
    assert affected(cells, {"offset"}) == {1, 2, 3}  # `twice` reads it when it is called


def test_every_marked_cell_of_an_extra_is_executed():
    "And what is left out has no mark: `make test` executes it."
    import extras
    import nbformat

    paths = extras.notebooks()
    for path in paths:
        cells = {c.id: c.source for c in nbformat.read(path, 4).cells if c.cell_type == "code"}
        kept = extras.marked_and_needed(path)
        left_out = [s for i, s in cells.items() if i not in kept]
        assert kept <= set(cells) and not any("#| extra" in s for s in left_out)
    assert len(paths) > 8


@pytest.mark.parametrize(
    "prose, wrong",
    [
        ("It keeps 47% [40%, 55%] (n = 1,200), 3 of 50.", []),
        ("It keeps 48% of them.", ["48"]),
        ("The difference is [40%, 56%].", ["[40%, 56%]"]),
        ("Asked of n = 1,201.", ["n = 1,201"]),
        ("There are 4 of 50.", ["4 of 50"]),
        ("The paper has 91.5% (paper, table 3). Here it is 48%.", ["48"]),
        ("Bands are 95% intervals.", []),
    ],
)
def test_a_number_in_prose_that_no_output_shows_is_named(prose, wrong, tmp_path, monkeypatch):
    nbformat = notebooks.nbformat
    shown = nbformat.v4.new_output("display_data", {"text/markdown": "47.0% [40.0%, 55.0%], n = 1,200, 3 of 50"})
    cells = [nbformat.v4.new_code_cell("share", outputs=[shown]), nbformat.v4.new_markdown_cell(prose)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path := tmp_path / "01_study.ipynb")
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    assert [line.split("no output shows ")[1].split(";")[0] for line in notebooks.typed_claims(path)] == list(
        map(repr, wrong)
    )
