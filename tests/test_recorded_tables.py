"""The recorded runs in data_samples/runs give unchanged tables, to the last digit.

The files in tests/recorded_tables were written when the runs were recorded: `compare.csv` holds the
table of `wbe compare`, `tables.csv` and `means.csv` hold `Run.table()` and `Run.means()` of every run.
"""

from pathlib import Path

import pandas as pd
import pytest

from wbe.runs.records import Run, compare_runs, load_runs

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "tests" / "recorded_tables"
RUNS = load_runs(ROOT / "data_samples" / "runs")


def same(table: pd.DataFrame, recorded: pd.DataFrame) -> bool:
    "Whether two tables have the same labels, and values that are equal bit for bit."
    columns = [c if isinstance(c, tuple) else (c,) for c in table.columns]
    expected = [c if isinstance(c, tuple) else (c,) for c in recorded.columns]
    assert (list(table.index), columns) == (list(recorded.index), expected)
    return pd.DataFrame(table.to_numpy(float)).equals(pd.DataFrame(recorded.to_numpy(float)))


def read(name: str, header) -> pd.DataFrame:
    "A recorded table as text; `same` reads the numbers, without rounding."
    return pd.read_csv(RECORDED / f"{name}.csv", header=header, index_col=0, dtype=str)


def of_run(tables: pd.DataFrame, name: str) -> pd.DataFrame:
    "The rows of one run, and the columns that it has."
    column = next(c for c in tables.columns if "run" in c)
    rows = tables[tables[column] == name].drop(columns=[column])
    return rows.dropna(axis=1, how="all")


def test_the_comparison():
    table, recorded = compare_runs(RUNS), read("compare", [0, 1])
    recorded = recorded.rename_axis("run")
    assert len(table) == 18 and same(table, recorded)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_the_table_of_a_run(run: Run):
    recorded = of_run(read("tables", [0, 1]), run.name)
    recorded.index = recorded.index.astype(int)
    assert same(run.table(), recorded)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_the_means_of_a_run(run: Run):
    assert same(run.means().dropna(axis=1, how="all"), of_run(read("means", 0), run.name))
