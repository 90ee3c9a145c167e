"""Make recorded runs small: their scores without seconds and perplexities, and no state.

    python data_samples/keep_study.py data_samples/study

The seconds of the study are those of a shared machine, and a perplexity follows from the log probability and the number
of an answer's tokens; both fill most of a file. The last checkpoints and what a run printed are removed, so a run that
has not finished is refused.
"""

import json
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from wbe.store import write_table

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for path in folder.glob("*/config.json"):
        if not json.loads(path.read_text(encoding="utf-8")).get("finished"):
            sys.exit(f"{path.parent} has not finished; repeat the sweep first")
    for path in sorted(folder.glob("*/scores.parquet")):
        scores = pq.read_table(path)
        for name in ("seconds", "perplexity"):
            column = scores.schema.field(name)
            at, nothing = scores.schema.get_field_index(name), pa.nulls(len(scores), column.type)
            scores = scores.set_column(at, column, nothing)
        write_table(path, scores)
        shutil.rmtree(path.parent / "state", ignore_errors=True)
        (path.parent / "output.txt").unlink(missing_ok=True)
    shutil.rmtree(folder / ".before", ignore_errors=True)
