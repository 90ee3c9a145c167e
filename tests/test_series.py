"""All steps from dumps to a release: killed at any moment, repeated, extended, and with bad input."""

import json
import os
import platform
import shutil
import signal
import time
from datetime import datetime
from functools import partial

import processes
import pytest
from stored import served

from wbe.benchmark.reader import Benchmark
from wbe.benchmark.series import Series, extend_benchmark, make_benchmark
from wbe.benchmark.validator import validate_benchmark
from wbe.records import BadArgument
from wbe.store import StoreError
from wbe.world.files import World
from wbe.writers.ledger import OverBudget

DAYS = ["2024-02-01", "2024-02-20", "2024-03-01", "2024-03-20", "2024-04-01"]  # of the world of 10_series


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    with served():
        world = World(7, 500).write(
            tmp_path_factory.mktemp("world"), dates=DAYS, articles=False, views=False, progress=False
        )
    return world.paths("dumps")[:3]


@pytest.fixture(scope="module")
def calm(dumps, tmp_path_factory):
    folder = tmp_path_factory.mktemp("calm")
    with served():
        make_benchmark(folder, dumps, progress=False)
    return released(folder)


@pytest.fixture(scope="module")
def pair(dumps, tmp_path_factory):
    "The benchmark of the first two dumps; tests copy it."
    folder = tmp_path_factory.mktemp("pair") / "b"
    with served():
        make_benchmark(folder, dumps[:2], progress=False)
    return folder


def test_dates_and_quantities_become_questions_where_they_are_wanted(dumps, tmp_path):
    with served():
        make_benchmark(tmp_path / "b", dumps[:2], values=True, progress=False)
    rows = Benchmark.load(tmp_path / "b" / "release")[0].edits.to_pylist()
    dated = [r for r in rows if r["object_id"].endswith("/11")]
    counted = [r for r in rows if r["object_id"][:1] in "+-" and "/" not in r["object_id"]]
    assert dated and counted and any(r["object_id"].startswith("Q") for r in rows)
    for r in dated:  # as in the dump, and as Wikidata shows it
        day = datetime.strptime(r["object_id"][1:11], "%Y-%m-%d")
        assert r["ans"] == f"{day.day} {day:%B %Y}"
        assert f"{day:%B} {day.day}, {day.year}" in r["ans_aliases"]
    assert {r["ans"].split()[0].replace(",", "") for r in counted} == {r["object_id"][1:].split()[0] for r in counted}
    assert not validate_benchmark(tmp_path / "b" / "release").errors


def released(folder) -> dict:
    "The files of a release, without the manifests, which hold times."
    return {p.name: p.read_bytes() for p in (folder / "release").iterdir() if not p.name.endswith(".manifest.json")}


def wbe(*words):
    return ["-m", "wbe", *words]


def test_killed_repeatedly_it_writes_the_same_bytes(dumps, calm, tmp_path):
    command, killed = wbe("benchmark", tmp_path / "b", *dumps, "--set", f"temp={tmp_path / 'temp'}"), 0
    (tmp_path / "temp").mkdir()
    finished = lambda: len(list((tmp_path / "b").rglob("*.manifest.json")))
    for stages in (3, 14):  # killed in the work on the next stage
        p = processes.Process(command, session=True)
        while finished() < stages and p.poll() is None:
            time.sleep(0.01)
        time.sleep(0.05)
        killed += p.poll() is None
        os.killpg(p.pid, signal.SIGKILL)
        p.wait()
    assert killed == 2
    assert processes.run(command).returncode == 0
    assert released(tmp_path / "b") == calm
    hidden = [p for p in (tmp_path / "b").rglob("*") if ".part" in p.name or p.name.startswith(".")]
    assert hidden + list((tmp_path / "temp").iterdir()) == []  # the scratch of killed processes is gone too


def test_made_at_once_or_extended_the_facts_are_the_same(dumps, pair, calm, tmp_path):
    shutil.copytree(pair, tmp_path / "g")
    for dump in dumps[2:]:
        extend_benchmark(tmp_path / "g", dump, progress=False)
    whole, grown = Benchmark.load(tmp_path / "g" / "release").to_pandas(), released(tmp_path / "g")
    assert set(grown) == set(calm) and validate_benchmark(tmp_path / "g" / "release", strict=True).ok
    rows = [
        json.loads(line.rstrip(",\n"))
        for name in sorted(calm)
        if name.endswith(".json") and name.startswith("wiki")
        for line in calm[name].decode().splitlines()[1:-1]
    ]
    assert whole["update"].tolist() == [r["update"] for r in rows]
    days = {s.name: i for i, s in enumerate(Series.load(tmp_path / "g").steps)}
    assert json.loads(grown["retired.json"]) and all(
        days[r["since"]] > days[r["timestep"]] for r in json.loads(grown["retired.json"])
    )


def test_killed_before_the_manifest_a_timestep_is_written_again(dumps, pair, tmp_path):
    "Its files stand there already; what the killed process left beside them goes."
    shutil.copytree(pair, tmp_path / "b")
    before, ended = released(tmp_path / "b"), processes.Process(["-c", ""])
    ended.wait()
    manifest = tmp_path / "b" / "release" / "timestep_20240201_20240220.manifest.json"
    manifest.rename(f"{manifest}.{platform.node()}-{ended.pid}.part")
    (manifest.parent / ".timestep_20240201_20240220.lock").write_text(str(ended.pid))
    make_benchmark(tmp_path / "b", dumps[:2], progress=False)
    assert manifest.exists() and released(tmp_path / "b") == before


