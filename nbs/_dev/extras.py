"""Every extra of settings.ini, installed and tested; `make test-extras` calls both commands.

python nbs/_dev/extras.py install FOLDER
    make a virtual environment in FOLDER that adds all extras to the packages of this one
python nbs/_dev/extras.py notebooks
    execute the cells marked `#| extra NAME` of all notebooks, and those that they need; `make test` executes the others

Extras that want an environment of their own are left out of both. Their cells are recorded and their tests run there:
    pip install '.[lm,vllm]' pytest nbclient ipykernel nbdev==2.4.14 'execnb<0.2' 'fastcore<1.13'
    python nbs/_dev/notebooks.py run --flags extra nbs/07_lm/16_vllm.ipynb && python -m pytest tests/test_vllm.py
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from configparser import ConfigParser
from pathlib import Path
from types import SimpleNamespace

sys.modules.setdefault("rfc3987_syntax", None)  # as in notebooks.py
import nbformat  # noqa: E402

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests"))  # processes.py
NBS = ROOT / "nbs"
APART = {"vllm"}  # extras that pin other versions of torch and transformers
COMPILED = {"annoy"}  # extras without wheels: built here, with a C++ compiler
JAVA = 17  # the oldest version that Spark 4 runs on
HELP = {
    "java": f"Spark needs Java {JAVA} or later. As root: apt-get install default-jre-headless. Without root: "
    "unpack a JDK of https://adoptium.net and set JAVA_HOME to its folder.",
    "c++": "Annoy is built with a C++ compiler. As root: apt-get install g++ python3-dev.",
}


def extras() -> dict[str, list[str]]:
    "The extras of settings.ini that users install into one environment, with their requirements."
    config = ConfigParser(delimiters=["="])
    config.read(ROOT / "settings.ini", encoding="utf-8")
    found = {k.removesuffix("_requirements"): v.split() for k, v in config["DEFAULT"].items() if "_requirements" in k}
    return {name: packages for name, packages in found.items() if name not in {"dev", *APART}}


def java_version() -> int:
    "The major version of Java that Spark would start; 0 where there is none."
    home = os.environ.get("JAVA_HOME")
    program = Path(home, "bin", "java") if home else shutil.which("java")
    try:
        told = subprocess.run([program or "java", "-version"], capture_output=True, text=True).stderr
    except OSError:
        return 0
    m = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(m[1]) if m else 0


def has_compiler() -> bool:
    return any(map(shutil.which, ("g++", "c++", "clang++")))


def apt_install(package: str) -> None:
    "Install a Debian package where this process may."
    if os.geteuid() == 0 and shutil.which("apt-get"):
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update", "-qq"], ["install", "-y", "-qq", package]):
            subprocess.run(["apt-get", *words], env=environment, stdout=subprocess.DEVNULL, check=False)


def install_programs() -> None:
    "Java and a compiler, installed where that is possible; an error without Java."
    if java_version() < JAVA:
        apt_install("default-jre-headless")
    if java_version() < JAVA:
        raise SystemExit(HELP["java"])
    if not has_compiler():
        apt_install("g++")


def pip(folder: Path, *words) -> int:
    command = [folder / "bin" / "python", "-m", "pip", "install", "--no-compile", "--quiet"]
    options = ["--disable-pip-version-check", "-c", "constraints.txt"]
    return subprocess.run([*command, *options, *words], cwd=ROOT).returncode


def install(folder: Path) -> None:
    "A virtual environment that sees the packages of this one and has the extras; this one stays as it is."
    install_programs()
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "zz_light.pth").write_text(sysconfig.get_path("purelib") + "\n")
    if pip(folder, "-e", f".[{','.join(set(extras()) - COMPILED)}]"):
        raise SystemExit("the extras could not be installed")
    for name in COMPILED:
        if pip(folder, *extras()[name]):
            print(f"the extra {name} could not be installed, so its tests fail. {HELP['c++']}", file=sys.stderr)


def extras_of(path: Path) -> set[str]:
    "The extras that cells of a notebook are marked with."
    cells = nbformat.read(path, 4).cells
    return {
        name
        for cell in cells
        if cell.cell_type == "code"
        for m in re.findall(r"^#\|[ \t]*extra[ \t]+(.+)$", cell.source, re.M)
        for name in m.split()
    }


def notebooks() -> list[Path]:
    "The notebooks with cells that need an extra."
    paths = (p for p in NBS.rglob("*.ipynb") if not any(part[0] in "._" for part in p.relative_to(NBS).parts))
    return [p for p in sorted(paths) if extras_of(p) - APART]


def marked_and_needed(path: Path) -> set[str]:
    "The ids of the cells of a notebook that are marked with an extra, and of those that they need."
    from cells import needed
    from notebooks import flags_of

    cells = [c for c in nbformat.read(path, 4).cells if c.cell_type == "code"]
    marked = {i for i, cell in enumerate(cells) if "extra" in flags_of(cell)}
    return {cells[i].id for i in needed([c.source for c in cells], marked)}


def leave_out_others(wanted: set[str]):
    "From now on, nbdev's test executes only the code cells with these ids; the set may change."
    from execnb.shell import CaptureShell

    plain = CaptureShell.cell

    def cell(self, cell, *args, **options):
        if cell.cell_type != "code" or cell.id in wanted:
            plain(self, cell, *args, **options)

    CaptureShell.cell = cell


def execute(paths: list[Path]) -> list[str]:
    "Run the cells of notebooks that need an extra, as `nbdev_test` does; the names of the notebooks that failed."
    import nbdev.test
    import processes
    from nbdev.config import get_config
    from notebooks import fail_with_figures, processor_seconds, time_answers_briefly

    nbdev.test.time = SimpleNamespace(time=processor_seconds)  # times that do not depend on what else runs
    fail_with_figures()
    time_answers_briefly()
    processes.verify_once()
    leave_out_others(wanted := set())
    os.chdir(ROOT)
    failed = []
    with tempfile.TemporaryDirectory() as tmp:
        os.environ["TMPDIR"] = tempfile.tempdir = tmp
        for path in paths:
            wanted.clear()
            wanted |= marked_and_needed(path)
            passed, seconds = nbdev.test.test_nb(path, get_config().tst_flags.split(), ["extra"], basepath=ROOT)
            name = str(path.relative_to(NBS).with_suffix(""))
            print(f"{name}: {len(wanted)} cells, {seconds:.0f} s{'' if passed else ', FAILED'}", flush=True)
            failed += [] if passed else [name]
    return failed


def run() -> list[str]:
    "Execute the notebooks in two processes; the names of those that failed."
    import extras as importable  # the processes find what they execute by the name of its module
    import processes

    paths, began = notebooks(), time.perf_counter()
    # Those of Spark have a process of their own: Java is started once for them, and their session reaches no other.
    groups = [[p for p in paths if ("spark" in extras_of(p)) is spark] for spark in (True, False)]
    with ProcessPoolExecutor(2, mp_context=processes.context(), max_tasks_per_child=1) as pool:
        failed = sum(pool.map(importable.execute, groups), [])
    print(f"{len(paths)} notebooks with cells that need an extra: {time.perf_counter() - began:.0f} s")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("install").add_argument("folder", type=Path)
    commands.add_parser("notebooks")
    args = parser.parse_args()
    if args.what == "install":
        install(args.folder)
    elif failed := run():
        sys.exit(f"these notebooks failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
