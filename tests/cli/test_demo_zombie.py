"""`leasehold demo zombie`: real processes, real signals, and an exit code that can be believed."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.cli.command import TOP, leasehold

from leasehold.cli.demo.zombie.play import Screen, Seen, _judge, play


def test_every_late_write_is_refused_and_without_guards_every_one_is_accepted() -> None:
    """In two processes, of which one was stopped and goes on."""
    done = leasehold("demo", "zombie", "--plain")

    assert (done.returncode, done.stderr) == (0, "")
    guarded, bare = done.stdout.split("Without guards\n")
    for name in ("table", "file", "git", "http", "object", "job"):
        assert f"  {name:<6} refused   epoch " in guarded
    assert "the current one is" in guarded
    assert "of bob" in guarded
    assert bare.count("ACCEPTED  it now has: report by alice") == 5
    assert "  job    refused" in bare
    assert "\x1b" not in done.stdout
    assert [line for line in recording() if line not in without_epochs(done.stdout).splitlines()] == []


def without_epochs(text: str) -> str:
    """The text with each epoch replaced: it is another one each time."""
    return re.sub(r"\b\d{16}\b", "EPOCH", text)


def recording() -> list[str]:
    """The lines of this demo that the README shows; it leaves some out."""
    readme = (TOP / "README.md").read_text()
    [block] = re.findall(r"^```\n(With guards\n.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    return [line for line in without_epochs(block).splitlines() if line != "…"]


def test_without_an_object_store_it_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In both acts; the others are shown all the same."""
    monkeypatch.setattr("leasehold.cli.demo.zombie.objects._program", lambda: None)

    level = logging.getLogger("leasehold").level
    assert play(plain=True) == 0
    assert logging.getLogger("leasehold").level == level, "the caller's own logs go on"

    shown = capsys.readouterr().out
    assert shown.count("  object skipped   no object store is installed (pip install") == 2
    assert shown.count("ACCEPTED") == 4


@dataclass
class Act:
    """What a good act has shown, to be spoiled."""

    left: dict[str, str] = field(default_factory=lambda: {"file": "report by bob", "job": "report by bob"})
    refused: dict[str, Any] = field(default_factory=lambda: {"outcome": "refused", "presented": 1, "current": 2})

    def seen(self) -> Seen:
        """The act as the play has seen it."""
        wrote = {name: {"outcome": "written"} for name in self.left}
        return Seen(1, 2, wrote, dict.fromkeys(self.left, self.refused), self.left)


def bare() -> Seen:
    """An act without guards, in which the damage was done."""
    return Act(left={"file": "report by alice", "job": "report by bob"}).seen()


def test_a_good_play_is_believed() -> None:
    """The spoiled ones below differ in one thing each."""
    assert _judge(Screen(plain=True), Act().seen(), bare())


@pytest.mark.parametrize(
    "act",
    [
        Act(refused={"outcome": "written"}),
        Act(refused={}),
        Act(refused={"outcome": "error", "error": "no route"}),
        Act(refused={"outcome": "refused", "presented": 7, "current": 9}),
        Act(refused={"outcome": "refused", "presented": 1, "current": 1}),
        Act(left={"file": "report by alice", "job": "report by bob"}),
    ],
)
def test_a_play_in_which_a_stale_write_passed_is_a_failure(act: Act, capsys: pytest.CaptureFixture[str]) -> None:
    """Or was not refused by the epoch of its successor, or left something behind."""
    assert not _judge(Screen(plain=True), act.seen(), bare())
    assert "FAILED" in capsys.readouterr().out


def test_a_play_without_damage_is_a_failure_too() -> None:
    """It would show nothing."""
    assert not _judge(Screen(plain=True), Act().seen(), Act().seen())
