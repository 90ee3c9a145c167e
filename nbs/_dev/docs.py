"""The documentation site: the notebooks, the API from docments, the command line, search.

python nbs/_dev/docs.py [FOLDER]      build it (default: _docs); needs no network, and no page loads from outside

What Sphinx has read stays beside the folder, in .NAME-cache: the next time only pages are made anew whose notebook has
changed; all of them when a title or what stands around a page has.
"""

import ast
import gc
import importlib
import inspect
import json
import pkgutil
import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[2]
NBS = ROOT / "nbs"
HIDDEN = {"hide", "default_exp"}  # cells with one of these directives are not shown

CSS = """
pre, .highlight pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.cell_output table { font-size: 85%; display: block; overflow-x: auto; border: 0; border-collapse: collapse; }
.cell_output th, .cell_output td { border: 0; padding: 2px 8px; }
.cell_output th, .cell_output td { border-bottom: 1px solid var(--color-background-border); }
.cell_output pre { font-size: 80%; }
dl.params dt { font-family: var(--font-stack--monospace); }
"""

CONF = """
project = "wbe"
extensions = ["myst_nb", "wbe_site"]
html_theme = "furo"
html_title = "wbe"
html_static_path = ["static"]
html_css_files = ["wbe.css"]
html_show_sphinx = False
html_copy_source = False
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 4
html_math_renderer = "mathml"
suppress_warnings = ["mystnb.unknown_mime_type", "myst.header", "misc.highlighting_failure"]
"""

EXTENSION = '''
"""Formulas as MathML, which browsers show without a script; the navigation beside a page; words stemmed once."""
import html
import json
from functools import lru_cache
from pathlib import Path

import furo
from docutils.nodes import SkipNode
from latex2mathml.converter import convert
from sphinx.search.en import SearchEnglish


def inline(self, node):
    self.body.append(convert(node.astext()))
    raise SkipNode


def block(self, node):
    self.body.append('<div class="math">' + convert(node.astext(), display="block") + "</div>")
    raise SkipNode


def opener(title):
    "What folds the pages below an item; they are open at first."
    name = "toctree-checkbox-1"  # one room is open on a page
    label = html.escape(f"Toggle navigation of {title}")
    return (f'<input aria-label="{label}" checked="" class="toctree-checkbox" id="{name}" name="{name}" role="switch" '
            f'type="checkbox"/><label for="{name}"><span class="icon"><svg><use href="#svg-arrow-right"></use></svg>'
            "</span></label>")


def item(app, page, level, name, below=""):
    "One line of the navigation, as Sphinx and the theme write it."
    title, here = app.env.titles[name].astext(), name == page
    current = " current" * (here or bool(below))
    classes = f"toctree-l{level}{current}" + " has-children" * bool(below) + " current-page" * here
    link = "#" if here else html.escape(app.builder.get_relative_uri(page, name))
    link = f'<a class="{current[1:]} reference internal" href="{link}">{html.escape(title)}</a>'
    return f'<li class="{classes}">{link}{opener(title) + below if below else ""}</li>'


def navigation(app, page, captions):
    "Beside a page stand the rooms and the pages of its own room. Sphinx's own trees took a third of the whole time."
    lines = []
    for caption, rooms in captions.items():
        lines += [f'<p class="caption" role="heading"><span class="caption-text">{caption}</span></p>', "<ul>"]
        for room, pages in rooms.items():
            own = [item(app, page, 2, name) for name in pages] if page == room or page in pages else []
            lines.append(item(app, page, 1, room, f"<ul>{''.join(own)}</ul>" if own else ""))
        lines.append("</ul>")
    return "\\n".join(lines)


def setup(app):
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    SearchEnglish.stem = lru_cache(None)(SearchEnglish.stem)
    furo.get_navigation_tree = str  # it would parse the navigation of every page, and add what `item` writes
    captions = json.loads((Path(app.srcdir) / "captions.json").read_text())

    def beside(app, page, template, context, doctree):
        context["toctree"] = lambda **options: navigation(app, page, captions)

    app.connect("html-page-context", beside, priority=400)  # before the theme's own
    return {"parallel_read_safe": True}
'''


