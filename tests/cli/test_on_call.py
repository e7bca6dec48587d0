"""What an operator on call reads and types: words that are nearly right, narrow terminals, and what happened when."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
from tests.cli.test_conventions import Terminal, commands
from tests.cli.test_operating import answer, called, url

from leasehold import Retry, Router, StaleEpoch
from leasehold.cli.app import app, run
from leasehold.cli.help import SETTINGS
from leasehold.cli.jobs import when
from leasehold.cli.output import Output, clock_times
from leasehold.core.workers import WorkerReport
from leasehold.views import Views

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
            "requeue takes only running jobs; for failed jobs, use: leasehold replay --status failed",
        ),
        (
            "requeue --status pending",
            "requeue takes only running jobs; pending jobs are already waiting to be claimed.",
        ),
        ("replay --status pending", "replay takes only finished jobs (done, failed or cancelled); pending jobs"),
        ("replay --status running", "; for running jobs, use: leasehold requeue --status running"),
        ("cancel --status done", "cancel takes only pending or running jobs; done jobs have already ended."),
        ("jobs failed", "jobs takes options only, not 'failed'. Did you mean --status failed?"),
        ("jobs invoice-42", "Did you mean `leasehold show invoice-42`?"),
    ],
)
def test_a_status_that_a_verb_does_not_take_is_answered_with_the_command_that_does(
    url: str, capsys: pytest.CaptureFixture[str], call: str, hint: str
) -> None:
    """A bare "No job matches." would leave the reader with the wrong verb."""
    code, out, err = called(capsys, *call.split())

    assert (code, out) == (2, "")
    assert hint in " ".join(err.split())


# Narrow terminals

IDS = [f"0003adb9-28d3-f1d2-fd55-c9d1e696554{number}" for number in range(3)]
OLD, NEW = "sync-a:7355:6cfb7c8a", "sync-b:7522:3a4ef2a2"


@pytest.fixture
def narrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with long ids, owners and notes, on a terminal with 80 columns."""
    url = f"sqlite:///{tmp_path / 'narrow.db'}"
    monkeypatch.setenv("LEASEHOLD_STORE", url)
    monkeypatch.setenv("COLUMNS", "80")
    with Router(url) as router:

        @router.task(queue="invoices", retry=Retry(max_errors=1))
        def render_invoice(number: int) -> None:
            raise KeyError("tax_rate")

        for number, job_id in enumerate(IDS[:2]):
            render_invoice.options(id=job_id).add(number)
        router.drain()
        router.add(IDS[2], task="newsletter", queue="newsletters")
        lease = router.claim(OLD, process=None)
        assert lease is not None
        router.transfer(IDS[2], to=NEW, epoch=lease.epoch, by="ann", note="the disk of sync-a hangs")
        with pytest.raises(StaleEpoch):
            lease.renew()
        router.pause("newsletters", by="ann", note="the relay is down, and the vendor answers tomorrow")
        router.store.report(WorkerReport(NEW, "sync-b", None, ("invoices", "newsletters"), ("send",), 1, 0, 0))
    return url


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (("jobs",), [*IDS, "render_invoice", "newsletters", f"    owner {NEW}", "    KeyError: 'tax_rate'"]),
        (("jobs", "--status", "failed"), [*IDS[:2], "render_invoice", "invoices", "ago", "KeyError: 'tax_rate'"]),
        (("replay", "--status", "failed"), [*IDS[:2], "render_invoice", "invoices", "KeyError: 'tax_rate'"]),
        (("queues",), ["newsletters", "by ann, ", "vendor", "tomorrow"]),
        (("events",), [*IDS, "transferred", "refused"]),
        (("workers",), [NEW, "invoices", "SEEN", "PROGRESSED"]),
        (("history", IDS[2]), [OLD, NEW, "ended by"]),
    ],
)
def test_a_narrow_terminal_leaves_columns_out_and_cuts_no_name(
    narrow: str, capsys: pytest.CaptureFixture[str], call: tuple[str, ...], names: list[str]
) -> None:
    """What tells one job from another is whole; the epoch and the number of errors go first."""
    code, out, _ = called(capsys, *call)

    assert code == 0
    assert max(map(len, out.splitlines())) <= 80, out
    assert [name for name in names if name not in out] == []
    assert "ERRORS" not in out


