"""`leasehold demo`: what it shows, when it fails, and how it is interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.cli.command import COMMAND, environment, in_the_foreground, leasehold
from tests.cli.command import run as in_a_process
from tests.patience import PATIENCE_SECONDS

from leasehold import Router
from leasehold.cli.app import run
from leasehold.cli.demo import stage, story
from leasehold.core.job import Progress, Settlement
from leasehold.store import Refusal
from leasehold.stores.memory import MemoryStore, moving

SOON = """
import sys
from leasehold.cli.app import run
from leasehold.cli.demo import stage, story

work = stage.Stage.work
stage.Stage.work = lambda stage, seconds: work(stage, seconds / 5)
story.SHORT_SECONDS /= 5
sys.exit(run(["demo", *sys.argv[1:]]))
"""  # the same story in a fifth of the time


@pytest.fixture(scope="module", params=[SOON, pytest.param("", marks=pytest.mark.soak)], ids=["soon", "as it is"])
def shown(request: pytest.FixtureRequest) -> str:
    """What the demo prints into a pipe."""
    played = in_a_process([sys.executable, "-c", SOON]) if request.param else leasehold("demo")
    assert (played.returncode, played.stderr) == (0, "")
    return played.stdout


def test_the_output_in_a_pipe_is_plain_ascii(shown: str) -> None:
    assert shown.isascii()
    assert "\x1b" not in shown


def test_every_scene_shows_what_it_promises(shown: str) -> None:
    for line in (
        r"job-A +worker-1 +e\+1 +completes it",
        r"job-B +worker-1 +e\+2 +REFUSED complete: current is e\+4 \(worker-2\)",
        r"job-C +no owner +e\+6 +taken from worker-1: lease expired \(timeout\)",
        r"job-D +worker-1 +e\+8 +REFUSED complete: current is e\+10 \(same name\)",
        r"job-E +worker-1 +e\+11 +REFUSED progress: current is e\+13 \(worker-2\)",
        r"job-E +worker-1 +e\+11 +REFUSED add: current is e\+13 \(worker-2\)",
        r"job-F +agent-b +e\+15 +gets it, transferred by supervisor",
        r"job-F +agent-a +e\+14 +REFUSED progress: current is e\+15 \(agent-b\)",
    ):
        assert re.search(line, shown), line


def test_the_timeline_has_a_row_for_every_job_and_a_mark_for_every_refusal(shown: str) -> None:
    rows = [line for line in shown.splitlines() if re.match(r"job-.  \[", line)]

    assert [row[:5] for row in rows] == [f"job-{letter}" for letter in "ABCDEF"]
    assert [row.count("X") for row in rows] == [0, 1, 0, 1, 2, 1]
    assert re.search(r"\[worker-1 e\+2 =+ timeout\]\[worker-2 e\+4 [=X]+ done\]", rows[1])


def test_the_table_says_how_every_job_ended(shown: str) -> None:
    _, _, below = shown.partition("How it ended\n")

    assert [line.split() for line in below.splitlines()[1:7]] == [
        ["job-A", "done", "0", "e+1", "worker-1", "-"],
        ["job-B", "done", "1", "e+4", "worker-2", "1"],
        ["job-C", "done", "1", "e+7", "worker-2", "-"],
        ["job-D", "done", "1", "e+10", "worker-1", "1"],
        ["job-E", "done", "1", "e+13", "worker-2", "2"],
        ["job-F", "done", "1", "e+15", "agent-b", "1"],
    ]


def test_the_last_words_are_the_verdict_and_what_to_try_next(shown: str) -> None:
    assert "\n5 stale writes were refused; none was accepted.\n" in shown
    assert "FAILED" not in shown
    assert shown.endswith("leasehold demo --store sqlite:///demo.db\n")


def test_in_a_file_a_killed_process_is_recovered_and_other_jobs_are_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Router(url) as router:
        router.add("mine", queue="demo")

        played = in_a_process([sys.executable, "-c", SOON, "--store", url])

        assert (played.returncode, played.stderr) == (0, "")
        assert re.search(r"taken from worker-1: process gone \(recovery\)", played.stdout)
        assert re.search(r"job-E +worker-1 +e\+11 +REFUSED transaction: current is e\+13", played.stdout)
        assert "5 stale writes were refused; none was accepted." in played.stdout
        assert router.job("mine").status == "pending"
        assert router.counts()[:5] == (1, 0, 6, 0, 0)
        assert router.store.verify() == []


class ByName:
    """A memory store's `settle` as many routers have it: whoever has the owner's name may complete."""

    def __init__(self) -> None:
        self._settle = MemoryStore.settle

    def __call__(self, store: MemoryStore, settlements: Sequence[Settlement]) -> list[Refusal | None]:
        """Settle, with the current epoch for everybody who bears the current owner's name."""
        return self._settle(store, [self._let_in(store, said) for said in settlements])

    def _let_in(self, store: MemoryStore, said: Settlement) -> Settlement:
        job = store.job(said.job_id)
        [name] = [held.owner for held in store.ownerships(said.job_id) if held.epoch == said.epoch]
        return said._replace(epoch=job.epoch) if job.owner == name else said


