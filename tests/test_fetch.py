"""Downloads of dumps over a bad connection: the file is right or absent, never wrong. All servers are local."""

import bz2
import gzip
import hashlib
import json
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from datetime import UTC, date, datetime, timedelta
from email.utils import format_datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from wbe import http, store
from wbe.http import FetchError, RetryPolicy
from wbe.store import StoreError, find_manifests
from wbe.wikidata.dumps import Mirror, _latest_dump, list_mirror
from wbe.wikidata.transfer import fetch_dump, fetched_dump

DAY = date(2024, 2, 1)
PATHS = {
    "json.gz": "wikidatawiki/entities/20240201/wikidata-20240201-all.json.gz",
    "json.bz2": "wikidatawiki/entities/20240201/wikidata-20240201-all.json.bz2",
    "xml.bz2": "wikidatawiki/20240201/wikidatawiki-20240201-pages-articles-multistream.xml.bz2",
    "enwiki.xml.bz2": "enwiki/20240201/enwiki-20240201-pages-articles-multistream.xml.bz2",
    "dewiki.xml.bz2": "dewiki/20240201/dewiki-20240201-pages-articles-multistream.xml.bz2",
    "dewiki.html": "other/enterprise_html/runs/20240201/dewiki-NS0-20240201-ENTERPRISE-HTML.json.tar.gz",
}


@cache
def content(seed: int, kind: str = "json.gz", size: int = 200_000) -> bytes:
    "A compressed file of about this size."
    plain = random.Random(seed).randbytes(size)
    return bz2.compress(plain) if kind.endswith("bz2") else gzip.compress(plain, 1, mtime=0)


class Site:
    "A mirror in memory: files by their path."

    def __init__(self):
        self.files = {}

    def put(self, kind: str, data: bytes, day: str = "20240201", sums: bool = True):
        path = PATHS[kind].replace("20240201", day)
        folder, name = path.rsplit("/", 1)
        self.files[path] = data
        for how in ("md5", "sha1") if sums else ():
            where = f"{folder}/{name.split('-')[0]}-{day}-{how}sums.txt"
            self.files[where] = self.files.get(where, b"") + f"{hashlib.new(how, data).hexdigest()}  {name}\n".encode()
        return data

    def listing(self, path: str) -> bytes | None:
        below = {
            p.removeprefix(path).split("/")[0] + "/" * ("/" in p.removeprefix(path))
            for p in self.files
            if p.startswith(path)
        }
        return "".join(f'<a href="{name}">{name}</a>\n' for name in sorted(below)).encode() or None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        server, path = self.server, self.path.strip("/")
        self.close_connection = True
        data, asked = server.site.files.get(path), self.headers.get("Range")
        is_dump = path.endswith((".gz", ".bz2"))
        server.seen.append((path.rsplit("/", 1)[-1], asked, dict(self.headers)))
        queue = server.faults if is_dump else server.page_faults
        fault = dict(queue.pop(0)) if queue else {}
        if "call" in fault:
            fault.pop("call")()
            data = server.site.files.get(path)
        if data is None and not is_dump:
            data = server.site.listing(path + "/")
        status = 404 if data is None else 200
        data = fault.get("body", data if data is not None else b"nothing here")
        start, total = 0, len(data)
        if is_dump and asked and status == 200 and not fault.get("no_ranges"):
            start, status = int(asked.removeprefix("bytes=").rstrip("-")) + fault.get("off", 0), 206
            if start >= total:
                start, status, data = 0, 416, b""
        if (
            server.if_range
            and status == 206
            and self.headers.get("If-Range") not in (None, self.marks(data, fault).get("ETag"))
        ):
            start, status = 0, 200
        status = fault.get("status", status)
        self.answer(status, data, start, total, fault)

    def marks(self, data, fault):
        return fault.get(
            "marks", {"ETag": f'"{hashlib.md5(data).hexdigest()}"'} if self.server.marks is None else self.server.marks
        )

    def answer(self, status, data, start, total, fault):
        if fault.get("garbage"):
            self.wfile.write(b"\x00\x01 nonsense\r\n\r\n")
            return
        if "flip" in fault:
            data = data[: fault["flip"]] + bytes([data[fault["flip"]] ^ 1]) + data[fault["flip"] + 1 :]
        body = data[start:] + fault.get("more", b"")
        headers = {**self.marks(data, fault), **fault.get("headers", {})}
        chunked, length = fault.get("chunked"), fault.get("length", len(body))
        if chunked:
            headers["Transfer-Encoding"] = "chunked"
        elif length is not None:
            headers["Content-Length"] = str(length)
        if status == 206 and not fault.get("no_content_range"):
            headers["Content-Range"] = f"bytes {start}-{total - 1}/{fault.get('total', total)}"
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.end_headers()
        end = max(0, fault["cut"] - start) if "cut" in fault else len(body)
        try:
            self.send(body[:end], chunked, whole=end >= len(body), fault=fault)
        except OSError:  # the client went away
            pass

    def send(self, body, chunked, whole, fault):
        for i in range(0, len(body), 16_384):
            piece = body[i : i + 16_384]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
            if i == 65_536 and "pause" in fault:
                fault["pause"].wait(10)
        self.wfile.write(fault.get("extra", b""))
        if chunked and whole:
            self.wfile.write(b"0\r\n\r\n")
        if "hold" in fault:
            self.wfile.flush()
            fault["hold"].wait(10)
        if fault.get("reset"):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()


class Server(ThreadingHTTPServer):
    "Serves a site; `faults` are used up by requests for dumps, `page_faults` by all others."

    daemon_threads = True

    def __init__(self, site):
        super().__init__(("127.0.0.1", 0), Handler)
        self.site, self.faults, self.page_faults, self.seen, self.marks, self.if_range = site, [], [], [], None, False
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.005}, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/"

    def handle_error(self, *args):
        pass

    def ranges(self):
        "The ranges that were requested of dumps."
        return [asked for name, asked, _ in self.seen if name.endswith((".gz", ".bz2"))]


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    s = Server(Site())
    yield s
    s.shutdown()
    s.server_close()


