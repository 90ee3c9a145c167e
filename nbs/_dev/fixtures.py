"""What the package has built once, kept for the notebooks and tests that build the same again.

Sixty notebooks begin with a world, its parsed dumps or a benchmark, made by ordinary calls. While `served` is in force,
a stage of the package (`wbe.store.Stage`) that would be run into a folder where it was not run before is looked up by
its name, parameters and the content of its inputs. A result of that key is copied into the folder, with its manifest,
and the stage is done, as after a second call. Otherwise the stage is run and its files are kept.

What keeps the tests honest:
- A stage that the notebook's own cells define is never looked up, so that the notebook of a stage runs it.
- A key is looked up once in a notebook. Two equal builds in one notebook, of which it compares the files, of two
  engines, or of one and two processes, are two builds.
- A stage that was begun, run or damaged in the folder before is left alone, and so are those of `FRESH` notebooks.
- The folder of results carries a digest of the package's source and of the versions of what it uses. A full test
  begins with an empty folder, so that every result in it was made by that test.
"""

import fcntl
import hashlib
import json
import os
import pickle
import shutil
import sys
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
STORE = ROOT / ".fixtures"
# Notebooks whose stages are always run, and why.
FRESH = {"02_world/": "the tests of the world itself"}
WAIT = 120  # seconds for another process that builds the same


def digest() -> str:
    "A hash of the package's source, its data, and the versions of what it is made with."
    from wbe.store import versions

    h = hashlib.sha256(json.dumps(versions(), sort_keys=True).encode())
    for path in sorted(p for p in (ROOT / "wbe").rglob("*") if p.is_file() and p.suffix in (".py", ".toml", ".json")):
        if path.name != "_modidx.py":
            h.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return h.hexdigest()[:16]


class Results:
    "The results of one state of the package."

    def __init__(self, folder: Path):
        self.folder, self.asked, self.fresh = folder, set(), True
        self.held = None  # the open lock of what this process builds
        self.counts = dict(built=0, served=0)

    def begin(self, path=None):
        "From now on, stages of the notebook or test at `path` are looked up, unless it is one of `FRESH`."
        self.asked.clear()
        self.fresh = path is not None and any(name in str(path) for name in FRESH)

    def release(self):
        if self.held:
            self.held.close()
            self.held = None

    def take(self, key: str):
        "Wait while another process builds what belongs to a key, and say that this one does."
        self.release()
        (self.folder / "locks").mkdir(parents=True, exist_ok=True)
        lock, end = open(self.folder / "locks" / key, "w"), time.monotonic() + WAIT
        while time.monotonic() < end:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.02)
        self.held = lock


def clear():
    "Remove all results."
    shutil.rmtree(STORE, ignore_errors=True)


def key_of(stage) -> str:
    "The key of a stage: its name, its parameters, and the names and content of its inputs, without their folders."
    inputs = [(Path(p).name, d["sha256"]) for p, d in stage.inputs.items()]
    return hashlib.sha256(json.dumps([stage.name, stage.params, inputs], sort_keys=True).encode()).hexdigest()[:32]


def files_in(folder: Path) -> set[str]:
    "The files in a folder and below, without locks and what is half written."
    return {
        str(p.relative_to(folder))
        for p in folder.rglob("*")
        if p.is_file() and not p.name.endswith((".part", ".lock", ".manifest.json")) and p.name != ".spool.json"
    }


def copy_files(names, source: Path, target: Path):
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, target / name)  # with its time: a manifest tells by it that nothing has changed


def is_of_package(frame) -> bool:
    "Whether a stage is made by a module of the package, and not by a cell of the notebook that defines it."
    return str(frame.f_globals.get("__name__", "")).startswith("wbe.")


def was_begun(stage, names) -> bool:
    "Whether something of the stage is in its folder."
    hidden = (".spool.json", f".{stage.name}.replaced.json")
    return stage.manifest is not None or any((stage.folder / n).exists() for n in (*hidden, *names))


def stored_result(results: Results, stage) -> tuple[Path, dict] | None:
    "The folder of a stored result and what is known of it; a world may be a part of a larger one."
    stored = results.folder / key_of(stage)
    if stored.exists():
        return stored, json.loads((stored / "about.json").read_text())
    return larger_world(results, stage) if stage.name == "world" else None


def larger_world(results: Results, stage) -> tuple[Path, dict] | None:
    "A stored world of the same seed and size that has all files of this one: each depends on seed, size and date only."
    from wbe.texts import parse_date
    from wbe.world.files import WorldPlan

    p, choices = stage.params, ("dates", "formats", "articles", "views", "truth")
    dates, formats, *rest = (p[c] for c in choices)
    names = WorldPlan(tuple(map(parse_date, dates)), tuple(formats), *rest).file_names()
    names = [n.replace(".arrows", ".parquet") for n in names]
    same = lambda params: {k: v for k, v in params.items() if k not in choices}
    for path in sorted(p for p in results.folder.glob("*/about.json") if p.parent.suffix != ".part"):
        about = json.loads(path.read_text())
        m = about["manifest"]
        if m["stage"] == "world" and same(m["params"]) == same(p) and {*names} <= {*about["files"]}:
            counts = m["counts"] if p["truth"] else {k: m["counts"][k] for k in ("entities", "newcomers")}
            m |= dict(params=p, counts=counts, outputs={n: m["outputs"][n] for n in names})
            return path.parent, dict(files=names, manifest=m)
    return None


