"""Synthetic runs in the format of `wbe.runs.records`, for tests of the analyses. Nothing here was measured."""

from types import SimpleNamespace

import numpy as np
import pandas as pd

AXES = ("update", "rephrase", "persona", "multi-hop", "locality")
# success of an edit, share of it kept per timestep, share of other knowledge kept per timestep, seconds per edit
EDITORS = {
    "none": (0.0, 1.0, 1.0, 0.0),
    "rome": (0.9, 0.15, 0.3, 0.5),
    "r-rome": (0.9, 0.3, 0.4, 0.5),
    "memit": (0.8, 0.5, 0.6, 0.2),
    "ft": (0.7, 0.6, 0.6, 0.02),
    "ft-l": (0.6, 0.7, 0.7, 0.03),
    "prompt": (0.3, 0.9, 1.0, 0.0),
    "lora": (0.7, 0.7, 0.8, 0.1),
    "lora-merge": (0.6, 0.9, 0.9, 0.1),
    "rag": (0.95, 0.99, 1.0, 0.001),
    "wise": (0.6, 0.6, 0.9, 0.3),
}
TAKES = {"update": 1.0, "rephrase": 0.8, "persona": 0.7, "multi-hop": 0.1, "locality": 0.0}


def questions(timesteps: int, edits: int) -> pd.DataFrame:
    rows = [
        dict(
            edit_id=f"t{t}e{i}",
            axis=axis,
            question=f"{axis} {t} {i}?",
            expected=f"a{i}",
            timestep=f"step{t}",
            asked_of=t,
            subject_id=f"Q{t}{i // 2}",
            tag="update" if i % 3 == 0 else "new",
            relation_id=f"P{i % 7}",
            object_id=f"Q9{i}",
            previous=None,
            valid_from=None,
        )
        for t in range(1, timesteps + 1)
        for i in range(edits)
        for axis in AXES
    ]
    return pd.DataFrame(rows)


