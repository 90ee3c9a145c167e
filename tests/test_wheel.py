"""The wheel is small, complete, and works without the packages that only developers have."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DEVELOPERS = {"nbdev", "fastcore", "execnb"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source")
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split("\n")
    for name in filter(None, files):
        if (ROOT / name).is_file() and not name.startswith(("nbs/", "data_samples/world")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", out, "."], cwd=source, check=True, capture_output=True
    )
    return next(out.glob("wbe-*.whl"))


def test_what_is_in_the_wheel(wheel):
    assert wheel.stat().st_size < 25_000_000
    names = zipfile.ZipFile(wheel).namelist()
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "wbe").rglob("*.py")}
    kinds = ("md", "json", "toml", "sql")
    data = {str(p.relative_to(ROOT)) for kind in kinds for p in (ROOT / "wbe").rglob(f"*.{kind}")}
    assert modules | data <= set(names) and len(data) >= 10
    assert not [n for n in names if n.startswith(("tests", "nbs", ".github"))]
    assert any(n.endswith("LICENSE") for n in names)
    assert {
        f"wbe/data_samples/wbe-tiny/{n}"
        for n in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")
    } <= set(names)
    meta = zipfile.ZipFile(wheel).read(next(n for n in names if n.endswith("METADATA"))).decode()
    needs = [line for line in meta.splitlines() if line.startswith("Requires-Dist")]
    assert not [n for n in needs if any(d in n for d in DEVELOPERS) and "extra ==" not in n]
    assert "Requires-Python: >=3.11" in meta


def test_the_demo_from_the_wheel(wheel, tmp_path):
    """Installed into a separate environment with the wheel's requirements.

    Developers' packages cannot be imported there.
    """
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    site = Path(
        subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True
        ).stdout.strip()
    )
    zipfile.ZipFile(wheel).extractall(site)
    # .pth files of that folder are not followed, so the working copy is not found
    (site / "zz_requirements.pth").write_text(sysconfig.get_path("purelib"))
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({sorted(DEVELOPERS)!r}))\n"
        "import wbe; assert wbe.__file__.startswith(sys.prefix), wbe.__file__\n"
        "from wbe.cli.main import main; main()"
    )
    small = ["--entities", "500", "--timesteps", "2"]
    for words in (["--version"], ["demo", "out", "--editors", "", *small], ["status", "out"]):
        out = subprocess.run([python, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True)
        assert out.returncode == 0, out.stderr
    assert (tmp_path / "out" / "timesteps.png").exists()