@pytest.fixture
def waits():
    return []


@pytest.fixture
def mirror(server, waits):
    return Mirror(server.url, RetryPolicy(sleep=waits.append, seed=1), timeout=5)


def get(folder, mirror, kind="json.gz", **kwargs):
    return fetch_dump(DAY, folder, kind, mirror=mirror, progress=False, **kwargs)


def name(kind="json.gz"):
    return PATHS[kind].rsplit("/", 1)[-1]


def visible(folder):
    return sorted(p.name for p in Path(folder).iterdir() if not p.name.startswith("."))


FAULTS = {  # name: (faults of the requests in order, a part of the error, or None if the download must succeed)
    "nothing": ([], None),
    "cut": ([{"cut": 70_000}], None),
    "cut three times": ([{"cut": 50_000}, {"cut": 90_000}, {"cut": 150_000}], None),
    "cut before the first byte": ([{"cut": 0}], None),
    "cut after the last byte but one": ([{"cut": 199_999}], None),
    "always cut at the same place": ([{"cut": 70_000}] * 8, "Gave up after 7 tries"),
    "reset": ([{"cut": 70_000, "reset": True}], None),
    "garbage instead of HTTP": ([{"garbage": True}], None),
    "503": ([{"status": 503}], None),
    "503 with Retry-After": ([{"status": 503, "headers": {"Retry-After": "3"}}], None),
    "429 with Retry-After": ([{"status": 429, "headers": {"Retry-After": "3"}}], None),
    "429 after a cut": ([{"cut": 70_000}, {"status": 429, "headers": {"Retry-After": "3"}}], None),
    "429 for a day": ([{"status": 429, "headers": {"Retry-After": "86400"}}], "asks to wait for 24.0 hours"),
    "500, 502, 504, 408": ([{"status": s} for s in (500, 502, 504, 408)], None),
    "500 for ever": ([{"status": 500}] * 9, "500 Internal Server Error. Gave up after 7 tries"),
    "401": ([{"status": 401}], "the server answered 401"),
    "403": ([{"status": 403}], "the server answered 403"),
    "404": ([{"status": 404}], "is not there any more"),
    "410": ([{"status": 410}], "is not there any more"),
    "ranges ignored": ([{"cut": 70_000}, {"no_ranges": True}], None),
    "ranges ignored and always cut": ([{"cut": 70_000, "no_ranges": True}] * 20, "Gave up after 7 tries"),
    "another range than asked for": ([{"cut": 70_000}, {"off": -10}], None),
    "a range without Content-Range": ([{"cut": 70_000}, {"no_content_range": True}], None),
    "a range of a longer file": ([{"cut": 70_000}, {"total": 999_999}], None),
    "416": ([{"cut": 70_000}, {"status": 416}], None),
    "wrong byte": ([{"flip": 5_000}], None),
    "wrong byte, for ever": ([{"flip": 5_000}] * 9, "downloaded twice and thrown away"),
    "wrong byte in the rest": ([{"cut": 70_000}, {"flip": 100_000, "marks": {}}], None),
    "a page instead of the file": ([{"body": b"<!DOCTYPE html><p>Sign in"}], None),
    "always a page": ([{"body": b"<!DOCTYPE html><p>Sign in"}] * 9, "it begins with b'<!DOCTYPE html><p>Si"),
    "empty, for ever": ([{"body": b""}] * 9, "downloaded twice and thrown away"),
    "half, said to be all": ([{"body": content(1)[:100_000]}] * 9, "downloaded twice and thrown away"),
    "chunked": ([{"chunked": True}], None),
    "chunked and cut": ([{"chunked": True, "cut": 70_000}], None),
    "no length": ([{"length": None}], None),
    "no length and cut": ([{"length": None, "cut": 70_000}], None),
    "more than the promised length": ([{"length": 100_000, "extra": b"!"}], None),
    "more than the file has bytes": ([{"cut": 70_000}, {"chunked": True, "more": b"!"}], None),
    "no marks": ([{"cut": 70_000, "marks": {}}, {"marks": {}}], None),
    "weak ETags": ([{"cut": 70_000, "marks": {"ETag": 'W/"a"'}}, {"marks": {"ETag": 'W/"b"'}}], None),
    "the date changed": (
        [
            {"cut": 70_000, "marks": {"Last-Modified": "Thu, 01 Feb 2024 12:00:00 GMT"}},
            {"marks": {"Last-Modified": "Thu, 01 Feb 2024 13:00:00 GMT"}},
        ],
        None,
    ),
    "redirect to FTP": ([{"status": 302, "headers": {"Location": "ftp://127.0.0.1/x.gz"}}], "not safe to follow"),
    "redirect to a file": ([{"status": 302, "headers": {"Location": "file:///etc/passwd"}}], "not safe to follow"),
    "redirect to itself": (
        [{"status": 302, "headers": {"Location": "/" + PATHS["json.gz"]}}] * 30,
        "too many redirects",
    ),
    "larger than the disk": ([{"length": 10**17}], "are needed"),
}


@pytest.mark.parametrize("case,kind", [(case, ("json.gz", "json.bz2")[i % 2]) for i, case in enumerate(FAULTS)])
def test_right_or_absent_and_right_at_the_next_call(case, kind, server, mirror, tmp_path):
    faults, error = FAULTS[case]
    right = server.site.put(kind, content(1, kind))
    server.faults = list(faults)
    if error:
        with pytest.raises(StoreError, match=error.replace(".", r"\.")):
            get(tmp_path, mirror, kind)
        assert not (tmp_path / name(kind)).exists() and fetched_dump(tmp_path, DAY, kind) is None
    else:
        assert get(tmp_path, mirror, kind).read_bytes() == right
    server.faults = []  # a good server completes whatever was left behind
    assert get(tmp_path, mirror, kind).read_bytes() == right
    assert visible(tmp_path) == [f"fetch-20240201-{kind}.manifest.json", name(kind)]


