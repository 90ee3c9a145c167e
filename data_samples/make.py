"""Write the small world's nine dumps and their benchmark into data_samples/: seed 7, 1,500 entities; dumps as bzip2 because it is the smallest.

All of it is a pure function of the seed and of the versions of world and templates, so this gives the same (uncompressed) bytes everywhere;
tests/test_samples.py compares them. The rest of the world (truth, articles, page views) is generated when it is needed.
"""
import shutil
import tempfile
from pathlib import Path

from wbe.benchmark.locality import change_files, touched
from wbe.benchmark.release import WORLD
from wbe.engine import engine
from wbe.series import Series, make_benchmark
from wbe.store import write_table
from wbe.world import World

SAMPLES = Path(__file__).parent


def lasting(series: Series):
    "The static facts of the first timestep whose subject and property no timestep touches."
    import narwhals as nw

    with engine("duckdb") as e:
        gone = nw.concat([touched(e, path) for step in series.steps for path in change_files(step.work / "changes")]).unique()
        facts = e.scan(series.steps[0].static).join(gone, on=["subject_id", "property_id"], how="anti")
        return e.collect(facts).sort_by([(c, "ascending") for c in ("subject_id", "property_id", "object_id")])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        files = World(seed=7, entities=1500).write(tmp, formats=("json.bz2",), articles=False, views=False, truth=False)
        shutil.rmtree(SAMPLES / "world", ignore_errors=True)
        (SAMPLES / "world").mkdir()
        for path in files.paths():
            shutil.copy(path, SAMPLES / "world" / path.name)
        release = make_benchmark(Path(tmp) / "bench", sorted((SAMPLES / "world").glob("*.bz2")), title="The benchmark of the controlled world", source=WORLD)
        shutil.rmtree(SAMPLES / "benchmark", ignore_errors=True)
        shutil.copytree(release.folder, SAMPLES / "benchmark", ignore=shutil.ignore_patterns("*.manifest.json"))
        write_table(SAMPLES / "lasting_facts.parquet", lasting(Series.load(Path(tmp) / "bench")))
    for name in ("world", "benchmark"):
        size = sum(p.stat().st_size for p in (SAMPLES / name).glob("*"))
        print(f"{name}: {len(list((SAMPLES / name).glob('*')))} files, {size / 1e6:.2f} MB")
