"""Two runs side by side share the cores: a sweep with `--jobs 2` against the same runs one after the other.

    python tests/benchmarks/sweep.py [--edits N] [--editors ft,rome] [--repeat N]

Three ways are timed, each with new folders: one run after the other, two at a time, and two at a time where each
process uses as many threads as torch would by itself (as before this was shared). Run it on a quiet machine.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from unittest import mock

import wbe.runs.sweep as sweep

BENCH = Path(__file__).parents[2] / "data_samples" / "benchmark"


def sweep_file(folder: Path, editors: list[str], edits: int) -> Path:
    path = folder / "sweep.toml"
    path.write_text(
        f'folder = "{folder / "runs"}"\n[common]\nbenchmark = "{BENCH}"\nmax_edits = {edits}\n'
        f'axes = ["update", "locality"]\n[[run]]\neditor = {editors}\nname = "{{editor}}"\n'
    )
    return path


def seconds(editors: list[str], edits: int, jobs: int, share: bool = True) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = sweep_file(Path(folder), editors, edits)
        shared = sweep._shared_cores if share else lambda processes: {}
        start = time.perf_counter()
        with mock.patch.object(sweep, "_shared_cores", shared):
            states = sweep.run_sweep(path, jobs, progress=False)
        assert set(states.values()) == {"complete"}, states
        return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edits", type=int, default=40)
    parser.add_argument("--editors", default="ft,rome")
    parser.add_argument("--repeat", type=int, default=1)
    args = parser.parse_args()
    os.environ.pop("OMP_NUM_THREADS", None)
    editors, load = args.editors.split(","), os.getloadavg()[0]
    print(f"{len(editors)} runs of {args.edits} edits, {os.cpu_count()} cores, load {load:.1f} before the first")
    for _ in range(args.repeat):
        ways = dict(
            one=seconds(editors, args.edits, 1),
            two=seconds(editors, args.edits, 2),
            unshared=seconds(editors, args.edits, 2, share=False),
        )
        ratio = ways["one"] / ways["two"]
        print(
            f"one after the other {ways['one']:.1f} s; two at a time {ways['two']:.1f} s ({ratio:.2f} times as fast); "
            f"two at a time, threads not shared {ways['unshared']:.1f} s"
        )


if __name__ == "__main__":
    main()
