"""
What is wrong is refused before anything is changed, and the message says what it got and what would do.

Broken on purpose, in a copy, each of these was found here:
- a newer schema that is used: jobs were added to it;
- SQLite's own errors let through: missing folder, folder, no database, full disk, no permission.

One file, though a long one: it is a list, and a reader looks for one line of it.
"""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.sqlite.processes import end, hear, start

from leasehold import (
    Conflict,
    InvalidArgument,
    Lease,
    LeaseholdError,
    NotInTransaction,
    Retry,
    Router,
    StoreIncompatible,
    StoreUnavailable,
    UnknownJob,
    Unsupported,
)
from leasehold.stores.sqlite import SqliteStore

AnyRouter: Any = Router  # what a type checker would have found is passed on purpose


@pytest.fixture(params=["memory", "sqlite"])
def router(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A store with a finished job, a running one and a pending one."""
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"
    with Router(url) as router:
        router.add_many({"id": name, "priority": -n} for n, name in enumerate(("done", "running", "pending")))
        done = router.claim("worker-0")
        assert done is not None
        done.complete({"n": 1})
        assert router.claim("worker-0") is not None
        yield router


def looks(router: Router) -> object:
    """Everything that a reader can see."""
    jobs = router.snapshot()
    return jobs, [router.ownerships(name) for name in jobs], [router.effects(name) for name in jobs], router.events()


def deep(levels: int) -> object:
    """A list in a list in a list …"""
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


BAD_ADDS: dict[str, tuple[Callable[[Any], object], str]] = {
    "empty id": (lambda r: r.add(""), r"^a job's id must have 1 to 255 characters, and this one has 0\.$"),
    "long id": (
        lambda r: r.add("x" * 256),
        r"^a job's id must have 1 to 255 characters, and this one has 256: 'x{40}'…$",
    ),
    "NUL in id": (lambda r: r.add("a\0b"), r"^a job's id must not contain NUL: 'a\\x00b'\.$"),
    "id of bytes": (lambda r: r.add(b"a"), r"^a job's id must be a string, not b'a' \(bytes\)\.$"),
    "half a character in id": (
        lambda r: r.add("\ud800"),
        r"^a job's id contains half a character .* at position 0, which cannot be stored: remove it\.$",
    ),
    "no JSON": (
        lambda r: r.add("a", {"x": object()}),
        r"^payload cannot be stored as JSON: Object of type object is not JSON serializable\. Got \{'x': <object",
    ),
    "a set": (
        lambda r: r.add("a", {1, 2}),
        r"^payload cannot be stored as JSON: Object of type set is not JSON serializable\. Got \{1, 2\}\.$",
    ),
    "NaN": (
        lambda r: r.add("a", {"x": math.nan}),
        r"^payload cannot be stored as JSON: Out of range float values are not JSON compliant.*\. Got \{'x': nan\}\.$",
    ),
    "infinity": (
        lambda r: r.add("a", [math.inf]),
        r"^payload cannot be stored as JSON: Out of range .* Got \[inf\]\.$",
    ),
    "a number as key": (
        lambda r: r.add("a", {"x": [{1: 2}]}),
        r"^payload has the key 1 \(int\): keys in JSON are strings, so this key would come back as a string\. "
        r"Convert it to a string first\.$",
    ),
    "too large": (
        lambda r: r.add("a", "x" * (1024 * 1024)),
        r"^payload has 1,048,578 bytes as JSON, and the limit is 1,048,576: store it elsewhere and pass its name\.",
    ),
    "too large in UTF-8": (lambda r: r.add("a", "é" * (600 * 1024)), r"^payload has 1,228,802 bytes as JSON"),
    "too deep": (lambda r: r.add("a", deep(100_000)), r"^payload is nested too deeply, or contains itself\.$"),
    "half a character": (
        lambda r: r.add("a", {"x": "\ud800"}),
        r"^payload contains half a character \(a lone surrogate\) at position 6, which cannot be stored: remove it\.$",
    ),
    "zero lease": (lambda r: r.add("a", lease_seconds=0), r"^lease_seconds must be above zero, not 0\.$"),
    "negative lease": (lambda r: r.add("a", lease_seconds=-1), r"^lease_seconds must be above zero, not -1\.$"),
    "endless lease": (
        lambda r: r.add("a", lease_seconds=math.inf),
        r"^lease_seconds must be a finite number of seconds, at most a century, not inf\.$",
    ),
    "lease of NaN": (lambda r: r.add("a", lease_seconds=math.nan), r"^lease_seconds must be a finite .* not nan\.$"),
    "lease in words": (
        lambda r: r.add("a", lease_seconds="30"),
        r"^lease_seconds must be a number of seconds, not '30' \(str\)\.$",
    ),
    "lease of True": (
        lambda r: r.add("a", lease_seconds=True),
        r"^lease_seconds must be a number of seconds, not True \(bool\)\.$",
    ),
    "priority of True": (
        lambda r: r.add("a", priority=True),
        r"^priority must be a whole number, not True \(bool\)\.$",
    ),
    "half a priority": (lambda r: r.add("a", priority=0.5), r"^priority must be a whole number, not 0\.5 \(float\)\.$"),
    "no time zone": (
        lambda r: r.add("a", run_at=datetime(2030, 1, 1)),  # naive on purpose
        r"^run_at must have a time zone, and 2030-01-01T00:00:00 has none: use datetime\.now\(UTC\)",
    ),
    "a date in words": (
        lambda r: r.add("a", run_at="2030-01-01"),
        r"^run_at must be a datetime, not '2030-01-01' \(str\)\.$",
    ),
    "two times": (
        lambda r: r.add("a", delay_seconds=1, run_at=datetime.now().astimezone()),
        r"^a job takes delay_seconds or run_at, not both\.$",
    ),
    "a number as retry": (lambda r: r.add("a", retry=3), r"^retry= must be a Retry\(…\), not 3\.$"),
    "no errors": (
        lambda r: r.add("a", retry=Retry(max_errors=0)),
        r"^max_errors must be from 1 to 1000000, not 0\.$",
    ),
    "one of many": (
        lambda r: r.add_many([{"id": "a"}, {"id": "b", "payload": math.nan}]),
        r"^payload cannot be stored as JSON",
    ),
    "an unknown option": (
        lambda r: r.add_many([{"id": "a", "ques": "mail"}]),
        r"^a job has no 'ques': it takes delay_seconds, id, .*queue",
    ),
    "a string among many": (
        lambda r: r.add_many(["a"]),
        r"^add_many takes mappings with the names of add\(\)'s arguments, or NewJobs, not 'a'\.$",
    ),
}

BAD_CLAIMS: dict[str, tuple[Callable[[Any], object], str]] = {
    "no owner": (lambda r: r.claim(""), r"^owner must have 1 to 255 characters, and this one has 0\.$"),
    "zero": (
        lambda r: r.claim("worker-1", lease_seconds=0),
        r"^lease_seconds must be above zero, not 0\.$",
    ),
    "negative": (lambda r: r.claim("worker-1", lease_seconds=-0.5), r"^lease_seconds must be above zero, not -0\.5\.$"),
    "NaN": (lambda r: r.claim("worker-1", lease_seconds=math.nan), r"^lease_seconds must be a finite .* not nan\.$"),
    "endless": (lambda r: r.claim("worker-1", lease_seconds=math.inf), r"^lease_seconds must be a finite .* not inf"),
    "in words": (
        lambda r: r.claim("worker-1", lease_seconds="30"),
        r"^lease_seconds must be a number of seconds, not '30' \(str\)\.$",
    ),
    "one queue": (
        lambda r: r.claim("worker-1", queues="mail"),
        r"^queues= must be a list of names: write \['mail'\]\.$",
    ),
    "no queue": (lambda r: r.claim("worker-1", queues=[]), r"^queues= is empty, so no job could ever be claimed"),
    "limit 0": (lambda r: r.claim_many("worker-1", limit=0), r"^limit must be from 1 to 10000, not 0\.$"),
    "limit -1": (lambda r: r.claim_many("worker-1", limit=-1), r"^limit must be from 1 to 10000, not -1\.$"),
    "limit in words": (
        lambda r: r.claim_many("worker-1", limit="7"),
        r"^limit must be a whole number, not '7' \(str\)\.$",
    ),
    "too many": (lambda r: r.claim_many("worker-1", limit=10_001), r"^limit must be from 1 to 10000, not 10001\.$"),
    "backwards": (
        lambda r: r.claim("worker-1", wait_seconds=-1),
        r"^wait_seconds must be zero or more, not -1\.$",
    ),
}


def unseen(verb: str, **options: str) -> tuple[Callable[[Any], object], str]:
    """An operator's verb that does not say which epoch was seen."""
    return (
        lambda r: getattr(r, verb)("running", by="ops", **options),
        r"^job 'running' needs an epoch: pass epoch=…, or the Job that router\.job\('running'\) returned\.",
    )


BAD_MOVES: dict[str, tuple[Callable[[Any], object], str]] = {
    "transfer without an epoch": unseen("transfer", to="b"),
    "cancel without an epoch": unseen("cancel"),
    "replay without an epoch": unseen("replay"),
    "requeue without an epoch": unseen("requeue"),
    "complete without an epoch": unseen("complete"),
    "resolve without an epoch": unseen("resolve", name="charge"),
    "epoch of True": (
        lambda r: r.cancel("running", by="ops", epoch=True),
        r"^epoch must be a whole number, not True \(bool\)\.$",
    ),
    "epoch in words": (
        lambda r: r.cancel("running", by="ops", epoch="7"),
        r"^epoch must be a whole number, not '7' \(str\)\.$",
    ),
    "nobody": (lambda r: r.cancel(r.job("running"), by=""), r"^by= must have 1 to 255 characters"),
    "to nobody": (lambda r: r.transfer(r.job("running"), to="", by="ops"), r"^to= must have 1 to 255 characters"),
    "no note": (
        lambda r: r.cancel(r.job("running"), by="ops", note=7),
        r"^note must be a string, not 7 \(int\)\.$",
    ),
    "no JSON": (
        lambda r: r.complete(r.job("running"), by="ops", result=math.nan),
        r"^result cannot be stored as JSON",
    ),
    "no such status": (
        lambda r: r.jobs(status="finished"),
        r"^'finished' is not a status: use one of pending, running, done, failed, cancelled\.$",
    ),
}

FORBIDDEN_MOVES: dict[str, tuple[Callable[[Any], object], str]] = {
    "finished": (
        lambda r: r.cancel(r.job("done"), by="ops"),
        r"^job 'done' is done and cannot be cancelled: it is finished already\.$",
    ),
    "unfinished": (
        lambda r: r.replay(r.job("pending"), by="ops"),
        r"^job 'pending' is pending and cannot be replayed: cancel it first, or let it finish\.$",
    ),
    "not running": (
        lambda r: r.requeue(r.job("pending"), by="ops"),
        r"^job 'pending' is pending and cannot be requeued: only a running job can\.$",
    ),
    "no such effect": (
        lambda r: r.resolve(r.job("running"), "charge", by="ops", outcome=1),
        r"^job 'running' has no record of an effect named 'charge': .* Nothing was changed\.$",
    ),
}


def holding(router: Router) -> Lease:
    """The lease on the running job."""
    return router.lease("running", owner="worker-0")


BAD_WRITES: dict[str, tuple[Callable[[Any], object], str]] = {
    "result": (lambda lease: lease.complete(object()), r"^result cannot be stored as JSON"),
    "then": (lambda lease: lease.complete(then={"id": "a"}), r"^then= must be a list of jobs, not dict\.$"),
    "one of then": (
        lambda lease: lease.complete(then=[{"id": "a"}, {"id": ""}]),
        r"^a job's id must have 1 to 255 characters",
    ),
    "error": (lambda lease: lease.fail(7), r"^error must be a string, not 7 \(int\)\.$"),
    "delay": (lambda lease: lease.fail("why", delay_seconds=-1), r"^delay_seconds must be zero or more, not -1\.$"),
    "renewal": (lambda lease: lease.renew(0), r"^seconds must be above zero, not 0\.$"),
    "fraction": (lambda lease: lease.progress(1.5), r"^progress must be a number from 0 to 1, not 1\.5\.$"),
    "fraction of True": (lambda lease: lease.progress(True), r"^progress must be a number from 0 to 1, not True\.$"),
    "fraction of NaN": (lambda lease: lease.progress(math.nan), r"^progress must be a number from 0 to 1, not nan\.$"),
    "checkpoint": (lambda lease: lease.progress(checkpoint={1: 2}), r"^checkpoint has the key 1 \(int\)"),
    "child": (lambda lease: lease.add("c", math.nan), r"^payload cannot be stored as JSON"),
    "in doubt": (
        lambda lease: lease.once("x", str, in_doubt="maybe"),
        r"^in_doubt must be \"raise\" or \"retry\", not 'maybe'\.$",
    ),
}


@pytest.mark.parametrize("what", BAD_ADDS)
def test_a_job_that_cannot_be_kept_is_refused(router: Router, what: str) -> None:
    call, message = BAD_ADDS[what]
    refused(router, lambda: call(router), message)


@pytest.mark.parametrize("what", BAD_CLAIMS)
def test_a_claim_that_makes_no_sense_is_refused(router: Router, what: str) -> None:
    call, message = BAD_CLAIMS[what]
    refused(router, lambda: call(router), message)


@pytest.mark.parametrize("what", BAD_MOVES)
def test_an_operator_who_says_too_little_is_refused(router: Router, what: str) -> None:
    call, message = BAD_MOVES[what]
    refused(router, lambda: call(router), message)


@pytest.mark.parametrize("what", FORBIDDEN_MOVES)
def test_a_move_that_the_state_of_the_job_forbids_is_a_conflict(router: Router, what: str) -> None:
    """The arguments are right, so it is not a `ValueError`."""
    call, message = FORBIDDEN_MOVES[what]
    refused(router, lambda: call(router), message, Conflict)


@pytest.mark.parametrize("what", BAD_WRITES)
def test_an_owner_whose_words_cannot_be_kept_is_refused(router: Router, what: str) -> None:
    """And goes on holding its lease."""
    call, message = BAD_WRITES[what]
    refused(router, lambda: call(holding(router)), message)
    holding(router).check()


def refused(
    router: Router, call: Callable[[], object], message: str, kind: type[LeaseholdError] = InvalidArgument
) -> None:
    """The call raises the error with this message, and leaves no trace."""
    before = looks(router)

    with pytest.raises(kind, match=message) as error:
        call()

    assert type(error.value) is kind
    assert isinstance(error.value, ValueError) == (kind is InvalidArgument)
    assert looks(router) == before
    assert router.store.verify() == []


@pytest.mark.parametrize(
    "ask",
    [
        lambda r: r.job("nobody"),
        lambda r: r.ownerships("nobody"),
        lambda r: r.effects("nobody"),
        lambda r: r.lease("nobody", owner="a"),
        lambda r: r.cancel("nobody", by="ops", epoch=0),
        lambda r: r.transfer("nobody", to="a", by="ops", epoch=0),
        lambda r: r.replay("nobody", by="ops", epoch=0),
        lambda r: r.requeue("nobody", by="ops", epoch=0),
        lambda r: r.complete("nobody", by="ops", epoch=0),
        lambda r: r.resolve("nobody", "charge", by="ops", epoch=0),
        lambda r: r.jobs(after="nobody"),
    ],
    ids=[
        "job",
        "ownerships",
        "effects",
        "lease",
        "cancel",
        "transfer",
        "replay",
        "requeue",
        "complete",
        "resolve",
        "jobs",
    ],
)
def test_an_unknown_job_is_named(router: Router, ask: Callable[[Router], object]) -> None:
    before = looks(router)

    with pytest.raises(UnknownJob, match=r"^no job has the id 'nobody': it was never added to this store, or has been"):
        ask(router)

    assert looks(router) == before


@pytest.mark.parametrize("verb", ["add", "claim", "job", "complete", "counts", "reclaim"])
def test_a_closed_store_says_so(router: Router, verb: str) -> None:
    lease = holding(router)
    router.close()
    router.close()  # twice is once

    calls: dict[str, Callable[[], object]] = {
        "add": lambda: router.add("a"),
        "claim": lambda: router.claim("a"),
        "job": lambda: router.job("done"),
        "complete": lease.complete,
        "counts": router.counts,
        "reclaim": router.reclaim,
    }
    with pytest.raises(StoreUnavailable, match=r"^this store.* is closed\.$"):
        calls[verb]()


# URLs and settings


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "redis://localhost",
            r"^'redis://…' is not the URL of a store: it begins with 'redis'\. "
            r"A URL is one of these: memory: .*; sqlite:///jobs\.db .*\.$",
        ),
        ("jobs.db", r"^'jobs\.db' is the path of a file, not the URL of a store: did you mean 'sqlite:///jobs\.db'\?$"),
        ("/srv/jobs.sqlite3", r"did you mean 'sqlite:////srv/jobs\.sqlite3'\?$"),
        ("jobs", r"^'jobs' is not the URL of a store: it begins"),
        (
            "postgres//ann:pw@host/jobs",
            r"^'postgres//…' is not the URL of a store: there is no ':' after 'postgres'\. A",
        ),
        ("host=a password=pw", r"^'host…' is not the URL of a store: that is a setting, not a URL\. A"),
        ("", r"^the URL of the store is empty .*write Router\(\); for a file, Router\('sqlite:///jobs\.db'\)\.$"),
        ("  ", r"^the URL of the store is empty"),
        (
            Path("jobs.db"),
            r"^the store must be a URL such as 'sqlite:///jobs\.db', or None for one in memory, not "
            r"PosixPath\('jobs\.db'\) \(PosixPath\)\. Did you mean 'sqlite:///jobs\.db'\?$",
        ),
        (42, r"^the store must be a URL such as 'sqlite:///jobs\.db', or None for one in memory, not 42 \(int\)\.$"),
        (
            b"sqlite:///secret.db",
            r"^the store must be a URL such as 'sqlite:///jobs\.db', or None for one in memory, not a bytes\.$",
        ),
        ("sqlite:jobs.db", r"^'sqlite:jobs\.db' is missing slashes: did you mean 'sqlite:///jobs\.db'\?$"),
        ("sqlite:./a/jobs.db?busy_seconds=3", r"did you mean 'sqlite:///\./a/jobs\.db\?busy_seconds=3'\?$"),
        (
            "sqlite:/srv/x.db",
            r"^'sqlite:/srv/x\.db' is missing slashes: did you mean 'sqlite:////srv/x\.db' \(an absolute path\) or "
            r"'sqlite:///srv/x\.db' \(in the current folder\)\?$",
        ),
        ("sqlite:///:memory:", r"^'sqlite:///:memory:' is a database in memory, .*: write Router\(\) for a store in"),
        ("sqlite://:memory:", r"^'sqlite://:memory:' is a database in memory"),
        ("sqlite::memory:", r"^'sqlite::memory:' is a database in memory"),
        ("sqlite:///file::memory:?cache=shared", r"is a database in memory"),
        (":memory:", r"^':memory:' is a database in memory, .*: write Router\(\)"),
        (
            "sqlite:///jobs.db ",
            r"^the URL of the store begins or ends with a space, .*: remove it\. Write %20 .*\.$",
        ),
        (" sqlite:///jobs.db", r"^the URL of the store begins or ends with a space"),
        ("sqlite:///jo\nbs.db", r"^the URL of the store .* contains a tab or a line break"),
        ("memory:\n", r"^the URL of the store begins or ends with a space"),
        ("postgresql://ann:pw@host/jobs ", r"^the URL of the store begins or ends with a space, [^@]*$"),
        (
            "postgresql+psycopg://ann:pw@host/jobs",
            r"^the URL of the store begins with 'postgresql\+psycopg': leave out '\+psycopg', .* write postgresql://…\.$",
        ),
        ("postgres+asyncpg://host/jobs", r"leave out '\+asyncpg', .* write postgres://…\.$"),
        ("sqlite+aiosqlite:///jobs.db", r"leave out '\+aiosqlite', .* write sqlite://…\.$"),
        ("sqlite://jobs.db", r"^'sqlite://jobs\.db' names no file: write sqlite:///jobs\.db"),
        ("sqlite:///", r"^'sqlite:///' names no file"),
        (
            "sqlite:///jobs.db?busy_second=3",
            r": 'busy_second' is not a setting of this store\. Its settings: busy_seconds, synchronous\. "
            r"Did you mean 'busy_seconds'\?$",
        ),
        ("sqlite:///jobs.db?color=red", r": 'color' is not a setting .*: busy_seconds, synchronous\.$"),
        ("memory:?busy_seconds=3", r": 'busy_seconds' is not a setting of this store\. Its settings: none\.$"),
        ("sqlite:///jobs.db?busy_seconds=soon", r"^busy_seconds in .* must be a number of seconds, not 'soon'\.$"),
        ("sqlite:///jobs.db?busy_seconds=-1", r"^busy_seconds in .* must be a number of seconds, not '-1'\.$"),
        ("sqlite:///jobs.db?busy_seconds=nan", r"^busy_seconds in .* must be a number of seconds, not 'nan'\.$"),
        ("sqlite:///jobs.db?synchronous=off", r"^synchronous must be one of full, normal, extra, not 'off'\."),
    ],
)
def test_a_url_that_names_no_store_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: object, message: str
) -> None:
    """The message lists what is known, and suggests what may have been meant. Nothing is opened."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(InvalidArgument, match=message):
        AnyRouter(url)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lease_seconds": "30"}, r"^lease_seconds must be a number of seconds, not '30' \(str\)\.$"),
        ({"lease_seconds": True}, r"^lease_seconds must be a number of seconds, not True \(bool\)\.$"),
        ({"lease_seconds": 0}, r"^lease_seconds must be above zero, not 0\.$"),
        ({"lease_seconds": 10**10}, r"^lease_seconds must be a finite number of seconds, at most a century"),
        (
            {"schema": "drop table"},
            r"^schema must be a table prefix of letters, digits and underscores, not 'drop table'\.$",
        ),
        ({"schema": ""}, r"^schema must be a table prefix of letters"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_at_once(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        AnyRouter(f"sqlite:///{tmp_path / 'jobs.db'}", **settings)

    assert list(tmp_path.iterdir()) == []


# Files


def test_a_missing_folder_is_named_and_not_made(tmp_path: Path) -> None:
    with (
        Router(f"sqlite:///{tmp_path / 'missing' / 'jobs.db'}") as router,
        pytest.raises(StoreUnavailable, match=r"the folder .*missing does not exist\. Create it first\.$"),
    ):
        router.add("a")

    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with (
        Router(f"sqlite:///{tmp_path}") as router,
        pytest.raises(StoreUnavailable, match=r"cannot be opened: it is a folder\.$"),
    ):
        router.add("a")

    assert list(tmp_path.iterdir()) == []


def test_a_file_of_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, and longer than the header of one would be. " * 50)
    before = path.read_bytes()

    for _ in range(2):
        with (
            Router(f"sqlite:///{path}") as router,
            pytest.raises(StoreIncompatible, match=r"notes\.txt is not an SQLite database\. Nothing was changed\.$"),
        ):
            router.add("a")

    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_newer_schema_is_left_as_it_is(tmp_path: Path) -> None:
    """Also inside a caller's transaction, and for a reader."""
    path = tmp_path / "jobs.db"
    with Router(f"sqlite:///{path}") as router:
        router.add("a")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE leasehold_store SET schema_version = 99")
        before = list(connection.iterdump())
    message = (
        r"jobs\.db has version 99, and this leasehold supports \d+ at most: a newer leasehold has installed it\. "
        r"Upgrade leasehold\. Nothing was changed\.$"
    )

    with Router(f"sqlite:///{path}") as router, closing(sqlite3.connect(path)) as connection:
        for call in (
            lambda: router.add("b"),
            lambda: router.claim("worker-0"),
            lambda: router.job("a"),
            lambda: router.add("b", connection=connection),
        ):
            with pytest.raises(StoreIncompatible, match=message):
                call()
        connection.rollback()
        assert list(connection.iterdump()) == before


