"""Queries to a web service survive a kill and are not repeated; two processes can share the cache."""

import json
import os
import signal
import sqlite3
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import processes
import pytest

from wbe.analysis.counts import HostedCounts
from wbe.http import FetchError, RetryPolicy

CODE = """
import sys
from wbe.analysis.counts import HostedCounts
service = HostedCounts(url=sys.argv[1], cache=sys.argv[2], per_minute=None)
print(sum(service.counts([f"name {i}" for i in range(int(sys.argv[3]))]).values()))
"""


@pytest.fixture
def server():
    asked = Counter()

    class Lengths(BaseHTTPRequestHandler):
        def do_POST(self):
            q = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["query"]
            asked[q] += 1
            time.sleep(0.02)
            text = json.dumps({"count": len(q), "approx": False}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_):
            pass

    s = Quiet(("127.0.0.1", 0), Lengths)
    threading.Thread(target=s.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{s.server_port}/", asked
    s.shutdown()
    s.server_close()


def answers_in(path):
    with sqlite3.connect(path) as db:
        return db.execute("SELECT count(*) FROM answers").fetchone()[0]


def child(url, kept, n):
    return processes.Process(["-c", CODE, url, kept, n])


def test_a_killed_process_loses_no_answer(server, tmp_path):
    (url, asked), kept, n = server, tmp_path / "kept.sqlite", 400
    first = child(url, kept, n)
    until = time.monotonic() + 60
    while len(asked) < 40 and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    had = answers_in(kept)
    assert 20 <= had < n
    out, _ = child(url, kept, n).communicate(timeout=120)
    assert int(out) == sum(len(f"name {i}") for i in range(n))
    assert sum(asked.values()) <= n + 8  # only queries in flight are repeated
    assert len(asked) == n


def test_two_processes_share_the_cache(server, tmp_path):
    (url, asked), kept, n = server, tmp_path / "kept.sqlite", 60
    both = [child(url, kept, n) for _ in range(2)]
    assert len({p.communicate(timeout=120)[0] for p in both}) == 1
    assert answers_in(kept) == len(asked) == n


def test_answers_of_other_indexes_are_not_used(server, tmp_path):
    (url, asked), options = server, dict(cache=tmp_path / "k", per_minute=None, retry=RetryPolicy(retries=0))
    HostedCounts("one", url=url, **options).counts(["Oslo"])
    HostedCounts("two", url=url, **options).counts(["Oslo"])
    assert asked["Oslo"] == 2
    with pytest.raises(FetchError, match="no answer"):
        HostedCounts("one", url="http://127.0.0.1:9/", **options).counts(["Oslo"])