def serve(results: Results, stage) -> bool:
    "Whether the result of a stage was there, and is now in its folder."
    from wbe.store import Manifest, _stored_inputs, write_text

    stored, about = stored_result(results, stage) or (None, None)
    if stored is None or was_begun(stage, about["files"]):
        return False
    copy_files(about["files"], stored / "files", stage.folder)
    inputs = dict(zip(_stored_inputs(stage.inputs, stage.folder), stage.inputs.values()))
    manifest = about["manifest"] | dict(inputs=inputs)
    write_text(stage.path, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    stage.manifest = Manifest.load(stage.path)
    results.counts["served"] += 1
    return True


def keep(results: Results, stage, before: set[str]):
    "Keep what a stage has made."
    from dataclasses import asdict

    stored = results.folder / key_of(stage)
    names = sorted((files_in(stage.folder) - before) | set(stage.manifest.outputs))
    if stored.exists() or any(name.startswith("..") for name in names):
        return
    part = stored.with_name(f"{stored.name}.{os.getpid()}.part")
    (part / "files").mkdir(parents=True)
    copy_files(names, stage.folder, part / "files")
    (part / "about.json").write_text(json.dumps(dict(files=names, manifest=asdict(stage.manifest))))
    try:
        part.rename(stored)
        results.counts["built"] += 1
    except OSError:  # another process was faster
        shutil.rmtree(part)


def install() -> Results:
    "From now on, stages of the package are looked up; `begin` of the results is called for every notebook."
    from wbe.store import Stage

    results = Results(STORE / digest())
    for other in STORE.glob("*"):
        if other != results.folder:
            shutil.rmtree(other, ignore_errors=True)
    plain_init, plain_enter, plain_exit = Stage.__init__, Stage.__enter__, Stage.__exit__
    plain_done, mark = Stage.done.fget, f"_looked_up_{id(results):x}"

    def init(self, *args, **options):
        plain_init(self, *args, **options)
        setattr(self, mark, not results.fresh and is_of_package(sys._getframe(1)))

    def done(self):
        if plain_done(self):
            return True
        if not getattr(self, mark, False) or (key := key_of(self)) in results.asked:
            return False
        results.asked.add(key)
        if serve(results, self):
            return True
        results.take(key)
        return serve(results, self)

    def enter(self):
        plain_enter(self)
        self._before = files_in(self.folder)
        return self

    def leave(self, kind, *error):
        plain_exit(self, kind, *error)
        if kind is None and getattr(self, mark, False):
            keep(results, self, self._before)
        results.release()

    Stage.__init__, Stage.__enter__, Stage.__exit__, Stage.done = init, enter, leave, property(done)
    return results


def is_untouched(lm) -> bool:
    "Whether a model computes what its weights say: no hooks, no memory, no other program."
    plain = lambda m: not (m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m))
    return not (lm.backend or lm.item_hooks or lm.quant) and all(map(plain, lm.model.modules()))


def answers_key(lm, options: dict) -> str:
    "The key of a model's answers: all its weights, its name, and how it is asked."
    how = {k: v for k, v in options.items() if k != "progress"}
    h = hashlib.sha256(json.dumps([str(lm.name), lm.revision, repr(lm.family), how], sort_keys=True).encode())
    h.update(lm.model.config.to_json_string().encode())
    for name, value in lm.model.state_dict().items():
        h.update(f"{name} {value.dtype}".encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return h.hexdigest()[:32]


def share_answers(results: Results):
    """From now on, a benchmark's questions that a notebook has asked an unedited model are not asked it again.

    Several analyses begin with the same answers of the same model. Those of another one are served only if it asked
    all of the questions, of the same weights and in the same way; a notebook itself asks anew what it asks twice.
    """
    from dataclasses import replace

    import pyarrow as pa

    from wbe.lm import scoring

    ask = scoring._score_askable

    def shared(lm, items, options):
        if results.fresh or not isinstance(options["protocol"], str) or not is_untouched(lm):
            return ask(lm, items, options)
        folder = results.folder / "answers" / answers_key(lm, options)
        for path in () if folder.name in results.asked else sorted(folder.glob("*.pickle")):
            scores, reason, at = pickle.loads(path.read_bytes())
            rows = [at.get((x.question, x.answer)) for x in items]
            if None not in rows:
                results.asked.add(folder.name)
                results.counts["served"] += 1
                table = scores.table.take(rows)
                ids = pa.array([x.id for x in items], table.schema.field("id").type)
                table = table.set_column(table.column_names.index("id"), "id", ids)
                return replace(scores, table=table, different=len(set(rows))), [reason] * len(items)
        results.asked.add(folder.name)
        scores, reasons = ask(lm, items, options)
        if not any(reasons):
            folder.mkdir(parents=True, exist_ok=True)
            at = {(x.question, x.answer): i for i, x in enumerate(items)}
            path = folder / f"{os.getpid()}-{len(items)}.pickle"
            path.with_suffix(".part").write_bytes(pickle.dumps((scores, reasons[0], at)))
            path.with_suffix(".part").replace(path)
        return scores, reasons

    scoring._score_askable = shared


def write_large_world():
    "Write the world of the demo once, with all that most notebooks take parts of."
    from tempfile import TemporaryDirectory

    from wbe.world.files import World

    with TemporaryDirectory() as folder:
        World(7, 1500).write(folder, progress=False)


@contextmanager
def served(results: Results):
    "Look up stages within the block only, for a fixture of a test."
    results.begin()
    try:
        yield
    finally:
        results.fresh = True
