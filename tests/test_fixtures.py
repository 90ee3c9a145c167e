"""The store of results that notebooks and tests share gives what would be built, and nothing that would be tested."""

import importlib.util
import os
import sys
from pathlib import Path

import narwhals as nw
import pytest

from wbe import store
from wbe.store import Manifest
from wbe.wikidata.parse import parse_dump
from wbe.world.files import World

DEV = Path(__file__).parents[1] / "nbs" / "_dev" / "fixtures.py"
if not DEV.is_file():
    pytest.skip("the notebooks are not here", allow_module_level=True)
spec = importlib.util.spec_from_file_location("fixtures", DEV)
fixtures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fixtures)
DATES = ("2024-02-01", "2024-02-20")


@pytest.fixture
def results(tmp_path, monkeypatch):
    "An empty store that is in force."
    for name in ("__init__", "__enter__", "__exit__", "done"):
        monkeypatch.setattr(store.Stage, name, store.Stage.__dict__[name])  # as they were, after the test
    monkeypatch.setattr(fixtures, "STORE", tmp_path / "store")
    results = fixtures.install()
    results.begin("first.ipynb")
    return results


def small_world(folder, **options):
    return World(3, 500).write(folder, **(dict(dates=DATES, progress=False) | options))


def content(folder) -> dict:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def data(folder) -> dict:
    return {name: text for name, text in content(folder).items() if "manifest" not in name}


def test_what_is_served_is_what_is_built(results, tmp_path):
    world = small_world(tmp_path / "a" / "world")
    parse_dump(world.paths()[0], tmp_path / "a" / "parsed", progress=False)
    assert results.counts == dict(built=2, served=0)
    results.begin("second.ipynb")
    world = small_world(tmp_path / "b" / "world")
    parse_dump(world.paths()[0], tmp_path / "b" / "parsed", progress=False)
    assert results.counts == dict(built=2, served=2)
    assert content(tmp_path / "a") == content(tmp_path / "b")
    small_world(tmp_path / "c" / "world")  # the second in one notebook
    assert results.counts["served"] == 2 and data(tmp_path / "c" / "world") == data(tmp_path / "a" / "world")


@pytest.mark.parametrize("part", [dict(dates=DATES[1:]), dict(articles=False, views=False), dict(truth=False)])
def test_a_part_of_a_larger_world_is_the_world_that_would_be_written(part, results, tmp_path):
    small_world(tmp_path / "large")
    results.begin("second.ipynb")
    served = small_world(tmp_path / "served", **part)
    assert results.counts == dict(built=1, served=1)
    results.fresh = True
    written = small_world(tmp_path / "written", **part)
    assert data(served.folder) == data(written.folder)
    hashes = lambda m: {name: d["sha256"] for name, d in m.outputs.items()}
    one, two = served.manifest, written.manifest
    assert (one.params, one.counts, hashes(one)) == (two.params, two.counts, hashes(two))


def test_other_worlds_and_other_options_are_built(results, tmp_path):
    world = small_world(tmp_path / "one")
    parse_dump(world.paths()[0], tmp_path / "parsed", progress=False)
    results.begin("second.ipynb")
    World(4, 500).write(tmp_path / "two", dates=DATES, progress=False)
    small_world(tmp_path / "three", formats=("json.bz2",))
    parse_dump(world.paths()[0], tmp_path / "roles", roles=True, progress=False)
    parse_dump(world.paths()[1], tmp_path / "later", progress=False)
    assert results.counts == dict(built=6, served=0)


def test_changing_what_was_served_does_not_change_the_store(results, tmp_path):
    whole = data(small_world(tmp_path / "one").folder)
    for notebook in ("second.ipynb", "third.ipynb"):
        results.begin(notebook)
        folder = tmp_path / notebook
        assert data(small_world(folder).folder) == whole
        for path in folder.rglob("*.gz"):
            with open(path, "r+b") as f:
                f.write(b"damaged")


def test_a_folder_where_the_work_was_begun_is_left_alone(results, tmp_path):
    small_world(tmp_path / "one")
    for at, change in (
        ("killed", lambda folder: (folder / ".spool.json").write_text("{}")),
        ("there", lambda folder: ((folder / "truth").mkdir(), (folder / "truth" / "facts.parquet").touch())),
        ("damaged", lambda folder: (small_world(folder), next(folder.rglob("*.gz")).write_bytes(b"damaged"))),
    ):
        folder = tmp_path / at
        folder.mkdir()
        results.fresh = True
        change(folder)
        results.begin(at)
        done = results.counts["served"]
        names = [p.name for p in (tmp_path / "one" / "truth").iterdir()]
        if at == "there":
            (folder / "truth" / names[0]).touch()
        assert data(small_world(folder).folder).items() >= data(tmp_path / "one").items()
        assert results.counts["served"] == done, at


