"""What the Makefile does with notebooks: run them in place, make the README, check that everything agrees.

python nbs/_dev/notebooks.py run [--flags slow,gpu] [NOTEBOOK …]
    execute in place; cells with a flag that is not named keep their recorded output
python nbs/_dev/notebooks.py readme
    write README.md from nbs/index.ipynb
python nbs/_dev/notebooks.py style
    a table of cell lengths, prose and tests, with a row for each folder
python nbs/_dev/notebooks.py test [NOTEBOOK …]
    as `nbdev_test` does, with worlds that are built once for all notebooks (see fixtures.py); analyses of recorded
    runs must also give the words and numbers that they store
python nbs/_dev/notebooks.py check
    fail when the package, the README or the state of a notebook is not what it should be
"""

import argparse
import base64
import filecmp
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
import time
from configparser import ConfigParser
from pathlib import Path

# It builds a parser for 1.2 s when nbformat is first imported, to check formats that no notebook has.
sys.modules.setdefault("rfc3987_syntax", None)
import nbformat  # noqa: E402

ROOT = Path(__file__).parents[2]
NBS = ROOT / "nbs"
BIN = Path(sys.executable).parent
sys.path.append(str(ROOT / "tests"))  # processes.py


def flags_of(cell) -> set[str]:
    "The directives of a code cell: `#| slow` gives 'slow', `#| extra spark` 'extra', `#| eval: false` 'eval: false'."
    found = (m.strip() for m in re.findall(r"^#\|\s*(.+)$", cell.source, re.M))
    return {m if m.startswith("eval:") else m.split()[0] for m in found if m}


BAR = re.compile(r"\d%\|.*\||\d+(?:\.\d+)?(?:it/s|s/it)|\?it/s")


def tidy_text(text: str) -> str:
    "Printed text without terminal codes, progress bars, and the folders of the machine that printed it."
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r\n", "\n")
    text = (
        re.sub(r"(?<![\w.])/(?:private/)?(?:tmp|var/folders/\w+/\w+/T)/tmp\w+", "…", text)
        .replace(f"{ROOT}/", "")
        .replace(str(ROOT), ".")
    )
    lines = text.splitlines(keepends=True)
    # what ends with a carriage return was overwritten in the terminal
    return "".join(line for line in lines if not line.endswith("\r") and not BAR.search(line))


def small_png(png: str, above: int = 150_000) -> str:
    "A figure in base64; a large one with a palette of 256 colours, which makes bands and lines a quarter of the size."
    from io import BytesIO

    from PIL import Image

    if len(png) <= above:
        return png
    figure = Image.open(BytesIO(base64.b64decode(png)))
    if figure.mode == "P" or figure.getextrema()[-1][0] < 255 and figure.mode == "RGBA":
        return png  # it has a palette already, or parts that are transparent
    colours = dict(colors=256, method=Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE)
    figure.convert("RGB").quantize(**colours).save(out := BytesIO(), "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()


def joined_streams(outputs: list) -> list:
    "Outputs in which what was printed in a row is one piece, however the kernel has sent it."
    out = []
    for output in outputs:
        if out and output["output_type"] == out[-1]["output_type"] == "stream" and output["name"] == out[-1]["name"]:
            out[-1]["text"] += output["text"]
        else:
            out.append(output)
    return out


def tidy_outputs(outputs: list) -> list:
    "Stored outputs with `tidy_text` applied, small figures, and without progress widgets."
    kept = []
    for output in joined_streams(outputs):
        data = output.get("data", {})
        if "application/vnd.jupyter.widget-view+json" in data:
            continue
        if "text" in output:
            output["text"] = tidy_text(output["text"])
        for kind in ("text/plain", "text/html", "text/markdown"):
            if kind in data:
                data[kind] = tidy_text(data[kind])
        if "image/png" in data:
            data["image/png"] = small_png(data["image/png"])
        if output.get("text", True):
            kept.append(output)
    return kept


def run(path: Path, wanted: set[str], known: set[str]) -> float:
    "Execute a notebook in place; cells that carry a flag which is not wanted keep the output they have."
    from nbclient import NotebookClient

    nb, start = nbformat.read(path, 4), time.perf_counter()
    client = NotebookClient(nb, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}})
    with tempfile.TemporaryFile() as log, client.setup_kernel(stderr=log):
        for i, cell in enumerate(nb.cells):
            flags = flags_of(cell) if cell.cell_type == "code" else {"eval: false"}
            if not flags & (known - wanted) and "eval: false" not in flags:
                client.execute_cell(cell, i)
                if flags & known:  # a recorded result keeps no warnings of the machine that computed it
                    cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
                cell.outputs = tidy_outputs(cell.outputs)
    part = path.with_suffix(".part")
    nbformat.write(nb, part)
    part.replace(path)
    return time.perf_counter() - start


