"""The report in a browser: no console errors, all figures load, tables sort, narrow windows do not scroll sideways."""

import html
import json
import re
import shutil
import subprocess

import pytest
from toy_runs import made_up, write

from wbe.analysis.headline import command_of_run
from wbe.analysis.report import make_report

pytest.importorskip("nbclient", reason="the extra 'report' is not installed")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --allow-file-access-from-files "
    "--enable-logging=stderr --log-level=0 --virtual-time-budget=20000"
).split()
WATCH = """<script>window.wrong = [];
window.addEventListener("error", e => wrong.push(String(e.message || e.target.outerHTML)), true);
console.error = console.warn = (...a) => wrong.push(a.join(" "));</script>"""
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
  parent.postMessage(JSON.stringify(found), "*");
});</script>"""


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    "A report on three runs, one of them incomplete, and the executed notebook."
    tmp = tmp_path_factory.mktemp("report")
    for editor in ("none", "rome", "rag"):
        write(made_up(editor, timesteps=3, edits=20, sample=10, first=40), tmp / "runs" / editor)
    (tmp / "runs" / "rome" / "batches.parquet").write_bytes(b"not a table")
    return make_report([tmp / "runs"], tmp / "report.html", notebook=tmp / "results.ipynb", folder=tmp / "files")


@pytest.fixture(scope="module")
def opened(reported):
    "What the browser finds in the page, in a wide and in a narrow window."
    if not BROWSER:
        pytest.skip("there is no browser: install Debian's `chromium`")
    text, folder = reported.read_text(encoding="utf-8"), reported.parent
    (folder / "watched.html").write_text(
        text.replace("<head>", "<head>" + WATCH, 1).replace("</body>", PROBE + "</body>"), encoding="utf-8"
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
    assert text.count("Not shown") == text.count("say where it is now with --benchmark") > 0
    assert "What else there is" in text and "<code>--corpus FILE</code>" in text and "<code>--ask</code>" in text


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
    assert words[:2] == ["wbe", "run"] and context.params["editor"] == "rag" and context.params["eval_every"] == 2
