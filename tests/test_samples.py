"""data_samples/ is what the package writes, and small enough for the repository."""

import bz2
import gzip
import json
from pathlib import Path

import pandas as pd
import pytest
from stored import served
from test_readme import cells

from shared_cells import shared
from wbe.benchmark.questions import BenchmarkRow
from wbe.benchmark.reader import read_edits
from wbe.benchmark.release import WORLD_SOURCE
from wbe.benchmark.series import make_benchmark
from wbe.records import read_table
from wbe.world.state import SNAPSHOTS

check_release = shared("06_benchmark/09_release.ipynb", "wbe.benchmark.release").check_release

SAMPLES = Path(__file__).parents[1] / "data_samples" / "world"


def test_the_samples_are_the_small_world(small_world):
    paths = sorted(SAMPLES.glob("*.json.bz2"))
    assert [p.name for p in paths] == [f"wikidata-{d:%Y%m%d}-all.json.bz2" for d in SNAPSHOTS]
    for path in paths:
        written = next(p for p in small_world.paths("dumps") if p.name == path.with_suffix(".gz").name)
        assert gzip.decompress(written.read_bytes()) == bz2.decompress(path.read_bytes()), (
            f"{path.name}: run `make samples`, and raise WORLD_VERSION"
        )


def test_the_samples_are_small():
    assert sum(p.stat().st_size for p in SAMPLES.glob("*")) < 6_000_000


@pytest.fixture(scope="module")
def today(small_world, tmp_path_factory):
    """The benchmark that today's code makes of the sample dumps, which hold the lines of the small world's.

    Notebooks make its first timesteps too: what the same code has made there is taken.
    """
    about = dict(title="The benchmark of the controlled world", source=WORLD_SOURCE, ended="drop", progress=False)
    with served():
        return make_benchmark(tmp_path_factory.mktemp("today"), sorted(small_world.paths("dumps")), **about)


def test_the_readme_shows_the_benchmark_of_this_code(today):
    table = today.table()
    shown = [row for row in cells("td") if row and row[0] in map(str, table["from"])]
    assert shown == [[str(x) for x in row] for row in table.values.tolist()], "run `make notebooks readme` and commit"


ASKED_OTHERWISE = {  # P131 was asked for as what a city or a college does not lie in directly; the released rows stay
    "In which region or country is Tidinsoy Park located?",
    "Within which region or country does Zubwe Park lie?",
    "In which region or country is Rulfborg located?",
}


def test_the_benchmark_is_that_of_the_dumps(today):
    "What is released stays: the recorded runs were asked from these files. Today's edits and questions are the same."
    kept, made = SAMPLES.parent / "benchmark", today.folder
    names = sorted(p.name for p in kept.iterdir())
    assert names == sorted(p.name for p in made.iterdir() if not p.name.endswith(".manifest.json"))
    assert check_release(kept) == [] and check_release(made) == []
    for path in sorted(kept.glob("*.parquet")):
        before, now = pd.read_parquet(path), pd.read_parquet(made / path.name)
        assert len(before.columns) > 25
        whole = [frame.drop(columns="prompt") for frame in (before, now)]  # the templates' table may have grown
        assert set(before["loc"][before["loc"] != now["loc"]].dropna()) <= ASKED_OTHERWISE
        for frame in whole:
            frame["loc"] = frame["loc"].mask(before["loc"].isin(ASKED_OTHERWISE))
        pd.testing.assert_frame_equal(*whole)
        assert len(read_table(path, BenchmarkRow)) == len(read_edits(path)) == len(before)  # older files stay readable
    assert json.loads((kept / "retired.json").read_text()) == json.loads((made / "retired.json").read_text())
    ids = ["subject_id", "property_id", "object_id", "subject", "property", "object"]
    lasting = [pd.read_parquet(p / "lasting_facts.parquet")[ids] for p in (kept.parent, made.parent)]
    pd.testing.assert_frame_equal(*lasting)
