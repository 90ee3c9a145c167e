"""The documentation site: built once, its links followed, opened and searched in a browser without other requests."""

import functools
import html
import http.server
import importlib.util
import re
import shutil
import subprocess
import threading
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import pytest

ROOT = Path(__file__).parents[1]
pytest.importorskip("sphinx")
pytest.importorskip("myst_nb")

spec = importlib.util.spec_from_file_location("wbe_docs", ROOT / "nbs" / "_dev" / "docs.py")
docs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(docs)


def colour_tutorials_only(monkeypatch):
    "Code of the other pages gets its lexer and no colours, which are a third of the time of the whole site."
    from sphinx.highlighting import PygmentsBridge

    coloured = PygmentsBridge.highlight_block

    def highlight_block(self, source, lang, opts=None, force=False, location=None, **options):
        if location is None or "/tutorials/" in str(getattr(location, "source", "") or location):
            return coloured(self, source, lang, opts, force, location, **options)
        self.get_lexer(source, lang, opts, force, location)
        return f'<div class="highlight"><pre>{html.escape(source)}</pre></div>\n'

    monkeypatch.setattr(PygmentsBridge, "highlight_block", highlight_block)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "site"
    with pytest.MonkeyPatch.context() as monkeypatch:
        colour_tutorials_only(monkeypatch)
        warnings = docs.build(folder)
    assert not warnings, "\n".join(warnings[:20])
    return folder


def pages(site):
    return {p: p.read_text(encoding="utf-8") for p in site.rglob("*.html")}


def test_every_notebook_has_a_page(site):
    missing = [n for n in docs.notebooks() if not (site / n.with_suffix(".html")).exists()]
    assert not missing


def test_only_what_has_changed_is_written_again(site):
    "So Sphinx reads only the pages whose notebook has changed."
    sources = site.with_name(".site-cache") / "sources"
    files = [p for p in sources.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    texts, page = {p: p.read_text(encoding="utf-8") for p in files}, sources / "guide.ipynb"
    before = {p: p.stat().st_mtime_ns for p in files}
    page.write_text(texts[page].replace("wbe", "web"), encoding="utf-8")
    (sources / "gone.md").write_text("# Gone")
    assert docs.write_changed(sources, texts) is False and not (sources / "gone.md").exists()
    assert {p for p, when in before.items() if p.stat().st_mtime_ns != when} == {page}
    assert docs.write_changed(sources, texts | {sources / "captions.json": "{}"}) is True  # then all pages are
    docs.write_changed(sources, texts)
    again = [docs.nbformat.v4.writes(docs.shown(Path("guide.ipynb"), "", "toc")) for _ in range(2)]
    assert again[0] == again[1]


def test_nothing_is_loaded_from_outside(site):
    "Links may lead out; scripts, styles, fonts and images may not."
    loads = re.compile(
        r"<(?:script|img|iframe|source|video)\b[^>]*\bsrc=[\"'](?:https?:)?//[^\"']+|<link\b[^>]*\bhref=[\"'](?:https?:)?//[^\"']+"
    )
    found = {p.name: loads.findall(text) for p, text in pages(site).items()}
    assert not {p: f for p, f in found.items() if f}
    styles = {
        p.name: re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)\"']+", p.read_text())
        for p in site.rglob("*.css")
    }
    assert not {p: f for p, f in styles.items() if f}


def test_links_within_the_site_work(site):
    broken = []
    for page, text in pages(site).items():
        here = page.relative_to(site).as_posix()
        for href in re.findall(r"<a\b[^>]*\bhref=[\"']([^\"'#][^\"']*)[\"']", text):
            if re.match(r"(?:https?|mailto|javascript):", href):
                continue
            target = site / unquote(urldefrag(urljoin(here, href))[0])
            if not (target.exists() and target.resolve().is_relative_to(site.resolve())):
                broken.append(f"{here}: {href}")
    assert not broken, "\n".join(broken[:20])


def test_directives_and_hidden_cells_do_not_show(site):
    for page, text in pages(site).items():
        plain = re.sub(r"<[^>]+>", "", text)
        assert not re.search(r"^\s*#\| ?\w", plain, re.M), page.name


def test_tutorials_and_the_papers_come_first_and_once(site):
    text = (site / "tutorials" / "00_overview.html").read_text(encoding="utf-8")
    tree = text.partition('class="sidebar-tree"')[2].partition("</aside>")[0]
    assert re.findall(r'class="caption-text">([^<]+)<', tree)[0] == "Tutorials"
    first = tree.partition('class="caption-text">Studies')[0]
    assert tree.count('href="01_one_fact.html"') == 1 and first.count('href="../research/25_paper_rows.html"') == 1


def test_code_is_coloured(site):
    text = (site / "tutorials" / "01_one_fact.html").read_text(encoding="utf-8")
    assert '<span class="kn">import</span>' in text
    other = (site / "09_editors" / "weights" / "03_rome.html").read_text(encoding="utf-8")
    assert '<span class="kn">' not in other, "the test would colour all pages"


def test_the_room_of_a_page_is_open_beside_it(site):
    text = (site / "09_editors" / "weights" / "03_rome.html").read_text(encoding="utf-8")
    tree = text.partition('class="sidebar-tree"')[2].partition("</aside>")[0]
    assert tree.count("has-children") == tree.count('class="toctree-checkbox"') == 1
    assert re.search(r'current-page"><a class="current reference internal" href="#">', tree)


def test_formulas_are_mathml(site):
    assert "<math" in (site / "09_editors" / "weights" / "03_rome.html").read_text(encoding="utf-8")


def test_parameters_are_explained(site):
    "The API pages show the text of the docments."
    text = (site / "api" / "wbe.runs.loop.html").read_text(encoding="utf-8")
    assert "run_lifelong" in text and text.count("<li>") > 5


@pytest.fixture
def served(site):
    "The site on a local address, and the requests that it received."
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            asked.append((self.command, self.path))

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    thread.join()


def browse(url: str, tmp_path: Path) -> tuple[str, str]:
    "The page after its scripts have run, and the browser's log of network requests."
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium")
    log = tmp_path / "net.json"
    quiet = "--disable-background-networking --disable-component-update --disable-sync --disable-quic --no-first-run"
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", *quiet.split(), f"--user-data-dir={tmp_path / 'user'}",
         f"--log-net-log={log}", "--virtual-time-budget=8000", "--dump-dom", url],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.stdout, log.read_text(encoding="utf-8", errors="replace")


def test_the_search_finds_pages_and_sends_no_other_requests(served, tmp_path):
    address, asked = served
    dom, log = browse(f"{address}/search.html?q=locality", tmp_path)
    assert any("searchindex" in path for _, path in asked)
    results = dom.partition('id="search-results"')[2]
    assert re.search(r'href="[^"]*06_benchmark/', results), "the search shows no page of the benchmark"
    own = address.removeprefix("http://")
    others = {h for h in re.findall(r'"url":"https?://([^/"]+)', log) if h != own and "google" not in h}
    assert not others, f"the page sent requests to {others}"
