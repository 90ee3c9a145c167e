"""Writing worlds of growing size: entities per second and memory of all processes, which must not grow with the world.

python tests/benchmarks/world.py [SIZE …]        default: 10000 30000 100000
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

WRITE = "import sys; from wbe.world.files import World; World(7, int(sys.argv[1])).write(sys.argv[2], progress=False)"


def measure(entities: int) -> dict:
    "Write one world with all its files, and measure the memory of the processes."
    folder = Path(tempfile.mkdtemp())
    start, peak = time.perf_counter(), 0
    process = subprocess.Popen([sys.executable, "-c", WRITE, str(entities), str(folder / "w")])
    while process.poll() is None:
        memory = 0
        for p in (
            [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            if psutil.pid_exists(process.pid)
            else ()
        ):
            try:
                memory += p.memory_full_info().uss  # unique to the process: shared libraries are not counted twice
            except psutil.Error:
                pass
        peak = max(peak, memory)
        time.sleep(0.1)
    seconds = time.perf_counter() - start
    written = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    shutil.rmtree(folder)
    assert process.returncode == 0
    return {
        "entities": entities,
        "seconds": round(seconds, 1),
        "entities a second": round(entities / seconds),
        "peak memory, MB": round(peak / 1e6),
        "written, MB": round(written / 1e6),
    }


def main(sizes):
    import pandas as pd

    table = pd.DataFrame([measure(n) for n in sizes])
    print(f"{psutil.cpu_count()} cores; nine snapshots (json.gz), articles, page views and truth")
    print(table.to_string(index=False))
    return table


if __name__ == "__main__":
    main([int(a) for a in sys.argv[1:]] or [10_000, 30_000, 100_000])
