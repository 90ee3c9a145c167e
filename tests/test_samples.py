"""data_samples/ is what the package writes, and small enough for the repository."""

import bz2
import filecmp
from pathlib import Path

from wbe.benchmark.release import WORLD_SOURCE
from wbe.benchmark.series import make_benchmark
from wbe.world.cast import Cast
from wbe.world.state import SNAPSHOTS
from wbe.world.files import WorldPlan, block_texts, file_heads, file_tails

SAMPLES = Path(__file__).parents[1] / "data_samples" / "world"


def test_the_samples_are_the_small_world():
    paths = sorted(SAMPLES.glob("*.json.bz2"))
    assert [p.name for p in paths] == [f"wikidata-{d:%Y%m%d}-all.json.bz2" for d in SNAPSHOTS]
    plan, cast = WorldPlan(formats=("json.bz2",), articles=False, views=False, truth=False), Cast(7, 1500)
    texts = {p.name: [bz2.decompress(file_heads(plan)[f"dumps/{p.name}"])] for p in paths}
    for block in range(-1, cast.blocks):
        out, _ = block_texts(cast, block, plan)
        for name in texts:
            texts[name].append(out[f"dumps/{name}"].encode())
    for path in paths:
        texts[path.name].append(bz2.decompress(file_tails(plan)[f"dumps/{path.name}"]))
        assert b"".join(texts[path.name]) == bz2.decompress(path.read_bytes()), (
            f"{path.name}: run `make samples`, and raise WORLD_VERSION"
        )


def test_the_samples_are_small():
    assert sum(p.stat().st_size for p in SAMPLES.glob("*")) < 6_000_000


def test_the_benchmark_is_that_of_the_dumps(tmp_path):
    kept = SAMPLES.parent / "benchmark"
    made = make_benchmark(
        tmp_path,
        sorted(SAMPLES.glob("*.json.bz2")),
        title="The benchmark of the controlled world",
        source=WORLD_SOURCE,
        progress=False,
    ).folder
    names = sorted(p.name for p in kept.iterdir())
    assert names == sorted(p.name for p in made.iterdir() if not p.name.endswith(".manifest.json"))
    assert filecmp.cmpfiles(kept, made, names, shallow=False)[0] == names, "run `make samples`"
    assert filecmp.cmp(kept.parent / "lasting_facts.parquet", tmp_path / "lasting_facts.parquet", shallow=False)