@pytest.mark.parametrize("verify", [True, False])
def test_any_sequence_of_faults(verify, server, mirror, tmp_path):
    kind = "json.gz" if verify else "json.bz2"
    right = server.site.put(kind, content(2, kind, 60_000))
    r, complete = random.Random(verify), 0
    transport = [
        {"cut": 0},
        {"cut": 20_000},
        {"cut": 45_000},
        {"status": 503},
        {"status": 429, "headers": {"Retry-After": "1"}},
        {"status": 403},
        {"status": 416},
        {"no_ranges": True},
        {"no_ranges": True, "cut": 30_000},
        {"off": -7},
        {"no_content_range": True},
        {"total": 5},
        {"garbage": True},
        {"chunked": True},
        {"chunked": True, "cut": 40_000},
        {"marks": {}, "cut": 35_000},
        {"marks": {"ETag": '"other"'}, "cut": 50_000},
        {"reset": True, "cut": 25_000},
    ]
    lies = (
        [
            {"flip": 10},
            {"flip": 40_000},
            {"body": b"\x1f\x8b no"},
            {"length": None, "cut": 10_000},
            {"length": 10, "extra": b"x"},
            {"body": content(3, size=60_000)},
        ]
        if verify
        else []
    )
    for i in range(50):
        folder = tmp_path / str(i)
        server.faults = [r.choice(transport + lies) for _ in range(r.randrange(1, 7))]
        try:
            complete += get(folder, mirror, kind, verify=verify).read_bytes() == right
        except StoreError:
            pass
        got = folder / name(kind)
        assert not got.exists() or got.read_bytes() == right
        server.faults = []
        assert get(folder, mirror, kind, verify=verify).read_bytes() == right
    assert 10 < complete < 50


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("how", ["http", "file"])
def test_every_kind(kind, how, server, mirror, tmp_path):
    right = server.site.put(kind, content(4, kind))
    if how == "file":
        for path, data in server.site.files.items():
            (tmp_path / "site" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "site" / path).write_bytes(data)
        mirror = (tmp_path / "site").as_uri()
    path = fetch_dump("20240201", tmp_path / "here", kind, mirror=mirror, progress=False)
    assert path.read_bytes() == right and path.name == name(kind)
    assert [m.params for _, m in find_manifests(tmp_path / "here")] == [
        {"date": "2024-02-01", "kind": kind, "published": "sha1:" + hashlib.sha1(right).hexdigest()}
    ]


def test_wikipedias_of_a_mirror(server, mirror, tmp_path):
    "Each kind is listed by its name, resumes, and is told where it is not."
    for kind in ("dewiki.xml.bz2", "dewiki.html"):
        right, size = server.site.put(kind, content(5, kind)), len(content(5, kind))
        offered, reasons = list_mirror(mirror, kind, progress=False)
        assert [(d.kind, str(d.date), d.state) for d in offered] == [(kind, "2024-02-01", "complete")] and not reasons
        server.faults, server.seen = [{"cut": size // 2}], []
        assert fetch_dump("newest", tmp_path, kind, mirror=mirror, progress=False).read_bytes() == right
        assert server.ranges() == [None, f"bytes={size // 2}-"]
        with pytest.raises(FetchError, match=f"has no {kind} snapshot of 2024-02-02; it has 2024-02-01") as e:
            fetch_dump("2024-02-02", tmp_path, kind, mirror=mirror, progress=False)
        assert ("archive.org" in str(e.value)) == kind.endswith("bz2")
    with pytest.raises(FetchError, match="this mirror has no frwiki.xml.bz2 dumps"):
        list_mirror(mirror, "frwiki.xml.bz2", progress=False)


def test_only_the_missing_bytes_are_requested(server, mirror, tmp_path):
    right = server.site.put("json.gz", content(1))
    server.faults = [{"cut": 70_000}, {"status": 503}, {"cut": 150_000}]
    assert get(tmp_path, mirror).read_bytes() == right
    assert server.ranges() == [None, "bytes=70000-", "bytes=70000-", "bytes=150000-"]
    assert server.seen[-1][2]["If-Range"] == f'"{hashlib.md5(right).hexdigest()}"'


def test_requests_identify_the_client(server, mirror, tmp_path):
    server.site.put("json.gz", content(1))
    get(tmp_path, mirror)
    for _, _, headers in server.seen:
        assert (
            headers["User-Agent"].startswith("wbe/")
            and "https://" in headers["User-Agent"]
            and headers["Accept-Encoding"] == "identity"
        )


def test_a_file_that_is_there_costs_no_request(server, mirror, tmp_path):
    server.site.put("json.gz", content(1))
    path = get(tmp_path, mirror)
    assert fetch_dump(DAY, tmp_path, mirror="http://127.0.0.1:9/") == path == fetched_dump(tmp_path, "2024-02-01")


# waiting


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    "what,low,high", [("3", 3, 4), ("0", 0, 1), ("date", 28, 31), ("past", 0, 1), ("soon", 0.5, 1), ("-5", 0.5, 1)]
)
def test_retry_after(status, what, low, high, server, mirror, waits, tmp_path):
    server.site.put("json.gz", content(1))
    text = {
        "date": format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True),
        "past": "Thu, 01 Feb 2024 12:00:00 GMT",
    }.get(what, what)
    server.faults = [{"status": status, "headers": {"Retry-After": text}}]
    get(tmp_path, mirror)
    assert len(waits) == 1 and low <= waits[0] <= high


def test_waits_double_and_jitter_is_seeded(server, mirror, waits, tmp_path):
    server.site.put("json.gz", content(1))
    server.faults = [{"status": 500}] * 6
    get(tmp_path, mirror)
    assert all(2**n / 2 <= w <= 2**n for n, w in enumerate(waits)) and len(waits) == 6
    again = RetryPolicy(seed=1)
    assert waits == [again.wait_before(n) for n in range(6)] != [RetryPolicy(seed=2).wait_before(n) for n in range(6)]


def test_retries_are_an_argument(server, mirror, waits, tmp_path):
    server.site.put("json.gz", content(1))
    server.faults = [{"status": 500}] * 9
    with pytest.raises(FetchError, match="Gave up after 1 tries"):
        get(tmp_path, mirror, retries=0)
    assert waits == []


