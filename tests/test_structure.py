"""The package is one tower: imports go down only, a name means one thing, and a module is where its notebook is."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
NBS, PACKAGE = ROOT / "nbs", ROOT / "wbe"
RESEARCH = Path("research")  # below nbs: studies, which export nothing

# From the bottom up. A module may import from its own room (subpackage) and from rooms below. Rooms in one row do not
# import each other.
TOWER = [
    {"records", "store", "spool", "engine", "http", "dates", "texts", "plugins", "progress"},
    {"metrics"},
    {"world", "writers"},
    {"wikidata"},
    {"wikipedia"},
    {"benchmark"},
    {"lm"},
    {"tiny"},
    {"editors"},
    {"runs"},
    {"analysis"},
    {"demo", "api"},
    {"cli"},
    {"__main__"},
]
FLOOR = {room: i for i, row in enumerate(TOWER) for room in row}


def modules() -> dict[str, Path]:
    "Every module of the package by its dotted name below `wbe`."
    paths = [p for p in PACKAGE.rglob("*.py") if p.name not in ("__init__.py", "_modidx.py")]
    return {".".join(p.relative_to(PACKAGE).with_suffix("").parts): p for p in paths}


def imports(name: str, path: Path) -> set[str]:
    "The modules of wbe that a module imports, those inside functions included."
    known, found = modules(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = name.split(".")[: -node.level] + (node.module or "").split(".")
            base = [part for part in base if part]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "wbe":
            base = node.module.split(".")[1:]
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("wbe.") for a in node.names if a.name.startswith("wbe.")}
            continue
        else:
            continue
        whole = {".".join([*base, a.name]) for a in node.names} & set(known)
        found |= whole or {".".join(base)} & set(known)
    return found - {name}


GRAPH = {name: imports(name, path) for name, path in modules().items()}


def room(name: str) -> str:
    return name.split(".")[0]


def test_every_room_has_a_floor():
    assert {room(m) for m in GRAPH} <= set(FLOOR)


def test_imports_go_down_only():
    up = [(a, b) for a, bs in GRAPH.items() for b in bs if FLOOR[room(b)] > FLOOR[room(a)]]
    beside = [(a, b) for a, bs in GRAPH.items() for b in bs if room(a) != room(b) and FLOOR[room(a)] == FLOOR[room(b)]]
    core = TOWER[0]
    assert not up, f"imports of a higher room: {up}"
    assert not [(a, b) for a, b in beside if room(a) not in core], f"rooms of one floor import each other: {beside}"


def test_no_circle():
    state = {}

    def visit(name, path):
        if state.get(name) == "done":
            return
        assert state.get(name) != "open", f"a circle of imports: {' > '.join([*path, name])}"
        state[name] = "open"
        for other in sorted(GRAPH[name]):
            visit(other, [*path, name])
        state[name] = "done"

    for name in GRAPH:
        visit(name, [])


def exported() -> dict[str, Path]:
    "Notebook of every module: `{module: path below nbs}`."
    found = {}
    for path in NBS.rglob("*.ipynb"):
        parts = path.relative_to(NBS).parts
        if any(part[0] in "._" for part in parts):
            continue
        for cell in nbformat.read(path, 4).cells:
            m = re.search(r"^#\| *default_exp +(\S+)", cell.source, re.M) if cell.cell_type == "code" else None
            if m:
                found[m[1]] = path.relative_to(NBS)
    return found


NOTEBOOKS = exported()


def test_every_module_comes_from_a_notebook():
    assert set(NOTEBOOKS) == set(GRAPH)


@pytest.mark.parametrize("module", sorted(NOTEBOOKS))
def test_module_is_where_its_notebook_is(module):
    path = NOTEBOOKS[module]
    assert all(re.match(r"\d\d_[a-z]", p) or p in ("weights", "training", "memory", "text") for p in path.parts), path
    *folders, stem = [re.sub(r"^\d\d_", "", part) for part in path.with_suffix("").parts]
    if folders[0] in ("core", "app"):
        folders = module.split(".")[:-1]  # these two rooms hold modules that stand at the top of the package
    assert ".".join([*folders, stem.replace("main", module.split(".")[-1])]) == module


def test_notebooks_are_numbered_in_the_order_of_their_imports():
    "Within a folder, a notebook imports only from notebooks with a smaller number."
    wrong = []
    for a, bs in GRAPH.items():
        for b in bs:
            one, other = NOTEBOOKS[a], NOTEBOOKS[b]
            if one.parent == other.parent and one.name <= other.name:
                wrong.append(f"{one} imports {other.name}")
    assert not wrong, wrong


def test_numbers_are_unique():
    for folder in {*(p.parent for p in NOTEBOOKS.values()), RESEARCH}:
        numbers = [p.name[:2] for p in (NBS / folder).glob("[0-9]*.ipynb")]
        assert len(numbers) == len(set(numbers)), f"{folder}: two notebooks with one number: {sorted(numbers)}"


def test_every_room_opens_with_an_overview():
    for folder in {p.parts[0] for p in NOTEBOOKS.values()}:
        path = NBS / folder / "00_overview.ipynb"
        assert path.exists(), f"nbs/{folder} has no overview"
        assert not any("#| export" in c.source for c in nbformat.read(path, 4).cells)


def test_studies_export_nothing_and_are_listed():
    "A notebook of `research/` belongs to no module, and the overview of the folder links to it."
    paths = sorted((NBS / RESEARCH).glob("*.ipynb"))
    sources = {p.name: "\n".join(c.source for c in nbformat.read(p, 4).cells) for p in paths}
    assert not [n for n, text in sources.items() if re.search(r"^#\| *(export|default_exp)", text, re.M)]
    listed = set(re.findall(r"\]\((\d\d_\w+\.ipynb)\)", sources.pop("00_overview.ipynb")))
    assert listed == set(sources)


def public_definitions() -> dict[str, list[str]]:
    "Modules that define each public name at their top level."
    where = defaultdict(list)
    for name, path in modules().items():
        found = set()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                patched = any(getattr(getattr(d, "func", d), "id", "") == "patch" for d in node.decorator_list)
                found |= set() if patched else {node.name}
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {
                    n.id
                    for t in targets
                    for n in ast.walk(t)
                    if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
                }
        for public in found:
            if not public.startswith("_"):
                where[public].append(name)
    return where


def test_a_public_name_has_one_meaning():
    twice = {name: found for name, found in public_definitions().items() if len(found) > 1}
    assert not twice, f"defined in several modules: {twice}"


@cache
def bound(path: Path) -> set[str]:
    "Names that a module defines or imports."
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    names |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return names | {(a.asname or a.name) for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names}


def test_scripts_import_what_there_is():
    "Recordings and benchmarks are not run by the tests: a name that is gone would show months later."
    missing, known = [], modules()
    for path in [p for folder in ("data_samples", "tests/benchmarks") for p in sorted((ROOT / folder).rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("wbe."):
                name = node.module.removeprefix("wbe.")
                there = bound(known[name]) if name in known else {m.removeprefix(f"{name}.") for m in known}
                missing += [f"{path.name}: {node.module}.{a.name}" for a in node.names if a.name not in there]
    assert not missing, missing


def test_days_are_written_without_codes_of_one_system():
    "Windows has no `%-d`."
    assert [p.name for p in PACKAGE.rglob("*.py") if re.search(r"%-[a-zA-Z]", p.read_text(encoding="utf-8"))] == []


def test_the_lifelong_loop_knows_no_editor():
    "The loop uses the protocol of editors; it contains no name of an editor or of its module."
    editors = {"wise", "rome", "memit", "lora", "finetune", "retrieval", "prompt", "merging", "routing"}
    for name in GRAPH:
        if room(name) == "runs":
            assert not {b.split(".")[-1] for b in GRAPH[name] if room(b) == "editors"} & editors, name
            words = set(re.findall(r"['\"]([a-z-]+)['\"]", modules()[name].read_text(encoding="utf-8")))
            assert not words & (editors | {"r-rome", "ft", "ft-l", "lora-merge", "rag"}), name


def test_every_deliberate_fault_has_its_text():
    import mutants

    for fault in mutants.tomllib.loads((ROOT / "tests" / "mutants.toml").read_text(encoding="utf-8"))["fault"]:
        assert mutants.faulty_files(ROOT, fault), fault["what"]
