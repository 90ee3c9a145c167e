"""From an environment to a report with a model, edits and an editor of one's own: what the tutorials say, step by step.

python tests/journey.py                             a new environment: builds the wheel, installs it with lm and report
python tests/journey.py --wheel dist/wbe-0.0.1.whl  the same with a wheel that is there
python tests/journey.py --python .venv/bin/python   an environment in which wbe is installed; nothing is installed
python tests/journey.py … --quick                   only what matters most, in a minute

The first step that exits with another code than expected, or whose output is missing, ends it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

MODELS = """
import sys, torch, transformers as t
from wbe.lm.models import builtin_folder

tokenizer = t.AutoTokenizer.from_pretrained(builtin_folder("wbe-tiny"))
ids = dict(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id)
llama = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4)
sizes = {
    "gpt2": dict(n_embd=32, n_layer=3, n_head=4, n_positions=256),
    "llama": dict(llama, max_position_embeddings=256),
    "t5": dict(d_model=32, d_ff=64, num_layers=2, num_heads=4, d_kv=8, decoder_start_token_id=0),
}
for kind in sys.argv[1:]:
    torch.manual_seed(0)
    config = t.AutoConfig.for_model(kind, **ids, **sizes[kind])
    auto = t.AutoModelForSeq2SeqLM if config.is_encoder_decoder else t.AutoModelForCausalLM
    auto.from_config(config).save_pretrained(f"models/{kind}")
    tokenizer.save_pretrained(f"models/{kind}")
"""

EDITOR = """
from wbe.editors.memory.retrieval import PromptEdit, format_fact
from wbe.editors.protocol import Editor


class FactsOfSubject(PromptEdit):
    def context_for(self, question):
        return [format_fact(r, "pair") for r in self.facts if r.subject in question]


class Mine(Editor):
    "Facts about the subject of a question stand in front of it."

    causal = False

    def _edit(self, lm, requests, hparams):
        return FactsOfSubject(facts=list(requests))
"""

EDITS = """wonach;neu;worum
What is the capital of Kibordesh?;Silpur;Kibordesh
Who heads the government of Pani?;Nduna Suchola-Pasebwe;Pani
Who is the CEO of Wumba Press?;Sakana Ledinda;Wumba Press
Who founded Macwrwyn Airlines?;Rhotrowen Mosell;Macwrwyn Airlines
"""
MAP = ["--set", "map=wonach=question,neu=answer,worum=subject"]

SWEEP = """folder = "swept"
[common]
benchmark = "edits.csv"
map = {wonach = "question", neu = "answer", worum = "subject"}
ask_lasting = 5
[[run]]
editor = ["none", "ft", "my_editor:Mine"]
name = "{editor}"
"""

RESULTS = """
import sys
from wbe.runs.records import load_runs

for run in [run for folder in sys.argv[1:] for run in load_runs(folder)]:
    assert not run.missing, (run.name, run.missing)
    means = run.means()
    print(run.name, run.editor, run.config["model"]["name"], means["just edited"].round(2).to_dict())
