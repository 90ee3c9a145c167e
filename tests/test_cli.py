"""The command line end to end, as a shell sees it."""

import csv
import functools
import inspect
import io
import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import processes
import pyarrow.parquet as pq
import pytest
from conftest import on_terminal
from typer.testing import CliRunner

from wbe.benchmark.reader import Benchmark
from wbe.world.files import World

SAMPLES = Path(__file__).parents[1] / "data_samples"


def wbe(*words):
    "A command in a process of its own, forked from one that has imported its packages."
    return processes.run(["-m", "wbe", *words])


def fresh_wbe(*words):
    "A command in a fresh process: what it imports, how long it takes and what it leaves at its end are its own."
    return subprocess.run([sys.executable, "-m", "wbe", *map(str, words)], capture_output=True, text=True)


SMALL_DEMO = ["--entities", "500", "--timesteps", "2"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> tuple:
    "A demo that was made in a terminal and without a network, with four edits: its folder, exit code and output."
    tmp = tmp_path_factory.mktemp("demo")
    script = (
        "import functools, socket, sys, wbe.demo\n"
        "wbe.demo.edit_demo = functools.partial(wbe.demo.edit_demo, max_edits=4)\n"
        "wbe.demo.DEMO_QUESTIONS['ask_lasting'] = 4\n"
        "import wbe.analysis.report as report\n"
        "report.make_report = lambda runs, page, *title, **log: page.touch()\n"  # test_report and the journey make it
        "def refuse(*a): raise OSError('the demo asked for the network')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
        f"sys.argv = ['wbe', 'demo', '--editors', 'rag', *{SMALL_DEMO}]\n"
        "from wbe.cli.main import main; main()"
    )
    return tmp, *on_terminal(["-c", script], cwd=tmp, start=processes.on_terminal)


def test_demo_needs_no_network_and_ends_in_a_table_and_a_figure(demo):
    tmp_path, code, printed = demo
    assert code == 0, printed
    assert "writing the world" in printed and "entities/s" in printed  # the progress bar
    assert "T1" in printed and "T2" in printed and "T3" not in printed
    assert "just edited" in printed and "rag" in printed  # the table of editors
    edits = sum(map(len, Benchmark.load(tmp_path / "wbe-demo" / "benchmark" / "release")))
    assert re.search(rf"\ball\b.*\b{edits}\b", printed)  # the last row of the table of timesteps
    for name in ("timesteps", "editors"):
        assert (tmp_path / "wbe-demo" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    status = wbe("status", tmp_path)
    assert status.returncode == 0 and "Whole: " in status.stdout


def test_the_world_is_written_as_its_options_request(tmp_path):
    out = wbe(
        "world",
        tmp_path / "w",
        "--entities",
        500,
        "--seed",
        3,
        *("--dates", "2024-03-01,2024-02-01", "--set", "formats=json.bz2,xml.bz2"),
        *("--set", "articles=no", "--set", "views=no", "--set", "truth=no"),
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
        (("--dates", "2024-02-02"), "it has 2024-02-01"),
        (("--dates", "yesterday"), "write it like 2024-02-01"),
        (("--set", "formats=rar"), "Choose from: json.gz"),
        (("--set", "workers=0"), "at least 1"),
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
    wbe("world", tmp_path / "w", "--entities", 500, "--dates", "2024-02-01", "--set", "articles=no")
    assert wbe("status", tmp_path).returncode == 0
    dump = tmp_path / "w" / "dumps" / "wikidata-20240201-all.json.gz"
    dump.write_bytes(dump.read_bytes()[:-10])
    out = wbe("status", tmp_path)
    assert out.returncode == 1 and "changed" in out.stdout
    rerun = wbe("world", tmp_path / "w", "--entities", 500, "--dates", "2024-02-01", "--set", "articles=no")
    assert rerun.returncode == 0 and wbe("status", tmp_path).returncode == 0


def test_other_parameters_write_a_new_world(tmp_path):
    args = ("world", tmp_path / "w", "--dates", "2024-02-01", "--set", "articles=no", "--entities")
    wbe(*args, 500)
    out = wbe(*args, 600)
    assert out.returncode == 0 and "nothing to do" not in out.stdout
    assert json.loads((tmp_path / "w" / "world.manifest.json").read_text())["counts"]["entities"] == 600


def test_help_is_quick_and_completion_is_there():
    best = min(_cpu_seconds("--help") for _ in range(3))
    assert best < 0.7, f"wbe --help took {best:.2f} s of the processor"
    assert "--install-completion" in wbe("--help").stdout


def test_help_shows_text_in_brackets(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert "[common] settings, and [[run]] tables" in wbe("sweep", "--help").stdout
    assert "[default: paper]" in wbe("run", "--help").stdout


def _cpu_seconds(*words) -> float:
    "Seconds of the processor, so that other work on the machine does not count."
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert fresh_wbe(*words).returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_build_and_audit_from_two_dumps(tmp_path):
    "From two dumps to audited facts; a rerun does nothing; a benchmark with wrong objects is detected."
    days = ("--dates", "2024-02-01,2024-02-20", "--entities", "600")
    assert wbe("world", tmp_path / "w", "--set", "articles=no", "--set", "views=no", *days).returncode == 0
    dumps = sorted((tmp_path / "w" / "dumps").iterdir())
    out = wbe("benchmark", tmp_path / "t1", *dumps, "--until", "facts", "--set", "roles=yes")
    assert out.returncode == 0, out.stderr
    assert "100.0% supported" in out.stdout
    stamps = lambda: {p: p.stat().st_mtime_ns for p in (tmp_path / "t1").rglob("*.parquet")}
    before = stamps()
    assert wbe("build", *dumps, "-o", tmp_path / "t1").returncode == 0 and stamps() == before
    status = wbe("status", tmp_path)
    assert status.returncode == 0 and all(
        stage in status.stdout for stage in ("parse", "changes", "rules", "filter", "audit")
    )
    facts = pq.read_table(tmp_path / "t1" / "facts" / "facts.parquet").to_pylist()
    rows = [r | dict(relation=r["property"], relation_id=r["property_id"]) for r in facts]
    wrong = [
        {**r, "object_id": rows[(i + 1) % len(rows)]["subject_id"], "object": rows[(i + 1) % len(rows)]["subject"]}
        for i, r in enumerate(rows)
    ]
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    out = wbe("audit", tmp_path / "wrong.json", "--new", tmp_path / "t1" / "parsed" / "20240220", "-o", tmp_path / "a")
    assert out.returncode == 0 and "other value" in out.stdout and "100.0%" not in out.stdout


def test_build_reports_bad_input(tmp_path):
    out = wbe("benchmark", tmp_path / "x", tmp_path / "no.json.gz", "2024-02-20", "--until", "facts")
    assert out.returncode == 1 and "neither the file of a dump nor a date" in out.stderr and out.stderr.count("\n") == 1


def test_a_truncated_dump_is_refused_and_read_to_its_end_when_somebody_insists(tmp_path):
    fewer = ("--set", "articles=no", "--set", "views=no", "--set", "truth=no")
    assert wbe("world", tmp_path / "w", *fewer, "--dates", "2024-02-01,2024-02-20").returncode == 0
    old, new = sorted((tmp_path / "w" / "dumps").iterdir())
    old.write_bytes(old.read_bytes()[:-50_000])
    out = wbe("benchmark", tmp_path / "t1", old, new, "--until", "facts")
    assert out.returncode == 3 and old.name in out.stderr and "fetch it again" in out.stderr
    assert not (tmp_path / "t1" / "facts").exists()
    out = wbe("benchmark", tmp_path / "t1", old, new, "--until", "facts", "--set", "insist=yes")
    assert out.returncode == 3 and "damaged" in out.stderr and "fetch it again" in out.stderr
    assert (tmp_path / "t1" / "facts" / "facts.parquet").exists()


# In this process: what the entry point prints and returns.


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    "Call the entry point in an empty folder; returns exit code, standard output and standard error."
    from wbe.cli.main import main

    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "WBE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    for name, text in dict(COLUMNS="80", NO_COLOR="1", TMPDIR=tempfile.gettempdir()).items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(tempfile, "tempdir", tempfile.tempdir)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["wbe", *map(str, words)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as e:
            code = e.code or 0
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


@pytest.fixture(scope="module")
def two_dumps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    world = World(7, 600).write(
        folder, ["2024-05-01", "2024-06-01"], articles=False, views=False, truth=False, progress=False
    )
    return world.paths()


RUN = ("run", SAMPLES / "benchmark", "--max-edits", 2)


@pytest.mark.parametrize(
    "words, message",
    [
        (("benchmark", "x", "OLD", "NEW", "--until", "facts", "--set", "memory=lots"), "like 4GB"),
        (("benchmark", "x", "OLD", "NEW", "--until", "facts", "--set", "temp=nowhere"), "no such folder"),
        (("benchmark", "x", "OLD", "2024-13-45", "--until", "facts"), "is not a date"),
        (("world", "x", "--dates", "2024-13-45"), "is not a date"),
        (("fetch", "yesterday", "-o", "x"), "is not a date"),
        (("fetch", "2024-02-01", "-o", "x", "--kind", "json.zip"), "did you mean 'json.gz'"),
        (("benchmark", "x", "OLD", "NEW", "--set", "memory=4"), "like 4GB"),
        (("benchmark", "x", "OLD", "NEW", "--set", "engine=foo"), "Choose from: duckdb"),
        (("benchmark", "x", "OLD", "NEW", "--set", "closeness=foo"), "Choose from: name, graph"),
        (("benchmark", "x", "OLD", "NEW", "--writer", "foo"), "no writer 'foo'"),
        (("benchmark", "x", "OLD", "NEW", "--writer", "openai"), "add --model NAME"),
        (("benchmark", "x", "OLD", "NEW", "--writer", "local"), "add --model NAME"),
        (("benchmark", "x", "OLD", "NEW", "--budget", "5"), "for a paid writer"),
        (
            ("benchmark", "x", "OLD", "NEW", "--writer", "openai:m", "--budget", "-1"),
            "cannot be negative",
        ),
        (("benchmark", "x", "OLD", "NEW", "--writer", "openai:m", "--set", "prices=1"), "like --prices 0.15"),
        (("benchmark", "x", "OLD", "NEW", "--table", "csv", "--table", "json"), "a file of its own"),
        (("benchmark", "x", "OLD", "NEW", "--table", "json:."), "is a folder"),
        (("benchmark", "x", "OLD", "OLD"), "two snapshots at least"),
        ((*RUN, "--runs", "x", "--device", "gpu"), "did you mean 'cuda'"),
        ((*RUN, "--runs", "x", "--set", "generate=foo"), "no axis 'foo'"),
        ((*RUN, "--runs", "x", "--editor", "rome", "--set", "layer=abc"), "must be a whole number"),
        ((*RUN, "--runs", "x", "--name", "../../evil"), "give a plain name"),
        ((*RUN, "--runs", "x", "--model", "DAMAGED"), "its weights are damaged"),
        (("train", "tiny", "-o", "x", "--set", "device=gpu"), "did you mean 'cuda'"),
        (("score", SAMPLES / "benchmark", "--set", "device=gpu"), "did you mean 'cuda'"),
        (("score", SAMPLES / "benchmark", "--protocol", "foo"), "no protocol 'foo'"),
        (("demo", "x", "--editors", "foo"), "no editor 'foo'"),
        (("demo", "x", "--entities", "5"), "at least 500 entities"),
        (("compare", "x"), "no runs in x"),
        (("status", "x"), "no such folder"),
        ((*RUN, "--set", "ask.smaple=3"), "did you mean 'ask.sample'?"),
        ((*RUN, "--config", "none.json"), "none.json"),
    ],
)
def test_a_wrong_word_gives_one_line_and_writes_nothing(command, two_dumps, tmp_path, words, message):
    if "DAMAGED" in words:
        shutil.copytree(SAMPLES / "wbe-tiny", tmp_path / "DAMAGED")
        weights = tmp_path / "DAMAGED" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:100_000])
    names = dict(OLD=two_dumps[0], NEW=two_dumps[1], DAMAGED=tmp_path / "DAMAGED")
    code, out, err = command(*(names.get(w, w) for w in words))
    last = [line for line in err.splitlines() if not line.startswith("· ")]
    assert code == 1 and out == ""
    assert len(last) == 1 and last[0].startswith("wbe: ") and message in last[0]
    assert [p for p in (tmp_path / "here").rglob("*") if p.is_file()] == []
    assert not (tmp_path / "evil").exists() and not (tmp_path.parent / "evil").exists()


def test_no_facts_are_one_line(command, two_dumps, tmp_path):
    code, out, err = command(
        *("benchmark", "x", *two_dumps, "--until", "facts", "--language", "xx-nope"),
        *("--set", "fallback=yy", "--set", "workers=1"),
    )
    assert code == 1 and err.splitlines()[-1].startswith("wbe: no facts are left: ") and "--language" in err
    shutil.copy(two_dumps[0], "wikidata-20240901-all.json.gz")
    code, out, err = command("benchmark", "y", two_dumps[0], "wikidata-20240901-all.json.gz")
    assert code == 1 and "the two dumps hold the same facts" in err.splitlines()[-1]
    assert "Traceback" not in err and not (tmp_path / "here" / "y" / "release").exists()


def test_a_bad_row_of_a_release_stops_no_run(command, tmp_path):
    "It is set aside, counted and shown; `validate` reports it."
    name = "wiki_big_edit_20240201_20240220.json"
    rows = json.loads((SAMPLES / "benchmark" / name).read_text())[:5]
    rows[1]["ans"], rows[3]["update"] = None, None
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / name).write_text(json.dumps(rows, indent=1))
    code, out, err = command("validate", tmp_path / "bad")
    assert code == 1 and "row 1, ans: empty field" in out and "row 3, update: empty field" in out
    shown = "2 of 5 rows of bad were skipped (field 'ans' is empty: 1, field 'update' is empty: 1)"
    run = ("run", tmp_path / "bad", "--editor", "none", "--runs", "runs", "--axes", "update")
    for words in (run, ("compare", "runs")):
        code, out, err = command(*words)
        assert code == 0 and shown in " ".join(out.split()), err


# Tables for people and for programs.


def test_tables_fit_80_columns_and_lose_nothing(command, two_dumps):
    world = two_dumps[0].parents[1]
    commands = [("compare", SAMPLES / "runs"), ("status", SAMPLES / "runs"), ("editors",), ("status", world)]
    said = []
    for words in [*commands, *(("compare", SAMPLES / "runs" / a, SAMPLES / "runs" / "none") for a in ("rome", "rag"))]:
        code, out, err = command(*words)
        assert code == 0, err
        assert max(map(len, out.splitlines())) <= 80, words
        assert "…" not in out
        said.append(out)
    names = [p.name for p in (SAMPLES / "runs").iterdir() if (p / "config.json").exists()]
    assert len(names) > 10 and all(said[0].count(f"\n{name} ") >= 3 for name in names)


def test_every_help_fits_80_columns():
    from typer.main import get_command

    from wbe.cli.main import app

    def walk(group, *before):
        for name, one in group.commands.items():
            yield from walk(one, *before, name) if hasattr(one, "commands") else [(*before, name)]

    names = list(walk(get_command(app)))
    assert len(get_command(app).commands) <= 20 and len(names) > 20
    for name in names:
        result = CliRunner().invoke(app, [*name, "--help"], env=dict(COLUMNS="80", NO_COLOR="1"))
        assert result.exit_code == 0 and "For example:" in result.output, name
        assert max(map(len, result.output.splitlines())) <= 80, name
        assert "<bool>" not in result.output, name


@pytest.mark.parametrize(
    "old, new",
    [
        ("build OLD NEW -o t1 --roles --views a --views b", "benchmark t1 OLD NEW --until=facts --set=roles=true"),
        ("parse a.json.gz parsed --force", "benchmark parsed a.json.gz --until=parsed --set=force=true"),
        ("run -b B -e rag --ask 9 --axis update --say update --norms", "run B -e rag --limit=9 --axes=update"),
        ("run --benchmark B --under chat --eval-every 5 --no-norms", "run B --protocol=chat --set=every=5"),
        ("mquake c.json -e graph -k 1,2 --cot", "run c.json -e graph --set=mquake.k=1,2 --set=cot=true"),
        ("wikifactdiff u -e ft -n 5 -o runs/w", "run u --set=editors=ft --set=wikifactdiff.n=5 --runs=runs --name=w"),
        ("train-tiny tiny --quick --from wbe-tiny", "train tiny --output=tiny --set=quick=true --set=start=wbe-tiny"),
        ("train-mend m -o f --steps 3 --set lr=1", "train mend --model=m -o f --set=steps=3 --set lr=1"),
        ("runs x --csv -", "status x --table=csv:-"),
        ("evolve m --least 60 --no-articles", "data evolve m --set=least=60 --set=articles=false"),
        ("judge r --sample 3 --axis update", "judge r --limit=3 --set=axes=update"),
        ("report r --counts c --ask", "report r --set=corpus=c --set=ask=true"),
    ],
)
def test_words_of_earlier_versions_are_read(old, new):
    from typer.main import get_command

    from wbe.cli.app import _todays_words
    from wbe.cli.main import app

    got = _todays_words(get_command(app), old.split())
    assert [w for w in new.split() if w not in got] == [] and got[0] == new.split()[0]
    name = got[:2] if got[0] == "data" else got[:1]
    command = get_command(app)
    for word in name:
        command = command.commands[word]
    command.make_context(name[-1], got[len(name) :])  # every word is known


def test_what_a_report_is_asked_for_reaches_it(command, monkeypatch):
    "An option of today is read as it stands, also where an earlier version had one of this name."
    from wbe.analysis import report

    given, signature = {}, inspect.signature(report.make_report)

    @functools.wraps(report.make_report)
    def make_report(*values, **options):
        given.update(signature.bind(*values, **options).arguments)
        return given["out"]

    monkeypatch.setattr(report, "make_report", make_report)
    code, out, err = command("report", "runs", "--files", "figures", "--set", "audits=20240220", "--set", "ask=yes")
    assert code == 0 and "in today's words" not in err, err
    assert (given["folder"], given["audits"], given["ask"]) == (Path("figures"), [Path("20240220")], True)


def test_no_run_counts_twice_in_a_comparison(command, tmp_path):
    folders = [SAMPLES / "runs" / name for name in ("none", "rome", "rag")]
    once, twice = (command("compare", *some, "--table", "json") for some in (folders, [*folders, folders[1]]))
    assert twice == once and once[0] == 0
    shutil.copytree(folders[1], tmp_path / "other" / "rome")
    code, out, err = command("compare", *folders, tmp_path / "other")
    assert code == 1 and err.splitlines()[-1].endswith("two runs named rome; rename one of these folders")


def test_a_run_that_has_just_begun_stops_no_comparison(command, tmp_path):
    config = json.loads((SAMPLES / "runs" / "rome" / "config.json").read_text())
    (begun := tmp_path / "begun").mkdir()
    (begun / "config.json").write_text(json.dumps(config | dict(protocol="zero-shot@1")))
    code, out, err = command("compare", SAMPLES / "runs" / "none", begun)
    assert code == 0 and "update: just edited" in " ".join(out.split()) and "begun: left out; no question" in err
    code, out, err = command("compare", begun)
    assert code == 1 and "none of the runs has asked anything yet" in err


def test_numbers_for_programs_are_those_of_the_library(command, tmp_path):
    from wbe.runs.records import compare_runs, load_runs

    folders = [SAMPLES / "runs" / name for name in ("none", "rome", "rag")]
    want = compare_runs([r for f in folders for r in load_runs(f)], "normalised_match")  # all their answers are texts
    code, out, err = command("compare", *folders, "--table", "json", "--table", "table.csv")
    rows = json.loads(out)["runs"]
    table = pd.read_csv("table.csv", index_col="run")
    assert [r["run"] for r in rows] == list(want.index) == list(table.index)
    how = [[r[c] for c in ("model", "benchmark", "protocol", "measure", "decoding")] for r in rows]
    assert how == [["wbe-tiny", "benchmark", "paper@1", "normalised_match", "greedy"]] * 3  # beside every number
    for (axis, moment), column in want.items():
        if column.notna().any():
            name = f"{axis}: {moment}"
            got = [r[name] for r in rows]
            assert [None if x != x else x for x in column] == got
            np.testing.assert_array_equal(table[name], column)


@pytest.mark.parametrize(
    "words, name, columns",
    [
        (("status", SAMPLES / "runs"), "runs", {"run", "schedule", "editor", "recorded", "state"}),
        (("editors",), "editors", {"editor", "what it does", "paper"}),
        (("status", "WORLD"), "stages", {"stage", "folder", "bytes", "state"}),
        (("validate", SAMPLES / "benchmark"), "findings", None),
        (("compare", SAMPLES / "runs" / "none", SAMPLES / "runs" / "rome"), "runs", {"run", "update: just edited"}),
    ],
)
def test_json_and_csv_hold_the_same(command, two_dumps, words, name, columns):
    words = [two_dumps[0].parents[1] if w == "WORLD" else w for w in words]
    code, out, err = command(*words, "--table", "json")
    assert code == 0, err
    rows = json.loads(out)[name]
    code, text, err = command(*words, "--table", "csv")
    assert len(list(csv.DictReader(io.StringIO(text)))) == len(rows)
    if columns:
        assert rows and columns <= set(rows[0])


# The demo, repeated.


def test_a_repeated_demo_says_at_once_what_there_is(demo):
    folder, _, printed = demo
    words = ("demo", *SMALL_DEMO, "--editors", "rag")
    stamps = {p: p.stat().st_mtime_ns for p in (folder / "wbe-demo").rglob("*") if p.is_file()}
    code = (
        "import sys, time; start = time.process_time(); from wbe.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = [m for m in ('torch', 'pandas', 'duckdb', 'matplotlib') if m in sys.modules]\n"
        "print(heavy, time.process_time() - start)"
    )
    again = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=folder)
    *lines, last = again.stdout.strip().splitlines()
    heavy, seconds = last.rsplit(" ", 1)
    assert heavy == "[]" and float(seconds) < 2, last
    assert "holds the demo already" in lines[0] and "nanobind" not in again.stderr
    assert len(lines) > 8 and set(lines[-8:]) <= {line.rstrip() for line in printed.splitlines()}
    assert stamps == {p: p.stat().st_mtime_ns for p in (folder / "wbe-demo").rglob("*") if p.is_file()}
