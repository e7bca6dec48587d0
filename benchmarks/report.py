"""
Runs the benchmarks and writes their figures into benchmarks/README.md, with the machine and the date; those of whole
workers and of guards into docs/explanation/performance.md too.

    python benchmarks/report.py                      every script, in full, for most of an hour; let the machine be idle
    python benchmarks/report.py --quick core         one script, smaller; the figures of the others stay
    python benchmarks/report.py --read core=FILE     figures that `benchmarks/core.py --json` has printed before
    python benchmarks/report.py --render             only write the pages again, from benchmarks/results.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
RESULTS = TOP / "benchmarks" / "results.json"
SCRIPTS = {
    "core": "The memory store and the SQLite store",
    "postgres": "The PostgreSQL store",
    "worker": "Workers beside other job systems",
    "guards": "Guards",
    "operators": "Operators' questions over many jobs",
    "soak": "A PostgreSQL store over ten minutes",
}
PAGES = {
    TOP / "benchmarks" / "README.md": tuple(SCRIPTS),
    TOP / "docs" / "explanation" / "performance.md": ("worker", "guards"),
}
BEGIN = "<!-- written by benchmarks/report.py from benchmarks/results.json: do not edit -->"
END = "<!-- end -->"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is asked for, keep it, and write the pages. Return 1 if a script failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help=f"of {', '.join(SCRIPTS)}; all if none is named")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer rounds; marked as such on the pages")
    parser.add_argument(
        "--read", action="append", default=[], metavar="SCRIPT=FILE", help="measured before; repeatable"
    )
    parser.add_argument("--note", default="", metavar="TEXT", help="what a reader should know, beside the machine")
    parser.add_argument("--render", action="store_true", help="measure nothing")
    options = parser.parse_args(argv)
    read = dict(part.partition("=")[::2] for part in options.read)
    for name in [*options.scripts, *read]:
        if name not in SCRIPTS:
            parser.error(f"there is no script {name!r}; choose from {', '.join(SCRIPTS)}")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, file in read.items():
        results[name] = entry(Path(file).read_text(), quick=options.quick, note=options.note)
    failed = []
    for name in options.scripts or ([] if read or options.render else SCRIPTS):
        command = [sys.executable, f"benchmarks/{name}.py", "--json", *(["--quick"] if options.quick else [])]
        ran = subprocess.run(command, cwd=TOP, stdout=subprocess.PIPE, text=True)
        if ran.returncode:
            print(f"{' '.join(command)} ended with {ran.returncode}; its figures stay as they were", file=sys.stderr)
            failed.append(name)
            continue
        results[name] = entry(ran.stdout, quick=options.quick, note=options.note)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    for page, names in PAGES.items():
        page.write_text(with_figures(page.read_text(), results, names))
    return 1 if failed else 0


def entry(lines: str, *, quick: bool, note: str = "") -> dict[str, Any]:
    """Return the figures of a script, from the lines that it printed, with what they were measured on."""
    rows = [json.loads(line) for line in lines.splitlines() if line.strip()]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"date": today, "machine": machine() + (f"; {note}" if note else ""), "quick": quick, "rows": rows}


def machine() -> str:
    """Return what the figures depend on: processor, cores, system and Python."""
    return f"{_processor()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.machine()


def with_figures(page: str, results: dict[str, Any], names: Sequence[str]) -> str:
    """Return the page with the section between its two marks written anew, from the results of the scripts *names*."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{section(results, names)}\n{END}{after}"


def section(results: dict[str, Any], names: Sequence[str]) -> str:
    """Return the figures as Markdown: a table for each script of *names*."""
    parts = []
    for name in names:
        title = SCRIPTS[name]
        if name not in results:
            parts.append(f"### {title}\n\n`benchmarks/{name}.py` has not been run.\n")
            continue
        found = results[name]
        command = f"python benchmarks/{name}.py{' --quick' if found['quick'] else ''}"
        how = "**a quick run**, which only shows that the rows work" if found["quick"] else "a full run"
        parts.append(
            f"### {title}\n\n`{command}`, {how}, {found['date']}: {found['machine']}.\n\n"
            "| | leasehold | the peer | unit | ratio | goal | | the peer is |\n"
            "|---|---|---|---|---|---|---|---|\n" + "\n".join(map(_line, found["rows"])) + "\n"
        )
    return "\n".join(parts)


def _line(row: dict[str, Any]) -> str:
    unit = row["unit"] + (" (less is better)" if row["better"] == "less" else "")
    cells = (
        row["name"],
        shown(row["ours"]),
        shown(row["theirs"]),
        unit,
        f"{shown(row['ratio'])} ({shown(row['ratio_spread'][0])}–{shown(row['ratio_spread'][1])})",
        f"≥ {shown(row['goal'])}",
        "holds" if row["holds"] else "**missed**",
        row["peer"],
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def shown(value: float) -> str:
    """Return *value* with about three digits, as the tables of the scripts do."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main())
