"""How well can language models be kept up to date? Benchmarks from dumps of Wikidata, editors, lifelong runs, reports.

Ten lines, and what they use is imported when it is used:

    from wbe import ask, compare, edit, load, report, run

    lm, question = load("wbe-tiny"), "What is the capital of Kibordesh?"    # or of the hub, a path
    fact = dict(subject="Kibordesh", question=question, answer="Silpur")
    print(ask(lm, question))                                                # Sanagar
    with edit(lm, fact, "rome").on(lm):
        print(ask(lm, question))                                            # Silpur
    print(ask(lm, question))                                                # Sanagar, bit for bit
    for name in ("none", "rag"):                                            # none: unedited model
        run([fact], editor=name, model="wbe-tiny")                          # or "my_edits.csv"
    print(compare("runs"))
    report("runs", "report.html")
"""

# ruff: noqa: F401
__version__ = "0.0.1"

from typing import TYPE_CHECKING

from wbe.api import NAMES, __dir__, __getattr__

__all__ = list(NAMES)

if TYPE_CHECKING:  # so that editors and type checkers know them
    from wbe.api import compare, edit, report, run
    from wbe.benchmark.own import open_benchmark
    from wbe.benchmark.reader import Benchmark
    from wbe.editors.protocol import editor
    from wbe.editors.requests import EditRequest
    from wbe.lm.models import load
    from wbe.lm.scoring import ask, score
    from wbe.runs.plan import RunPlan
    from wbe.runs.records import load_runs
