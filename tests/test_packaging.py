"""How wbe is installed, tested and published: settings.ini, constraints.txt, Makefile, workflows, README."""

import os
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import APART, packages_of_extras
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
WORKFLOWS = {p.stem: yaml.safe_load(p.read_text(encoding="utf-8")) for p in (ROOT / ".github/workflows").glob("*.yml")}
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE = json.loads((ROOT / "nbs" / "guide.ipynb").read_text(encoding="utf-8"))["cells"]
GUIDE = "\n".join("".join(c["source"]) for c in GUIDE)
SETTINGS = dict(re.findall(r"^(\w+) *= *(.*)$", (ROOT / "settings.ini").read_text(encoding="utf-8"), re.M))
ADDRESS = f"https://github.com/{SETTINGS['user']}/{SETTINGS['repo']}"
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"


def commands(workflow: str, job: str) -> list[str]:
    return [step.get("run", "") for step in WORKFLOWS[workflow]["jobs"][job]["steps"]]


def test_every_requirement_is_pinned_to_a_version_that_fits():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {p.name: p for line in lines if line and not line.startswith("#") for p in [Requirement(line)]}
    apart = {f"{name}_requirements" for name in APART}  # they pin other versions themselves
    lists = [value for key, value in SETTINGS.items() if "requirements" in key and key not in apart]
    needed = [Requirement(r) for value in lists for r in value.split()]
    assert {r.name for r in needed} == set(pins)
    for r in needed:
        version = str(pins[r.name].specifier).removeprefix("==")
        assert r.specifier.contains(version), f"{r} is pinned to {version}"


def refuse_foreign_name(ours: str) -> subprocess.CompletedProcess:
    "The step of the publishing workflow, run in a shell, where the variable has this value."
    steps = WORKFLOWS["publish"]["jobs"]["name"]["steps"]
    step = next(s for s in steps if s.get("name") == "The name on PyPI is ours")
    assert step["env"] == {"OURS": "${{ vars.WBE_PYPI_NAME }}"}
    return subprocess.run(
        ["bash", "-e", "-c", step["run"]], cwd=ROOT, env=os.environ | {"OURS": ours}, capture_output=True, text=True
    )


@pytest.mark.parametrize("ours", ["", "another-name", SETTINGS["lib_name"] + "2"])
def test_publishing_refuses_a_name_that_is_not_ours(ours):
    done = refuse_foreign_name(ours)
    assert done.returncode == 1
    assert f"names the package '{SETTINGS['lib_name']}'" in done.stdout and "WBE_PYPI_NAME" in done.stdout


def test_publishing_accepts_a_name_that_is_declared_ours():
    done = refuse_foreign_name(SETTINGS["lib_name"])
    assert done.returncode == 0 and not done.stdout


def test_nothing_is_uploaded_before_the_name_is_checked():
    jobs = WORKFLOWS["publish"]["jobs"]
    uploads = {name for name, job in jobs.items() if any("pypi-publish" in s.get("uses", "") for s in job["steps"])}
    assert uploads == {"pypi"} and jobs["pypi"]["needs"] == "name"
    others = [job for name, w in WORKFLOWS.items() if name != "publish" for job in w["jobs"].values()]
    assert not re.search(r"pypi-publish|twine|uv publish", str(others))


