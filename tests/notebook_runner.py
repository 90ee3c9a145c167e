"""Execute notebooks with other values in their settings cell: `python notebook_runner.py JOB`, a JSON file.

Cells that neither follow from a setting nor are needed by one that does are left out: they would do what they do in
the test of the notebook itself.

The job has `settings` (values by name), `notebooks` (paths) and `out`, a folder; a JSON file for each notebook says
which settings it has and where it stopped, if it did. Each notebook is executed in a fork of this process, two
at a time; `processes.py` has imported what they need.
"""

import json
import os
import re
import sys
import time
import traceback
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parents[1] / "nbs" / "_dev"))
from cells import affected, names_of, needed  # noqa: E402
from notebooks import draw_once  # noqa: E402

NOT_RUN = {"slow", "gpu", "network"}


def code_cells(path: Path) -> list[str]:
    "The cells that run in a test: code without a flag for something that is slow, or not here."
    cells = [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
    sources = ["".join(c["source"]) for c in cells]
    flags = [re.findall(r"^#\|\s*(\w+)(?:.*)$", s, re.M) for s in sources]
    return [s for s, f in zip(sources, flags) if not set(f) & {*NOT_RUN, "extra", "eval"}]


def definitions(path: Path, *names: str) -> ModuleType:
    "Names of a notebook that exports nothing: only the cells that bind them are executed, and those that these need."
    sources, module = code_cells(path), ModuleType(f"notebook_{path.stem}")
    wanted = {i for i, source in enumerate(sources) if names_of(source).binds & set(names)}
    sys.modules[module.__name__] = module  # dataclasses look their module up
    for i in sorted(needed(sources, wanted)):
        exec(compile(sources[i].replace("%matplotlib inline", ""), f"{path.name}, cell {i}", "exec"), vars(module))
    return module


def replace_settings(source: str, settings: dict) -> tuple[str, list[str]]:
    "A cell with other values of the settings that it assigns, one on each line; and their names."
    used = []
    for name, value in settings.items():
        source, n = re.subn(rf"^{name} = .+$", lambda _: f"{name} = {value!r}", source, flags=re.M)  # noqa: B023
        used += [name] * n
    return source, used


def execute(path: Path, settings: dict | None) -> dict:
    "Execute the cells of a notebook that follow from settings, or all where these are None, in its folder."
    from execnb.shell import CaptureShell

    os.chdir(path.parent)
    undrawn, shell, used, begun = draw_once(), CaptureShell(path="."), [], time.process_time()
    sources = code_cells(path)
    chosen = range(len(sources)) if settings is None else sorted(needed(sources, affected(sources, set(settings))))
    for n in chosen:
        source = sources[n]
        if not source.startswith("#| export"):
            source, names = replace_settings(source, settings or {})
            used += names
        shell.run(source.replace("%matplotlib inline", ""))
        if shell.exc or undrawn:
            failed = shell.exc or undrawn[0]
            error = failed if isinstance(failed, BaseException) else failed[1]
            where = f"cell {n}:\n{source}\n\n{''.join(traceback.format_exception(error))[-3000:]}"
            return dict(used=used, kind=type(error).__name__, message=str(error), where=where)
    return dict(used=used, kind=None, seconds=round(time.process_time() - begun, 1))


def execute_to_file(path: Path, settings: dict, out: Path):
    try:
        found = execute(path, settings)
    except BaseException as e:
        found = dict(used=[], kind=type(e).__name__, message=str(e), where="".join(traceback.format_exception(e)))
    out.write_text(json.dumps(found))


def main(job: dict):
    import torch

    torch.set_num_threads(1)
    context, running = get_context("fork"), []
    for path in map(Path, job["notebooks"]):
        while len(running) == 2:
            running = [p for p in running if p.is_alive()]
            time.sleep(0.02)
        out = Path(job["out"]) / f"{path.stem}.json"
        running.append(context.Process(target=execute_to_file, args=(path, job["settings"], out)))
        running[-1].start()
    for process in running:
        process.join()


def run_job(path: str):
    main(json.loads(Path(path).read_text()))


if __name__ == "__main__":
    run_job(sys.argv[1])
