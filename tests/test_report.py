"""The report in a browser: figures, tables, values on hover, the questions behind a number; narrow, dark, printed."""

import base64
import gzip
import html
import json
import re
import shutil
import subprocess
from io import StringIO
from urllib.parse import parse_qsl

import numpy as np
import pandas as pd
import pytest
from toy_runs import made_up, write

from wbe.analysis.headline import command_of_run
from wbe.analysis.report import make_report

pytest.importorskip("nbclient", reason="the extra 'report' is not installed")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --allow-file-access-from-files "
    "--enable-logging=stderr --log-level=0 --virtual-time-budget=40000"
).split()
WATCH = """<script>window.wrong = [];
window.addEventListener("error", e => wrong.push(String(e.message || e.target.outerHTML)), true);
console.error = console.warn = (...a) => wrong.push(a.join(" "));</script>"""
QUESTIONS = """<script>const probeQuestions = async () => {
  const until = async done => { for (let i = 0; i < 400 && !done(); i++) await new Promise(r => setTimeout(r, 50)); };
  const state = () => document.getElementById("questions-state").textContent, seen = {};
  const cells = field => document.querySelectorAll(`.tabulator-row .tabulator-cell[tabulator-field=${field}]`);
  const shown = field => [...cells(field)].map(c => c.textContent), later = ms => new Promise(r => setTimeout(r, ms));
  const changed = async action => {
    const old = state();
    action();
    await until(() => state() !== old && table);
    await later(300);
  };
  const choose = (name, value) => changed(() => {
    const control = document.getElementById("filters").elements[name];
    control.value = value; control.dispatchEvent(new Event("input", { bubbles: true }));
  });
  const image = document.querySelector("#means img"), box = image.getBoundingClientRect();
  const points = JSON.parse(document.querySelector("#means script.points").textContent);
  const point = points.find(p => p[2].startsWith("rag, locality")), tip = document.getElementById("tip");
  const [x, y] = [box.left + point[0] * box.width, box.top + point[1] * box.height];
  const move = (dx, dy) => image.dispatchEvent(
    new MouseEvent("mousemove", { clientX: x + dx, clientY: y + dy, bubbles: true }));
  move(4, -3); seen.tip = tip.hidden ? null : tip.firstChild.textContent; seen.point = point[2];
  move(0, -60); seen.away = tip.hidden;
  const room = image.closest(".wide");
  const key = k => room.dispatchEvent(new KeyboardEvent("keydown", { key: k, bubbles: true }));
  key("ArrowRight"); key("ArrowRight");
  seen.second = tip.firstChild.textContent; seen.points = points.map(p => p[2]);
  await changed(() => key("Enter")); seen.entered = location.hash; seen.enteredState = state(); key("Escape");
  const wanted = "run=rome&axis=update&moment=current";
  const links = [...document.querySelectorAll("#headline td a")];
  const cell = links.find(a => a.hash.includes(wanted) && a.textContent.endsWith("%"));
  seen.cell = cell.textContent;
  await changed(() => cell.click());
  seen.state = state(); seen.questions = shown("question");
  seen.filters = Object.fromEntries(new FormData(document.getElementById("filters")));
  await choose("change", "wrong → right"); seen.learned = state(); seen.changes = [...new Set(shown("change"))];
  await choose("text", "update 2 7?"); seen.searched = state();
  await changed(() => document.querySelector("#filters [type=reset]").click()); seen.all = state();
  await choose("axis", "locality"); await choose("moment", "before");
  const title = document.querySelector(".tabulator-col[tabulator-field=token_accuracy]");
  title.click(); await later(500); seen.ascending = shown("token_accuracy");
  title.click(); await later(500); seen.descending = shown("token_accuracy");
  const [run] = answers.data.runs, named = run.name, own = answers.select({ run: named }).length;
  run.name = "low, early"; seen.comma = [own, answers.select({ run: "low, early" }).length]; run.name = named;
  seen.csv = questionsCsv(); seen.tableCsv = tableCsv(document.querySelector("#means table"));
  const grounds = [document.body, document.querySelector(".tabulator-row")];
  const ground = () => grounds.map(e => getComputedStyle(e).backgroundColor).join();
  seen.grounds = THEMES.map(name => (setTheme(name), ground()));
  seen.folded = document.querySelectorAll(".tabulator-responsive-collapse-toggle").length;
  dispatchEvent(new Event("beforeprint"));
  seen.open = [...document.querySelectorAll("details.table")].every(d => d.open);
  dispatchEvent(new Event("afterprint"));
  return seen;
};</script>"""
PROBE = """<script>window.addEventListener("load", async () => {
  document.querySelectorAll("details").forEach(d => d.open = true);
  const images = [...document.images];
  await Promise.all(images.map(i => i.decode().catch(e => wrong.push("figure: " + e))));
  const column = (table, i) => [...table.tBodies[0].rows].map(r => r.cells[i].textContent);
  const sorted = {};
  const table = document.querySelector("#headline table"), heads = [...table.tHead.rows[0].cells];
  const at = heads.findIndex(h => h.textContent === "update");
  sorted.before = column(table, at);
  const click = h => h.querySelector("button").click();
  click(heads[at]); sorted.once = column(table, at); sorted.aria = heads[at].getAttribute("aria-sort");
  click(heads[at]); sorted.twice = column(table, at); sorted.ariaTwice = heads[at].getAttribute("aria-sort");
  click(heads[0]); sorted.names = column(table, 0);
  sorted.marked = document.querySelectorAll("#headline [aria-sort]").length;
  const found = { wrong, sorted, width: innerWidth, page: document.documentElement.scrollWidth,
    figures: images.map(i => ({ natural: i.naturalWidth, width: i.clientWidth, height: i.clientHeight, alt: i.alt })),
    sections: [...document.querySelectorAll("section")].map(s => s.id),
    links: [...document.querySelectorAll("nav a")].map(a => a.getAttribute("href").slice(1)),
    sortable: [...document.querySelectorAll("table")].every(
      t => t.tHead.querySelectorAll("button").length === t.tHead.rows[0].cells.length) };
  found.questions = await probeQuestions().catch(e => ({ error: String(e) }));
  parent.postMessage(JSON.stringify(found), "*");
});</script>"""


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    "A report on three runs, one of them incomplete, and the executed notebook."
    tmp = tmp_path_factory.mktemp("report")
    for editor in ("none", "rome", "rag"):
        write(made_up(editor, timesteps=3, edits=20, sample=10, first=40, lasting=True), tmp / "runs" / editor)
    (tmp / "runs" / "rome" / "batches.parquet").write_bytes(b"not a table")
    return make_report([tmp / "runs"], tmp / "report.html", notebook=tmp / "results.ipynb", folder=tmp / "files")