def links_from_root(markdown: str) -> str:
    "Relative links of a notebook in nbs/, as they must be written in the folder above."
    relative = r"\]\((?![a-z]+:|[#/])([^)\s]+)\)"
    return re.sub(relative, lambda m: f"]({posixpath.normpath(posixpath.join('nbs', m[1]))})", markdown)


def readme(folder: Path) -> str:
    "Write README.md from `index.ipynb`, with its figures, into `folder`; returns its text."
    from nbconvert import MarkdownExporter

    nb = nbformat.read(NBS / "index.ipynb", 4)
    nb.cells = [c for c in nb.cells if "hide" not in flags_of(c)]
    nb.metadata["language_info"] = {"name": "python"}
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            cell.source = links_from_root(cell.source)
        else:
            cell.source = "" if "hide_input" in flags_of(cell) else re.sub(r"^#\|.*\n?", "", cell.source, flags=re.M)
            for data in [o["data"] for o in cell.outputs if "text/markdown" in o.get("data", {})]:
                data["text/markdown"] = links_from_root("".join(data["text/markdown"]))
    body, resources = MarkdownExporter().from_notebook_node(nb)
    body = re.sub(r"```python\s*```\n?", "", body)
    images = folder / "nbs" / "images"
    for i, (name, data) in enumerate(sorted(resources["outputs"].items())):
        new = f"index-{i}{Path(name).suffix}"
        images.mkdir(parents=True, exist_ok=True)
        (images / new).write_bytes(data)
        body = body.replace(f"]({name})", f"](nbs/images/{new})")
    body = re.sub(
        r"<style scoped>.*?</style>\n?|</?div>\n?|!\[png\]",
        lambda m: "![figure]" if m[0] == "![png]" else "",
        body,
        flags=re.S,
    )
    body = body.replace(' border="1" class="dataframe"', "")
    text = (
        "<!-- Made from nbs/index.ipynb by `make readme`; change it there. -->\n\n"
        + re.sub(r"\n{3,}", "\n\n", body).strip()
        + "\n"
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
    return text


def different(left: Path, right: Path) -> list[str]:
    "Files that are not the same in two folders."
    names = lambda top: {
        p.relative_to(top)
        for p in top.rglob("*")
        if p.is_file() and "__pycache__" not in p.parts and ".ipynb_checkpoints" not in p.parts
    }
    both = names(left) | names(right)
    return sorted(
        str(n)
        for n in both
        if not ((left / n).exists() and (right / n).exists() and filecmp.cmp(left / n, right / n, shallow=False))
    )


def check() -> list[str]:
    "Everything that does not agree, with the remedy."
    trouble = []
    with tempfile.TemporaryDirectory() as tmp:
        copy = Path(tmp) / "wbe"
        copy.mkdir()
        for name in ("nbs", "wbe"):
            shutil.copytree(
                ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
            )
        for name in ("settings.ini", "setup.py", "pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, copy / name)
        for tool, folder, remedy in (
            ("nbdev_export", "wbe", "run `make export` and commit"),
            ("nbdev_clean", "nbs", "run `nbdev_clean` and commit"),
        ):
            subprocess.run([BIN / tool], cwd=copy, check=True, capture_output=True)
            trouble += [
                f"{folder}/{n} is not what {tool} makes: {remedy}" for n in different(ROOT / folder, copy / folder)
            ]
        if readme(Path(tmp)) != (ROOT / "README.md").read_text(encoding="utf-8"):
            trouble.append("README.md is not what nbs/index.ipynb says: run `make readme` and commit")
        images = Path(tmp) / "nbs" / "images"
        for image in images.glob("index-*") if images.exists() else ():
            if (
                not (NBS / "images" / image.name).exists()
                or (NBS / "images" / image.name).read_bytes() != image.read_bytes()
            ):
                trouble.append(
                    f"nbs/images/{image.name} is not the figure of nbs/index.ipynb: run `make readme` and commit"
                )
    for path in notebooks():
        cells = [c for c in nbformat.read(path, 4).cells if c.cell_type == "code" and c.source.strip()]
        if any(o.output_type == "error" for c in cells for o in c.outputs):
            trouble.append(f"{path.relative_to(ROOT)} stores an error: run it again")
        if any("export" in flags_of(c) for c in cells) and not any(c.outputs for c in cells):
            trouble.append(
                f"{path.relative_to(ROOT)} stores no output, so a reader sees no result: run `make notebooks`"
            )
        trouble += unclean_outputs(path) + private_words(path)
        trouble += typed_claims(path) if path.parent.name == COMPARED_FOLDER else []
    for command in (["check", "--output-format", "concise"], ["format", "--check"]):
        ruff = subprocess.run([BIN / "ruff", *command, "--quiet", "."], cwd=ROOT, capture_output=True, text=True)
        trouble += [ruff.stdout + ruff.stderr] if ruff.returncode else []
    if (BIN / "mypy").exists():  # not in an environment that is older than this check
        mypy = subprocess.run([BIN / "mypy", "--no-error-summary"], cwd=ROOT, capture_output=True, text=True)
        trouble += [mypy.stdout + mypy.stderr] if mypy.returncode else []
    return trouble


# What a reader should not find in a stored output: a pattern, and what it is.
UNCLEAN = {
    r"\x1b\[": "terminal colour codes",
    r"\d+(?:\.\d+)?(?:it/s|s/it)|\d%\|": "a progress bar",
    r"(?<![\w.])/(?:tmp|home|root|work|Users|private|var/folders)/\w": "a path of the machine that ran it",
    r"np\.(?:float|int|bool|str)_?\d*\(": "the repr of a numpy scalar",
    r"\w*Warning:": "a warning",
    r"<\w[\w.]* object at 0x|<function ": "the address of an object",
}


# Words that a reader would have to learn first, and what to write instead.
PRIVATE_WORDS = {
    r"\bflatter(?:s|ing)\b": "is higher, adds",
    r"\b(?:is|are|was|were) set aside\b": "skipped, with a reason",
    r"\bunder the protocol\b|\bquestions are put\b": "with the protocol, asked",
    r"\bdrawn by a seed\b": "sampled with a seed",
    r"\b(?:told apart by|not told apart)\b": "distinguished by, not clearly different",
    r"\bfilled up\b": "padded",
}


def private_words(path: Path) -> list[str]:
    "Words in the prose of a notebook that have a plain one."
    prose = [(i, c.source) for i, c in enumerate(nbformat.read(path, 4).cells) if c.cell_type == "markdown"]
    return [
        f"{path.relative_to(ROOT)}, cell {i}: {m[0]!r}; write {plain!r}"
        for i, text in prose
        for pattern, plain in PRIVATE_WORDS.items()
        for m in re.finditer(pattern, text)
    ]


def text_of(output) -> str:
    "The text that a stored output shows."
    data = output.get("data", {})
    kinds = ("text/plain", "text/html", "text/markdown")
    return "\n".join(v for v in (output.get("text"), *map(data.get, kinds)) if v)


def unclean_outputs(path: Path) -> list[str]:
    "What in the stored outputs of a notebook a reader should not see."
    found = []
    for i, cell in enumerate(nbformat.read(path, 4).cells):
        for output in cell.get("outputs", []):
            text = text_of(output)
            kinds = [what for pattern, what in UNCLEAN.items() if re.search(pattern, text)]
            kinds += ["a progress widget"] * ("application/vnd.jupyter.widget-view+json" in output.get("data", {}))
            found += [
                f"{path.relative_to(ROOT)}, cell {i}: its output shows {what}; run it again or mend the cell"
                for what in kinds
            ]
    return found


# What the prose of a study may claim: percentages (but not the level of an interval), intervals, "n = 12", "3 of 50".
CLAIM = r"\d[\d,.]*(?= ?%(?! interval))|\[[-−+]?[\d.]+%?, ?[-−+]?[\d.]+%?\]|\bn ?= ?\d[\d,]*|\b\d[\d,]* of \d[\d,]*"
CITED = (
    r"\((?:[^()]*, )?(?:table|figure|section|appendix|issue|paper|setting)\b|https?://"  # the marks of other numbers
)


def typed_claims(path: Path) -> list[str]:
    "What the prose of a study claims and no output shows: neither its own nor those of a study that the line links to."

    def shown(at: Path) -> set[float]:
        outputs = [o for c in nbformat.read(at, 4).cells for o in c.get("outputs", [])]
        return numbers_of("\n".join(map(text_of, outputs)))

    numbers_of = lambda text: set(map(float, re.findall(r"\d+(?:\.\d+)?", text.replace(",", ""))))
    own, found = shown(path), []
    for i, cell in enumerate(nbformat.read(path, 4).cells):
        lines = cell.source.splitlines() if cell.cell_type == "markdown" else []
        for line in (x for x in lines if re.search(CLAIM, x)):
            linked = [path.parent / x for x in re.findall(r"\]\((\w+\.ipynb)", line)]
            known = own.union(*map(shown, linked))
            parts = (x for x in re.split(r"(?<=[.;]) ", line) if not re.search(CITED, x))
            wrong = [m[0] for x in parts for m in re.finditer(CLAIM, x) if not numbers_of(m[0]) <= known]
            found += [
                f"{path.relative_to(ROOT)}, cell {i}: no output shows {x!r}; make the sentence from data, or name the "
                "source in it, such as (paper, table 3)"
                for x in wrong
            ]
    return found


def cell_numbers(path: Path) -> dict:
    "How a notebook reads, in numbers: lines of exported cells, definitions without an output or test nearby, prose."
    cells = [c for c in nbformat.read(path, 4).cells if c.source.strip()]
    code = [c for c in cells if c.cell_type == "code"]
    found = dict(cells=len(cells), prose=len(cells) - len(code), lines=[], defined=0, shown=0, wide=0)
    for i, cell in enumerate(code):
        found["wide"] += sum(len(line) > 120 for line in cell.source.splitlines())
        if "export" not in flags_of(cell):
            continue
        found["lines"].append(
            sum(bool(line.strip()) and not line.startswith("#|") for line in cell.source.splitlines())
        )
        if re.search(r"^(?:async )?(?:def|class) ", cell.source, re.M):
            found["defined"] += 1
            found["shown"] += any("export" not in flags_of(c) for c in code[i + 1 : i + 4])
    return found


def style() -> str:
    "The table of how the notebooks read, a row for each room."
    rooms = {}
    for path in notebooks():
        rooms.setdefault(path.relative_to(NBS).parts[0].removesuffix(".ipynb"), []).append(cell_numbers(path))
    rows = [
        f"{'room':12} notebooks  exported cell lines (median / 90th pct / longest)"
        "  prose cells  shown within 3 cells  wide"
    ]
    for room, found in [*rooms.items(), ("all", [n for ns in rooms.values() for n in ns])]:
        lines = sorted(n for f in found for n in f["lines"]) or [0]
        total = {k: sum(f[k] for f in found) for k in ("cells", "prose", "defined", "shown", "wide")}
        sizes = f"{lines[len(lines) // 2]} / {lines[int(0.9 * len(lines))]} / {lines[-1]}"
        shown = f"{total['shown'] / total['defined']:.0%}" if total["defined"] else "–"
        prose = f"{total['prose'] / total['cells']:.0%}"
        rows.append(f"{room:12} {len(found):9}  {sizes:>51}  {prose:>11}  {shown:>20}  {total['wide']:4}")
    return "\n".join(rows)


# Every word and number that these notebooks show comes from recorded runs, or is the same in every run, so a fresh
# output equals the stored one. A cell that says `#| varies` is not compared.
COMPARED_FOLDER, COMPARED = "research", ("index", "guide", "06_timesteps", "08_cost")


def is_compared(path) -> bool:
    "Whether the outputs of a notebook are compared with those that it stores."
    return path is not None and (Path(path).parent.name == COMPARED_FOLDER or Path(path).stem in COMPARED)


def words_of(outputs) -> list[str]:
    "The words and numbers that outputs show, without tags and warnings. Tables by their HTML: it has no line breaks."
    texts = []
    for output in outputs:
        data = output.get("data", {})
        kinds = ("text/html", "text/markdown", "text/plain")
        shown = next((data[k] for k in kinds if data.get(k)), output.get("text", ""))
        text = "" if output.get("name") == "stderr" else "".join(shown)
        texts.append(re.sub(r"<style.*?</style>|<[^<>]*>", " ", tidy_text(text), flags=re.S))
    rounding = re.compile(r"\d+(?:\.\d+)?e-(?:0[3-9]|[1-9]\d)\b|\b0e\+00")  # by processor; cells assert a limit
    return re.findall(r"\d[\d,]*(?:\.\d+)?|[^\W\d]+", rounding.sub("tiny", "\n".join(texts)))


def differ(stored: str, fresh: str) -> bool:
    "Whether two words differ, or two numbers by more than their last digits."
    if not (stored[0].isdigit() and fresh[0].isdigit()):
        return stored != fresh
    a, b = (float(word.replace(",", "")) for word in (stored, fresh))
    return abs(a - b) > max(0.01 * abs(a), 0.0015 if a != int(a) else 0)


def first_difference(stored, fresh) -> str:
    "Where a fresh output leaves the stored one; empty if nowhere."
    old, new = words_of(stored), words_of(fresh)
    for i, (a, b) in enumerate(zip(old, new)):
        if differ(a, b):
            return (
                f"stored: … {' '.join(old[max(i - 5, 0) : i + 3])} …; now: … {' '.join(new[max(i - 5, 0) : i + 3])} …"
            )
    return "" if len(old) == len(new) else f"stored: {len(old)} words and numbers, now: {len(new)}"


def look_up_fixtures():
    "From now on, worlds, stages of benchmarks and answers are made once for all notebooks: see fixtures.py."
    import fixtures
    from execnb.shell import CaptureShell

    results, begin = fixtures.install(), CaptureShell.__init__
    with fixtures.served(results):
        fixtures.write_large_world()
    fixtures.share_answers(results)

    def start(self, path=None, *args, **options):
        begin(self, path, *args, **options)
        results.begin(path)

    CaptureShell.__init__ = start


def compare_outputs():
    "From now on, a compared notebook fails in nbdev's test when a cell does not give what it stores."
    from execnb.shell import CaptureShell

    begin, plain = CaptureShell.__init__, CaptureShell.cell

    def start(self, path=None, *args, **options):
        begin(self, path, *args, **options)
        if "pandas" in sys.modules:  # a process executes several notebooks, and some set how tables are shown
            sys.modules["pandas"].reset_option("^display")
        self.compared = is_compared(path)

    def cell(self, cell, *args, **options):
        stored, cell.outputs = list(cell.get("outputs") or []), []
        plain(self, cell, *args, **options)
        varies = "varies" in (getattr(cell, "directives_", None) or {})
        if self.compared and self.exc is None and cell.cell_type == "code" and not varies:
            if found := first_difference(stored, cell.outputs):
                self.exc = AssertionError(f"the output is not the stored one; run the notebook again ({found})")

    CaptureShell.__init__, CaptureShell.cell = start, cell


def draw_once() -> list[Exception]:
    """From now on, a figure that a cell shows is laid out and drawn once, without an image, which no test reads.

    IPython makes an image of twice the size and draws the figure two times for it, a third of the time of a notebook
    with figures; and it prints what goes wrong there, so that the cell passes. Failures are in the list returned.
    """
    from IPython.core import pylabtools

    failed = []

    def draw(figure, *args, **options):
        try:
            figure.set_layout_engine("none")  # it measures every text several times
            figure.draw_without_rendering()
        except Exception as error:
            failed.append(error)

    pylabtools.print_figure = pylabtools.retina_figure = draw
    return failed


def fail_with_figures():
    "From now on, figures are drawn once, and a cell in nbdev's test fails with a figure that cannot be drawn."
    from execnb.shell import CaptureShell

    failed, plain = draw_once(), CaptureShell.cell

    def cell(self, cell, *args, **options):
        failed.clear()
        plain(self, cell, *args, **options)
        if failed and self.exc is None:
            self.exc = failed[0]

    CaptureShell.cell = cell


def fork_commands():
    """From now on, `!wbe …`, what a sweep starts and kernels are forked from a process that has imported everything.

    A fresh process imports for five seconds. `processes.py` among the tests says what is the same.
    """
    from execnb.shell import CaptureShell

    import processes

    class Command(subprocess.Popen):
        def __new__(cls, words, *args, stdout=None, stderr=None, env=None, **options):
            whole = isinstance(words, list) and words[:2] == [sys.executable, "-c"] and not (args or options)
            if whole and stderr is subprocess.STDOUT and isinstance(getattr(stdout, "name", None), str):
                return processes.Process(words[1:], env=env, streams=[stdout.name] * 2)
            return super().__new__(cls)

    subprocess.Popen = Command
    processes.fork_kernels()
    CaptureShell.system = lambda shell, line: processes.shell_line(line)


def time_answers_briefly():
    """From now on, a run times one question for a moment, where it times several for seconds at every timestep.

    In the notebook of the runs, whose cells import the function, the first call times answers as a user's run does.
    """
    from execnb.shell import CaptureShell

    import processes
    from wbe.lm import cost
    from wbe.runs import moments

    rounds, begin, calls = cost.time_rounds, CaptureShell.__init__, []

    def first_whole(*args, **options):
        calls.append(args)
        return (processes.timed_once(rounds) if len(calls) > 1 else rounds)(*args, **options)

    def start(self, *args, **options):
        begin(self, *args, **options)
        calls.clear()
        moments.time_rounds = processes.timed_once(rounds)

    cost.time_rounds, CaptureShell.__init__ = first_whole, start


def collect_new_objects_only():
    """From now on, the search for garbage leaves out what earlier notebooks of the process have made.

    Their names stay until the process ends, and every full search would go through all of them.
    """
    import gc

    from execnb.shell import CaptureShell

    begin = CaptureShell.__init__

    def start(self, *args, **options):
        begin(self, *args, **options)
        gc.collect()
        gc.freeze()

    CaptureShell.__init__ = start


def processor_seconds() -> float:
    "Processor time so far, of this process and of those that it has started and waited for."
    return sum(os.times()[:4])


def notebooks() -> list[Path]:
    return sorted(p for p in NBS.rglob("*.ipynb") if not any(part[0] in "._" for part in p.relative_to(NBS).parts))


# Notebooks that take longest, begun first: they do not keep one process busy when the others are done.
SLOW_NOTEBOOKS = (
    "06_benchmark/10_series",
    "research/17_outdated_answers",
    "10_runs/07_loop",
    "research/21_popular_and_rare",  # asks most questions of the recorded benchmark; others are served its answers
    "09_editors/06_trials",
    "06_benchmark/02_locality",
    "research/06_ours_and_authors",
    "12_app/05_runs",
    "04_wikidata/09_rules",
    "research/19_mquake_tables",
    "research/18_two_hops",
    "08_tiny/04_known",
    "11_analysis/16_rankings",
    "04_wikidata/12_build",
    "12_app/06_data",
    "09_editors/training/01_finetune",
    "12_app/01_demo",
    "04_wikidata/06_parse",
    "research/06_ours_and_authors",
    "tutorials/03_own_edits",
    "tutorials/02_own_model",
    "tutorials/04_own_editor",
)


def in_order(paths) -> list[Path]:
    "Notebooks, those of `SLOW_NOTEBOOKS` first."
    name = lambda p: str(p.relative_to(NBS).with_suffix(""))
    rank = {n: i for i, n in enumerate(SLOW_NOTEBOOKS)}
    return sorted(paths, key=lambda p: rank.get(name(p), len(rank)))


def prepare_tests():
    "What is done once, before the processes that execute notebooks are forked."
    import processes

    processes.import_all()
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
    processes.begin_own_server("fork")  # one for all processes that execute notebooks, before anything is replaced
    compare_outputs()
    fail_with_figures()
    fork_commands()
    time_answers_briefly()
    processes.verify_once()
    processes.load_once()
    processes.bind_once()
    processes.connect_once()
    look_up_fixtures()
    collect_new_objects_only()
    os.fsync = lambda _: None  # what a killed process has written is there; no test simulates a power failure


def test_one(path: Path) -> tuple[bool, float]:
    "Execute a notebook as `nbdev_test` does; whether it passed, and the processor seconds."
    from nbdev.config import get_config
    from nbdev.test import test_nb

    os.chdir(NBS)
    begun = processor_seconds()
    passed, _ = test_nb(path, get_config().tst_flags.split(), basepath=ROOT)
    for name, module in list(sys.modules.items()):  # the next notebook may write a module of the same name
        file = str(getattr(module, "__file__", None))
        if file.startswith(tempfile.gettempdir()) and not file.startswith((str(ROOT), sys.prefix)):
            del sys.modules[name]
    return passed, processor_seconds() - begun


def print_times(times: dict):
    "The processor seconds of the notebooks, longest first, and their sum."
    from processes import server_seconds

    print("\nlongest first:")
    for path, seconds in sorted(times.items(), key=lambda item: -item[1]):
        print(f"{seconds:7.1f} s  {path.relative_to(NBS).with_suffix('')}")
    print(f"{server_seconds():7.1f} s  commands that notebooks started")
    print(f"{sum(times.values()):7.1f} s  {len(times)} notebooks, in processor seconds, whatever else runs")


def test(paths=(), jobs: int = 2):
    "Execute notebooks, `jobs` at a time; worlds and stages that several of them build are built once: see fixtures.py."
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    import fixtures
    import notebooks as importable  # a notebook takes the place of the main module

    if not paths:
        fixtures.clear()
    prepare_tests()
    times, failed, test_one = {}, [], importable.test_one
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        work = {pool.submit(test_one, p): p for p in in_order(p.absolute() for p in paths or notebooks())}
        for job in as_completed(work):
            passed, times[work[job]] = job.result()
            failed += [] if passed else [str(work[job].relative_to(NBS))]
            print(f"{times[work[job]]:7.1f} s  {work[job].relative_to(NBS)}{'' if passed else ': FAILED'}", flush=True)
    print_times(times)
    if failed:
        sys.exit(f"these notebooks failed: {', '.join(sorted(failed))}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "readme", "check", "style", "test"])
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument(
        "--flags", default="", help="flags of the cells to run besides the plain ones, with commas between"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes that test notebooks at the same time")
    args = parser.parse_intermixed_args()
    if args.what == "readme":
        readme(ROOT)
    elif args.what == "style":
        print(style())
    elif args.what == "test":
        test(args.notebooks, args.jobs)
    elif args.what == "check":
        trouble = check()
        print("\n".join(trouble) or "wbe/, README.md, notebooks and style agree.")
        sys.exit(bool(trouble))
    else:
        config = ConfigParser()
        config.read(ROOT / "settings.ini")
        known = set(config["DEFAULT"]["tst_flags"].split())
        for path in args.notebooks or notebooks():
            print(f"{path.name}: {run(path.absolute(), set(args.flags.split(',')), known):.0f} s", flush=True)
        subprocess.run([BIN / "nbdev_clean"], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