def notebooks() -> list[Path]:
    "Paths below `nbs/` of the notebooks that are shown."
    found = (p.relative_to(NBS) for p in NBS.rglob("*.ipynb"))
    return sorted(p for p in found if not any(part[0] in "._" for part in p.parts))


def read(path: Path):
    "A notebook below `nbs/`; that it is valid is another test's concern, and costs more than reading it."
    return nbformat.v4.reads((NBS / path).read_text(encoding="utf-8"))


def directives(cell) -> set[str]:
    "The directives of a cell: `#| export` gives 'export'."
    return {m.split()[0].rstrip(":") for m in re.findall(r"^#\|\s*(.+)$", cell.source, re.M)}


def outside_links(text: str, page: Path, url: str) -> str:
    "Relative links to files that are no pages, as links to the repository."

    def link(m):
        target, anchor = m[1].partition("#")[::2]
        if not target or "://" in target or target.endswith(".ipynb") or target.startswith("mailto:"):
            return m[0]
        path = (NBS / page.parent / target).resolve()
        if not path.is_relative_to(ROOT):
            return m[0]
        return f"]({url}/blob/main/{path.relative_to(ROOT)}{'#' * bool(anchor)}{anchor})"

    return re.sub(r"\]\(([^)\s]+)\)", link, text)


def separate_formulas(text: str) -> str:
    "Displayed formulas as paragraphs of their own, which Sphinx wants and a notebook does not."
    return re.sub(r"\s*^\$\$(.+?)\$\$[ \t]*\n?", r"\n\n$$\1$$\n\n", text, flags=re.S | re.M)


def only_imports(source: str) -> bool:
    "Whether a cell has nothing but imports."
    try:
        found = ast.parse(source).body
    except SyntaxError:  # of IPython
        return False
    return bool(found) and all(isinstance(x, ast.Import | ast.ImportFrom) for x in found)


def shown(path: Path, url: str, toc: str = "") -> dict:
    "A notebook without directives and hidden cells; `toc` is appended."
    nb = read(path)
    cells = []
    for cell in nb.cells:
        flags = directives(cell) if cell.cell_type == "code" else set()
        if flags & HIDDEN or not cell.source.strip():
            continue
        if cell.cell_type == "markdown":
            cell.source = separate_formulas(outside_links(cell.source, path, url))
        if "hide_output" in flags:
            cell.outputs = []
        for output in cell.get("outputs", []):
            if text := output.get("data", {}).get("text/markdown"):  # in which Sphinx resolves no links
                text = re.sub(r"(\]\([^)\s:]+)\.ipynb", r"\1.html", outside_links(text, path, url))
                output["data"]["text/markdown"] = text
        if "hide_input" in flags:
            cell.metadata["tags"] = ["remove-input"]
        elif cell.cell_type == "code" and only_imports(cell.source):
            cell.metadata["tags"] = ["hide-input"]  # folded
        cell.source = re.sub(r"^#\|.*\n?", "", cell.source, flags=re.M).strip("\n")
        cells.append(cell)
    if toc:
        cells.append(nbformat.v4.new_markdown_cell(toc, id="toc"))
    nb.cells = cells
    nb.metadata["language_info"] = {"name": "python", "pygments_lexer": "python"}
    return nb


def toctree(pages: list[str], caption: str = "") -> str:
    head = [":hidden:"] + [f":caption: {caption}"] * bool(caption)
    return "\n".join(["```{toctree}", *head, "", *pages, "```"])


def rooms(pages: list[Path]) -> dict[str, list[str]]:
    "The pages of every folder of `nbs/`, in order."
    found = {}
    for page in pages:
        if len(page.parts) > 1:
            found.setdefault(page.parts[0], []).append(str(page.with_suffix("")))
    return found