def test_stages_of_a_notebook_itself_and_of_fresh_notebooks_are_run(results, tmp_path):
    params, make = dict(n=1), {}
    exec("def make(Stage, folder): return Stage(folder, 'own', {'n': 1})", dict(__name__="__main__"), make)
    for notebook in ("first.ipynb", "second.ipynb"):
        results.begin(notebook)
        stage = make["make"](store.Stage, tmp_path / notebook)
        assert not stage.done and stage.params == params
        with stage:
            pass
    results.begin("nbs/02_world/12_files.ipynb")
    small_world(tmp_path / "one")
    results.begin("nbs/02_world/13_traits.ipynb")
    small_world(tmp_path / "two")
    assert results.counts == dict(built=0, served=0)


def test_a_stage_without_files_is_kept_too(results, tmp_path):
    make = {}
    exec("def make(Stage, folder): return Stage(folder, 'empty')", dict(__name__="wbe.somewhere"), make)
    for n, notebook in enumerate(("first.ipynb", "second.ipynb")):
        results.begin(notebook)
        stage = make["make"](store.Stage, tmp_path / notebook)
        assert stage.done == bool(n)
        if not n:
            with stage:
                stage.counts["rows"] = 3
    assert stage.manifest.counts == dict(rows=3)


def test_the_digest_follows_the_source(tmp_path, monkeypatch):
    (tmp_path / "wbe").mkdir()
    source = tmp_path / "wbe" / "a.py"
    monkeypatch.setattr(fixtures, "ROOT", tmp_path)
    source.write_text("x = 1")
    one = fixtures.digest()
    source.write_text("x = 2")
    assert fixtures.digest() != one
    source.write_text("x = 1")
    assert fixtures.digest() == one
    assert isinstance(Manifest("s"), Manifest) and "fixtures" not in sys.modules


def test_answers_are_shared_by_equal_models_only(results, monkeypatch):
    import torch

    from wbe.lm import scoring
    from wbe.lm.scoring import QAItem
    from wbe.lm.toys import toy_lm

    monkeypatch.setattr(scoring, "_score_askable", scoring._score_askable)  # as it was, after the test
    plain, lm = scoring._score_askable, toy_lm("gpt2")
    items = [QAItem(f"Who leads town {i}?", f"Person {i}", id=str(i)) for i in range(6)]
    how = dict(protocol="paper", generate=False, too_long="truncate", progress=False)
    fixtures.share_answers(results)

    def asked(notebook, lm, items, **other):
        "Whether answers were served, after a comparison with those of the model itself."
        before, _ = results.counts["served"], results.begin(notebook)
        (got, reasons), (want, same) = (f(lm, items, how | other) for f in (scoring._score_askable, plain))
        assert reasons == same and got["id"] == want["id"] and got["exact_match"] == want["exact_match"]
        assert got["log_probability"] == pytest.approx(want["log_probability"], abs=1e-4)
        return results.counts["served"] > before

    assert not asked("first.ipynb", lm, items)
    assert asked("second.ipynb", lm, [QAItem(items[k].question, items[k].answer, id=f"other {k}") for k in (4, 1)])
    assert not asked("third.ipynb", lm, [*items, QAItem("A new question?", "Yes", id="new")])
    assert not asked("fourth.ipynb", lm, items, generate=True)
    lm.item_hooks.append(lambda items: items)
    assert not asked("fifth.ipynb", lm, items)
    lm.item_hooks.clear()
    with torch.no_grad():
        next(lm.model.parameters()).mul_(1.01)
    assert not asked("sixth.ipynb", lm, items)
    hook = lm.model.register_forward_hook(lambda *_: None)
    assert not asked("sixth.ipynb", lm, items)
    hook.remove()
    assert asked("seventh.ipynb", lm, items)


