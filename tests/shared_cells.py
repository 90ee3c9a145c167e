"""What notebooks define for other notebooks and for tests: cells with the directive `#| shared`, never exported."""

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

NBS = Path(__file__).parents[1] / "nbs"


def shared(notebook: str, module: str = "") -> SimpleNamespace:
    "The names that the shared cells of a notebook define, beside those of a module of the package."
    names = dict(vars(import_module(module))) if module else {"__name__": "cells"}
    for cell in json.loads((NBS / notebook).read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if source.startswith("#| shared\n"):
            exec(compile(source, notebook, "exec"), names)
    return SimpleNamespace(**names)
