"""A lifelong run of a real language model on published rows of WikiBigEdit: scores only, no text of the rows.

    python data_samples/real_models/make.py run ROWS -m MODEL -e EMBEDDER -o FOLDER [--device cuda] [--texts FILE]
    python data_samples/real_models/make.py run … -o FOLDER-2 --order 2 --like FOLDER --editors grace,ultraedit
    python data_samples/real_models/make.py run … -o FOLDER-ALONE --alone 20
    python data_samples/real_models/make.py keep FOLDER

ROWS holds the published rows in the form in which editing code ships them (prompt, target_new, subject, …). Rows 301 to
1,300 become ten timesteps of a hundred edits; rows 1 to 300 are for tuning alone. MODEL and EMBEDDER are folders, as
`make real` writes them. TEXTS holds paragraphs whose perplexity is measured, one a line. `run` may be stopped and
repeated, also with more timesteps. `--order N` shuffles rows 301 to 1,300 with a seed; `--like` takes what tuning has
chosen in another folder. `--alone N` makes each of the first N edits on the unedited model, with what tuning has chosen
for the runs that are stored here, or with `--stronger` with more steps and higher rates. `keep` adds to what is stored
here each run that was asked after an edit, or puts it in the place of one of its name.
"""

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
TUNING, STEP, LAST = 300, 100, 1300
FIELDS = dict(prompt="question", target_new="answer", subject="subject", rephrase_prompt="rephrase")
FIELDS |= dict(locality_prompt="locality", locality_ground_truth="locality_answer")
EDITORS = ("none", "oracle", "rag", "ultraedit", "grace", "horen", "lora", "lora-merge", "locft", "memit", "alphaedit")
EDITORS += ("ft", "wise", "rome", "r-rome")  # these take longest
STRONGER = dict(ft=dict(lr=5e-4, steps=50), locft=dict(lr=5e-4, epochs=50), lora=dict(epochs=50))  # for an edit alone
STRONGER |= {"lora-merge": dict(epochs=50, weight=1.0)}
STRONGER |= dict(ultraedit=dict(lr=0.01), wise=dict(lr=1.0, steps=70), horen=dict(steps=200))
KEPT = ["run", "row", "axis", "moment", "asked_of", "scored_at", "edits_done"]
KEPT += ["token_accuracy", "exact_match", "normalised_match", "log_probability", "natural_end", "same"]