def test_progress_resets_the_retries(server, mirror, tmp_path, monkeypatch):
    right = server.site.put("json.gz", content(1))
    cuts = [{"cut": n} for n in range(20_000, 200_000, 20_000)]
    server.faults = list(cuts)
    with pytest.raises(FetchError, match="Gave up after 2 tries"):
        get(tmp_path / "a", mirror, retries=1)
    monkeypatch.setattr(http, "MIN_PROGRESS", 20_000)
    server.faults = list(cuts)
    assert get(tmp_path / "b", mirror, retries=1).read_bytes() == right


def test_the_same_bytes_again_are_not_progress(server, mirror, tmp_path, monkeypatch):
    server.site.put("json.gz", content(1))
    monkeypatch.setattr(http, "MIN_PROGRESS", 20_000)
    server.faults = [{"cut": 70_000, "no_ranges": True}] * 40
    with pytest.raises(FetchError, match="Gave up after 7 tries"):
        get(tmp_path, mirror)
    assert len(server.ranges()) == 7


def test_a_server_that_stops_sending(server, tmp_path, waits):
    right = server.site.put("json.gz", content(1))
    server.faults = [{"cut": 70_000, "hold": threading.Event()}]
    assert get(tmp_path, Mirror(server.url, RetryPolicy(sleep=waits.append), timeout=0.3)).read_bytes() == right
    assert server.ranges() == [None, "bytes=70000-"] and len(waits) == 1