def parameter_table(obj) -> str:
    "Parameters with their types, defaults and docments, as a Markdown list."
    from fastcore.docments import docments

    try:
        found, rows = docments(obj, full=True), []
        items = inspect.signature(obj).parameters
    except (TypeError, ValueError, OSError, SyntaxError):
        return ""
    for name, parameter in items.items():
        text = (found.get(name) or {}).get("docment")
        if name in ("self", "cls") or not text:
            continue
        kind = parameter.annotation
        kind = "" if kind is inspect.Parameter.empty else getattr(kind, "__name__", str(kind))
        default = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}"
        rows.append(f"- `{name}{': ' * bool(kind)}{kind}{default}`: {text}")
    text = (found.get("return") or {}).get("docment")
    return "\n".join(rows + [f"- returns: {text}"] * bool(text))


def signature_of(obj) -> str:
    try:
        text = re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(obj)))
        return text if len(text) < 400 else "(…)"
    except (TypeError, ValueError):
        return "(…)"


def api_entry(name: str, obj, level: str = "##") -> list[str]:
    "The heading, signature, docstring and parameters of a function or class, then its public methods."
    kind = "class " if inspect.isclass(obj) else ""
    lines = [f"{level} {name}", "", "```python", f"{kind}{name}{signature_of(obj)}", "```", ""]
    lines += [inspect.getdoc(obj) or "", "", parameter_table(obj), ""]
    if inspect.isclass(obj):
        for key, member in vars(obj).items():
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if key.startswith("_") or not inspect.isfunction(function):
                continue
            property_ = isinstance(member, property)
            text = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
            lines.append(f"- **{key}**{'' if property_ else f'`{signature_of(function)}`'}: {text}")
        lines.append("")
    return lines


def api_page(module, notebook: str) -> str:
    "What a module exports, in the order of its notebook."
    lines = [f"# {module.__name__}", "", f"From the notebook [{notebook}](../{notebook}.ipynb).", ""]
    for name in dict.fromkeys(getattr(module, "__all__", [])):
        obj = getattr(module, name, None)
        if inspect.isfunction(obj) or inspect.isclass(obj):
            lines += api_entry(name, obj)
        elif obj is not None:
            text = re.sub(r" at 0x[0-9a-f]+", "", repr(obj))
            lines += [f"## {name}", "", "```python", f"{name} = {text[:300]}{'…' * (len(text) > 300)}", "```", ""]
    return "\n".join(lines)


def modules() -> dict[str, str]:
    "Every module of the package and the notebook that exports it."
    index = importlib.import_module("wbe._modidx").d["syms"]
    import wbe

    names = [m.name for m in pkgutil.walk_packages(wbe.__path__, "wbe.")]
    texts = {p: read(p).cells[:5] for p in notebooks()}
    where = {}
    for page, cells in texts.items():
        for cell in cells:
            m = re.search(r"^#\|\s*default_exp\s+(\S+)", cell.source, re.M)
            if m:
                where[f"wbe.{m[1]}"] = str(page.with_suffix(""))
    return {n: where[n] for n in names if n in where and n in index and not n.endswith("__main__")}


def command_line() -> str:
    "The page of the command line, from its own help texts."
    done = subprocess.run(
        [sys.executable, "-m", "typer", "wbe.cli.main", "utils", "docs", "--name", "wbe"],
        capture_output=True, text=True, check=True, env={**__import__("os").environ, "TERM": "dumb", "NO_COLOR": "1"},
    )  # fmt: skip
    return re.sub(r"^# `wbe`", "# Command line", done.stdout, count=1)


def write_changed(folder: Path, texts: dict[Path, str]) -> bool:
    "Write the files whose text has changed, and remove those without; whether what stands around every page changed."
    around = [p for p in texts if p.suffix in (".json", ".py", ".css") or p == folder / "titles"]
    changed = [p for p, text in texts.items() if not p.exists() or p.read_text(encoding="utf-8") != text]
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path], encoding="utf-8")
    for path in [p for p in folder.rglob("*") if p.is_file() and p not in texts and "__pycache__" not in p.parts]:
        path.unlink()
    return any(p in changed for p in around)