"""


class Failed(Exception):
    pass


class Journey:
    def __init__(self, folder: Path, python: Path):
        self.folder, self.python, self.number = folder, python, 0
        # A foreign working copy on the path would hide what is installed.
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "FORCE_COLOR", "CLICOLOR_FORCE")
        self.environment = {k: v for k, v in os.environ.items() if k not in hidden}
        offline = dict(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TQDM_DISABLE="1", NO_COLOR="1")
        self.environment |= dict(offline, COLUMNS="80", HOME=str(folder), XDG_CACHE_HOME=str(folder / "cache"))
        self.environment["PATH"] = os.pathsep.join([str(python.parent), self.environment.get("PATH", "")])

    def step(self, what: str, words, makes=(), says=(), code: int = 0, inside: bool = True, timeout: int = 1800) -> str:
        "Run a program; its exit code, files and words are as expected, or the journey ends."
        self.number += 1
        start = time.perf_counter()
        words = [str(w) for w in words]
        environment = self.environment if inside else None
        done = subprocess.run(words, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=timeout)
        printed = done.stdout + done.stderr
        missing = [str(f) for f in makes if not any(self.folder.glob(f))]
        unsaid = [w for w in says if w not in printed]
        print(f"{self.number:2}. {what}  ({time.perf_counter() - start:.0f} s)", flush=True)
        if done.returncode != code or missing or unsaid or "Traceback" in printed:
            print(f"    $ {' '.join(w if len(w) < 200 else w[:60] + ' …' for w in words)}\n{printed[-3000:]}")
            raise Failed(f"{what}: exit code {done.returncode}, expected {code}; missing: {missing + unsaid}")
        return printed

    def wbe(self, what: str, *words, **expected) -> str:
        return self.step(f"{what}: wbe {words[0]}", [self.python, "-m", "wbe", *words], **expected)

    def run(self, what: str, program: str, *arguments, **expected) -> str:
        return self.step(what, [self.python, "-c", program, *arguments], **expected)


def install_small_torch(python: Path):
    "The CPU build of torch where there is no GPU; if it cannot be had, pip takes torch from where everything else is."
    index = os.environ.get("TORCH_INDEX", "https://download.pytorch.org/whl/cpu")
    if not index or sys.platform != "linux" or shutil.which("nvidia-smi"):
        return
    torch = next(x for x in (ROOT / "constraints.txt").read_text().splitlines() if x.startswith("torch=="))
    pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--retries", "1", "--index-url", index, torch]
    subprocess.run(pip, capture_output=True)


LEFT_OUT = {".": {"build", "dist", "_docs", "nbs", "tests"}, "data_samples": {"runs", "world"}}


def not_in_wheel(folder: str, names: list[str]) -> set[str]:
    "What a wheel is made without."
    here = LEFT_OUT.get(str(Path(folder).relative_to(ROOT)), set())
    return {name for name in names if name in here or name.startswith(".") or name == "__pycache__"}


def build_wheel(folder: Path, here: Journey) -> Path:
    "The wheel of this working copy."
    shutil.copytree(ROOT, folder / "source", ignore=not_in_wheel)
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder / "dist", folder / "source"]
    here.step("build the wheel", words, ["dist/wbe-*.whl"], inside=False)
    return next((folder / "dist").glob("wbe-*.whl"))


def new_environment(folder: Path, wheel: Path | None) -> Path:
    "A virtual environment with the wheel and its extras; returns its Python."
    here = Journey(folder, Path(sys.executable))
    wheel = wheel or build_wheel(folder, here)
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
    install_small_torch(python)
    wanted = f"{wheel.resolve()}[lm,report]"
    pip = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wanted]
    here.step("install the wheel with the extras lm and report", pip, inside=False)
    return python


def travel(journey: Journey, quick: bool):
    families = ["llama"] if quick else ["gpt2", "llama", "t5"]
    if not quick:
        demo = ("demo", "demo", "--entities", 700, "--editors", "rag")
        journey.wbe("the demo, in a smaller world", *demo, makes=["demo/benchmark/release/*.json", "demo/report.html"])

    journey.run("models of one's own", MODELS, *families, makes=[f"models/{kind}/config.json" for kind in families])
    (journey.folder / "edits.csv").write_text(EDITS, encoding="utf-8")
    (journey.folder / "my_editor.py").write_text(EDITOR, encoding="utf-8")
    for kind in families:
        score = ("score", "edits.csv", *MAP, "--model", f"models/{kind}", "-o", f"scored/{kind}")
        journey.wbe(f"score {kind}", *score, makes=[f"scored/{kind}/answers.parquet"], says=["update"])
        run = ("run", "edits.csv", *MAP, "-m", f"models/{kind}", "--runs", "own", "--name", kind)
        journey.wbe(f"edit {kind}", *run, "-e", "my_editor:Mine", makes=[f"own/{kind}/config.json"])

    tiny = ("run", "edits.csv", *MAP, "--runs", "runs")
    editors = {} if quick else {"ft": "ft"}
    for name, editor in (editors | {"mine": "my_editor:Mine"}).items():
        made = [f"runs/{name}/config.json"]
        journey.wbe(f"edit wbe-tiny by {editor}", *tiny, "-e", editor, "--name", name, makes=made, says=["update"])
    folders = ["own", "runs"]
    if not quick:
        refuse(journey, tiny)
        (journey.folder / "sweep.toml").write_text(SWEEP, encoding="utf-8")
        journey.wbe("a sweep", "sweep", "sweep.toml", makes=["swept/*/config.json"], says=["ft", "Mine"])
        journey.wbe("compare", "compare", "runs", says=["ft", "mine"])
        folders.append("swept")

    printed = journey.run("all runs are complete", RESULTS, *folders, says=[*families, "my_editor:Mine"])
    print("    " + printed.strip().replace("\n", "\n    "))
    journey.wbe("one page", "report", "runs", "-o", "report.html", makes=["report.html"])
    page = (journey.folder / "report.html").read_text(encoding="utf-8")
    if not ("edits.csv" in page and "Mine" in page):
        raise Failed("the report does not name the edits and the editors")


def refuse(journey: Journey, tiny: tuple):
    "What is wrong is refused with one line; what is done is not done again."
    wrong = ("score", "edits.csv", "--set", "map=wonach=question")
    journey.wbe("a table without its answers is refused", *wrong, code=1, says=["answer"])
    journey.wbe("an editor that does not exist is refused", *tiny, "-e", "romme", code=1, says=["did you mean 'rome'"])
    before = (journey.folder / "runs/ft/scores.parquet").stat().st_mtime_ns
    journey.wbe("a finished run is not made again", *tiny, "-e", "ft", "--name", "ft", says=["update"])
    if (journey.folder / "runs/ft/scores.parquet").stat().st_mtime_ns != before:
        raise Failed("the finished run was made again")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, help="the Python of an environment in which wbe is installed")
    parser.add_argument("--wheel", type=Path, help="a wheel to install into a new environment")
    parser.add_argument("--quick", action="store_true", help="one model family, no demo, no sweep")
    parser.add_argument("--folder", type=Path, help="an empty folder to work in, which is kept")
    args = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            python = args.python.absolute() if args.python else new_environment(folder, args.wheel)
            travel(Journey(folder, python), args.quick)
        except Failed as e:
            sys.exit(f"The journey ended: {e}")
    print(f"The journey was made in {time.perf_counter() - start:.0f} s.")


if __name__ == "__main__":
    main()
