"""The fixtures, as a project finds them in which leasehold is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import leasehold

TOP = Path(__file__).parents[2]
OTHERS = ("no:cacheprovider", "no:hypothesispytest", "no:xdist", "no:anyio")  # whose start takes longer than the tests

APP = """
from leasehold import Router

router = Router("sqlite:///real.db")

@router.task
def send(to: str) -> str:
    return f"sent to {to}"
"""

TESTS = """
import pathlib
import pytest
import app
from leasehold import StaleEpoch
from leasehold.testing import ManualClock, take_over

real = app.router.store

def test_a_router_is_on_a_fresh_store_with_the_clock(leasehold_override, leasehold_clock):
    assert leasehold_override(app.router) is app.router
    app.send.options(delay_seconds=60).add("ann")
    assert app.router.drain() == []
    leasehold_clock.advance(60)
    assert [job.result for job in app.router.drain()] == ["sent to ann"]

def test_afterwards_the_real_one_is_back():
    assert app.router.store is real
    assert not pathlib.Path("real.db").exists()

def test_another_store_can_be_named(leasehold_override):
    leasehold_override(app.router, "sqlite:///test.db", schema="t1")
    app.send.add("ann")
    assert pathlib.Path("test.db").exists()
    with app.router.override("sqlite:///test.db"):
        assert app.router.snapshot() == {}

def test_the_clock_is_one_per_test(leasehold_clock, leasehold_lease):
    assert isinstance(leasehold_clock, ManualClock)
    lease = leasehold_lease({"to": "ann"}, lease_seconds=5)
    assert lease.payload == {"to": "ann"}
    leasehold_clock.advance(6)
    assert [each.epoch for each in lease.store.reclaim()] == [lease.epoch]

def test_a_lease_can_be_stale(leasehold_lease):
    lease = leasehold_lease()
    take_over(lease)
    with pytest.raises(StaleEpoch):
        lease.complete()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose environment has leasehold's entry point, whatever is installed here."""
    entries = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    installed = tmp_path / "site" / "leasehold_entry-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: leasehold-entry\nVersion: 1\n")
    lines = [f"{name} = {target}" for name, target in entries.items()]
    (installed / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines]) + "\n")
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    return tmp_path


def run(project: Path, *arguments: str) -> str:
    """Run pytest there, as its owner would, and return what it said."""
    path = os.pathsep.join([str(Path(leasehold.__file__).parents[1]), str(project / "site")])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    without = [argument for name in OTHERS for argument in ("-p", name)]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *without, *arguments],
        cwd=project,
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.stdout + ran.stderr


def test_the_fixtures_are_there_and_do_what_they_say(project: Path) -> None:
    """Nothing is imported or configured by the project; warnings are errors."""
    (project / "test_app.py").write_text(TESTS)

    said = run(project)

    assert re.search(r"\b5 passed in", said), said
    assert "warning" not in said


def test_they_explain_themselves_and_can_be_left_out(project: Path) -> None:
    """`pytest --fixtures` shows each with its words; `-p no:leasehold` leaves them out."""
    (project / "test_app.py").write_text(TESTS)

    shown = run(project, "--fixtures")
    without = run(project, "-p", "no:leasehold")

    for name in ("leasehold_clock", "leasehold_override", "leasehold_lease"):
        assert re.search(rf"^{name} -- .*\n    \w+", shown, re.MULTILINE), shown
        assert f"fixture '{name}' not found" in without


def test_the_plugin_brings_no_database_and_no_command_line(project: Path) -> None:
    """A project that has leasehold installed pays for it at every start of pytest."""
    (project / "test_app.py").write_text(
        "import sys\n"
        "heavy = {'sqlite3', 'psycopg', 'sqlalchemy', 'django', 'click', 'rich', 'hypothesis'}\n"
        "def test_nothing_heavy():\n"
        "    assert 'leasehold.testing.plugin' in sys.modules\n"
        "    assert not any(name.startswith('leasehold.testing.store_contract') for name in sys.modules)\n"
        "    assert heavy & set(sys.modules) == set()\n"
    )

    said = run(project)

    assert "1 passed" in said, said