@pytest.fixture(scope="module")
def opened(reported):
    "What the browser finds in the page, in a wide and in a narrow window."
    if not BROWSER:
        pytest.skip("there is no browser: install Debian's `chromium`")
    text, folder = reported.read_text(encoding="utf-8"), reported.parent
    (folder / "watched.html").write_text(
        text.replace("<head>", "<head>" + WATCH, 1).replace("</body>", QUESTIONS + PROBE + "</body>"), encoding="utf-8"
    )
    frames = "".join(f'<iframe src="watched.html" width="{w}" height="900"></iframe>' for w in (1400, 420))
    (folder / "frames.html").write_text(f"""<!DOCTYPE html><pre id="found"></pre><script>const found = [];
addEventListener("message", e => {{
  found.push(JSON.parse(e.data)); document.getElementById("found").textContent = JSON.stringify(found);
}});
</script>{frames}""")
    where = [
        f"--user-data-dir={folder / 'profile'}",
        "--window-size=1600,2000",
        "--dump-dom",
        (folder / "frames.html").as_uri(),
    ]
    done = subprocess.run([BROWSER, *OPTIONS, *where], capture_output=True, text=True, timeout=300)
    found = re.search(r'<pre id="found">(.+?)</pre>', done.stdout, re.S)
    assert found, f"the page was not loaded: {done.stdout[:500]} {done.stderr[-2000:]}"
    return {f["width"]: f for f in json.loads(html.unescape(found[1]))}, done.stderr


ALL = 3000 + 3 * 4 * 100  # scores of the three runs, and of 100 lasting facts at four moments
percent = lambda text: int(text.rstrip("%"))


def toy_mean(editor, **values):
    return toy_scores(editor, **values).exact_match.mean()


def toy_scores(editor, **values):
    "The scores of a run of `reported` with these values."
    scores = made_up(editor, timesteps=3, edits=20, sample=10, first=40).scores
    for column, value in values.items():
        scores = scores[scores[column] == value]
    return scores


def test_a_point_shows_its_value_and_leads_to_its_questions(opened):
    for f in opened[0].values():
        q = f["questions"]
        assert q["tip"] == q["point"] == f"rag, locality: {toy_mean('rag', axis='locality', moment='current'):.1%}"
        assert q["away"] is True and q["second"] == q["points"][1]
        assert q["entered"] == "#questions?moment=current&run=rag&axis=update"
        assert q["enteredState"].startswith(
            f"60 of {ALL:,} answers; exact match {100 * toy_mean('rag', axis='update', moment='current'):.1f}%"
        )


