"""`wbe report --counts … --views …` with hosted services: polite, cached, and told whom they can write to."""

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from wbe.analysis.report import _results_notebook
from wbe.analysis.headline import open_corpus, open_views
from wbe.http import FetchError

NAMES = ["Karsk", "Vellmar"]


@pytest.fixture
def services():
    "One server for both services: counts are lengths of names, views are 12 in each month."
    seen = Counter()

    class Both(BaseHTTPRequestHandler):
        def answer(self, data):
            text = json.dumps(data).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_POST(self):
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["query"]
            seen[query] += 1
            self.answer({"count": len(query)})

        def do_GET(self):
            seen[self.headers["User-Agent"]] += 1
            self.answer({"items": [{"views": 12}, {"views": 12}]})

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Both)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", seen, server
    server.shutdown()
    server.server_close()


def test_answers_are_kept_for_the_next_report(services, tmp_path):
    url, seen, server = services
    kept = tmp_path / "report.answers.sqlite"
    assert open_corpus(url, kept).counts(NAMES) == {"Karsk": 5, "Vellmar": 7}
    assert open_views([url], "me@example.org", kept).views(NAMES) == {"Karsk": 24, "Vellmar": 24}
    assert seen["Karsk"] == 1 and sum(n for agent, n in seen.items() if "(me@example.org)" in agent) == 2
    server.shutdown()
    server.server_close()
    assert open_corpus(url, kept).counts(NAMES) == {"Karsk": 5, "Vellmar": 7}
    assert open_views([url], "me@example.org", kept).views(NAMES) == {"Karsk": 24, "Vellmar": 24}
    with pytest.raises(FetchError, match="have no answer"):
        back = open_corpus(url, kept)
        back.service.retry.retries = 0
        back.counts(["Orrin"])


def test_the_notebook_is_given_them():
    nb = _results_notebook(["runs/rome"], corpus="infini-gram", views=["wikimedia"], cache="kept", contact="me@x.org")
    source = next(c.source for c in nb.cells if c.metadata.get("wbe") == "parameters")
    given = {}
    exec(source, given)
    assert [given[k] for k in ("CORPUS", "VIEWS", "CACHE", "CONTACT")] == [
        "infini-gram",
        ["wikimedia"],
        "kept",
        "me@x.org",
    ]


def test_options_of_the_command():
    typer = pytest.importorskip("typer")
    from wbe.cli.app import read_settings
    from wbe.cli.main import app

    report = typer.main.get_command(app).commands["report"]
    pairs = ["corpus=infini-gram", "views=wikimedia", "contact=me@example.org"]
    given = read_settings(pairs, report.callback.command.known({}))
    assert given == dict(corpus="infini-gram", views=("wikimedia",), contact="me@example.org")