def test_a_wide_terminal_has_all_columns(
    narrow: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class of an error is before its message; a chosen field has the message alone, as JSON has."""
    monkeypatch.setenv("COLUMNS", "200")

    _, out, _ = called(capsys, "jobs")

    assert out.splitlines()[0].split() == [
        *("ID", "STATUS", "TASK", "QUEUE", "EPOCH"),
        *("OWNER", "ERRORS", "UPDATED", "ERROR"),
    ]
    assert "KeyError: 'tax_rate'" in out
    assert "KeyError" not in called(capsys, "jobs", "--fields", "error")[1]


def test_a_sentence_fits_a_terminal_and_is_one_line_in_a_pipe(narrow: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A line that ends in the middle of a word is hard to read; a script reads whole lines."""
    for call in (("explain", IDS[0]), ("show", IDS[0])):
        terminal = Terminal(*call, columns=60)
        assert terminal.end() == 0
        lines = terminal.shown.replace("\r", "").splitlines()
        explained = [line for line in lines if "tax_rate" in line or "failed" in line]
        assert max(map(len, explained)) <= 60, lines
    assert len(called(capsys, "explain", IDS[0])[1].splitlines()) == 1


def test_help_fits_eighty_columns() -> None:
    """Examples too: they are what is copied."""
    wide = []
    settings: dict[str, Any] = {**SETTINGS, "terminal_width": 80}
    for name, command in {"": app, **commands()}.items():
        with click.Context(command, info_name=f"leasehold {name}".strip(), **settings) as context:
            wide += [line for line in command.get_help(context).splitlines() if len(line) > 80]

    assert wide == []


# What happened when


def test_a_history_has_clock_times_durations_and_refusals_as_sentences(
    narrow: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ages alone, all of them "2 min ago", would hide the order; the date is there unless all of it was today."""
    monkeypatch.setenv("COLUMNS", "200")
    with Router(narrow) as router:
        rows = Views(router).history(IDS[2])
    first, second = (row["epoch"] for row in rows if row["kind"] == "ownership")

    _, out, _ = called(capsys, "history", IDS[2], "--utc")

    time = r"\d\d:\d\d:\d\d"
    held, holds, refused = (line for line in out.splitlines()[1:] if "transferred" not in line)
    assert out.startswith("WHEN +00:00 ")
    assert re.match(rf"(\d+-\d\d-\d\d )?{time}–{time} \([^)]+\) +ownership +{first}", held)
    assert re.match(rf"(\d+-\d\d-\d\d )?{time}– \([^)]+ so far\) +ownership +{second}", holds)
    tails = [f"…\\d*{str(epoch)[-3:]}" for epoch in (first, second)]
    assert re.search(rf"refused: renew by {OLD} with epoch {tails[0]}; the current epoch was {tails[1]}$", refused)


def test_a_duration_is_between_two_clock_times(capsys: pytest.CaptureFixture[str]) -> None:
    """As long as the ownership lasted, with the dates where they are needed."""
    began, ended = "2026-11-17T23:04:28+00:00", "2026-11-17T23:06:01+00:00"
    _, times = clock_times([began, ended], Output(False, False, utc=True))
    row = {"kind": "ownership", "at": began, "ended_at": ended}
    assert when(row, times) == "2026-11-17 23:04:28–23:06:01 (1 min 33 s)"
    row["ended_at"] = "2026-11-18T01:04:28+00:00"
    _, times = clock_times([began, row["ended_at"]], Output(False, False, utc=True))
    assert when(row, times) == "2026-11-17 23:04:28–2026-11-18 01:04:28 (2 h)"


# How many of what


def test_a_preview_counts_by_task(narrow: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Three jobs of another task among thousands are seen before they are cancelled."""
    with Router(narrow) as router:
        router.add_many(
            [{"task": "newsletter", "queue": "mail"}] * 12 + [{"task": "password_reset", "queue": "mail"}] * 3
        )
        router.add("plain", queue="mail")

    _, _, err = called(capsys, "cancel", "--queue", "mail")

    assert "16 jobs match: newsletter 12, password_reset 3, (no task) 1. The first 10 are above." in err
    assert answer(capsys, "cancel", "--queue", "mail")["tasks"] == {
        "newsletter": 12,
        "password_reset": 3,
        "(no task)": 1,
    }


def test_jobs_are_counted_by_what_they_have_in_common(
    narrow: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The most first; what was not looked at is announced."""
    assert answer(capsys, "jobs", "--count-by", "error_type") == {
        "complete": True,
        "cursor": None,
        "rows": [{"error_type": "KeyError", "jobs": 2}, {"error_type": None, "jobs": 1}],
    }
    assert called(capsys, "jobs", "--status", "running", "--count-by", "queue")[1].split() == [
        *("QUEUE", "JOBS", "newsletters", "1")
    ]
    monkeypatch.setattr("leasehold.views.LOOKS_AT", 2)
    monkeypatch.setattr("leasehold.views._AT_ONCE", 1)
    code, out, err = called(capsys, "jobs", "--count-by", "status")
    assert (code, out.split()) == (0, ["STATUS", "JOBS", "running", "1", "failed", "1"])
    rest = answer(capsys, "jobs", "--count-by", "status", "--cursor", err.split("--cursor ")[1].strip(")\n"))
    assert rest["rows"] == [{"status": "failed", "jobs": 1}]