def test_no_server(tmp_path, waits, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with pytest.raises(FetchError, match="the connection failed .*Is there a network"):  # soon, not after 7 tries
        get(tmp_path / "x", Mirror(f"http://127.0.0.1:{port}", RetryPolicy(sleep=waits.append)))
    assert len(waits) == 1 and not (tmp_path / "x").exists()


# lists and checksums


def test_lists_and_checksums_are_retried(server, mirror, tmp_path):
    right = server.site.put("json.gz", content(1))
    server.page_faults = [
        {"status": 503},
        {"cut": 3},
        {},
        {"status": 429, "headers": {"Retry-After": "1"}},
        {"cut": 20},
        {},
    ]
    assert get(tmp_path, mirror).read_bytes() == right


def test_snapshots_and_the_latest(server, mirror, tmp_path):
    for day in ("20240220", "20240201", "20240301"):
        server.site.put("json.gz", content(int(day)), day)
    server.site.put("json.gz", content(9), "20240401", sums=False)  # its checksum is not there yet
    server.site.files["wikidatawiki/entities/20240501/wikidata-20240501-lexemes.json.gz"] = b""  # still being made
    server.site.files["wikidatawiki/entities/latest-all.json.gz"] = server.site.files[
        "wikidatawiki/entities/dcatap.rdf"
    ] = b""
    assert [f"{d:%m%d}" for d in mirror.snapshots()] == ["0201", "0220", "0301", "0401", "0501"]
    assert _latest_dump(mirror).date == date(2024, 3, 1) and _latest_dump(mirror, verify=False).date == date(2024, 4, 1)
    assert fetch_dump("latest", tmp_path, mirror=mirror, progress=False).name == "wikidata-20240301-all.json.gz"
    with pytest.raises(
        FetchError, match=r"this snapshot has no json.gz dump \(yet\?\); it holds wikidata-20240501-lexemes.json.gz"
    ):
        fetch_dump("2024-05-01", tmp_path, mirror=mirror)
    with pytest.raises(FetchError, match="has no json.bz2 dump"):
        fetch_dump("2024-03-01", tmp_path, "json.bz2", mirror=mirror)
    with pytest.raises(
        FetchError,
        match="no json.gz snapshot of 2024-03-05; it has 2024-02-01, 2024-02-20, .*; the nearest is 2024-03-01",
    ):
        fetch_dump("2024-03-05", tmp_path, mirror=mirror)
    with pytest.raises(FetchError, match="has no complete xml.bz2 dump|does not exist"):
        fetch_dump("latest", tmp_path, "enwiki.xml.bz2", mirror=mirror)


def test_a_file_whose_date_is_not_that_of_its_folder(server, mirror, tmp_path):
    data = content(1)
    folder = "wikidatawiki/entities/20260921/"
    server.site.files[folder + "wikidata-20260922-all.json.gz"] = data
    server.site.files[folder + "wikidata-20260922-sha1sums.txt"] = (
        f"{hashlib.sha1(data).hexdigest()}  wikidata-20260922-all.json.gz\n".encode()
    )
    path = fetch_dump("latest", tmp_path, mirror=mirror, progress=False)
    assert path.name == "wikidata-20260922-all.json.gz" and path.read_bytes() == data
    server.seen.clear()
    assert fetch_dump("2026-09-21", tmp_path, mirror=mirror) == path and server.seen == []


def test_a_mirror_without_lists(server, mirror, tmp_path):
    right = server.site.put("json.gz", content(1))
    server.page_faults = [{"status": 403}]
    assert get(tmp_path / "a", mirror).read_bytes() == right
    by_date = Mirror(server.url + "wikidatawiki/entities/{date}", RetryPolicy(sleep=lambda s: None))
    assert get(tmp_path / "b", by_date).read_bytes() == right
    with pytest.raises(FetchError, match="name a date"):
        fetch_dump("latest", tmp_path, mirror=by_date)


@pytest.mark.parametrize(
    "text,good",
    [
        ("{sha1}  {name}\n", True),
        ("{sha1} *{name}\r\n", True),
        ("{SHA1}  {name}", True),
        ("{zeros}  {name}\n{sha1}  {name}\n", True),
        ("{zeros}  {name}\n", None),
        ("{sha1}  {name}.bak\n", False),
        ("{sha1}  x{name}\n", False),
        ("<html>no such page</html>", False),
        ("", False),
        ("\xff", False),
    ],
)
def test_checksum_files(text, good, server, mirror, tmp_path):
    right = server.site.put("json.gz", content(1), sums=False)
    sha1 = hashlib.sha1(right).hexdigest()
    sums = text.format(sha1=sha1, SHA1=sha1.upper(), zeros="0" * 40, name=name()).encode("latin-1")
    server.site.files["wikidatawiki/entities/20240201/wikidata-20240201-sha1sums.txt"] = sums
    if good:
        assert get(tmp_path, mirror).read_bytes() == right
    else:
        with pytest.raises(
            FetchError, match="no checksum is published" if good is False else "the published one is 0000"
        ):
            get(tmp_path, mirror)
        assert not (tmp_path / name()).exists()


def test_md5_when_there_is_no_sha1(server, mirror, tmp_path):
    right = server.site.put("json.gz", content(1))
    del server.site.files["wikidatawiki/entities/20240201/wikidata-20240201-sha1sums.txt"]
    server.faults = [{"flip": 100}]
    assert get(tmp_path, mirror).read_bytes() == right
    assert find_manifests(tmp_path)[0][1].params["published"].startswith("md5:")


# without checksums


def test_unchecked_only_on_request_and_checked_later(server, mirror, tmp_path):
    right = server.site.put("json.gz", content(1), sums=False)
    with pytest.raises(FetchError, match="no checksum is published .*verify=False"):
        get(tmp_path, mirror)
    assert server.ranges() == []
    server.faults = [{"cut": 70_000}, {"cut": 90_000}]
    path = get(tmp_path, mirror, verify=False)
    assert path.read_bytes() == right and server.ranges() == [None, "bytes=70000-", "bytes=90000-"]
    assert get(tmp_path, mirror, verify=False) == path and fetched_dump(tmp_path, DAY) is None
    server.site.put("json.gz", right)
    assert get(tmp_path, mirror) == path == fetched_dump(tmp_path, DAY)


def test_unchecked_but_longer_than_the_file_is_refused(server, mirror, tmp_path):
    right = server.site.put("json.gz", content(1), sums=False)
    server.faults = [{"cut": 70_000}, {"chunked": True, "more": b"!"}]
    assert get(tmp_path, mirror, verify=False).read_bytes() == right and server.ranges() == [None, "bytes=70000-", None]


@pytest.mark.parametrize("marks", [{}, {"ETag": 'W/"weak"'}])
def test_unchecked_and_without_marks_begins_again(marks, server, mirror, tmp_path):
    "A file of the same length replaces the first; no header distinguishes them, so no byte of the first is used."
    server.site.put("json.gz", content(1), sums=False)
    new, server.marks = content(2), marks
    server.faults = [{"cut": 70_000}, {"call": lambda: server.site.put("json.gz", new, sums=False)}]
    assert get(tmp_path, mirror, verify=False).read_bytes() == new


def test_unchecked_and_of_unknown_length_is_refused(server, mirror, tmp_path):
    server.site.put("json.gz", content(1), sums=False)
    server.faults = [{"length": None}]
    with pytest.raises(FetchError, match="does not say how long the file is"):
        get(tmp_path, mirror, verify=False)
    server.faults = [{"chunked": True}]  # here the end is marked
    assert get(tmp_path, mirror, verify=False).read_bytes() == content(1)


def test_unchecked_page_instead_of_the_file(server, mirror, tmp_path):
    server.site.put("json.bz2", content(1, "json.bz2"), sums=False)
    server.faults = [{"body": b"<html>Sign in"}] * 2
    with pytest.raises(FetchError, match="not a .bz2 file"):
        get(tmp_path, mirror, "json.bz2", verify=False)
    assert visible(tmp_path) == []


@pytest.mark.parametrize("verify", [True, False])
def test_a_page_does_not_take_the_place_of_what_has_arrived(verify, server, mirror, tmp_path):
    server.site.put("json.gz", content(1))
    server.faults = [{"cut": 70_000}] + [{"body": b"<html>Sign in", "no_ranges": True}] * 9
    with pytest.raises(FetchError, match="in place of a .gz file came something that begins with b'<html>Sign in'"):
        get(tmp_path, mirror, verify=verify)
    assert (tmp_path / (name() + ".part")).stat().st_size == 70_000
    server.faults, server.seen = [], []
    assert get(tmp_path, mirror, verify=verify).read_bytes() == content(1)


# the file changes


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("if_range", [True, False])
@pytest.mark.parametrize("new_size", [200_000, 120_000, 60_000, 260_000])
def test_the_file_changes_between_two_tries(verify, if_range, new_size, server, mirror, tmp_path):
    server.site.put("json.gz", content(1))
    server.if_range = if_range
    new = content(2, size=new_size)

    def change():
        server.site.files.clear()
        server.site.put("json.gz", new)

    server.faults = [{"cut": 70_000}, {"call": change}]
    assert get(tmp_path, mirror, verify=verify).read_bytes() == new


def test_the_file_changes_between_two_calls(server, mirror, tmp_path):
    server.site.put("json.gz", content(1))
    server.faults = [{"cut": 70_000}, {"status": 403}]
    with pytest.raises(FetchError, match="403"):
        get(tmp_path, mirror)
    assert (tmp_path / (name() + ".part")).stat().st_size == 70_000
    server.site.files.clear()
    new = server.site.put("json.gz", content(2))
    assert get(tmp_path, mirror).read_bytes() == new


def interrupted(server, mirror, folder, at=70_000):
    "Interrupt a download; returns the partial file."
    server.faults = [{"cut": at}, {"status": 403}]
    with pytest.raises(FetchError, match="403"):
        get(folder, mirror)
    server.seen.clear()
    return folder / (name() + ".part")


def test_another_mirror_resumes_when_the_checksum_is_the_same(server, mirror, tmp_path):
    right = server.site.put("json.gz", content(1))
    interrupted(server, mirror, tmp_path)
    second = Server(server.site)
    second.marks = {"ETag": '"its own"'}
    assert get(tmp_path, second.url).read_bytes() == right and second.ranges() == ["bytes=70000-"]
    third = Server(Site())
    other = third.site.put("json.gz", content(2))
    interrupted(server, mirror, tmp_path / "b")
    assert get(tmp_path / "b", third.url).read_bytes() == other and third.ranges()[-1] is None
    for s in (second, third):
        s.shutdown()
        s.server_close()


# files on the disk

DAMAGES = {  # changes to the partial file and to its note between two calls
    "a bit flips": lambda part, note, data: part.write_bytes(data[:99] + bytes([data[99] ^ 8]) + data[100:]),
    "the note is gone": lambda part, note, data: note.unlink(),
    "the note is broken": lambda part, note, data: note.write_text('{"url": '),
    "the note is a list": lambda part, note, data: note.write_text("[1, 2]"),
    "bytes are missing": lambda part, note, data: part.write_bytes(data[:1000]),
    "too many bytes": lambda part, note, data: part.write_bytes(data * 9),
    "the piece is gone": lambda part, note, data: part.unlink(),
    "zeros at the end": lambda part, note, data: part.write_bytes(data[:60_000] + bytes(10_000)),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_piece(what, server, mirror, tmp_path):
    right = server.site.put("json.gz", content(1))
    part = interrupted(server, mirror, tmp_path)
    DAMAGES[what](part, part.with_name(part.name + ".json"), part.read_bytes())
    assert get(tmp_path, mirror).read_bytes() == right
    assert visible(tmp_path) == ["fetch-20240201-json.gz.manifest.json", name()]


def test_a_whole_piece_needs_no_request(server, mirror, tmp_path):
    right = server.site.put("json.gz", content(1))
    part = interrupted(server, mirror, tmp_path)
    part.write_bytes(right)
    assert get(tmp_path, mirror).read_bytes() == right and server.ranges() == []


def test_files_from_other_sources(server, mirror, tmp_path):
    right = server.site.put("json.gz", content(1))
    (tmp_path / name()).write_bytes(right)
    assert get(tmp_path, mirror) == fetched_dump(tmp_path, DAY) and server.ranges() == []
    (tmp_path / name()).write_bytes(right[:-1])
    with pytest.raises(FetchError, match="is there already, but the SHA1 of the file"):
        get(tmp_path, mirror)
    with pytest.raises(FetchError, match="is there already, and without a checksum"):
        get(tmp_path, mirror, verify=False)
    # never changed, never recorded as right
    assert (tmp_path / name()).read_bytes() == right[:-1] and fetched_dump(tmp_path, DAY) is None
    assert get(tmp_path, mirror, force=True).read_bytes() == right


def test_force_keeps_the_old_file_until_the_new_one_is_right(server, mirror, tmp_path):
    right = server.site.put("json.gz", content(1))
    get(tmp_path, mirror)
    server.faults = [{"flip": 9}] * 2
    with pytest.raises(FetchError, match="thrown away"):
        get(tmp_path, mirror, force=True)
    assert fetched_dump(tmp_path, DAY).read_bytes() == right


def test_too_little_disk_space_is_reported_before_the_first_byte(server, mirror, tmp_path, monkeypatch):
    right = server.site.put("json.gz", content(1))
    usage = store.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(store.shutil, "disk_usage", lambda p: usage._replace(free=150_000))
    with pytest.raises(StoreError, match="about 200 kB are needed, 150 kB are free"):
        get(tmp_path, mirror)
    assert not list(tmp_path.glob("*.part"))
    monkeypatch.undo()
    interrupted(server, mirror, tmp_path)
    monkeypatch.setattr(store.shutil, "disk_usage", lambda p: usage._replace(free=150_000))  # enough for the rest
    assert get(tmp_path, mirror).read_bytes() == right


# processes


def child(folder, url, before="", **popen):
    code = f"""{before}
from wbe.wikidata.transfer import fetch_dump
print(fetch_dump('2024-02-01', {str(folder)!r}, mirror={url!r}))
"""
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **popen
    )


def until(condition, seconds=8.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def test_killed_again_and_again(server, mirror, tmp_path):
    right = server.site.put("json.gz", content(1, size=500_000))
    part = tmp_path / (name() + ".part")
    for at in (1, 130_000, 400_000, len(right)):  # the last one has all bytes and waits for the end
        server.faults = [{"cut": at, "hold": threading.Event(), **({"length": None} if at == len(right) else {})}]
        p = child(tmp_path, server.url)
        until(lambda at=at: part.exists() and part.stat().st_size >= at)
        p.send_signal(signal.SIGKILL)
        p.communicate()
        assert p.returncode == -9 and not (tmp_path / name()).exists() and fetched_dump(tmp_path, DAY) is None
    assert server.ranges() == [None, "bytes=1-", "bytes=130000-", "bytes=400000-"]
    assert get(tmp_path, mirror).read_bytes() == right and visible(tmp_path) == [
        "fetch-20240201-json.gz.manifest.json",
        name(),
    ]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verify", [True, False])
def test_stopped_when_the_file_gets_its_name(when, verify, server, mirror, tmp_path, monkeypatch):
    right, replace = server.site.put("json.gz", content(1)), os.replace

    def stop(old, new):
        if when == "after" or not str(new).endswith(".gz"):
            replace(old, new)
        if str(new).endswith(".gz"):
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        get(tmp_path, mirror, verify=verify)
    monkeypatch.setattr(os, "replace", replace)
    assert (fetched_dump(tmp_path, DAY, verify=verify) is None) == (when == "before")
    assert get(tmp_path, mirror, verify=verify).read_bytes() == right and server.ranges() == [None]


def test_ctrl_c(server, mirror, tmp_path):
    right = server.site.put("json.gz", content(1))
    part = tmp_path / (name() + ".part")
    server.faults = [{"cut": 70_000, "hold": threading.Event()}]
    # background jobs start with SIGINT ignored
    handler = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    p = child(tmp_path, server.url, handler)
    until(lambda: part.exists() and part.stat().st_size >= 70_000)
    p.send_signal(signal.SIGINT)
    assert "what has arrived is kept" in p.communicate()[1] and p.returncode != 0
    assert get(tmp_path, mirror).read_bytes() == right and server.ranges() == [None, "bytes=70000-"]


def test_two_processes_at_once(server, mirror, tmp_path):
    right = server.site.put("json.gz", content(1))
    pause = threading.Event()
    server.faults = [{"pause": pause}]
    first = child(tmp_path, server.url)
    until(lambda: list(tmp_path.glob("*.part")))
    second = child(tmp_path, server.url)
    assert f"process {first.pid} is already at work on this" in second.communicate()[1] and second.returncode != 0
    with pytest.raises(StoreError, match="already at work"):
        get(tmp_path, mirror)
    pause.set()
    assert first.communicate()[0].strip() == str(tmp_path / name()) and first.returncode == 0
    server.seen.clear()
    assert get(tmp_path, mirror).read_bytes() == right and server.seen == []


def test_two_processes_want_different_files(server, mirror, tmp_path):
    for kind in ("json.gz", "json.bz2"):
        server.site.put(kind, content(1, kind))
    pause = threading.Event()
    server.faults = [{"pause": pause}]
    first = child(tmp_path, server.url)
    until(lambda: list(tmp_path.glob("*.part")))
    assert get(tmp_path, mirror, "json.bz2").exists()
    pause.set()
    first.communicate()
    assert first.returncode == 0


def test_the_disk_fills_up_on_the_way(server, mirror, tmp_path):
    right = server.site.put("json.gz", content(1))
    p = child(tmp_path, server.url, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)))
    assert (
        "would grow beyond the limit" in p.communicate()[1] and p.returncode != 0 and not (tmp_path / name()).exists()
    )
    assert get(tmp_path, mirror).read_bytes() == right