@pytest.fixture
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases that expire soon and work that takes no time: the same story, sooner."""
    monkeypatch.setattr(story, "SHORT_SECONDS", 0.05)
    monkeypatch.setattr(stage.Stage, "work", lambda stage, seconds: None)


@pytest.mark.usefixtures("in_a_hurry")
def test_a_store_that_compares_names_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It refuses strangers, and lets the same worker in with the epoch that it lost."""
    by_name = ByName()
    monkeypatch.setattr(MemoryStore, "settle", lambda store, settlements: by_name(store, settlements))

    code = run(["demo", "--plain"])

    shown = capsys.readouterr().out
    failed = [line for line in shown.splitlines() if line.startswith("FAILED")]
    assert code == 1
    assert {line.split()[1] for line in failed} == {"job-D:", "story:"}
    assert any("expected {'owner': 'worker-1', 'epoch': " in line and ", saw {'owner'" in line for line in failed)
    assert "\n4 stale writes were refused; 1 was accepted.\n" in shown


@pytest.mark.usefixtures("in_a_hurry")
def test_a_stale_checkpoint_that_a_store_lets_in_is_counted_as_accepted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No event shows it, since the store takes the writer for the current owner; what it left behind does."""
    progress = MemoryStore.progress

    def unfenced(store: MemoryStore, reports: Sequence[Progress]) -> list[Refusal | None]:
        return progress(store, [report._replace(epoch=store.job(report.job_id).epoch) for report in reports])

    monkeypatch.setattr(MemoryStore, "progress", unfenced)

    code = run(["demo", "--plain"])

    shown = capsys.readouterr().out
    assert code == 1
    assert "\n3 stale writes were refused; 2 were accepted.\n" in shown
    assert "FAILED  job-E: the totals that were kept: expected [42], saw [41]" in shown
    assert "FAILED  job-F: checkpoint of a stale owner: expected None, saw {'draft': 'by agent-a'}" in shown


@pytest.mark.usefixtures("in_a_hurry")
def test_a_store_that_gives_nothing_back_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The story gets stuck at the first job that would have to be taken back, and says so."""
    monkeypatch.setattr(moving, "sweep", lambda state: [])
    monkeypatch.setattr(stage, "PATIENCE_SECONDS", 0.2)

    code = run(["demo", "--plain"])

    shown = capsys.readouterr().out
    assert code == 1
    assert "FAILED  story: how it ended: expected 'every scene played', saw 'worker-2 found nothing to claim" in shown


@pytest.mark.parametrize("scene", ["job-B", "starts as worker-1"])
def test_ctrl_c_ends_the_demo_without_a_trace_of_it(scene: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with in_the_foreground("demo", "--store", url) as played:
        assert played.stdout is not None
        line = next(line for line in played.stdout if scene in line)
        os.killpg(played.pid, signal.SIGINT)  # as a terminal does: everybody in the foreground
        _, said = played.communicate(timeout=PATIENCE_SECONDS)

    assert played.returncode == 130
    assert said.strip() == "leasehold: interrupted"
    with pytest.raises(ProcessLookupError):  # nobody of the group is left
        os.killpg(played.pid, 0)
    assert scene in line
    with Router(url) as router:
        assert router.counts()[:2] == (0, 0)


def test_a_reader_that_goes_away_ends_the_demo_quietly() -> None:
    with subprocess.Popen(
        [*COMMAND, "demo"], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as played:
        assert played.stdout is not None
        assert played.stderr is not None
        played.stdout.readline()
        played.stdout.close()
        said = played.stderr.read()

    assert played.returncode == 1
    assert said == ""


def test_the_demo_of_an_unknown_store_is_a_usage_error() -> None:
    played = leasehold("demo", "--store", "redis://host")

    assert (played.returncode, played.stdout) == (2, "")
    assert "'redis://…' is not the URL of a store" in played.stderr