def test_a_second_call_does_nothing(dumps, pair, tmp_path):
    shutil.copytree(pair, tmp_path / "b")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "b" / "work").rglob("*.parquet")}
    make_benchmark(tmp_path / "b", dumps[:2], progress=False)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "b" / "work").rglob("*.parquet")} == before
    texts = [p.read_text() for p in (tmp_path / "b").rglob("*.manifest.json")]
    assert len(texts) > 8 and not any(str(tmp_path) in text or str(dumps[0].parent) in text for text in texts)
    (tmp_path / "b").rename(tmp_path / "moved")  # manifests name their inputs from their own folder
    before = {tmp_path / "moved" / p.relative_to(tmp_path / "b"): t for p, t in before.items()}
    make_benchmark(tmp_path / "moved", dumps[:2], progress=False)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "moved" / "work").rglob("*.parquet")} == before


def test_bad_input_is_reported_before_anything_is_written(dumps, tmp_path):
    with pytest.raises(BadArgument, match="neither the file of a dump nor a date"):
        make_benchmark(tmp_path / "x", [dumps[0], "no.json.gz"], progress=False)
    with pytest.raises(BadArgument, match="two snapshots"):
        make_benchmark(tmp_path / "x", dumps[:1], progress=False)
    with pytest.raises(StoreError, match="no benchmark here yet"):
        extend_benchmark(tmp_path / "x", dumps[1], progress=False)
    assert not (tmp_path / "x").exists()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "series.json").write_text("{")
    with pytest.raises(StoreError, match="not the plan of a benchmark"):
        extend_benchmark(tmp_path / "broken", dumps[1], progress=False)
    out = processes.run(wbe("benchmark", tmp_path / "x", dumps[0], dumps[1], "--model", "gpt"))
    assert out.returncode == 1 and "add --writer openai" in out.stderr


def test_a_dump_that_was_fetched_again_does_not_change_what_is_released(dumps, tmp_path):
    (tmp_path / "d").mkdir()
    mine = [tmp_path / "d" / p.name for p in dumps[:2]]
    for path, dump in zip(mine, dumps):
        path.write_bytes(dump.read_bytes())
    make_benchmark(tmp_path / "b", mine, progress=False)
    before = released(tmp_path / "b")
    mine[1].write_bytes(dumps[2].read_bytes())
    make_benchmark(tmp_path / "b", mine, progress=False)
    assert released(tmp_path / "b") == before


def test_dumps_that_were_moved_or_deleted(dumps, pair, tmp_path):
    shutil.copytree(pair, tmp_path / "b")
    plan, old = tmp_path / "b" / "series.json", str(dumps[0].parent)
    plan.write_text(plan.read_text().replace(old, str(tmp_path / "gone")))
    assert len(extend_benchmark(tmp_path / "b", dumps[2], progress=False).table()) == 3  # what was parsed is enough
    before = released(tmp_path / "b")
    make_benchmark(tmp_path / "b", dumps[:3], progress=False)  # now with the paths where they are
    assert released(tmp_path / "b") == before and all(
        old in s["dump"] for s in json.loads(plan.read_text())["snapshots"]
    )


def test_probes_by_neighbourhood(dumps, tmp_path):
    release = make_benchmark(tmp_path / "b", dumps[:2], closeness="graph", progress=False)
    frame = Benchmark.load(release.folder).to_pandas()
    assert (
        validate_benchmark(release.folder, strict=True).ok
        and frame["loc"].notna().mean() > 0.8
        and (frame.loc_similarity.dropna() > 0).all()
    )


def test_a_password_of_an_endpoint_is_used_and_never_stored_and_a_budget_is_carried_on(dumps, tmp_path, monkeypatch):
    from openai_server import FaultyServer

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with FaultyServer() as server:
        address = server.url.replace("//", "//ann:s3cret@")
        writer, how = dict(name="openai", model="m"), dict(prices=(1, 1), budget=5, confirm=True)
        make = partial(make_benchmark, tmp_path / "b", dumps[:2], writer_options=how, progress=False)
        with pytest.raises(OverBudget, match="texts are not written yet. Those that are written are kept"):
            make(writer=writer | dict(base_url=address), writer_options=how | dict(budget=0.01))
        assert 0 < sum(server.answered.values()) < 50 and not list((tmp_path / "b" / "release").glob("*.parquet"))
        make(writer=writer | dict(base_url=address))
        asked = sum(server.asked.values())
        make(writer=writer | dict(base_url=address.replace("s3cret", "n3w")))  # the password is no part of the plan
        assert asked > 50 and sum(server.asked.values()) == asked
        with pytest.raises(BadArgument, match="the password or key is not stored; give the whole address again"):
            extend_benchmark(tmp_path / "b", dumps[2], how, progress=False)
        with pytest.raises(BadArgument, match="not http://other/v1"):
            extend_benchmark(tmp_path / "b", dumps[2], how | dict(base_url="http://other/v1"), progress=False)
        extended = extend_benchmark(tmp_path / "b", dumps[2], dict(base_url=address), progress=False)
        assert len(extended.table()) == 3
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) > 40 and not any(b"s3cret" in p.read_bytes() for p in files)