def test_the_import_is_light():
    heavy = "{'fastcore', 'tqdm', 'pandas', 'pyarrow', 'requests', 'httpx'}"
    subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys, wbe.wikidata.transfer\nassert not {heavy} & set(sys.modules), set(sys.modules)",
        ],
        check=True,
    )


# What a mirror has.


def state(jobs, name, size):
    "A `dumpstatus.json`."
    return json.dumps({"version": "0.8", "jobs": {"job": {"status": jobs, "files": {name: {"size": size}}}}}).encode()


def test_the_list_of_a_mirror(server, mirror):
    for day in ("20240201", "20240220", "20240301"):
        server.site.put("json.gz", content(int(day)), day)
        server.site.put("xml.bz2", content(int(day), "xml.bz2"), day, sums=day != "20240301")
        name = f"wikidatawiki-{day}-pages-articles-multistream.xml.bz2"
        job = "in-progress" if day == "20240301" else "done"
        server.site.files[f"wikidatawiki/{day}/dumpstatus.json"] = state(job, name, int(day))
    server.site.put("json.gz", content(9), "20240401", sums=False)
    server.site.files["wikidatawiki/entities/20240501/wikidata-20240501-lexemes.json.gz"] = b""
    offered, reasons = list_mirror(mirror, progress=False)
    seen = [path for path, *_ in server.seen]
    assert [(d.kind, f"{d.date:%m%d}", d.size, d.state) for d in offered] == [
        *[("json.gz", d, None, "complete") for d in ("0201", "0220", "0301")],
        ("json.gz", "0401", None, "no checksum yet"),
        *[("xml.bz2", d, int("2024" + d), "complete") for d in ("0201", "0220")],
        ("xml.bz2", "0301", 20240301, "in-progress"),
    ]
    assert seen.count("20240201") == 2  # the folders of JSON and of XML, each once
    assert [r.split(":")[0] for r in reasons] == ["json.bz2", "enwiki.xml.bz2"] or "enwiki.xml.bz2" in reasons[0]
    assert [d.date.month for d in list_mirror(mirror, "json.gz", most=1, progress=False)[0]] == [4]


