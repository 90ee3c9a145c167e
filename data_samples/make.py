"""Write the small world's nine dumps and their benchmark into data_samples/: seed 7, 1,500 entities.

The dumps are bzip2 because it is the smallest form. Everything depends only on the seed and on the versions of world
and templates, so the (uncompressed) bytes are the same everywhere; tests/test_samples.py compares them. The rest of the
world (truth, articles, page views) is generated when it is needed.

The recorded runs in data_samples/runs were asked from the files of data_samples/benchmark and know their hashes: with
other files they have to be made again (`make runs`).
"""

import shutil
import tempfile
from pathlib import Path

from wbe.benchmark.release import WORLD_SOURCE
from wbe.benchmark.series import make_benchmark
from wbe.world.files import World

SAMPLES = Path(__file__).parent


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        files = World(seed=7, entities=1500).write(tmp, formats=("json.bz2",), articles=False, views=False, truth=False)
        shutil.rmtree(SAMPLES / "world", ignore_errors=True)
        (SAMPLES / "world").mkdir()
        for path in files.paths():
            shutil.copy(path, SAMPLES / "world" / path.name)
        release = make_benchmark(
            Path(tmp) / "bench",
            sorted((SAMPLES / "world").glob("*.bz2")),
            title="The benchmark of the controlled world",
            source=WORLD_SOURCE,
            ended="drop",  # as the recorded runs were asked
        )
        shutil.rmtree(SAMPLES / "benchmark", ignore_errors=True)
        shutil.copytree(release.folder, SAMPLES / "benchmark", ignore=shutil.ignore_patterns("*.manifest.json"))
        shutil.copy(release.folder.parent / "lasting_facts.parquet", SAMPLES / "lasting_facts.parquet")
    for name in ("world", "benchmark"):
        size = sum(p.stat().st_size for p in (SAMPLES / name).glob("*"))
        print(f"{name}: {len(list((SAMPLES / name).glob('*')))} files, {size / 1e6:.2f} MB")
