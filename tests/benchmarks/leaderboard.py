"""Adds measured lines to LEADERBOARD.md; the scripts that take `--append` call it."""

import platform
import subprocess
import time
from pathlib import Path

FILE = Path(__file__).with_name("LEADERBOARD.md")


def conditions() -> dict:
    "The date, the commit that is checked out (with a + where files differ from it), and the machine."
    git = lambda *words: subprocess.run(["git", *words], cwd=FILE.parents[2], capture_output=True, text=True)
    commit = git("rev-parse", "--short", "HEAD").stdout.strip() or "?"
    commit += "+" * git("diff", "--quiet", "HEAD", "--", ":!tests/benchmarks/LEADERBOARD.md").returncode
    model = [line.split(":")[1].strip() for line in _cpu_lines() if line.startswith("model name")]
    machine = f"{len(model)} × {model[0].replace('(R)', '')}" if model else platform.processor()
    return dict(date=time.strftime("%Y-%m-%d"), commit=commit, machine=machine)


def _cpu_lines() -> list[str]:
    file = Path("/proc/cpuinfo")
    return file.read_text().splitlines() if file.exists() else []


def shown(value) -> str:
    "A number with three digits; nothing as a dash."
    if value is None or value != value:
        return "–"
    return str(value) if not isinstance(value, float) else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def append(heading: str, rows: list[dict], file: Path = FILE) -> None:
    "Add rows at the end of the table under a heading, in the order of its columns."
    lines = file.read_text(encoding="utf-8").splitlines()
    start = lines.index(f"## {heading}")
    head = next(i for i in range(start, len(lines)) if lines[i].startswith("|"))
    end = next((i for i in range(head, len(lines)) if not lines[i].startswith("|")), len(lines))
    columns = [name.strip() for name in lines[head].strip("|").split("|")]
    about = conditions()
    lines[end:end] = ["| " + " | ".join(shown((about | row).get(c)) for c in columns) + " |" for row in rows]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
