"""What the Makefile does with notebooks: run them in place, make the README, check that everything agrees.

    python nbs/_dev/notebooks.py run [--flags slow,gpu] [NOTEBOOK …]   execute in place; flagged cells keep their recorded output
    python nbs/_dev/notebooks.py readme                               write README.md from nbs/index.ipynb
    python nbs/_dev/notebooks.py check                                fail when the package, the README or a notebook's state is not what it should be
"""
import argparse
import filecmp
import re
import shutil
import subprocess
import sys
import tempfile
import time
from configparser import ConfigParser
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[2]
NBS = ROOT / "nbs"
BIN = Path(sys.executable).parent


def flags_of(cell) -> set[str]:
    "The directives of a code cell: `#| slow` gives 'slow', `#| eval: false` gives 'eval: false'."
    return {m.strip() for m in re.findall(r"^#\|\s*(.+)$", cell.source, re.M)}


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
                if flags & known:  # a recorded result is what was computed, not the warnings of the machine it was computed on
                    cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
    part = path.with_suffix(".part")
    nbformat.write(nb, part)
    part.replace(path)
    return time.perf_counter() - start


def readme(folder: Path) -> str:
    "README.md as `index.ipynb` says it, and its figures, written under `folder`."
    from nbconvert import MarkdownExporter

    nb = nbformat.read(NBS / "index.ipynb", 4)
    nb.cells = [c for c in nb.cells if "hide" not in flags_of(c)]
    nb.metadata["language_info"] = {"name": "python"}
    for cell in nb.cells:
        cell.source = "" if "hide_input" in flags_of(cell) else re.sub(r"^#\|.*\n?", "", cell.source, flags=re.M)
    body, resources = MarkdownExporter().from_notebook_node(nb)
    body = re.sub(r"```python\s*```\n?", "", body)
    images = folder / "nbs" / "images"
    for i, (name, data) in enumerate(sorted(resources["outputs"].items())):
        new = f"index-{i}{Path(name).suffix}"
        images.mkdir(parents=True, exist_ok=True)
        (images / new).write_bytes(data)
        body = body.replace(f"]({name})", f"](nbs/images/{new})")
    body = re.sub(r"<style scoped>.*?</style>\n?|</?div>\n?|!\[png\]", lambda m: "![figure]" if m[0] == "![png]" else "", body, flags=re.S)
    body = body.replace(' border="1" class="dataframe"', "").replace("](images/", "](nbs/images/")
    text = "<!-- Made from nbs/index.ipynb by `make readme`; change it there. -->\n\n" + re.sub(r"\n{3,}", "\n\n", body).strip() + "\n"
    (folder / "README.md").write_text(text, encoding="utf-8")
    return text


def different(left: Path, right: Path) -> list[str]:
    "Files that are not the same in two folders."
    names = lambda top: {p.relative_to(top) for p in top.rglob("*") if p.is_file() and "__pycache__" not in p.parts and ".ipynb_checkpoints" not in p.parts}
    both = names(left) | names(right)
    return sorted(str(n) for n in both if not ((left / n).exists() and (right / n).exists() and filecmp.cmp(left / n, right / n, shallow=False)))


def check() -> list[str]:
    "Everything that does not agree, with the remedy."
    trouble = []
    with tempfile.TemporaryDirectory() as tmp:
        copy = Path(tmp) / "wbe"
        copy.mkdir()
        for name in ("nbs", "wbe"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
        for name in ("settings.ini", "setup.py", "pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, copy / name)
        for tool, folder, remedy in (("nbdev_export", "wbe", "run `make export` and commit"), ("nbdev_clean", "nbs", "run `nbdev_clean` and commit")):
            subprocess.run([BIN / tool], cwd=copy, check=True, capture_output=True)
            trouble += [f"{folder}/{n} is not what {tool} makes: {remedy}" for n in different(ROOT / folder, copy / folder)]
        if readme(Path(tmp)) != (ROOT / "README.md").read_text(encoding="utf-8"):
            trouble.append("README.md is not what nbs/index.ipynb says: run `make readme` and commit")
        images = Path(tmp) / "nbs" / "images"
        for image in images.glob("index-*") if images.exists() else ():
            if not (NBS / "images" / image.name).exists() or (NBS / "images" / image.name).read_bytes() != image.read_bytes():
                trouble.append(f"nbs/images/{image.name} is not the figure of nbs/index.ipynb: run `make readme` and commit")
    for path in notebooks():
        cells = [c for c in nbformat.read(path, 4).cells if c.cell_type == "code" and c.source.strip()]
        if any(o.output_type == "error" for c in cells for o in c.outputs):
            trouble.append(f"nbs/{path.name} stores an error: run it again")
        if any("export" in flags_of(c) for c in cells) and not any(c.outputs for c in cells):
            trouble.append(f"nbs/{path.name} stores no output, so a reader sees no result: run `make notebooks`")
    ruff = subprocess.run([BIN / "ruff", "check", "wbe", "tests", "nbs/_dev", "setup.py"], cwd=ROOT, capture_output=True, text=True)
    return trouble + ([ruff.stdout] if ruff.returncode else [])


def notebooks() -> list[Path]:
    return sorted(NBS.glob("[!_.]*.ipynb"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "readme", "check"])
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument("--flags", default="", help="flags of the cells to run besides the plain ones, with commas between")
    args = parser.parse_intermixed_args()
    if args.what == "readme":
        readme(ROOT)
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