NGINX = b"""<html><head><title>Index of /</title></head><body><pre><a href="../">../</a>
<a href="20240201/">20240201/</a>       03-Feb-2024 21:04       -
<a href="wikidata-20240201-all.json.gz">wikidata-20240201-all..&gt;</a> 03-Feb-2024 21:04   136218521243
<a href="wikidata-20240201-sha1sums.txt">x</a> 03-Feb-2024 21:04  181</pre></body></html>"""


def test_sizes_beside_the_links(server, mirror):
    server.site.put("json.gz", content(1))
    server.page_faults = [{}, {"body": NGINX}]
    assert [d.size for d in list_mirror(mirror, "json.gz", progress=False)[0]] == [136218521243]


@pytest.mark.parametrize(
    "fault, text",
    [
        ({"body": b""}, "lists no snapshots: is it a mirror of Wikimedia's dumps"),
        ({"body": b"<html><h1>Welcome</h1><a href='/shop'>shop</a></html>"}, "lists no snapshots"),
        ({"body": b"\x00\xff" * 90}, "lists no snapshots"),
        ({"status": 403}, "answered 403 Forbidden; this server refuses lists of files, but a date that it has"),
        ({"status": 404}, "this mirror has no json.gz dumps"),
        ({"status": 410}, "this mirror has no json.gz dumps"),
    ],
)
def test_lists_that_are_none(fault, text, server, mirror):
    server.site.put("json.gz", content(1))
    server.page_faults = [fault]
    with pytest.raises(FetchError, match=text):
        list_mirror(mirror, "json.gz", progress=False)
    server.site.put("xml.bz2", content(1, "xml.bz2"))
    server.page_faults = [fault]  # a kind that cannot be shown does not hide the others
    offered, reasons = list_mirror(mirror, progress=False)
    assert offered[-1].kind == "xml.bz2" and text in reasons[0]


def test_a_list_on_the_command_line(server):
    server.site.put("json.gz", content(1))
    words = [sys.executable, "-m", "wbe", "fetch", "--list", "--set", f"mirror={server.url}"]
    got = subprocess.run([*words, "--kind", "json", "--table", "json"], capture_output=True, text=True)
    assert json.loads(got.stdout)["dumps"] == [dict(kind="json.gz", date="2024-02-01", bytes=None, state="complete")]
    server.site.files.clear()
    got = subprocess.run(words, capture_output=True, text=True)
    assert (got.returncode, got.stdout, got.stderr.count("\n")) == (1, "", 1) and got.stderr.startswith("wbe: ")


