"""`leasehold queue`: list, pause, resume."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.cli.command import leasehold

from leasehold import Router
from leasehold.cli.app import run


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with two jobs in one queue and one in another."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Router(url) as router:
        router.add_many([{"id": "a", "queue": "mail"}, {"id": "b", "queue": "mail"}, {"id": "c", "queue": "imports"}])
        assert router.claim("worker-0", queues=["mail"]) is not None
    return url


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command prints; it must succeed."""
    assert run(["queue", *arguments]) == 0
    return capsys.readouterr().out


def test_a_queue_is_paused_listed_and_resumed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each says who paused it, when and why."""
    when = r"paused by ann at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    assert said(capsys, "list", url).splitlines() == [
        "queue imports: 1 pending, 0 running",
        "queue mail: 1 pending, 1 running",
    ]
    paused = said(capsys, "pause", url, "mail", "--by", "ann", "--note", "the relay is down")
    assert re.fullmatch(rf"queue mail, {when}: the relay is down\n", paused)
    assert re.fullmatch(rf"queue empty, {when}\n", said(capsys, "pause", url, "empty", "--by", "ann"))
    listed = said(capsys, "list", url).splitlines()
    assert re.fullmatch(rf"queue empty: 0 pending, 0 running, {when}", listed[0])
    assert re.fullmatch(rf"queue mail: 1 pending, 1 running, {when}: the relay is down", listed[2])
    with Router(url) as router:
        assert router.claim("worker-1", queues=["mail"]) is None

    assert said(capsys, "resume", url, "mail", "--by", "bob") == "queue mail: not paused\n"

    with Router(url) as router:
        assert router.claim("worker-1", queues=["mail"]) is not None
        assert [event.facts["by"] for event in router.events(kind="resumed")] == ["bob"]


def test_a_list_says_which_tasks_no_worker_knew(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A slip in a task's name shows here: its jobs wait for a worker that never comes."""
    with Router(url) as router:
        router.add("d", queue="imports", task="imprt")
        assert router.store.claim("worker-0", limit=10, queues=["imports"], tasks=["import"]) == []

    line = (
        "queue imports: 2 pending, 0 running, 1 without a task, which workers do not take, 1 parked behind task 'imprt'"
    )
    assert line in said(capsys, "list", url)
    [imports, _] = json.loads(said(capsys, "list", url, "--json"))["queues"]
    assert imports["parked"] == {"": 1, "imprt": 1}


def test_programs_read_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same facts in each answer."""
    paused = json.loads(said(capsys, "pause", url, "mail", "--by", "ann", "--note", "why", "--json"))
    assert (paused["name"], paused["paused"], paused["paused_by"], paused["paused_note"]) == (
        "mail",
        True,
        "ann",
        "why",
    )
    listed = json.loads(said(capsys, "list", url, "--json"))
    assert listed["url"] == url
    facts = {key: paused[key] for key in paused if key != "url"}
    assert listed["queues"][1] == facts | {"pending": 1, "running": 1, "parked": {}}
    resumed = json.loads(said(capsys, "resume", url, "mail", "--by", "ann", "--json"))
    assert (resumed["paused"], resumed["paused_at"]) == (False, None)


def test_an_empty_store_has_no_queues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sentence instead of nothing."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Router(url) as router:
        router.counts()

    assert said(capsys, "list", url) == "No queue is paused or has unfinished jobs.\n"


def test_who_acts_must_be_named_and_the_store_must_be_there(url: str, tmp_path: Path) -> None:
    """A usage error, and an error of the store; neither makes a file."""
    nameless = leasehold("queue", "pause", url, "mail")
    assert (nameless.returncode, "--by" in nameless.stderr) == (2, True)
    missing = leasehold("queue", "pause", f"sqlite:///{tmp_path / 'none.db'}", "mail", "--by", "ann")
    assert (missing.returncode, "does not exist" in missing.stderr) == (1, True)
    assert not (tmp_path / "none.db").exists()
