"""What an operator on call reads and types: words that are nearly right, narrow terminals, and what happened when."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.test_operating import answer, called, url

from leasehold import Router
from leasehold.cli.app import run
from leasehold.core.workers import WorkerReport

__all__ = ["url"]  # the fixture


# What was meant


def test_the_last_page_names_no_further_one(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Even if it is full."""
    for count, call in ((1, ("--id-prefix", "mail-2")), (3, ("--status", "failed")), (5, ())):
        code, out, err = called(capsys, "jobs", *call, "--limit", str(count), "--fields", "id")
        assert (code, len(out.split()) - 1, err) == (0, count, "")
        assert answer(capsys, "jobs", *call, "--limit", str(count))["cursor"] is None


@pytest.mark.parametrize(
    ("call", "row"),
    [
        (("jobs", "--queue", "none"), ("jobs",)),
        (("cancel", "--queue", "none"), ("jobs",)),
        (("events", "--kind", "none"), ("events",)),
        (("queues",), ("queues",)),
        (("workers",), ("workers",)),
        (("history", "never"), ("history", "first")),
    ],
)
def test_a_field_is_refused_though_no_row_could_have_it(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], call: tuple[str, ...], row: tuple[str, ...]
) -> None:
    """With near misses; every field that a row has is taken."""
    run(["cancel", "first", "--epoch", "1"])
    with Router(url) as router:
        router.store.report(WorkerReport("w-1", "w", None, ("mail",), ("send",), 1, 0, 0))
    bare = f"sqlite:///{tmp_path / 'bare.db'}"
    with Router(bare) as router:
        router.store.advance()
        if call[0] == "history":
            router.add("never")
    capsys.readouterr()
    names = dict.fromkeys(name for one in answer(capsys, *row)["rows"] for name in one)

    assert called(capsys, *call, "--store", bare, "--fields", ",".join(names))[0] == 0
    code, out, err = called(capsys, *call, "--store", bare, "--fields", f"{next(iter(names))}x")
    assert (code, out) == (2, "")
    assert f"Did you mean {next(iter(names))}" in " ".join(err.split())


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (
            "requeue --status failed",
            "requeue takes running jobs only; for failed ones: leasehold replay --status failed",
        ),
        ("requeue --status pending", "requeue takes running jobs only; pending ones wait to be claimed already."),
        ("replay --status pending", "replay takes finished jobs (done, failed or cancelled) only; pending ones wait"),
        ("replay --status running", "only; for running ones: leasehold requeue --status running"),
        ("cancel --status done", "cancel takes pending or running jobs only; done ones have ended already."),
        ("jobs failed", "jobs takes options only, not 'failed'. Did you mean --status failed?"),
        ("jobs invoice-42", "Did you mean `leasehold show invoice-42`?"),
    ],
)
def test_a_status_that_a_verb_does_not_take_is_answered_with_the_command_that_does(
    url: str, capsys: pytest.CaptureFixture[str], call: str, hint: str
) -> None:
    """A bare "No job fits." would leave the reader with the wrong verb."""
    code, out, err = called(capsys, *call.split())

    assert (code, out) == (2, "")
    assert hint in " ".join(err.split())