def numbers_of_page(text: str):
    "Section, column or hover text, number and address of every number in tables and figures; no address leads nowhere."
    for key, body in re.findall(r'<section id="(\w[\w-]*)">(.*?)</section>', text, re.S):
        for table in re.findall("<table.*?</table>", body, re.S):
            heads = re.findall("<th[^>]*>(.*?)</th>", table.partition("</thead>")[0], re.S)
            for row in re.findall("<tr>(.*?)</tr>", table.partition("<tbody>")[2], re.S):
                for head, cell in zip(heads, re.findall("<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)):
                    shown = re.sub("<.*?>", "", cell)
                    if head != heads[0] and re.search(r"\d", shown):
                        yield key, re.sub("<.*?>", "", head), shown, "".join(re.findall('href="(.*?)"', cell))
        for points in re.findall('class="points">(.*?)</script>', body, re.S):
            yield from ((key, "point", told, to) for _, _, told, to in json.loads(points))


LEADS_NOWHERE = {  # section: columns of numbers that are no mean over questions; all others lead to theirs
    "benchmark": {"from", "to", "days"},
    "dates": {"point"},  # the day of one fact; accuracy by date leads to its questions
    "headline": {"seconds per edit", "time to answer"},
    "decay": {"half of the gain lost from"},  # a number of edits
    "ability": {"point"},  # perplexity of a text; the lasting facts beside it lead to theirs
    "cost": {"point", "batches", "edits", "per edit", "low", "high", "seconds", "peak memory", "refused"},
}


def packed_rows(text: str) -> pd.DataFrame:
    "The scores that a page holds, with what an address can select."
    data = json.loads(gzip.decompress(base64.b64decode(re.search('id="questions-data">(.*?)<', text, re.S)[1])))
    asked, texts, parts = data["questions"], data["texts"], []
    for part in data["parts"]:
        q = np.cumsum(part["questions"])
        at = {k: part[k] for k in ("moment", "scored_at", "edits_done", "exact_match")}
        fields = [k for k in ("axis", "tag", "relation", "kind", "dates") if k in asked]
        at |= {k: [texts[asked[k][i]] if asked[k][i] >= 0 else "" for i in q] for k in fields}
        numbers = dict(q=q, asked_of=[asked["asked_of"][i] for i in q], run=data["runs"][part["run"]]["name"])
        parts.append(pd.DataFrame(at | numbers))
    rows = pd.concat(parts, ignore_index=True)
    was = rows[rows.moment == "before"].set_index(["run", "q"]).exact_match
    was = was[~was.index.duplicated(keep="last")]  # as in the page's script
    was = was.reindex(pd.MultiIndex.from_frame(rows[["run", "q"]])).to_numpy()
    words = np.where(was == 100, "right", "wrong"), np.where(rows.exact_match == 100, "right", "wrong")
    return rows.assign(change=[f"{a} → {b}" for a, b in zip(*words)])


def numbers_and_questions(text: str) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    "Every number of a page, and the questions of each address; all that is a mean over questions leads to some."
    found = pd.DataFrame(numbers_of_page(text), columns=["section", "column", "shown", "to"])
    rows, selected = packed_rows(text), {}
    for to in found.to[found.to != ""].unique():
        wanted = dict(parse_qsl(html.unescape(to).partition("?")[2]))
        selected[to] = rows[np.logical_and.reduce([rows[k].astype(str).isin(v.split(",")) for k, v in wanted.items()])]
    assert [to for to, some in selected.items() if some.empty] == []
    bare = found[found.to == ""]
    bare = bare[bare.section != "settings"]
    assert [k for k in zip(bare.section, bare.column) if k[1] not in LEADS_NOWHERE.get(k[0], ())] == []
    return found, selected


def test_every_number_of_questions_leads_to_them(reported):
    found, selected = numbers_and_questions(reported.read_text())
    bare = found[found.to == ""]
    assert (len(found), len(bare)) == (385, 55)
    assert bare[bare.section == "ability"].shown.str.contains("text").all()  # no lasting fact
    lasting = found[found.to.str.contains("lasting")]
    assert len(lasting) == 3 + 2 * 4  # of two runs and the unedited model; of two runs, four moments
    for shown, some in zip(lasting.shown, lasting.to.map(selected)):
        assert len(some) == 100 and shown.endswith(f"{some.exact_match.mean():.1f}%")


def test_a_cell_leads_to_its_questions(opened):
    now = toy_scores("rome", axis="update", moment="current")
    before = toy_scores("rome", axis="update", moment="before").set_index("edit_id").exact_match
    learned = now.exact_match & ~now.edit_id.map(before)
    for f in opened[0].values():
        q = f["questions"]
        assert q["cell"] == f"{now.exact_match.mean():.1%}"
        assert f"{len(now)} of {ALL:,} answers; exact match {100 * now.exact_match.mean():.1f}%" in q["state"]
        assert f"right before any edit {100 * before.mean():.1f}%" in q["state"]
        assert {k: v for k, v in q["filters"].items() if v} == dict(run="rome", axis="update", moment="current")
        assert len(q["questions"]) == 20 and all(text.startswith("update ") for text in q["questions"])
        assert q["learned"].startswith(f"{learned.sum()} of ") and q["changes"] == ["wrong → right"]
        assert q["searched"].startswith(f"{int(learned[now.edit_id == 't2e7'].sum())} of ")
        assert q["all"].startswith(f"{ALL:,} of {ALL:,}")


def test_questions_sort_and_save(opened):
    rows = pd.concat([toy_scores(e, axis="locality", moment="before") for e in ("none", "rome", "rag")])
    for f in opened[0].values():
        q = f["questions"]
        assert q["ascending"] == sorted(q["ascending"], key=percent) and percent(q["ascending"][0]) == 0
        assert q["descending"] == sorted(q["descending"], key=percent, reverse=True) and q["descending"][0] == "100%"
        saved = pd.read_csv(StringIO(q["csv"]))
        assert len(saved) == len(rows) and set(saved["axis"]) == {"locality"}
        assert sorted(saved["exact match"]) == sorted(100 * rows.exact_match)
        table = pd.read_csv(StringIO(q["tableCsv"]))
        assert list(table.columns) == ["editor", "update", "rephrase", "persona", "multi-hop", "locality"]


def test_a_name_may_hold_a_comma(opened):
    for f in opened[0].values():
        own, found = f["questions"]["comma"]
        assert own == found > 0


def test_themes_fold_and_print(opened):
    for f in opened[0].values():
        auto, light, dark = f["questions"]["grounds"]
        assert auto == light != dark
        assert f["questions"]["open"] is True
        assert f["questions"]["folded"] > 0


def test_console(opened):
    found, log = opened
    assert sorted(found) == [420, 1400]
    assert all(f["wrong"] == [] for f in found.values())
    assert [line for line in log.splitlines() if "CONSOLE" in line] == []


def test_figures(opened, reported):
    there = reported.read_text().count("<img ")
    for f in opened[0].values():
        assert len(f["figures"]) == there >= 8
        assert all(
            i["natural"] > 0 and i["width"] > 100 and i["height"] > 60 and len(i["alt"]) > 20 for i in f["figures"]
        )


def test_tables_sort(opened):
    number = lambda text: float(text.rstrip("%"))
    for f in opened[0].values():
        s = f["sorted"]
        assert (
            [number(x) for x in s["once"]]
            == sorted(map(number, s["before"]), reverse=True)
            != [number(x) for x in s["before"]]
        )
        assert s["twice"] == s["once"][::-1] and (s["aria"], s["ariaTwice"]) == ("descending", "ascending")
        assert s["names"] == sorted(s["names"]) and s["marked"] == 1 and f["sortable"]


def test_layout(opened):
    for width, f in opened[0].items():
        assert f["page"] <= width, "the page scrolls sideways"
        assert f["links"] == f["sections"]


def test_what_is_missing_is_said(reported):
    text = reported.read_text()
    top = re.search(r"What is missing</strong><ul>(.*?)</ul>", text)[1]
    assert "rome: the table <code>batches</code> cannot be read" in top and text.index("What is missing") < text.index(
        "<section"
    )
    # synthetic runs have no benchmark; rag has everything else
    assert text.count("Not shown") == text.count("say where it is now with --set benchmark=…") > 0
    assert "What else there is" in text
    assert "<code>--set corpus=SOURCE</code>" in text and "<code>--set ask=yes</code>" in text


def test_self_contained(reported):
    text = reported.read_text()
    assert re.findall(r'(?:src|href)="(?!data:|#)[^"]*"|url\((?!data:)|@import', text) == []


def test_files(reported):
    files = reported.parent / "files"
    assert {"means.png", "means.pdf", "decay.pdf", "headline.md", "headline.tex"} <= {p.name for p in files.iterdir()}
    assert (files / "means.pdf").read_bytes()[:5] == b"%PDF-" and "\\toprule" in (files / "headline.tex").read_text()
    cells = json.loads((reported.parent / "results.ipynb").read_text())["cells"]
    errors = [o for c in cells if c["cell_type"] == "code" for o in c["outputs"] if o["output_type"] == "error"]
    assert {o["ename"] for o in errors} == {"BadArgument", "SourceNotGiven"}
    assert all("--" in o["evalue"] for o in errors)  # each message names an option as the remedy


def test_command_is_one_of_ours():
    typer = pytest.importorskip("typer")
    from wbe.cli.main import app

    words = command_of_run(made_up("rag", timesteps=2, edits=4, sample=2, first=4, every=2)).split()
    context = typer.main.get_command(app).commands["run"].make_context("run", words[2:])
    assert words[:2] == ["wbe", "run"] and context.params["editor"] == "rag"
    assert context.params["set"] == ["ask.every=2"]