def test_equal_steps_are_bound_once(tmp_path, monkeypatch):
    "Two queries have the columns and rows that they have without; a file with other columns is noticed."
    import processes
    import pyarrow as pa
    import pyarrow.parquet as pq

    from wbe.engine import DuckDB

    seam = pytest.importorskip("duckdb._seam", reason="an older DuckDB, which binds otherwise")
    plain, bound = seam.bind, []
    monkeypatch.setattr(seam, "bind", lambda con, sql, *a: bound.append(sql) or plain(con, sql, *a))
    processes.bind_once()

    def query(name="a", **columns):
        pq.write_table(pa.table(dict(id=[1, 2], **columns)), tmp_path / f"{name}.parquet")
        bound.clear()
        with DuckDB() as engine:
            other = engine.table(pa.table(dict(id=[2, 3], y=["b", "c"])))
            frame = engine.scan(tmp_path / f"{name}.parquet").join(other, on="id", how="left").unique().sort("id")
            return frame.collect("pyarrow").to_native().to_pylist(), dict(frame.collect_schema()), len(bound)

    (rows, types, first), (again, _, second), (_, others, third) = query(x=[5, 6]), query(x=[5, 6]), query(x=["a", "b"])
    assert rows == again == [dict(id=1, x=5, y=None), dict(id=2, x=6, y="b")] and 0 < second < first
    assert second < third and {*types} == {*others} and types["x"] != others["x"] and types["y"] == others["y"]
    wider, _, _ = query(x=[5, 6], z=[True, False])
    assert wider[1] == dict(id=2, x=6, z=False, y="b")
    assert query("b", x=[7, 8]) == ([dict(id=1, x=7, y=None), dict(id=2, x=8, y="b")], types, second)
    with DuckDB() as engine:
        frame = engine.scan(tmp_path / "b.parquet")
        assert query("b", other=[1, 2])[0]
        for step in (lambda: frame.select("x"), lambda: frame.with_columns(z=nw.col("x") + 1)):
            with pytest.raises(Exception, match="not found"):  # asked anew, and again when the query is run
                step().collect("pyarrow")


def test_engines_that_share_a_database_share_nothing_else(tmp_path, monkeypatch):
    import duckdb
    import processes
    import pyarrow as pa
    import pyarrow.parquet as pq

    from wbe.engine import DuckDB

    monkeypatch.setattr(duckdb, "connect", duckdb.connect)  # as it was, after the test
    processes.connect_once()
    setting = lambda engine, name: engine.con.execute(f"select current_setting('{name}')").fetchall()[0][0]
    numbers = lambda engine: engine.collect(engine.scan(tmp_path / "a.parquet"))["n"].to_pylist()
    with DuckDB() as one, DuckDB() as two, DuckDB("300MB") as small:
        one.con.execute("create temp table t as select 1")
        assert [e.con.execute("select count(*) from duckdb_tables()").fetchall() for e in (one, two)] == [
            [(1,)],
            [(0,)],
        ]
        assert setting(one, "memory_limit") == setting(two, "memory_limit") != setting(small, "memory_limit")
        for n in (1, 2):  # of equal size, and written at the same time
            pq.write_table(pa.table(dict(n=[n])), tmp_path / "a.parquet")
            os.utime(tmp_path / "a.parquet", (1, 1))
            assert numbers(one) == numbers(two) == [n]
        one.con.execute("create table left_over as select 1")
    with pytest.raises(AssertionError, match="left_over"):
        DuckDB()
    child = os.fork()
    if not child:  # without the threads of the database
        with DuckDB() as engine:
            os._exit(numbers(engine) != [2])
    assert os.waitpid(child, 0)[1] == 0


def test_a_model_that_is_loaded_once_is_a_copy_for_each(tmp_path, monkeypatch):
    "Copies share no weights; a file that has changed, and another dtype, are read anew."
    import shutil

    import processes
    import torch
    from safetensors.torch import load_file, save_file

    from wbe.lm import models

    reads, plain = [], models._from_pretrained
    monkeypatch.setattr(models, "_from_pretrained", lambda *a: reads.append(a) or plain(*a))
    processes.load_once()
    folder = tmp_path / "wbe-tiny"
    shutil.copytree(Path(__file__).parents[1] / "data_samples" / "wbe-tiny", folder)
    one, two = models.load(folder, device="cpu"), models.load(folder, device="cpu")
    weights = lambda lm: {k: v.clone() for k, v in lm.model.state_dict().items()}
    before = weights(two)
    assert len(reads) == 1 and all(torch.equal(v, before[k]) for k, v in weights(one).items())
    with torch.no_grad():
        for p in one.model.parameters():
            p += 1
    one.tokenizer.add_tokens(["unheard-of"])
    three = models.load(folder, device="cpu")
    for lm in (two, three):
        assert all(torch.equal(v, before[k]) for k, v in weights(lm).items()) and "unheard-of" not in lm.tokenizer.vocab
    assert models.load(folder, "bfloat16", "cpu").dtype == torch.bfloat16 and len(reads) == 2
    stored = load_file(folder / "model.safetensors")
    save_file({k: torch.zeros_like(v) for k, v in stored.items()}, folder / "model.safetensors", {"format": "pt"})
    assert not any(v.any() for v in models.load(folder, device="cpu").model.parameters()) and len(reads) == 3
