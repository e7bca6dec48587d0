"""`leasehold queues` and `leasehold workers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support import until

from leasehold import Router
from leasehold.cli.app import run
from leasehold.store import Renewal


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with two jobs in one queue and one in another, named by the environment."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.setenv("LEASEHOLD_STORE", url)
    monkeypatch.setenv("COLUMNS", "300")
    with Router(url) as router:
        router.add_many([{"id": "a", "queue": "mail"}, {"id": "b", "queue": "mail"}, {"id": "c", "queue": "imports"}])
        assert router.claim("worker-0", queues=["mail"]) is not None
    return url


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command prints; it must succeed."""
    assert run(arguments) == 0
    return capsys.readouterr().out


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """The rows that the command prints as JSON."""
    found: list[dict[str, Any]] = json.loads(printed(capsys, *arguments, "--json"))["rows"]
    return found


def test_the_store_may_be_named_before_and_after_the_verb(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with every other command; what stands after the verb counts."""
    monkeypatch.delenv("LEASEHOLD_STORE", raising=False)
    for call in (("pause", "mail", "--store", url), ("--store", url, "resume", "mail")):
        assert run(("queues", *call)) == 0
    assert run(("queues", "--store", "sqlite:///nowhere.db", "pause", "mail", "--store", url, "--json")) == 0
    assert run(("queues", "pause", "mail")) == 2
    with Router(url) as router:
        assert [queue.paused for queue in router.queues() if queue.name == "mail"] == [True]


def test_a_queue_is_paused_listed_and_resumed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The list says who paused it, when and why."""
    assert [(row["name"], row["pending"], row["running"]) for row in rows(capsys, "queues")] == [
        ("imports", 1, 0),
        ("mail", 1, 1),
    ]
    assert printed(capsys, "queues", "pause", "mail", "--as", "ann", "--note", "the relay is down") == (
        "queue 'mail' is paused\n"
    )
    assert run(("queues", "pause", "empty")) == 0
    hint = "the queue 'empty' has no waiting or recent jobs, and no worker names it: check the spelling\n"
    assert capsys.readouterr() == ("queue 'empty' is paused\n", hint)
    empty, _, mail = rows(capsys, "queues")
    assert (empty["name"], empty["paused"]) == ("empty", True)
    assert (mail["paused_by"], mail["paused_note"]) == ("ann", "the relay is down")
    assert "the relay is down" in printed(capsys, "queues")
    with Router(url) as router:
        assert router.claim("worker-1", queues=["mail"]) is None

    assert printed(capsys, "queues", "resume", "mail", "--as", "bob") == "queue 'mail' is resumed\n"

    with Router(url) as router:
        assert router.claim("worker-1", queues=["mail"]) is not None
        assert [event.facts["by"] for event in router.events(kind="resumed")] == ["bob"]


def test_a_list_says_since_when_jobs_wait_and_how_fast_they_come_and_go(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job that was added first and is due later does not hide the one that waits."""
    with Router(url) as router:
        router.add("later", queue="reports", delay_seconds=3600)
        router.add("due", queue="reports")
        due = router.job("due").run_at.isoformat()
        for lease in router.claim_many("worker-0", queues=["imports"]):
            lease.complete()

    imports, _, reports = rows(capsys, "queues")

    assert (reports["name"], reports["oldest_pending_at"]) == ("reports", due)
    assert (reports["added_per_minute"], reports["finished_per_minute"]) == (0.4, 0)
    assert (imports["pending"], imports["oldest_pending_at"], imports["finished_per_minute"]) == (0, None, 0.2)


def test_a_list_says_which_tasks_no_worker_knew(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A slip in a task's name shows here: its jobs wait for a worker that never comes."""
    with Router(url) as router:
        router.add("d", queue="imports", task="imprt")
        assert router.store.claim("worker-0", limit=10, queues=["imports"], tasks=["import"]) == []

    imports, _ = rows(capsys, "queues")

    assert imports["parked"] == {"": 1, "imprt": 1}


def test_workers_show_their_last_report_beside_their_last_progress(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker that reports and whose work does not move is seen at one glance."""
    with Router(url) as router:

        @router.task
        def nothing() -> None: ...

        with router.worker(concurrency=2, name="shop") as worker:
            until(router.workers, "the worker's report")
            router.add("held", queue="held")
            [grant] = router.store.claim(worker.owner, queues=["held"])
            router.store.renew([Renewal("held", grant.epoch)])
            [row] = rows(capsys, "workers")
            held_job = router.job("held")

    assert (row["given_name"], row["alive"], row["concurrency"], row["tasks"]) == ("shop", True, 2, ["nothing"])
    assert row["seen_at"] is not None
    [held] = row["holds"]
    assert held["id"] == "held"
    assert held["progressed_at"] == row["progressed_at"] == held_job.updated_at.isoformat()
    assert held["renewed_at"] == row["renewed_at"] == str(held_job.renewed_at).replace(" ", "T")
    assert held["renewed_at"] > held["progressed_at"]


def test_an_empty_store_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty list is exit code 0; the remark goes to stderr."""
    url = f"sqlite:///{tmp_path / 'none.db'}"
    with Router(url) as router:
        router.counts()
        router.store.advance()

    assert run(["queues", "--store", url]) == 0
    assert capsys.readouterr() == ("", "No queue is paused or has unfinished jobs.\n")
    assert run(["workers", "--store", url]) == 0
    assert capsys.readouterr() == ("", "No worker has reported.\n")


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_the_help_needs_no_store(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is where the reader learns how one is named."""
    monkeypatch.delenv("LEASEHOLD_STORE", raising=False)

    assert f"Usage: leasehold queues {verb}" in printed(capsys, "queues", verb, "--help")

    assert run(("queues", verb, "mail")) == 2
    assert "no store is named" in capsys.readouterr().err