def test_a_date_that_is_gone(server, mirror, tmp_path):
    "The error says what there is, whether the day has another kind, and where copies are."
    server.site.put("json.gz", content(1), "20240301")
    server.site.put("xml.bz2", content(1, "xml.bz2"))
    with pytest.raises(FetchError) as e:
        get(tmp_path, mirror)
    for text in ("it has 2024-03-01; ", "Of that day it has xml.bz2: --kind xml.bz2", "archive.org/download/wikibase-"):
        assert text in str(e.value)
    lines = []
    assert get(tmp_path, mirror, "auto", log=lines.append).name.endswith("multistream.xml.bz2")
    assert lines == [f"{name('xml.bz2')} (there is no json.gz for 2024-02-01; there is no json.bz2 for 2024-02-01)"]
    assert get(tmp_path, mirror, "auto", log=lines.append) and len(lines) == 1  # it is there, so nothing is chosen


def test_a_benchmark_of_dates(tmp_path):
    "Fetched by date as XML, and from files of JSON: the same edits."
    from wbe.benchmark.series import make_benchmark
    from wbe.world.files import World

    days, formats = ["2024-02-01", "2024-02-20"], ("json.gz", "xml.bz2")
    options = dict(articles=False, views=False, truth=False, progress=False)
    dumps = World(5, 500).write(tmp_path / "w", days, formats, **options).paths("dumps")
    for path in (p for p in dumps if p.name.endswith("xml.bz2")):
        folder = tmp_path / "site" / "wikidatawiki" / path.name.split("-")[1]
        folder.mkdir(parents=True)
        copy = folder / path.name.replace("pages-articles", "pages-articles-multistream")
        copy.write_bytes(path.read_bytes())
        sums = f"{hashlib.md5(copy.read_bytes()).hexdigest()}  {copy.name}\n"
        (folder / copy.name.replace("pages-articles-multistream.xml.bz2", "md5sums.txt")).write_text(sums)
    site, lines = (tmp_path / "site").as_uri(), []
    made = make_benchmark(tmp_path / "a", ["newest-1", "newest"], mirror=site, progress=False, log=lines.append)
    assert "there is no json.gz for newest-1, newest" in lines[0]
    same = make_benchmark(tmp_path / "b", [p for p in dumps if p.name.endswith("json.gz")], progress=False)
    a, b = (json.loads((m.folder / "wiki_big_edit_20240201_20240220.json").read_text()) for m in (made, same))
    assert len(a) > 40 and {r["update"]: r["ans"] for r in a} == {r["update"]: r["ans"] for r in b}
    (tmp_path / "site").rename(tmp_path / "away")  # repeated, it asks nothing
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "a").rglob("wiki_big*")}
    make_benchmark(tmp_path / "a", ["newest-1", "newest"], mirror=site, progress=False)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "a").rglob("wiki_big*")} == before


# Passwords in addresses.


def test_a_password_of_a_mirror_is_used_and_never_written(server, tmp_path, caplog):
    right = server.site.put("json.gz", content(1))
    address = server.url.replace("//", "//ann:s3cret@")
    server.faults = [{"cut": 70_000}, {"status": 403}]
    with pytest.raises(FetchError) as e:
        get(tmp_path, Mirror(address, RetryPolicy(sleep=lambda s: None)))
    texts = [str(e.value), caplog.text, *(p.read_text() for p in tmp_path.glob("*.json"))]
    path = get(tmp_path, Mirror(address, RetryPolicy(sleep=lambda s: None)))
    texts += [p.read_text() for p in tmp_path.glob("*.json")]
    assert path.read_bytes() == right and len(texts) > 3 and not any("s3cret" in t for t in texts)
    assert all(h["Authorization"] == "Basic YW5uOnMzY3JldA==" for *_, h in server.seen)


# bad arguments


@pytest.mark.parametrize(
    "args,kwargs,text",
    [
        (("soon",), {}, "write it like 2024-02-01"),
        (("2024-02-30",), {}, "write it like"),
        ((DAY,), {"kind": "zip"}, "Choose from: json.gz, json.bz2"),
        ((DAY,), {"mirror": "ftp://x"}, "begins with https://"),
        ((DAY,), {"mirror": "dumps.wikimedia.org"}, "begins with https://"),
    ],
)
def test_bad_arguments(args, kwargs, text, tmp_path):
    with pytest.raises(ValueError, match=text):
        fetch_dump(*args, tmp_path / "x", **kwargs)
    assert not (tmp_path / "x").exists()


def test_redirects_are_followed_but_never_from_https_to_http(server, mirror, tmp_path):
    right = server.site.put("json.gz", content(1))
    server.site.files["elsewhere/x.gz"] = right
    there = {"headers": {"Location": "/elsewhere/x.gz"}}
    server.faults = [{"status": 302, **there}, {"cut": 70_000}, {"status": 307, **there}]
    assert get(tmp_path, mirror).read_bytes() == right and server.ranges() == [
        None,
        None,
        "bytes=70000-",
        "bytes=70000-",
    ]
    request = httpx.Request("GET", "https://127.0.0.1/x.gz")
    back_to_http = httpx.Response(302, headers={"Location": "http://127.0.0.1/x.gz"}, request=request)
    with pytest.raises(FetchError, match="not safe to follow"):
        http._check_redirect(back_to_http)


def test_the_note_describes_the_partial_file(server, mirror, tmp_path):
    right = server.site.put("json.gz", content(1))
    part = interrupted(server, mirror, tmp_path)
    assert json.loads(part.with_name(part.name + ".json").read_text()) == {
        "url": server.url + PATHS["json.gz"],
        "length": len(right),
        "checksum": "sha1:" + hashlib.sha1(right).hexdigest(),
        "etag": f'"{hashlib.md5(right).hexdigest()}"',
    }


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to(server, mirror, tmp_path):
    server.site.put("json.gz", content(1))
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="permission denied"):
        get(tmp_path / "x", mirror)
    tmp_path.chmod(0o700)
