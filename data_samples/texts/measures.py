"""What learners of texts are measured with: the marked cells of `nbs/research/26_text_measures.ipynb`."""

import json
from pathlib import Path

STUDY = Path(__file__).parents[2] / "nbs" / "research" / "26_text_measures.ipynb"

for cell in json.loads(STUDY.read_text(encoding="utf-8"))["cells"]:
    source = "".join(cell["source"])
    if source.startswith("# used by data_samples/texts\n"):
        exec(compile(source, f"{STUDY.name}, cell {cell['id']}", "exec"))