def test_a_full_file_says_so_and_changes_nothing(tmp_path: Path) -> None:
    """SQLite is told that the disk ends here; the verb that meets it has no effect, and the next one may pass."""
    with Router(f"sqlite:///{tmp_path / 'jobs.db'}") as router:
        assert isinstance(router.store, SqliteStore)
        router.add("a", {"text": "x" * 100})
        lease = router.claim("worker-0")
        assert lease is not None
        writer = router.store.database.current_writer()
        [(pages,)] = writer.execute("PRAGMA page_count").fetchall()
        writer.execute(f"PRAGMA max_page_count = {pages}")
        before = looks(router)

        for call in (
            lambda: router.add("b", "x" * 100_000),
            lambda: router.add_many({"id": f"job-{number}"} for number in range(5_000)),
            lambda: lease.complete("x" * 100_000),
            lambda: lease.progress(checkpoint="x" * 100_000),
        ):
            with pytest.raises(StoreUnavailable, match=r"the disk of .*jobs\.db is full\. Nothing was changed\.$"):
                call()

        assert looks(router) == before
        assert router.store.verify() == []
        writer.execute("PRAGMA max_page_count = 1000000")
        lease.complete("x" * 100_000)
        assert router.job("a").status == "done"


def test_a_full_disk_says_so_and_changes_nothing(tmp_path: Path) -> None:
    """The same with a real disk, a small one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk can be mounted by root only, and not in every container")
    try:
        with Router(f"sqlite:///{disk / 'jobs.db'}") as router:
            router.add("a")
            kept: list[str] = ["a"]

            def fill() -> None:
                for number in range(100):
                    router.add(f"b-{number}", "x" * 100_000)
                    kept.append(f"b-{number}")

            with pytest.raises(StoreUnavailable, match=r"the disk of .*jobs\.db is full\. Nothing was changed\.$"):
                fill()

            assert sorted(router.snapshot()) == sorted(kept)
            assert router.store.verify() == []
            lease = router.claim("worker-0")  # what is small may still fit
            assert lease is None or lease.epoch > 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that every user can reach: those of `tmp_path` are their maker's alone, and shared with other runs."""
    with tempfile.TemporaryDirectory(prefix="leasehold-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(not hasattr(os, "setuid"), reason="needs users")
@pytest.mark.parametrize("there", [False, True], ids=["a folder", "a folder with a store"])
def test_a_folder_that_cannot_be_written_is_named(open_path: Path, there: bool) -> None:
    """For a user who may not; root may, so root becomes nobody first."""
    folder = open_path / "locked"
    folder.mkdir()
    if there:
        with Router(f"sqlite:///{folder / 'jobs.db'}") as router:
            router.add("a")
        (folder / "jobs.db").chmod(0o444)
    folder.chmod(0o555)
    before = sorted(folder.iterdir())
    process = start("nobody.py", f"sqlite:///{folder / 'jobs.db'}")
    try:
        said = hear(process)
    finally:
        end(process)
        folder.chmod(0o755)

    assert said.startswith("StoreUnavailable ")
    assert str(folder) in said
    assert said.endswith("Nothing was changed." if there else "writable for this user?")
    assert sorted(folder.iterdir()) == before


def test_a_fence_needs_a_transaction(tmp_path: Path) -> None:
    """On an autocommit connection each statement would commit by itself, and nothing be fenced."""
    path = tmp_path / "jobs.db"
    with Router(f"sqlite:///{path}") as router, closing(sqlite3.connect(path, isolation_level=None)) as connection:
        router.add("a")
        lease = router.claim("worker-0")
        assert lease is not None
        before = looks(router)

        for call in (
            lambda: lease.fence(connection),
            lambda: lease.complete(connection=connection),
            lambda: lease.add("child", connection=connection),
            lambda: router.add("b", connection=connection),
        ):
            with pytest.raises(
                NotInTransaction,
                match=r"^the connection that you passed has no open transaction.*begin one first",
            ):
                call()

        assert looks(router) == before


def test_a_memory_store_has_no_transactions() -> None:
    with Router() as router:
        router.add("a")
        lease = router.claim("worker-0")
        assert lease is not None

        with pytest.raises(Unsupported, match=r"needs a database .* the memory store has none"):
            lease.fence(object())


def test_a_connection_to_another_file_is_refused(tmp_path: Path) -> None:
    with (
        Router(f"sqlite:///{tmp_path / 'jobs.db'}") as router,
        closing(sqlite3.connect(tmp_path / "other.db")) as connection,
        closing(sqlite3.connect(":memory:")) as memory,
    ):
        router.add("a")
        for other, name in ((connection, r".*other\.db"), (memory, "a database in memory")):
            with pytest.raises(
                InvalidArgument, match=rf"^the connection that you passed is to {name}, and this store is in .*jobs\.db"
            ):
                router.add("b", connection=other)
        with pytest.raises(
            Unsupported,
            match=r"^connection is a builtins\.str, which leasehold cannot join\. Pass a connection of sqlite3",
        ):
            router.add("b", connection="jobs.db")
        assert list(router.snapshot()) == ["a"]
