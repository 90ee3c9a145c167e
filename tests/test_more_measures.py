"""Forms, near probes, endings, ability, health, verdicts and rankings: their sections of a report on made-up runs."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau
from toy_runs import made_up, write

from wbe.analysis import rankings, report
from wbe.analysis.leakage import leakage_items
from wbe.analysis.report import _notebook_sections, _results_notebook
from wbe.records import BadArgument, WbeError
from wbe.runs.records import load_runs
from wbe.benchmark.near_probes import FORMS

SIZE = dict(timesteps=2, edits=40, sample=20, every=40, first=80)
EDITORS = ("none", "rome", "memit", "lora", "rag")
NEW = ("forms", "near", "endings", "tasks", "health", "norms", "rankings", "verdicts")


def with_more(run):
    "A made-up run as one that was started with forms, near, generate, --ability, broken and norms."
    rng = np.random.default_rng(len(run.editor))
    s, q = run.scores.assign(probe=0), run.questions.assign(probe=0, subject="S-" + run.questions.subject_id)
    update, parts = s[(s.axis == "update") & s.moment.isin(["before", "current"])], [s]
    for axis in ("completion", "same-subject"):
        parts.append(update.assign(axis=axis, exact_match=rng.random(len(update)) < 0.6))
    s = pd.concat(parts, ignore_index=True)
    before = s[(s.moment == "before") & s.axis.isin(["same-subject", "locality"]) & (s.asked_of == 2)]
    s = pd.concat([s, before.assign(moment="ahead", scored_at=1, edits_done=40)], ignore_index=True)
    said = s.axis.isin(["update", "locality"])
    ends, old = (rng.random(len(s)) < share for share in (0.7, 0.2))
    run.scores = s.assign(
        answer=np.where(said, "some text", None),
        natural_end=pd.array(np.where(said, ends, None), "boolean"),
        outdated_match=np.where(s.axis == "update", old.astype(float), np.nan),
    )
    more = [q[q.axis == "update"].assign(axis=a, question=a + "?") for a in ("completion", "same-subject")]
    run.questions = pd.concat([q, *more], ignore_index=True)
    ratio = np.linspace(1, 30 if run.editor == "rome" else 2, len(run.batches))
    run.batches = run.batches.assign(perplexity=9 * ratio, perplexity_ratio=ratio)
    task = run.ability[run.ability.what == "lasting facts"].assign(what="reading")
    run.ability = pd.concat([run.ability, task], ignore_index=True)
    run.config["plan"] |= dict(broken=10, ability=["reading"])
    run.config["benchmark"]["files"] = {"1": "a", "2": "b"}
    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    "The folder of the runs; the one of ROME has norms."
    folder = tmp_path_factory.mktemp("more")
    for editor in EDITORS:
        write(with_more(made_up(editor, **SIZE)), folder / editor)
    norms = dict(
        scored_at=[1, 2], edits_done=[40, 80], matrix="mlp_out", layer=1, norm=[3.0, 8.0], before=2.0, part="0"
    )
    pd.DataFrame(norms).to_parquet(folder / "rome" / "norms.parquet")
    return folder


def sections_of(paths, monkeypatch, keys=NEW) -> dict:
    "What the sections of the results notebook show, or their error."
    shown, errors, now = {}, {}, None
    monkeypatch.setattr(report, "_display", lambda data, **about: shown.setdefault(now, []).append((about, data)))
    nb, space = _results_notebook(sorted(paths)), {}
    for cell in nb.cells[1:3]:
        exec(cell.source, space)
    for key, _, _, cell in _notebook_sections(nb):
        if key in keys:
            now = key
            try:
                exec(cell.source, space)
            except WbeError as e:
                errors[key] = str(e)
    return dict(shown={k: v for k, v in shown.items() if k}, errors=errors)


def text_of(shown: list) -> str:
    return "\n".join(data.get("text/plain", "") for about, data in shown if about["kind"] in ("say", "table"))


def test_the_sections_show_what_the_runs_have(folder, monkeypatch):
    found = sections_of(folder.iterdir(), monkeypatch)
    assert set(found["shown"]) == set(NEW) - {"verdicts"}
    assert list(found["errors"]) == ["verdicts"] and "audits=" in found["errors"]["verdicts"]
    text = {key: text_of(shown) for key, shown in found["shown"].items()}
    s = load_runs(folder / "rag")[0].scores
    mean = s[(s.axis == "completion") & (s.moment == "current")].exact_match.mean()
    assert f"rag {mean:.1%}" in text["forms"] or f"| rag | {mean:.1%} [" in text["forms"]
    assert "at least 10 times the unedited model's: rome after 80 edits" in text["health"]
    assert "rome 4 times" in text["norms"] and text["tasks"].startswith("reading (exact match): 70.0% before")
    ends = s[(s.axis == "update") & (s.moment == "current")].natural_end.astype(float).mean()
    assert f"| rag | {ends:.1%} [" in text["endings"]
    assert (
        "Of 5 orders that papers report" in text["rankings"] and "| WikiBigEdit | rag before rome |" in text["rankings"]
    )
    points = [p for about, _ in found["shown"]["forms"] for p in about.get("points") or ()]
    assert any(p[3] == "#questions?moment=current&run=rag&axis=completion" for p in points)


def test_runs_without_them_say_how_to_get_them(tmp_path, monkeypatch):
    for editor in ("none", "rome", "rag"):
        write(made_up(editor, **SIZE), tmp_path / editor)
    errors = sections_of(tmp_path.iterdir(), monkeypatch)["errors"]
    for key, option in dict(forms="forms=", near="near=", endings="generate=", tasks="--ability").items():
        assert option in errors[key]
    assert (
        "broken=" in errors["health"] and "norms=" in errors["norms"] and "at least three editors" in errors["rankings"]
    )


def test_rankings_are_those_of_scipy(folder):
    runs = [r for r in load_runs(folder) if r.editor != "none"]
    draws = rankings.resample_rankings(runs, repeats=50)
    compared = rankings.compare_rankings(draws)
    mean = lambda axis, measure: pd.Series(
        {r.editor: r.scores[(r.scores.axis == axis) & (r.scores.moment == "current")][measure].mean() for r in runs}
    )
    exact = mean("update", "exact_match")
    by_hand = {"teacher-forced": mean("update", "token_accuracy"), "no old answer": -mean("update", "outdated_match")}
    by_hand |= {"completion": mean("completion", "exact_match"), "locality": mean("locality", "exact_match")}
    for name, values in by_hand.items():
        assert compared.tau[name] == pytest.approx(kendalltau(exact, values).statistic)
        pairs = [(a, b) for a in exact.index for b in exact.index if exact[a] > exact[b] and values[a] < values[b]]
        assert compared.turned[name] == len(pairs)
        assert compared.low[name] <= compared.tau[name] <= compared.high[name]
    items = {r.editor: leakage_items(r).query("axis in ('same-subject', 'locality')") for r in runs}
    named = {editor: list(zip(i.edit_id, i.axis, i.probe)) for editor, i in items.items()}
    shared = set.intersection(*map(set, named.values()))  # editors refuse different edits
    for editor, all_items in items.items():
        share = all_items[[k in shared for k in named[editor]]].groupby(["near", "after"]).right.mean()
        kept = share[True, True] - share[True, False] - (share[False, True] - share[False, False])
        assert draws.values["no leakage, same-subject"][editor] == pytest.approx(kept)
    assert set(compared.index).isdisjoint(set(FORMS) - {"completion"})


def test_a_resample_of_rankings_is_a_bootstrap(folder):
    runs = [r for r in load_runs(folder) if r.editor != "none"]
    draws = rankings.resample_rankings(runs, ["exact match"], repeats=3, seed=5)
    rows = rankings._criterion_rows(runs, "exact match", [r.editor for r in runs])
    subjects = np.array(sorted(rows.subject_id.unique()))
    weights = np.random.default_rng(5).multinomial(len(subjects), np.full(len(subjects), 1 / len(subjects)), 3)
    for n, drawn in enumerate(draws.drawn["exact match"]):
        again = pd.concat([rows[rows.subject_id == s] for s, w in zip(subjects, weights[n]) for _ in range(w)])
        means = again.groupby("editor").value.mean()
        assert drawn == pytest.approx(means[draws.values.index].to_numpy())


def test_two_editors_have_no_ranking(folder):
    runs = [r for r in load_runs(folder) if r.editor in ("none", "rag", "rome")]
    with pytest.raises(BadArgument, match="at least three editors; here: rag, rome"):
        rankings._ranked_runs(runs)
