"""The analyses find the effects that were built into synthetic runs, and handle runs that are incomplete."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from toy_runs import made_up, made_up_runs

from wbe.analysis import (
    cost,
    gradients,
    headline,
    hops,
    kinds,
    specificity,
    statistics,
    style,
    timesteps,
)
from wbe.analysis.tables import find_gaps, run_labels
from wbe.metrics.intervals import PairedVerdict
from wbe.records import BadArgument

SMALL = dict(timesteps=4, edits=40, sample=30, every=20, first=160)


@pytest.fixture(scope="module")
def runs():
    return made_up_runs(("none", "rome", "lora-merge", "rag"), **SMALL)


def test_means_order_what_takes(runs):
    mean = timesteps.mean_accuracy(runs).set_index(["editor", "axis"])
    value = mean.value.xs("update", level="axis")
    assert value["rag"] > value["lora-merge"] > value["none"] and value["rome"] > value["lora-merge"]
    assert np.allclose(value["none"], mean.before["none", "update"], atol=0.1)
    assert mean.low["rag", "locality"] <= mean.before["rag", "locality"] <= mean.high["rag", "locality"]
    assert "update: best rag" in timesteps.summarise_means(mean.reset_index())


def test_rome_forgets_and_rag_does_not(runs):
    moved = timesteps.accuracy_changes(runs, axes=["update"])
    last = moved[moved.scored_at == 4].set_index("editor")
    assert last.high["rome"] < -0.3 and last.low["rag"] > -0.25
    kept = timesteps.forgetting_table(runs, axes=["update"])
    assert kept.forgetting["rome", "update"] > 0.5 > kept.forgetting["rag", "update"]
    assert timesteps.state_matrices(runs)["rome"].shape == (4, 5)  # the unedited model has a column too


def test_decay_sees_when_an_edit_is_gone(runs):
    s = timesteps.decay_summary(timesteps.decay_curve(runs)).xs("update", level="axis")
    assert s.half_gone["rome"] < 160 and np.isnan(s.half_gone["rag"])
    assert s.verdict["rag"].kind == "too few"  # 160 edits, however often each is asked


def test_decay_counts_a_question_once():
    more = made_up_runs(("none", "rag"), timesteps=4, edits=80, sample=60, every=20, first=320)
    curve, (rag,) = timesteps.decay_curve(more), [r for r in more if r.editor == "rag"]
    s = timesteps.decay_summary(curve).loc[("rag", "update")]
    asked = rag.scores.query("moment == 'curve' and axis == 'update' and edits_done >= @s.since")
    assert 200 <= s.verdict.n == asked.edit_id.nunique() < len(asked)
    assert s.verdict.kind == "above"
    assert "clearly above the unedited model: rag" in timesteps.summarise_decay(curve)


def test_cost(runs):
    c = cost.edit_cost(runs)
    assert "none" not in c.index and 0.4 < c.per_edit["rome"] < 0.7 and c.refused.sum() == 0
    t = cost.answer_time(runs).set_index(["editor", "scored_at"]).ratio
    assert 1.35 < t["rag", 4] < 1.55 and 0.95 < t["rome", 4] < 1.05  # as the timed rounds say
    assert "At the end an answer takes most with rag" in cost.summarise_cost(runs)
    choice = cost.trade_off(runs)
    assert choice.front_edit["rag"] and not choice.front_edit["rome"]


def test_teacher_forcing_gap_is_the_mean_of_the_differences(runs):
    both = timesteps.teacher_forcing_gap(runs, ["update"]).set_index("editor")
    s = runs[1].scores
    s = s[(s.moment == "current") & (s.axis == "update")]
    assert np.isclose(both.difference["rome"], (s.token_accuracy - s.exact_match).mean())
    assert (both.difference_high - both.difference_low < both.exact_match_high - both.exact_match_low + 0.05).all()


def test_figures_have_no_overlapping_names(runs):
    for fig in (
        timesteps.draw_course(timesteps.accuracy_course(runs)),
        timesteps.draw_decay(timesteps.decay_curve(runs)),
        timesteps.draw_changes(timesteps.accuracy_changes(runs)),
    ):
        fig.draw_without_rendering()
        for ax in fig.axes:
            boxes = [t.get_window_extent() for t in ax.texts if t.get_text()]
            assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


def test_a_collapsed_model(runs):
    broken = made_up("rome", **SMALL)
    after = broken.scores.moment != "before"
    broken.scores.loc[after, ["exact_match", "token_accuracy", "log_probability", "perplexity", "finite"]] = [
        False,
        0.0,
        np.nan,
        np.nan,
        False,
    ]
    mean = timesteps.mean_accuracy([broken])
    assert (mean.value == 0).all() and (mean.high > 0).all()  # none of n: the interval does not shrink to a point
    (
        timesteps.draw_means(mean),
        timesteps.draw_matrices(timesteps.state_matrices([broken])),
        timesteps.draw_teacher_forcing_gap(timesteps.teacher_forcing_gap([broken])),
    )


def test_unfinished(runs):
    s = runs[1].scores
    half = SimpleNamespace(
        **{
            **vars(runs[1]),
            "name": "half",
            "editor": "half",
            "missing": ["timesteps 2 to 4 are not edited and asked yet"],
            "scores": s[(s.scored_at <= 1) & (s.moment != "curve")],
        }
    )
    both = [runs[3], half]
    assert run_labels(both) == ["rag", "half"] and len(find_gaps(both, ["curve", "past"])) == 3
    assert set(timesteps.mean_accuracy(both).editor) == {"rag", "half"}
    assert set(timesteps.accuracy_changes(both).editor) == {"rag"} == set(timesteps.decay_curve(both).editor)
    timesteps.draw_course(timesteps.accuracy_course(both)), timesteps.draw_matrices(timesteps.state_matrices(both))
    with pytest.raises(BadArgument, match="half: earlier edits were not asked again"):
        timesteps.accuracy_changes([half])
    only = SimpleNamespace(
        **{**vars(half), "scores": s[s.scored_at == 0], "batches": pd.DataFrame(), "ability": pd.DataFrame()}
    )
    for analysis in (
        timesteps.mean_accuracy,
        timesteps.accuracy_changes,
        timesteps.ability_table,
        timesteps.decay_curve,
        timesteps.teacher_forcing_gap,
        cost.edit_cost,
    ):
        with pytest.raises(BadArgument):
            analysis([only])


# Sentences and verdicts are compared whole, with tables written by hand: a changed sign, order, bound or word fails.


def table(**columns) -> pd.DataFrame:
    return pd.DataFrame(columns)


def test_words_on_the_size_of_a_benchmark():
    steps = table(days=[10.0, 20, 30], edits=[5, 9, 14], questions=[20, 30, 50], m=[0.5, 0.9, 0.8])
    steps = steps.assign(**{"m.low": 0.7, "m.high": 0.85, "m.n": 1}).set_axis(["T1", "T2", "all"])
    steps["gpt"] = np.nan
    steps[["gpt.low", "gpt.high", "gpt.n"]] = np.nan
    said = statistics.summarise_timestep_statistics(steps)
    assert said == (
        "2 timesteps over 30 days hold 14 edits, 5 to 9 each, and 50 questions. m leaves 80.0% [70.0%, 85.0%] of the "
        "update questions unsolved, from 50% (T1) to 90% (T2). gpt was asked nothing."
    )


def test_words_on_popularity():
    names = list(specificity.POPULARITY_MEASURES)[:2]
    one, two = (specificity.POPULARITY_MEASURES[n] for n in names)
    rows = table(kind="subjects", model="m", measure=names, rho=[0.5, -0.05], low=[0.2, -0.15], high=[0.7, 0.1])
    rows = rows.set_index(["kind", "model", "measure"])
    said = f"subjects, m: right answers correlate with {one} +0.50 [+0.20, +0.70]; {two} -0.05 [-0.15, +0.10]"
    said += ", which may be none"
    assert specificity.summarise_correlations(rows) == [f"{said}; most with {one}."]
    assert specificity.summarise_correlations(rows.assign(low=[0.2, -0.3]))[0].endswith("which may be none.")


def test_words_on_two_hops():
    shares = table(k=[2, 8], n=40, first=[0.5, 0.6], second=[0.25, 0.3], both=[0.1, 0.2])
    clear, few = PairedVerdict(0.1, 0.05, 0.15, 400, 90, 0.001), PairedVerdict(0.5, 0.2, 0.8, 4, 4, np.nan)
    rows = table(
        k=[2, 2, 2, 8],
        found=["all", "first only", "both", "both"],
        exact_match=[0.3, 0.25, 0.75, 0.5],
        exact_before=[0.2, 0.25, 0.25, 0.25],
        verdict=[clear, replace(clear, difference=-0.1), few, few],
        cut=[0.0, 0, 0, 0.25],
    )
    said = hops.summarise_hops(shares, rows)
    few_told = "too few questions (n = 4): +50.0 [+20.0, +80.0], n = 4"
    assert said[0] == (
        "Of 40 questions, the nearest 2 pairs hold the first fact for 50.0%, the second for 25.0% and both for 10.0%; "
        "with 8 pairs both for 20.0%."
    )
    assert said[1] == (
        "With 2 pairs, 30.0% of the answers are right, and 20.0% without the pairs; clearly above the unedited model: "
        "+10.0 [+5.0, +15.0], n = 400, p = 0.001."
    )
    assert said[2].startswith("Where the first alone was found, 25.0% of the answers are right, and 25.0% without")
    assert "; clearly below the unedited model: -10.0 [" in said[2]
    assert said[3].startswith("Where both were found, 75.0% of the answers") and said[3].endswith(f"; {few_told}.")
    assert said[4].startswith("With 8 pairs, where both were found, 50.0% of the answers are right, and 25.0% without")
    assert said[4].endswith(f"; {few_told}; 25% of the prompts were cut.")


def test_words_on_cost(runs):
    slow, quick = pd.Series(dict(rag=2.5, rome=1.1, ft=np.nan)), pd.Series(dict(rag=1.5, rome=1.1))
    assert cost._summarise_ratios(slow) == (
        "At the end an answer takes most with rag, 2.50 times as long as before any edit; more than doubled: rag 2.50."
    )
    assert cost._summarise_ratios(quick).endswith("before any edit; no editor doubles it.")
    said = cost.summarise_cost(runs).splitlines()
    assert said[0].startswith("An edit takes from 1") and said[0].endswith("ms (rag) to " + said[0].split(" to ")[-1])
    assert said[0].endswith("(rome).") and said[-1].startswith(
        "No editor is both cheaper to edit with and better on update than rag ("
    )


def shares_of(**rows) -> pd.DataFrame:
    "A table of `generated_shares`: updated, outdated, neither."
    out = []
    for name, values in rows.items():
        row = dict(state=name, n=250)
        for what, v in zip(("updated", "outdated", "neither"), values):
            row |= {what: v, f"{what}_low": v - 0.05, f"{what}_high": v + 0.05}
        more = values[0] - values[1]
        verdict = PairedVerdict(more, more - 0.1, more + 0.1, 250, 250, 0.001 if more else 0.9)
        out.append(row | dict(more=more, more_low=more - 0.1, more_high=more + 0.1, verdict=verdict))
    return pd.DataFrame(out)


def test_words_on_generated_answers():
    three = shares_of(none=(0.1, 0.8, 0.1), rag=(0.8, 0.1, 0.1), ft=(0.1, 0.1, 0.8), wise=(0.4, 0.4, 0.2))
    assert kinds.summarise_generated(three) == [
        "How often the updated answer is generated, beside the outdated one, in points: clearly above the outdated "
        "one: rag +70.0 [+60.0, +80.0]; not clearly different from the outdated one: ft +0.0 [-10.0, +10.0], wise +0.0 "
        "[-10.0, +10.0]; "
        "clearly below the outdated one: unedited model -70.0 [-80.0, -60.0] (n = 250).",
        "Forget without learning (the outdated answer less often than before, but seldom the updated one and mostly "
        "neither): ft (updated 10%, outdated 10%, neither 80%).",
        "Neither answer is most frequent for ft, in 80% of 250 pairs.",
    ]


def test_words_on_gradients():
    rows = table(sets=["edited – new", "edited – unchanged"], median=[1.0, 2], median_other=[2.0, 1], p=[0.0001, 0.02])
    rows = rows.assign(n="5, 6", delta=[-0.5, 0.4], delta_low=[-0.7, 0.2], delta_high=[-0.4, 0.6])
    assert gradients.summarise_gradients(rows) == [
        "edited against new: smaller (median 1.00 and 2.00, delta -0.50 [-0.70, -0.40], p < 0.001).",
        "edited against unchanged: larger (median 2.00 and 1.00, delta +0.40 [+0.20, +0.60], p 0.020).",
    ]
    unsure = gradients.summarise_gradients(rows.assign(delta_low=-0.1, delta_high=0.1))
    assert "not surely different" in unsure[0]


def test_words_on_forgetting_and_teacher_forcing():
    moved = table(editor=["rome", "rag", "wise", "none"], axis="update", scored_at=2, change=[-0.3, 0, 0.2, -0.1])
    moved = moved.assign(low=[-0.4, -0.1, 0.1, -0.2], high=[-0.2, 0.1, 0.3, 0.0], at_end=True)
    moved["verdict"] = [
        PairedVerdict(*r, 300, 90, 0.9 if r[0] == 0 else 0.01) for r in zip(moved.change, moved.low, moved.high)
    ]
    earlier = moved.assign(scored_at=1, change=0.9, low=0.8, high=1.0)
    assert timesteps.summarise_changes(pd.concat([moved, earlier])) == (
        "update, change of the same questions of earlier timesteps after the last one, in points: "
        "clearly above right after the edit: wise +20.0 [+10.0, +30.0]; not clearly different from right after the "
        "edit: rag +0.0 [-10.0, +10.0]; clearly below right after the edit: rome -30.0 [-40.0, -20.0] (n = 300)."
    )
    both = table(editor=["rome", "rag", "none"], axis="update", exact_match=[0.1, 0.2, 0.3])
    both = both.assign(token_accuracy=[0.6, 0.5, 0.4], difference=[0.5, 0.3, 0.1])
    assert timesteps.summarise_teacher_forcing_gap(both).splitlines() == [
        "update: teacher forcing adds 10.0 points for none to 50.0 for rome, which has 10.0% exact answers and 60.0% "
        "right tokens.",
        "The order of editors changes on update (1: rome and rag).",
    ]


def test_forgetting_by_hand(runs):
    rome = runs[1].scores
    rome = rome[(rome.axis == "update") & rome.moment.isin(["current", "past"])]
    times = rome.groupby("edit_id").scored_at.transform("nunique")
    rome = rome[times == 5 - rome.asked_of]  # the same questions right after the edits and at the end
    right = lambda t, moment, at: rome[(rome.asked_of == t) & (rome.moment == moment) & (rome.scored_at == at)]
    just = [right(t, "current", t).exact_match.mean() for t in range(1, 5)]
    end = [right(t, "past", 4).exact_match.mean() for t in range(1, 4)]
    got = timesteps.forgetting_table(runs, axes=["update"]).loc["rome", "update"]
    assert np.isclose(got["just edited"], np.mean(just)) and np.isclose(got["at the end"], np.mean([*end, just[-1]]))
    assert np.isclose(got["backward transfer"], np.mean(np.subtract(end, just[:3])))


# What a figure shows is read back from it.


def lines_of(ax) -> dict:
    return {line.get_label(): line for line in ax.get_lines() if not line.get_label().startswith("_")}


def test_lines_show_the_table(runs):
    course = timesteps.accuracy_course(runs)
    moved = timesteps.accuracy_changes(runs)
    curve = timesteps.decay_curve(runs)
    gap = timesteps.teacher_forcing_gap(runs, ["update"], ("editor", "axis", "asked_of"))
    cases = [
        (timesteps.draw_course(course), course, "asked_of", "value", 1),
        (timesteps.draw_changes(moved), moved, "scored_at", "change", 100),
        (timesteps.draw_decay(curve), curve, "edits_done", "value", 1),
        (timesteps.draw_teacher_forcing_course(gap), gap, "asked_of", "difference", 100),
    ]
    for fig, shown, x, y, scale in cases:
        rows = shown[(shown.axis == "update") & (shown.editor == "rome")]
        line = lines_of(fig.axes[0])["rome"]
        assert line.get_xdata().tolist() == rows[x].tolist()
        assert np.allclose(line.get_ydata(), scale * rows[y])
        assert line.get_color() == style.look("rome").colour


def test_many_editors_get_a_panel_for_each_family():
    many = made_up_runs(**SMALL)
    fig = timesteps.draw_changes(timesteps.accuracy_changes(many, axes=["update", "locality"]))
    shown = [set(lines_of(ax)) for ax in fig.axes]
    names = {run.editor for run in many}
    families = [names & set(members) for members in style.EDITOR_FAMILIES.values()]
    assert shown == [family for family in families if family] * 2
    assert len({ax.get_ylim() for ax in fig.axes}) == 1  # all panels have one scale


def test_cost_figures_show_the_table(runs):
    growth, times = cost.edit_cost_course(runs), cost.answer_time(runs)
    time, memory = cost.draw_edit_cost(growth).axes
    p = growth[growth.editor == "rome"]
    assert np.allclose(lines_of(time)["rome"].get_ydata(), p.seconds) and time.get_yscale() == "log"
    assert np.allclose(lines_of(memory)["rome"].get_ydata(), p.peak_memory / 2**20)
    p = times[times.editor == "rag"]
    line = lines_of(cost.draw_answer_time(times).axes[0])["rag"]
    assert np.allclose(line.get_ydata(), p.ratio) and line.get_xdata().tolist() == p.edits_done.tolist()


def test_maps_and_dots_show_the_table(runs):
    found = timesteps.state_matrices(runs)
    fig = timesteps.draw_matrices(found)
    for ax, (name, m) in zip(fig.axes, found.items()):
        want = {f"{100 * v:.0f}" for v in m[[T for T in m if T > 0]].to_numpy().ravel() if v == v}
        assert ax.get_title("left") == name and {t.get_text() for t in ax.texts} == want
        corners = sorted(p.get_xy() for p in ax.patches)
        assert corners == [(i, i) for i in range(4)]
    mean = timesteps.mean_accuracy(runs)
    ax = timesteps.draw_means(mean).axes[0]
    names = [t.get_text() for t in ax.get_yticklabels()]
    dots = [line.get_xdata()[0] for line in ax.get_lines() if len(line.get_xdata()) == 1]
    rows = mean[mean.axis == "update"].set_index("editor")
    assert names == ["rome", "lora-merge", "rag"] and np.allclose(dots, rows.value[names])
    gap = timesteps.teacher_forcing_gap(runs, ["update"])
    ax = timesteps.draw_teacher_forcing_gap(gap).axes[0]
    dots = sorted(line.get_xdata()[0] for line in ax.get_lines() if len(line.get_xdata()) == 1)
    assert np.allclose(dots, sorted([*gap.exact_match, *gap.token_accuracy]))


def test_the_last_measurement_counts_whatever_the_order():
    run = made_up("memit", **SMALL)
    more = run.ability[run.ability.scored_at == 4].assign(edits_done=150, value=0.01, low=0.0, high=0.02)
    end = run.ability[(run.ability.scored_at == 4) & (run.ability.metric == "exact_match")].value.item()
    for rows in ([run.ability, more], [more, run.ability]):
        run.ability = pd.concat(rows, ignore_index=True)
        fit = timesteps.ability_table([run])
        assert f"memit {end:.1%}" in timesteps.summarise_ability(fit)
        assert np.isclose(headline.headline_table([run]).loc["memit", "lasting facts"], end)
        x = lines_of(timesteps.draw_ability(fit).axes[0])["memit"].get_xdata()
        assert x.tolist() == sorted(set(x.tolist())) and 150 in x
        run = made_up("memit", **SMALL)


def test_headline_formats():
    head = table(update=[0.5], **{"update, later": [-0.123], "seconds per edit": [0.0021], "time to answer": [1.239]})
    write = headline.headline_formats(head)
    shown = [write[c](head[c].iloc[0]) for c in head]
    assert shown == ["50.0%", "-12.3", "2.1 ms", "× 1.24"]
    assert [write[c](float("nan")) for c in head] == [""] * 4


# Stored outputs of analyses of recorded runs are compared with fresh ones when the notebooks are tested.

DEV = Path(__file__).parents[1] / "nbs" / "_dev"
COMPARE = """
import sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import notebooks
from nbdev.test import test_nb
notebooks.compare_outputs()
print([test_nb(Path(p), [], [])[0] for p in sys.argv[2:]])
"""


def one_cell(path: Path, source: str, stored: str) -> Path:
    "A notebook of one cell and its stored output."
    output = dict(output_type="stream", name="stdout", text=[stored])
    cell = dict(
        cell_type="code", id="a", metadata={}, execution_count=None, source=source.splitlines(True), outputs=[output]
    )
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(dict(cells=[cell], metadata={}, nbformat=4, nbformat_minor=5)))
    return path


def test_a_notebook_that_stores_another_number_fails(tmp_path):
    pytest.importorskip("execnb", reason="the package for development is not installed")
    cases = [
        ("08_cost", "print('rag 81.6%')", "rag 81.6%", True),
        ("08_cost", "print('rag 81.6%')", "rag 71.6%", False),
        ("08_cost", "print('rag 81.6%')", "rome 81.6%", False),
        ("08_cost", "print('rag 81.6%')", "rag 81.6% wise 71.1%", False),
        ("08_cost", "#| varies\nprint('rag 81.6%')", "rag 71.6%", True),
        ("research/another", "print('rag 81.6%')", "rag 71.6%", False),
        ("another", "print('rag 81.6%')", "rag 71.6%", True),
    ]
    paths = [one_cell(tmp_path / f"{i}" / f"{c[0]}.ipynb", *c[1:3]) for i, c in enumerate(cases)]
    done = subprocess.run([sys.executable, "-c", COMPARE, DEV, *paths], capture_output=True, text=True)
    assert done.stdout.strip().splitlines()[-1] == str([c[3] for c in cases]), done.stderr[-2000:]
    assert "run the notebook again (stored: … rag 71.6 …; now: … rag 81.6 …)" in done.stderr
