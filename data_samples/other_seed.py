"""Presets of the tiny model tried on a world of another seed: `python data_samples/other_seed.py FOLDER [NAME …]`.

The presets were found by trials on edits of the world in this folder. Here each editor has six settings on 32 edits of
a world that nothing was chosen on, and the rule of `wbe run --tune` chooses: the preset, its grid for models that
nobody has tuned, and, where that comes to the preset's own values, those of MORE. 240 other edits of that world, of its
next two timesteps, are then made with the preset and, where it differs, with what was chosen. Trials go to
other_seed.json and answers to other_seed.parquet, beside this file. Two processes take about an hour; a stopped call
continues.
"""

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import torch

from wbe.benchmark.reader import Benchmark
from wbe.benchmark.series import make_benchmark
from wbe.editors.protocol import editor, preset_tables
from wbe.editors.trials import _tuning_grid, _with_values, edited, sample_edits, tune
from wbe.lm.models import load
from wbe.lm.scoring import score
from wbe.world.files import World

HERE, SEED, TUNED, OTHERS = Path(__file__).parent, 11, 32, 120
BATCH = 100  # where an editor has no number of its own, as in the recorded runs
ROME = [dict(layer=3), dict(lr=0.2), dict(clamp=4.0)]
MORE = {
    "rome": ROME,
    "r-rome": ROME,
    "memit": [dict(lr=0.2), dict(moment_weight=15_000.0)],
    "alphaedit": [dict(l2=0.1), dict(l2=10.0), dict(clamp=16.0), dict(threshold=0.005)],
    "wise": [dict(lr=0.1), dict(lr=1.0), dict(steps=60), dict(ratio=0.8)],
    "grace": [dict(layer=4), dict(lr=0.3)],
    "horen": [dict(threshold=0.65)],
    "memoir": [dict(layer=4), dict(steps=60)],
    "locft": [dict(epochs=10), dict(layer=4)],
    "lora": [dict(rate=0.2), dict(rank=16)],
    "lora-merge": [dict(weight=1.0)],
}
# the cheap ones first, so that what has been finished is worth most at any time
NAMES = "none rag ultraedit grace horen ft wise memit lora lora-merge ft-l rome r-rome memoir locft alphaedit crispedit"
COLUMNS = ["axis", "edit_id", "subject_id", "probe"]


def make(folder: Path) -> Path:
    "The benchmark of the first four dumps of the other world."
    if not (folder / "bench" / "release").is_dir():
        files = World(seed=SEED, entities=1_500).write(folder / "world", articles=False, views=False, truth=False)
        about = dict(title="A world of another seed", ended="drop")  # as what is recorded
        make_benchmark(folder / "bench", sorted(files.paths())[:4], **about)
    return folder / "bench" / "release"


def ask(lm, questions: pd.DataFrame) -> pd.DataFrame:
    "Right tokens, exact answers, and what is generated."
    items = list(zip(questions.question, questions.expected))
    got = score(lm, items, generate=True, max_tokens=16, too_long="truncate", progress=False).to_pandas()
    exact = got.exact_match.astype(bool)
    return questions[COLUMNS].assign(right_tokens=got.token_accuracy.round(4), exact_match=exact, answer=got.answer)


def six_settings(name: str, lm):
    "Let `tune` try the preset and five others, each once."
    grids, found = preset_tables()["grids"], {}
    settings = [{}, *grids[name], *MORE.get(name, [])]
    grids[name] = settings[1:]
    for values in _tuning_grid(editor(name), lm):
        h = asdict(_with_values(editor(name), values).hparams_for(lm)) | dict(source="")
        found.setdefault(str(h), values)
    grids[name] = list(found.values())[1:]
    if len(found) != 6:
        raise ValueError(f"{name}: {len(found)} different settings")


def try_on_others(lm, ed, edits: tuple, size: int) -> pd.DataFrame:
    "Answers after all other edits."
    requests, questions = edits
    made = list({r.question: r for r in requests.values()}.values())
    with edited(lm, ed, [made[i : i + size] for i in range(0, len(made), size)]):
        return ask(lm, questions)


def sample(steps: list, n: int) -> tuple:
    "So many edits of each timestep, with their questions on three axes."
    parts = [sample_edits(step, n, seed=0) for step in steps]
    questions = pd.concat([frame for _, frame in parts], ignore_index=True)
    questions = questions[questions.axis.isin(["update", "rephrase", "locality"])].reset_index(drop=True)
    return {i: r for requests, _ in parts for i, r in requests.items()}, questions


def follow(name: str, folder: Path):
    "Tune one editor, and try what was chosen; the unedited model answers under the name `none`."
    out = folder / f"{name}.parquet"
    if out.exists():
        return
    torch.set_num_threads(1)
    lm, bench = load("wbe-tiny", device="cpu"), Benchmark.load(folder / "bench" / "release")
    others = sample([bench[1], bench[2]], OTHERS)
    if name == "none":
        ask(lm, others[1]).assign(editor=name, setting="preset").to_parquet(out, index=False)
        return
    six_settings(name, lm)
    ed = editor(name)
    found = tune(lm, ed, sample([bench[0]], TUNED), keep=folder / f"{name}.json", tell=print)
    (folder / f"{name}.chosen.json").write_text(json.dumps(found["chosen"]), encoding="utf-8")
    size, parts = ed.batch or BATCH, []
    for setting in ["preset", *(["chosen"] if found["chosen"] else [])]:
        tried = editor(name, **(found["chosen"] if setting == "chosen" else {}))
        tried.prepare(lm)
        parts.append(try_on_others(lm, tried, others, size).assign(editor=name, setting=setting))
    pd.concat(parts).to_parquet(out, index=False)
    print("finished", name, found["chosen"], flush=True)


def gather(names: list[str], folder: Path):
    "One file of answers, with whether each is the unedited model's, and one of trials."
    answers = pd.concat([pd.read_parquet(folder / f"{n}.parquet") for n in names], ignore_index=True)
    before = answers[answers.editor == "none"].set_index(COLUMNS).answer
    answers["same"] = answers.answer.to_numpy() == before.reindex(pd.MultiIndex.from_frame(answers[COLUMNS])).to_numpy()
    answers.drop(columns="answer").to_parquet(HERE / "other_seed.parquet", index=False)
    trials = {n: json.loads((folder / f"{n}.json").read_text(encoding="utf-8")) for n in names if n != "none"}
    kept = ("rule", "batch", "trials")
    chosen = {n: json.loads((folder / f"{n}.chosen.json").read_text(encoding="utf-8")) for n in trials}
    trials = {n: {k: t[k] for k in kept} | dict(chosen=chosen[n]) for n, t in trials.items()}
    (HERE / "other_seed.json").write_text(json.dumps(trials, indent=1) + "\n", encoding="utf-8")


def main(folder: Path, names: list[str]):
    "Everything, two editors at a time."
    make(folder)
    names = names or NAMES.split()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(follow, name, folder) for name in names]:
            done.result()
            gather([n for n in names if (folder / f"{n}.parquet").exists()], folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
