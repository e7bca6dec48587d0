"""The pages with figures have those that were kept, and are written by one command."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
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


@pytest.mark.parametrize("path", report.PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_has_the_figures_that_were_kept(path: Path) -> None:
    """`python benchmarks/report.py --render` makes it so."""
    page = path.read_text()

    assert report.BEGIN in page
    assert report.with_figures(page, json.loads(report.RESULTS.read_text()), report.PAGES[path]) == page


def test_every_script_with_figures_has_a_section() -> None:
    """A script that prints JSON is part of the report."""
    scripts = {file.stem for file in (ROOT / "benchmarks").glob("*.py") if "sys.exit(main(" in file.read_text()}

    assert scripts - {"harness", "report"} == set(report.SCRIPTS)


def test_figures_that_were_printed_before_are_kept_with_machine_and_date(tmp_path: Path) -> None:
    """In a copy of the folder, as a program."""
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    other = tmp_path / "docs/explanation/performance.md"
    other.parent.mkdir(parents=True)
    shutil.copy(ROOT / "docs/explanation/performance.md", other)
    (tmp_path / "core.jsonl").write_text(json.dumps(LINE) + "\n" + json.dumps({**LINE, "holds": False}) + "\n")
    (tmp_path / "worker.jsonl").write_text(json.dumps({**LINE, "name": "sqlite: a whole worker"}) + "\n")
    command = [sys.executable, "benchmarks/report.py", "--read", "core=core.jsonl", "--read", "worker=worker.jsonl"]
    subprocess.run(command, cwd=tmp_path, check=True)

    assert "| sqlite: a whole worker | 1,234 |" in other.read_text()
    assert "| sqlite: add |" not in other.read_text()
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
    assert "choose from core, postgres, worker, guards, operators, soak" in ran.stderr