def test_a_workflow_tests_every_extra():
    job = WORKFLOWS["test"]["jobs"]["extras"]
    assert WORKFLOWS["test"]["env"]["WBE_STRICT"] == 1
    assert "make test-extras" in commands("test", "extras")
    assert any(s.get("uses", "").startswith("actions/setup-java") for s in job["steps"])
    assert "make test-extras" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_transformers_has_a_tested_ceiling_and_the_newest_is_tried():
    "The pinned version lies below the ceiling; a job of its own upgrades past it and runs the tests."
    required = next(Requirement(r) for r in SETTINGS["lm_requirements"].split() if r.startswith("transformers"))
    pinned = re.search(r"^transformers==(.*)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)[1]
    assert any(s.operator == "<" for s in required.specifier) and pinned in required.specifier
    lines = "\n".join(commands("test", "newest"))
    assert lines.index("pip install --upgrade transformers") < lines.index("pytest tests")


def test_workflows_take_the_cpu_build_of_torch():
    "A step that installs an extra with torch comes after one that installs torch from the index of CPU builds."
    for name, workflow in WORKFLOWS.items():
        for job in workflow["jobs"]:
            lines = "\n".join(commands(name, job)).splitlines()
            with_torch = [i for i, line in enumerate(lines) if re.search(r"pip install.*\[[\w,]*\b(lm|dev)\b", line)]
            cpu = [
                i for i, line in enumerate(lines) if re.search(rf"pip install torch --index-url {CPU_WHEELS}$", line)
            ]
            assert not with_torch or cpu and cpu[0] < with_torch[0], f"{name}, {job}"


def set_up(tmp_path, *options, gpu: bool) -> str:
    "The commands with which `make` would set up on a machine with or without an NVIDIA driver."
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "sh", "uname", "test", "echo", "make"):
        if found := shutil.which(name):
            (programs / name).symlink_to(found)
    if gpu:
        (programs / "nvidia-smi").write_text("#!/bin/sh\n")
        (programs / "nvidia-smi").chmod(0o755)
    venv = tmp_path / "venv"
    environment = {k: v for k, v in os.environ.items() if k not in ("TORCH_INDEX", "MAKEFLAGS", "MAKELEVEL")}
    words = ["make", "-n", f"VENV={venv}", *options, f"{venv}/.ready"]
    done = subprocess.run(
        words, cwd=ROOT, env=environment | {"PATH": str(programs)}, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux does PyPI's torch bring CUDA")
def test_make_takes_the_cpu_build_of_torch_where_there_is_no_gpu(tmp_path):
    printed = set_up(tmp_path, gpu=False)
    assert f"--index-url {CPU_WHEELS} " in printed
    assert printed.index(CPU_WHEELS) < printed.index("-e '.[")


def test_make_takes_the_usual_torch_where_there_is_a_gpu(tmp_path):
    assert "--index-url" not in set_up(tmp_path, gpu=True)


def test_make_takes_torch_from_where_it_is_told_to(tmp_path):
    assert "--index-url https://example.org/simple " in set_up(
        tmp_path, "TORCH_INDEX=https://example.org/simple", gpu=True
    )
    shutil.rmtree(tmp_path / "bin")
    assert "--index-url" not in set_up(tmp_path, "TORCH_INDEX=", gpu=False)


def test_nothing_says_to_install_wbe_from_the_index():
    "There, the name is another project's. A path, a file or an address is right."
    texts = {p: p.read_text(encoding="utf-8") for folder in ("wbe", "tests") for p in (ROOT / folder).rglob("*.py")}
    texts |= {p: p.read_text(encoding="utf-8") for p in (ROOT / "nbs").rglob("*.ipynb")}
    texts |= {ROOT / n: (ROOT / n).read_text(encoding="utf-8") for n in ("README.md", "settings.ini", "Makefile")}
    named = re.compile(r"pip install (?:-\S+ )*\\?[\"'`]?wbe\b(?!\[[\w,]+\] @ git\+)(?!\[…\])")
    found = [
        f"{p.relative_to(ROOT)}: {m[0]}" for p, t in texts.items() for m in named.finditer(t) if p != Path(__file__)
    ]
    assert not found


def test_a_citation_names_this_version():
    assert f"\nversion: {SETTINGS['version']}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_guide_shows_three_ways_to_install():
    assert f"git clone {ADDRESS}" in README and f"git+{ADDRESS}" in GUIDE
    for command in (
        r"pip install '\.\[lm\]'",
        r"pip install 'dist/wbe-\S+\.whl\[lm\]'",
        r"'wbe\[lm\] @ git\+https://\S+'",
    ):
        assert re.search(command, GUIDE), command
    assert f"pip install torch --index-url {CPU_WHEELS}" in GUIDE


def test_the_guide_has_a_table_of_the_extras():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", GUIDE, re.M))
    extras = packages_of_extras()
    assert {k: rows.get(k) for k in extras} == {
        k: ", ".join(f"{p}" for p in extras[k]) for k in extras if k != "dev"
    } | {"dev": rows.get("dev")}


SKIPS = """
import pytest
@pytest.mark.skip(reason="no GPU here")
def test_allowed(): pass
@pytest.mark.skip(reason="not in the mood")
def test_not_allowed(): pass
@pytest.mark.extra("absent")
def test_of_an_extra(): import a_package_that_nobody_has
@pytest.mark.xfail
def test_expected_to_fail(): assert False
"""


@pytest.mark.parametrize(
    "variables, skipped, failed",
    [
        ({}, {"allowed", "not_allowed", "of_an_extra"}, set()),
        ({"WBE_STRICT": "1"}, {"allowed", "of_an_extra"}, {"not_allowed"}),
        ({"WBE_EXTRAS": "1"}, {"allowed", "not_allowed"}, {"of_an_extra"}),
        ({"WBE_STRICT": "1", "WBE_EXTRAS": "1"}, {"allowed"}, {"not_allowed", "of_an_extra"}),
    ],
)
def test_which_skipped_tests_fail(tmp_path, variables, skipped, failed):
    "Also a module that is skipped as a whole."
    (tmp_path / "tests").mkdir()
    for name in ("conftest.py", "forks.py", "processes.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests")
    (tmp_path / "settings.ini").write_text("[DEFAULT]\nabsent_requirements = a-package-that-nobody-has>=1\n")
    (tmp_path / "tests" / "test_skips.py").write_text(SKIPS)
    (tmp_path / "tests" / "test_module.py").write_text("import pytest\npytest.importorskip('another_such_package')\n")
    environment = {k: v for k, v in os.environ.items() if k not in ("WBE_STRICT", "WBE_EXTRAS")} | variables
    words = [
        "-q",
        "-rsfE",
        "-p",
        "no:cacheprovider",
        "--continue-on-collection-errors",
        "--rootdir",
        tmp_path,
        tmp_path,
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    module = {"module"} if "WBE_STRICT" in variables else set()
    refused = {
        m[1] or m[2] for m in re.finditer(r"^(?:FAILED|ERROR) \S+?(?:::test_(\w+)|test_(module))", done.stdout, re.M)
    }
    assert refused == failed | module, done.stdout
    assert done.returncode == bool(refused)
    reasons = {
        "no GPU here": "allowed",
        "not in the mood": "not_allowed",
        "the extra absent is not installed": "of_an_extra",
    }
    told = "\n".join(line for line in done.stdout.splitlines() if line.startswith("SKIPPED"))
    assert {name for reason, name in reasons.items() if reason in told} == skipped