def made_up(
    editor: str,
    timesteps: int = 8,
    edits: int = 40,
    sample: int = 25,
    every: int = 20,
    first: int = 160,
    seed: int = 0,
    lasting: bool = False,
) -> SimpleNamespace:
    "One synthetic run of an editor."
    takes, keeps, spares, each = EDITORS[editor]
    q, rng, scores = questions(timesteps, edits), np.random.default_rng([seed, *editor.encode()]), []
    knows = np.random.default_rng(seed).random(len(q)) < 0.25

    def ask(part, moment, scored_at, done):
        age = scored_at - part.asked_of.to_numpy()
        reach = part.axis.map(TAKES).to_numpy() * takes * keeps ** np.clip(age, 0, None) * (scored_at > 0)
        left = np.where(knows[part.index], spares ** (0.3 * scored_at), 0.0)
        right = rng.random(len(part)) < np.maximum(reach, left)
        tokens = np.where(right, 1.0, rng.choice([0, 0.25, 0.5, 0.75], len(part)))
        growth = 1 + (0.1 * scored_at if editor in ("rag", "prompt") else 0)
        scores.append(
            part[["edit_id", "axis", "asked_of", "timestep", "subject_id"]].assign(
                moment=moment,
                scored_at=scored_at,
                edits_done=done,
                token_accuracy=tokens,
                edited_at=pd.array(part.asked_of if scored_at else [pd.NA] * len(part), "Int64"),
                exact_match=right,
                log_probability=-1.0,
                perplexity=2.0,
                finite=True,
                seconds=0.01 * growth * rng.uniform(0.9, 1.1, len(part)),
                answer=[
                    (e if x else f"not {e}") if a == "locality" else None
                    for a, e, x in zip(part.axis, part.expected, right)
                ],
            )
        )

    ask(q, "before", 0, 0)
    batches = []
    for t in range(1, timesteps + 1):
        now = q[q.asked_of == t]
        for b in range(0, edits, every):
            done = (t - 1) * edits + b + every
            batches.append(
                dict(
                    timestep=f"step{t}",
                    asked_of=t,
                    batch=b // every,
                    edits=every,
                    edits_done=done,
                    seconds=each * every * rng.uniform(0.9, 1.2),
                    peak_memory=int(1e8 + 1e5 * done),
                    refused=0,
                )
            )
            if done <= first:
                so_far = q[(q.asked_of < t) | ((q.asked_of == t) & q.edit_id.isin(now.edit_id.unique()[: b + every]))]
                some = pd.Series(so_far.edit_id.unique()).sample(min(30, so_far.edit_id.nunique()), random_state=done)
                ask(so_far[so_far.edit_id.isin(some)], "curve", t, done)
        ask(now, "current", t, t * edits)
        for old in range(1, t):
            then = q[q.asked_of == old]
            ask(
                then[then.edit_id.isin(pd.Series(then.edit_id.unique()).sample(sample, random_state=old))],
                "past",
                t,
                t * edits,
            )
    ability = [
        dict(scored_at=t, edits_done=t * edits, what=what, metric=metric, value=v, low=v * 0.9, high=v * 1.1, n=100)
        for t in range(timesteps + 1)
        for what, metric, v in (
            ("lasting facts", "exact_match", 0.7 * spares**t),
            ("text", "perplexity", 9.0 / spares**t),
        )
    ]
    if lasting:  # as a run of today: the texts with the first scores, and the score of each fact
        facts = [row for row in ability if row["what"] == "lasting facts"]
        facts[0] |= dict(questions=[f"lasting {i}?" for i in range(100)], expected=[f"a{i}" for i in range(100)])
        for row in facts:
            right = round(100 * row["value"])
            row |= dict(value=right / 100, each=[1.0] * right + [0.0] * (100 - right))
    moments = pd.DataFrame(
        [
            dict(
                moment="current" if t else "before",
                scored_at=t,
                edits_done=t * edits,
                questions=t * edits * 5,
                seconds=1.0,
                model_seconds=0.9,
                lookup_seconds=0.05 * t if editor == "rag" else 0.0,
                timed_questions=2,
                **{
                    f"{what}_{bound}": x * (1 + 0.11 * t * (editor == "rag"))
                    for what in ("question", "token")
                    for bound, x in (("seconds", 1.0), ("low", 0.98), ("high", 1.02))
                },
            )
            for t in range(timesteps + 1)
        ]
    )
    steps = list(range(1, timesteps + 1))
    config = dict(
        plan=dict(
            benchmark="made-up", model="made-up", editor=editor, seed=seed, sample=sample, every=every, hparams={}
        ),
        hparams={},
        batch=every,
        model=dict(name="made-up", revision=None, parameters=1000, numbers="float32", fingerprint="0"),
        protocol="paper@1",
        timesteps=steps,
        benchmark=dict(
            name="made-up",
            digest="0",
            timesteps={t: f"step{t}" for t in steps},
            edits={t: edits for t in steps},
            questions=len(q),
        ),
        versions=dict(wbe="0", python="3"),
        hardware=dict(machine="none", cores=1, gpu=None),
        started="2024-01-01T00:00:00+00:00",
        finished="2024-01-01T01:00:00+00:00",
    )
    return SimpleNamespace(
        name=editor,
        editor=editor,
        config=config,
        missing=[],
        questions=q,
        scores=pd.concat(scores, ignore_index=True),
        moments=moments,
        batches=pd.DataFrame(batches),
        ability=pd.DataFrame(ability),
    )


def write(run: SimpleNamespace, folder):
    "Write a run as `wbe.runs` stores it."
    import json
    from pathlib import Path

    folder = Path(folder)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(run.config))
    run.questions.to_parquet(folder / "questions.parquet")
    for name in ("scores", "batches", "moments", "ability"):
        getattr(run, name).assign(part="0").to_parquet(folder / f"{name}.parquet")


def made_up_runs(editors=tuple(EDITORS), **options) -> list[SimpleNamespace]:
    return [made_up(editor, **options) for editor in editors]