def write_rows(rows: Path, out: Path, order: int = 1):
    "The rows with numbers, as timesteps; 00 is for tuning. Order 1 is that of the file."
    given = list(enumerate(json.loads(rows.read_text(encoding="utf-8"))[:LAST], 1))
    edits = given[TUNING:]
    if order > 1:
        random.Random(order).shuffle(edits)
    lines = []
    for place, (n, row) in enumerate(given[:TUNING] + edits):
        step = 0 if place < TUNING else (place - TUNING) // STEP + 1
        lines.append(dict(id=f"row-{n}", timestep=f"{step:02d}") | {new: row[old] for old, new in FIELDS.items()})
    out.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def run(args):
    args.output.mkdir(parents=True, exist_ok=True)
    if not (args.output / "rows.jsonl").exists():
        write_rows(args.rows, args.output / "rows.jsonl", args.order)
    common = dict(benchmark=str(args.output / "rows.jsonl"), model=args.model, timesteps=f"2-{args.timesteps + 1}")
    common |= {} if args.like or args.alone else dict(tune=args.tune)
    common |= dict(schedule="each", max_edits=args.alone) if args.alone else {}
    common |= dict(axes=["update", "rephrase", "locality"], generate=["update", "rephrase", "locality"])
    common |= dict(sample=30, ask_lasting=200, threads=1, device=args.device, dtype="float32")
    common |= dict(texts=args.texts) if args.texts else {}
    tag = Path(args.model).name
    after = f"-{args.order}" if args.order > 1 else ""
    stored = json.loads((HERE / "runs.json").read_text(encoding="utf-8")) if args.alone else {}
    lines = [f"folder = {json.dumps(str(args.output / 'runs'))}", "[common]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in common.items()]
    chosen = [e for e in args.editors.split(",") if e in STRONGER or not args.stronger]
    for editor in [e for e in chosen if not (args.alone and e == "none")]:
        name = f"{editor}-stronger" if args.stronger else editor
        lines += ["[[run]]", f'editor = "{editor}"', f'name = "{name}-{tag}{after}"']
        given = dict(embedder=args.embedder, index="exact") if editor == "rag" else {}
        if args.stronger:
            given |= STRONGER[editor]
        elif args.alone:
            given |= (stored[f"{editor}-{tag}"]["tuned"] or {}).get("chosen", {})
        elif args.like:
            config = json.loads((args.like / "runs" / f"{editor}-{tag}" / "config.json").read_text(encoding="utf-8"))
            given |= (config.get("tuned") or {}).get("chosen", {})
        lines += [f"hparams.{name} = {json.dumps(value)}" for name, value in given.items()]
    (args.output / "sweep.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["-m", "wbe", "sweep", args.output / "sweep.toml", "--jobs", args.jobs]
    sys.exit(subprocess.run([sys.executable, *map(str, words)]).returncode)


def kept_scores(run) -> pd.DataFrame:
    "The scores of a run by the rows' numbers, and whether an answer is the unedited model's."
    scores = run.scores.assign(run=run.name, row=run.scores.edit_id.str.extract(r"row-(\d+)")[0].astype(int))
    before = scores[scores.moment == "before"].set_index(["row", "axis"]).answer
    known = scores.set_index(["row", "axis"]).index.map(before)
    scores = scores.assign(same=[a == b for a, b in zip(scores.answer, known)])
    return (scores if run.editor == "none" else scores[scores.moment != "before"])[KEPT]


def keep(args):
    from wbe.runs.records import load_runs

    runs = [r for f in args.folder for r in load_runs(f, ["timesteps", "each"]) if (r.scores.moment != "before").any()]
    alone, runs = [r for r in runs if r.kind == "each"], [r for r in runs if r.kind != "each"]
    if alone:
        add("alone", pd.concat(map(kept_scores, alone)))
    if runs:
        keep_in_sequence(runs)


def add(name: str, frame: pd.DataFrame):
    "Put the rows of runs into a stored table, in the place of those of the same runs."
    path = HERE / f"{name}.parquet"
    stored = pd.read_parquet(path) if path.exists() else frame.iloc[:0]
    pd.concat([stored[~stored.run.isin(frame.run)], frame], ignore_index=True).to_parquet(path, compression="zstd")


def keep_in_sequence(runs: list):
    lasting = pd.concat([r.ability.assign(run=r.name) for r in runs]).drop(columns="part", errors="ignore")
    add("scores", pd.concat(map(kept_scores, runs)))
    add("lasting", lasting)
    about = json.loads((HERE / "runs.json").read_text(encoding="utf-8"))
    for r in runs:
        model = {
            k: r.config["model"].get(k) for k in ("family", "layers", "width", "parameters", "fingerprint", "weights")
        }
        edits = dict(made=int(r.batches.edits.sum()), seconds=float(r.batches.seconds.sum())) if len(r.batches) else {}
        hparams = {k: Path(v).name if k == "embedder" else v for k, v in r.config["hparams"].items()}
        tuned = r.config.get("tuned") or about.get(r.name, {}).get("tuned")  # of the first run
        about[r.name] = dict(editor=r.editor, hparams=hparams, tuned=tuned, edits=edits)
        about[r.name] |= dict(model=model, name=Path(r.config["model"]["name"]).name, protocol=r.config["protocol"])
        about[r.name] |= dict(device=r.config["hardware"]["gpu"] or "CPU")
    (HERE / "runs.json").write_text(json.dumps(dict(sorted(about.items())), indent=1) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    run_parser, keep_parser = commands.add_parser("run"), commands.add_parser("keep")
    run_parser.add_argument("rows", type=Path)
    for flag in ("-m", "--model"), ("-e", "--embedder"):
        run_parser.add_argument(*flag, required=True)
    run_parser.add_argument("-o", "--output", type=Path, required=True)
    run_parser.add_argument("--timesteps", type=int, default=10, help="how many timesteps of a hundred edits")
    run_parser.add_argument("--order", type=int, default=1, help="of the edits: 1, that of the file, or a seed")
    run_parser.add_argument("--like", type=Path, help="a folder whose tuning is taken")
    run_parser.add_argument("--alone", type=int, help="make only so many edits, each on the unedited model")
    run_parser.add_argument("--stronger", action="store_true", help="with --alone: more steps and higher rates")
    run_parser.add_argument("--tune", type=int, default=32, help="edits on which hyper-parameters are chosen")
    run_parser.add_argument("--editors", default=",".join(EDITORS))
    run_parser.add_argument("--device", default="auto", help="cpu, cuda, …")
    run_parser.add_argument("--texts", help="a file of paragraphs, one a line")
    run_parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    run_parser.set_defaults(do=run)
    keep_parser.add_argument("folder", type=Path, nargs="+")
    keep_parser.set_defaults(do=keep)
    args = parser.parse_args()
    args.do(args)


if __name__ == "__main__":
    main()
