"""Uses of a release: load it with `datasets`, read its Croissant description, check its sums, add a timestep twice."""

import json
import shutil
import subprocess
from datetime import date

import pytest

from shared_cells import shared
from wbe.benchmark.questions import BenchmarkRow
from wbe.benchmark.reader import Benchmark
from wbe.benchmark.release import add_timestep, finish_release
from wbe.records import read_table, to_table
from wbe.store import StoreError, write_table

check_release = shared("06_benchmark/09_release.ipynb", "wbe.benchmark.release").check_release

DATES = (date(2024, 2, 1), date(2024, 2, 20), date(2024, 3, 1))
RETIRED = dict(
    timestep="20240201_20240220",
    subject_id="Q1",
    relation_id="P6",
    object_id="Q9000",
    axes=["update"],
    since="20240220_20240301",
)


def rows(n: int, first: int = 0):
    row = lambda i: dict(
        tag="new" if i % 2 else "update",
        subject=f"Tówn {i}",
        relation="head of government",
        object=f"Ada {i}",
        subject_id=f"Q{i + 1}",
        relation_id="P6",
        object_id=f"Q{i + 9000}",
        update=f"Who heads the government of Tówn {i}?",
        ans=f"Ada {i}",
        statement_id=f"Q{i + 1}$1",
        loc=f"Who heads “Town {i}”?" if i % 3 else None,
        loc_ans="Bob" if i % 3 else None,
        writer="template",
        model="",
        prompt="1",
    )
    return to_table([row(i) for i in range(first, first + n)], BenchmarkRow)


@pytest.fixture
def release(tmp_path):
    for i, n in enumerate((30, 20)):
        (tmp_path / f"q{i}").mkdir()
        write_table(tmp_path / f"q{i}" / "questions.parquet", rows(n, 100 * i))
        add_timestep(tmp_path / f"q{i}" / "questions.parquet", *DATES[i : i + 2], tmp_path / "release")
    finish_release(tmp_path / "release", "Towns", [dict(RETIRED, more=1)])
    return tmp_path / "release"


def test_datasets_loads_it_with_a_split_for_each_timestep(release, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    loaded = datasets.load_dataset(str(release), cache_dir=str(tmp_path / "cache"))
    assert {k: len(v) for k, v in loaded.items()} == {"t20240201_20240220": 30, "t20240220_20240301": 20}
    assert (
        list(loaded["t20240201_20240220"])
        == read_table(release / "wiki_big_edit_20240201_20240220.parquet", BenchmarkRow).to_pylist()
    )


# fields of the Croissant vocabulary for responsible AI that data sets for a conference's benchmarks give
MINIMAL = {f"rai:{name}" for name in ("dataLimitations", "dataBiases", "personalSensitiveInformation", "dataUseCases")}
MINIMAL |= {"rai:dataSocialImpact", "rai:hasSyntheticData", "prov:wasDerivedFrom", "prov:wasGeneratedBy", "keywords"}


def test_croissant_is_valid_and_gives_the_rows(release):
    mlcroissant = pytest.importorskip("mlcroissant")
    dataset = mlcroissant.Dataset(jsonld=release / "croissant.json")
    issues = dataset.metadata.ctx.issues
    assert not issues.errors and not issues.warnings
    told = {k for k, v in json.loads((release / "croissant.json").read_text()).items() if v not in (None, "", [])}
    assert MINIMAL <= told and dataset.metadata.cite_as and dataset.metadata.creators[0].name
    assert dataset.metadata.conforms_to[0].endswith("croissant/1.1") and dataset.metadata.data_limitations
    first = next(iter(dataset.records("wiki_big_edit_20240220_20240301")))
    assert first["wiki_big_edit_20240220_20240301/update"] in (
        "Who heads the government of Tówn 100?".encode(),
        "Who heads the government of Tówn 100?",
    )


def test_our_reader_loads_it(release):
    bench = Benchmark.load(release)
    assert [len(step) for step in bench] == [30, 20]
    assert bench.to_pandas()["update"].iloc[0] == "Who heads the government of Tówn 0?"


@pytest.mark.skipif(not shutil.which("sha256sum"), reason="no sha256sum here")
def test_the_sums_are_those_of_sha256sum(release):
    subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=release, check=True)
    assert check_release(release) == []


def test_the_card_names_every_field_and_retired_probes_are_listed(release):
    card = (release / "README.md").read_text()
    assert all(f"`{name}`" in card for name in rows(1).column_names) and "| T2 |" in card
    assert json.loads((release / "retired.json").read_text()) == [RETIRED]


def test_a_released_timestep_is_never_rewritten(release, tmp_path):
    before = {p.name: p.read_bytes() for p in release.iterdir()}
    with pytest.raises(StoreError, match="released already"):
        add_timestep(tmp_path / "q1" / "questions.parquet", *DATES[:2], release)
    assert {p.name: p.read_bytes() for p in release.iterdir()} == before


def test_killed_before_it_is_recorded_a_timestep_is_released(release, tmp_path):
    "A process that is killed after the JSON file, or after both files, is followed by one that ends the work."
    given = tmp_path / "q0" / "questions.parquet", *DATES[:2], release
    paths = add_timestep(*given)
    before, (record,) = [p.read_bytes() for p in paths], release.glob(f"timestep_{DATES[0]:%Y%m%d}_*")
    for left in (2, 1):
        record.unlink()
        for path in paths[left:]:
            path.unlink()
        assert add_timestep(*given) == paths and [p.read_bytes() for p in paths] == before and record.exists()
    record.unlink()
    with pytest.raises(StoreError, match="released already"):  # with other rows
        add_timestep(tmp_path / "q1" / "questions.parquet", *given[1:])
    assert [p.read_bytes() for p in paths] == before
