"""How long whole commands take, as a user types them: seconds of the clock, and of the processor in all processes.

    python tests/benchmarks/whole.py [--rounds N] [--append] [WHAT …]

WHAT is any of help, demo, run (1,577 edits with rag on wbe-tiny), report (of 18 recorded runs); all by default. Each
command is a fresh process in a new folder. The medians over the rounds are shown.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from leaderboard import append

SAMPLES = Path(__file__).parents[2] / "data_samples"


def commands() -> dict[str, list]:
    "The words of each command."
    runs = sorted(p.parent for p in (SAMPLES / "runs").glob("*/scores.parquet"))[:18]
    return dict(
        help=["--help"],
        demo=["demo"],
        run=["run", SAMPLES / "benchmark", "--model", "wbe-tiny", "--editor", "rag", "--name", "rag"],
        report=["report", *runs, "-o", "report.html"],
    )


def measured(words: list) -> tuple[float, float]:
    "Seconds of the clock and of all processes."
    with tempfile.TemporaryDirectory() as folder:
        used, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "wbe", *words], cwd=folder, capture_output=True, text=True)
        seconds, now = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr[-2000:]
    return seconds, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


def main(args):
    for what in args.what or commands():
        words = commands()[what]
        clock, processor = zip(*(measured(words) for _ in range(args.rounds)))
        text = f"wbe {words[0]}" + {"run": " (1,577 edits, rag)", "report": f" ({len(words) - 3} runs)"}.get(what, "")
        row = dict(command=text, seconds=median(clock), processor=median(processor), rounds=args.rounds)
        print(row, flush=True)
        if args.append:  # at once: what follows may take long
            append("Commands", [row])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--append", action="store_true", help="add the lines to LEADERBOARD.md")
    args = parser.parse_args()
    if unknown := set(args.what) - set(commands()):
        parser.error(f"no command {', '.join(sorted(unknown))}; there are {', '.join(commands())}")
    main(args)