def source_texts(folder: Path) -> dict[Path, str]:
    "The text of each file that Sphinx reads."
    config = ConfigParser()
    config.read(ROOT / "settings.ini")
    url = config["DEFAULT"]["git_url"].replace("%(user)s", config["DEFAULT"]["user"])
    pages = notebooks()
    by_room = rooms(pages)
    tutorials = by_room.pop("tutorials", [])  # all of them stand beside every page, and so do the guide and the papers
    by_room["research"].remove(papers := "research/25_paper_rows")
    trees = {f"{room}/00_overview": toctree([p.split("/", 1)[1] for p in own if not p.endswith("00_overview")])
             for room, own in by_room.items()}  # fmt: skip
    numbered = [f"{room}/00_overview" if f"{room}/00_overview" in own else own[0] for room, own in by_room.items()]
    found = modules()
    captions = {"Tutorials": {page: [] for page in [*tutorials, "guide", papers]}}
    below = {first: [p for p in own if p != first] for first, own in zip(numbered, by_room.values())}
    for caption, is_study in (("Studies", True), ("Notebooks", False)):
        captions[caption] = {first: own for first, own in below.items() if first.startswith("research/") == is_study}
    captions["Reference"] = {"command-line": [], "api/index": [f"api/{name}" for name in found]}
    front = "\n\n".join(toctree(list(own), caption) for caption, own in captions.items())
    texts, titles = {folder / "captions.json": json.dumps(captions)}, []
    for page in pages:
        key = str(page.with_suffix(""))
        nb = shown(page, url, front if key == "index" else trees.get(key, ""))
        titles.append(nb.cells[0].source.partition("\n")[0])
        texts[folder / page] = nbformat.v4.writes(nb)
    texts[folder / "titles"] = "\n".join(titles)
    texts[folder / "static" / "wbe.css"] = CSS
    texts[folder / "conf.py"] = f"import sys\nsys.path.insert(0, {str(folder)!r})\n{CONF}"
    texts[folder / "wbe_site.py"] = EXTENSION
    texts[folder / "command-line.md"] = command_line()
    for name, notebook in found.items():
        texts[folder / "api" / f"{name}.md"] = api_page(importlib.import_module(name), notebook)
    listing = "\n".join(f"- [{n}]({n}.md)" for n in found)
    texts[folder / "api" / "index.md"] = f"# API\n\n{listing}\n\n{toctree(list(found))}\n"
    return texts


def build(folder: Path) -> list[str]:
    "Build the site into a folder; returns Sphinx's warnings."
    from sphinx.cmd.build import main as sphinx

    cache = folder.resolve().with_name(f".{folder.name}-cache")
    sources, site, log = cache / "sources", cache / "site", cache / "warnings.txt"
    every = ["-a"] * write_changed(sources, source_texts(sources))
    usual, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.freeze()  # the modules and what Sphinx keeps need not be searched for garbage again and again
    gc.set_threshold(100_000, 20, 20)
    trees = ["-d", str(cache / "trees")]
    status = sphinx(["-q", "-b", "html", "-j", "auto", *every, *trees, "-w", str(log), str(sources), str(site)])
    gc.set_threshold(*usual)
    if not frozen:  # else the process has frozen what is older, and wants it to stay so
        gc.unfreeze()
    warnings = [w.replace(f"{sources}/", "") for w in log.read_text().splitlines()]
    if status:
        raise SystemExit("\n".join(["the site could not be built", *warnings]))
    made = {p.relative_to(sources).with_suffix(".html") for p in sources.rglob("*") if p.suffix in (".ipynb", ".md")}
    made |= {Path("search.html"), Path("genindex.html")}
    for page in [p for p in site.rglob("*.html") if p.relative_to(site) not in made]:  # of a notebook that is gone
        page.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(site, folder)
    (folder / ".nojekyll").touch()
    return warnings


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "_docs"
    for warning in build(target):
        print(warning)
    print(f"{target}/index.html: {len(json.dumps([str(p) for p in target.rglob('*.html')]).split(','))} pages")
