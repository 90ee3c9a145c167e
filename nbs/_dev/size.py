"""How large the package is: `python nbs/_dev/size.py` prints lines of code, modules, names, commands and options."""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]


def docstring_lines(tree: ast.AST) -> set[int]:
    "The lines of docstrings."
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                found |= set(range(first.lineno, first.end_lineno + 1))
    return found


def code_lines(source: str) -> int:
    "Lines with code: without blank lines, comments, docstrings, and the list of names that nbdev writes."
    tree, lines = ast.parse(source), set()
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return len(lines - docstring_lines(tree))


def public_names(source: str) -> list[str]:
    "The functions and classes that a module gives to others, without methods that are patched on."
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = [node for node in ast.parse(source).body if isinstance(node, kinds) and not node.name.startswith("_")]
    return [n.name for n in found if not any("patch" in ast.unparse(d) for d in n.decorator_list)]


def modules() -> dict[str, str]:
    "The source of every module, by its path below the package's folder."
    paths = sorted((ROOT / "wbe").rglob("*.py"))
    return {str(p.relative_to(ROOT / "wbe")): p.read_text(encoding="utf-8") for p in paths if p.name != "_modidx.py"}


def options_of_commands() -> dict[str, int]:
    "How many options and arguments each command has."
    import typer.main

    from wbe.cli.main import app

    found = {}

    def walk(command, name):
        for sub, child in getattr(command, "commands", {}).items():
            walk(child, f"{name} {sub}".strip())
        if not getattr(command, "commands", None):
            found[name] = sum(p.name not in ("help",) for p in command.params)

    walk(typer.main.get_command(app), "")
    return found


def size() -> str:
    "The table of sizes, with a row for each room."
    sources = {name: text for name, text in modules().items() if not name.endswith("__init__.py") or code_lines(text)}
    lines, names, files = Counter(), Counter(), Counter()
    for name, text in sources.items():
        room = name.split("/")[0] if "/" in name else "(top)"
        for one in (room, "all"):
            lines[one] += code_lines(text)
            names[one] += len(public_names(text))
            files[one] += 1
    rows = [f"{'room':12} modules  lines of code  public names"]
    for room in [*sorted(set(lines) - {"all"}), "all"]:
        rows.append(f"{room:12} {files[room]:7}  {lines[room]:13,}  {names[room]:12,}")
    paths = [p for p in (ROOT / "nbs").rglob("*.ipynb") if not re.search(r"/[._]", str(p.relative_to(ROOT)))]
    research = sum("research" in p.parts for p in paths)
    options = options_of_commands()
    rows.append(f"notebooks: {len(paths)}, {research} of them research")
    first = {name.split()[0] for name in options}
    commands = f"commands: {len(first)}, in groups of them {len(options) - len(first) + 1} more"
    rows.append(f"{commands}; options in all: {sum(options.values())}; of `wbe run`: {options['run']}")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    print(size())
