"""The command line end to end, as a shell sees it."""

import json
import subprocess
import sys
import time

import pytest

from conftest import on_terminal


def wbe(*words, cwd=None, env=None):
    return subprocess.run(
        [sys.executable, "-m", "wbe", *map(str, words)], capture_output=True, text=True, cwd=cwd, env=env
    )


def test_demo_needs_no_network_and_ends_in_a_table_and_a_figure(tmp_path):
    script = (
        "import socket\n"
        "def refuse(*a): raise OSError('the demo asked for the network')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
        "import sys; sys.argv = ['wbe', 'demo', '--editors', 'prompt']\n"
        "from wbe.cli.main import main; main()"
    )
    code, printed = on_terminal([sys.executable, "-c", script], cwd=tmp_path)
    assert code == 0, printed
    assert "writing the world" in printed and "entities/s" in printed  # the progress bar
    assert "T1" in printed and "T8" in printed
    assert "just edited" in printed and "prompt" in printed  # the table of editors
    for name in ("timesteps", "editors"):
        assert (tmp_path / "wbe-demo" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    code, printed = on_terminal([sys.executable, "-m", "wbe", "demo", "--editors", "prompt"], cwd=tmp_path)
    assert code == 0 and "writing the world" not in printed
    status = wbe("status", tmp_path)
    assert status.returncode == 0 and "whole" in status.stdout


def test_the_world_is_written_as_its_options_request(tmp_path):
    out = wbe(
        "world",
        tmp_path / "w",
        "--entities",
        500,
        "--seed",
        3,
        "--date",
        "2024-03-01",
        "--date",
        "2024-02-01",
        "--format",
        "json.bz2",
        "--format",
        "xml.bz2",
        "--no-articles",
        "--no-views",
        "--no-truth",
    )
    assert out.returncode == 0, out.stderr
    files = sorted(p.name for p in (tmp_path / "w").rglob("*") if p.is_file())
    assert files == [
        "wikidata-20240201-all.json.bz2",
        "wikidata-20240301-all.json.bz2",
        "wikidatawiki-20240201-pages-articles.xml.bz2",
        "wikidatawiki-20240301-pages-articles.xml.bz2",
        "world.manifest.json",
    ]
    manifest = json.loads((tmp_path / "w" / "world.manifest.json").read_text())
    assert manifest["params"]["seed"] == 3 and manifest["counts"]["entities"] == 500
    assert manifest["versions"]["wbe"] and manifest["seconds"] > 0


@pytest.mark.parametrize(
    "words, message",
    [
        (("--entities", "-5"), "at least 500 entities"),
        (("--entities", "499"), "at least 500 entities"),
        (("--date", "2024-02-02"), "it has 2024-02-01"),
        (("--date", "yesterday"), "write it like 2024-02-01"),
        (("--format", "rar"), "Choose from: json.gz"),
        (("--workers", "0"), "at least 1"),
    ],
)
def test_bad_options_give_one_clear_line_and_write_nothing(tmp_path, words, message):
    out = wbe("world", tmp_path / "w", *words)
    assert out.returncode == 1 and message in out.stderr and out.stderr.count("\n") == 1
    assert not (tmp_path / "w").exists()


def test_an_option_that_is_not_a_number(tmp_path):
    out = wbe("world", tmp_path / "w", "--entities", "many")
    assert out.returncode == 2 and "--entities" in out.stderr and "valid integer" in out.stderr


def test_status_reports_unfinished_and_changed_files(tmp_path):
    assert wbe("status", tmp_path).stdout.strip().endswith("Start with: wbe demo")
    wbe("world", tmp_path / "w", "--entities", 500, "--date", "2024-02-01", "--no-articles")
    assert wbe("status", tmp_path).returncode == 0
    dump = tmp_path / "w" / "dumps" / "wikidata-20240201-all.json.gz"
    dump.write_bytes(dump.read_bytes()[:-10])
    out = wbe("status", tmp_path)
    assert out.returncode == 1 and "changed" in out.stdout
    rerun = wbe("world", tmp_path / "w", "--entities", 500, "--date", "2024-02-01", "--no-articles")
    assert rerun.returncode == 0 and wbe("status", tmp_path).returncode == 0


def test_other_parameters_write_a_new_world(tmp_path):
    args = ("world", tmp_path / "w", "--date", "2024-02-01", "--no-articles", "--entities")
    wbe(*args, 500)
    out = wbe(*args, 600)
    assert out.returncode == 0 and "nothing to do" not in out.stdout
    assert json.loads((tmp_path / "w" / "world.manifest.json").read_text())["counts"]["entities"] == 600


def test_help_is_quick_and_completion_is_there():
    best = min(_seconds("--help") for _ in range(3))
    assert best < 1.0, f"wbe --help took {best:.2f} s"
    assert "--install-completion" in wbe("--help").stdout


def test_help_shows_text_in_brackets(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert "[common] settings, and [[run]] tables" in wbe("sweep", "--help").stdout
    assert wbe("run", "--help").stdout.count("[default: all]") >= 2


def _seconds(*words):
    start = time.perf_counter()
    assert wbe(*words).returncode == 0
    return time.perf_counter() - start


def test_build_and_audit_from_two_dumps(tmp_path):
    "From two dumps to audited facts; a rerun does nothing; a benchmark with wrong objects is detected."
    assert (
        wbe(
            "world", tmp_path / "w", "--no-articles", "--no-views", "--date", "2024-02-01", "--date", "2024-02-20"
        ).returncode
        == 0
    )
    dumps = sorted((tmp_path / "w" / "dumps").iterdir())
    out = wbe("build", *dumps, "-o", tmp_path / "t1")
    assert out.returncode == 0, out.stderr
    assert "100.0% supported" in out.stdout
    start = time.perf_counter()
    assert wbe("build", *dumps, "-o", tmp_path / "t1").returncode == 0 and time.perf_counter() - start < 20
    status = wbe("status", tmp_path)
    assert status.returncode == 0 and all(
        stage in status.stdout for stage in ("parse", "changes", "rules", "filter", "audit")
    )
    rows = [json.loads(line) for line in (tmp_path / "t1" / "facts" / "facts.jsonl").read_text().splitlines()]
    wrong = [
        {**r, "object_id": rows[(i + 1) % len(rows)]["subject_id"], "object": rows[(i + 1) % len(rows)]["subject"]}
        for i, r in enumerate(rows)
    ]
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    out = wbe("audit", tmp_path / "wrong.json", "--new", tmp_path / "t1" / "parsed" / "20240220", "-o", tmp_path / "a")
    assert out.returncode == 0 and "other value" in out.stdout and "100.0%" not in out.stdout


def test_build_reports_bad_input(tmp_path):
    out = wbe("build", tmp_path / "no.json.gz", "2024-02-20", "-o", tmp_path / "x")
    assert out.returncode == 1 and "neither the file of a dump nor a date" in out.stderr and out.stderr.count("\n") == 1


def test_a_truncated_dump_is_read_to_its_end_and_reported_by_the_exit_code(tmp_path):
    assert (
        wbe(
            "world",
            tmp_path / "w",
            "--no-articles",
            "--no-views",
            "--no-truth",
            "--date",
            "2024-02-01",
            "--date",
            "2024-02-20",
        ).returncode
        == 0
    )
    old, new = sorted((tmp_path / "w" / "dumps").iterdir())
    new.write_bytes(new.read_bytes()[:-50_000])
    out = wbe("build", old, new, "-o", tmp_path / "t1")
    assert out.returncode == 3 and "damaged" in out.stderr and "fetch it again" in out.stderr
    assert (tmp_path / "t1" / "facts" / "facts.parquet").exists()
