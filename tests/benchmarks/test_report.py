"""The page of the benchmarks has the figures that were kept, and is written by one command."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks import report

ROOT = Path(__file__).resolve().parents[2]
LINE = {
    "name": "sqlite: add",
    "peer": "by hand | raw",
    "unit": "jobs/s",
    "better": "more",
    "ours": 1234.5,
    "ours_spread": [1000.0, 1300.0],
    "theirs": 2469.0,
    "theirs_spread": [2000.0, 2600.0],
    "ratio": 0.5,
    "ratio_spread": [0.4, 0.6],
    "goal": 0.45,
    "holds": True,
}


def test_the_page_has_the_figures_that_were_kept() -> None:
    """`python benchmarks/report.py --render` makes it so."""
    page = report.PAGE.read_text()

    assert report.with_figures(page, json.loads(report.RESULTS.read_text())) == page


def test_every_script_with_figures_has_a_section() -> None:
    """A script that prints JSON is part of the report."""
    scripts = {file.stem for file in (ROOT / "benchmarks").glob("*.py") if "sys.exit(main(" in file.read_text()}

    assert scripts - {"harness", "report"} == set(report.SCRIPTS)


def test_figures_that_were_printed_before_are_kept_with_machine_and_date(tmp_path: Path) -> None:
    """In a copy of the folder, as a program."""
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "core.jsonl").write_text(json.dumps(LINE) + "\n" + json.dumps({**LINE, "holds": False}) + "\n")
    command = [sys.executable, "benchmarks/report.py", "--read", "core=core.jsonl"]
    subprocess.run(command, cwd=tmp_path, check=True)

    page = (tmp_path / "benchmarks/README.md").read_text()
    row = r"| sqlite: add | 1,234 | 2,469 | jobs/s | 0.50 (0.40–0.60) | ≥ 0.45 | {} | by hand \| raw |"
    assert row.format("holds") in page
    assert row.format("**missed**") in page
    kept = json.loads((tmp_path / "benchmarks/results.json").read_text())["core"]
    assert f"`python benchmarks/core.py`, a full run, {kept['date']}: {kept['machine']}." in page
    assert "cores" in kept["machine"]


def test_a_script_that_does_not_exist_is_refused() -> None:
    """With those that there are."""
    command = [sys.executable, "benchmarks/report.py", "cores"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert ran.returncode == 2
    assert "choose from core, postgres, worker, guards, soak" in ran.stderr
