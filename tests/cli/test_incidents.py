"""
The incidents of docs/how-to/incidents.md, played with real workers on a real PostgreSQL.

An operator has the command line and nothing else: what a test knows of the store, it has from what a command printed.
Workers are wedged, stopped, killed and deployed wrongly; each incident ends with what the record shows of it. What the
operator types runs as a process of its own. Questions that are only repeated until something has happened run the same
command in this process, since to start Python takes longer than to answer.
"""

from __future__ import annotations

import io
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.cli.command import COMMAND, environment
from tests.patience import PATIENCE_SECONDS
from tests.postgres.fixtures import NEWEST, database, must_have, url_of
from tests.postgres.server import address, server, standby
from tests.support import until

from leasehold.cli.app import run

APP = """
import os, pathlib, signal, time
from leasehold import Lease, Router

router = Router(os.environ["LEASEHOLD_STORE"], lease_seconds=float(os.environ.get("LEASE", "30")))


def wait_for(name: str) -> None:
    while not pathlib.Path(name).exists():
        time.sleep(0.05)


@router.task
def export(lease: Lease, month: str) -> str:
    lease.progress(0.4, note="page 4 of 10")
    if lease.owner.startswith("old"):        # the disk of that machine hangs
        wait_for("disk")
    lease.progress(1.0)
    return month


@router.task
def decode(file: str) -> None:
    if not pathlib.Path("fixed").exists():   # a library that crashes
        os.kill(os.getpid(), signal.SIGKILL)


@router.task
def charge(customer: int) -> None:
    if not pathlib.Path("quick").exists():
        pathlib.Path("begun").touch()
        wait_for("never")


@router.task(queue="mail")
def send(to: str) -> None:
    pass
"""
NEXT_APP = APP.replace("def charge(customer: int)", "def charge_customer(customer: int)").replace(
    "def export(lease: Lease, month: str)", "def export(lease: Lease, month: str, year: int)"
)
PRODUCER = """
import os, time
from leasehold import Router

with Router(os.environ["LEASEHOLD_STORE"]) as router:
    number = 0
    while True:
        router.add(None, {"to": f"user-{number}"}, task="send", queue="mail", meta={"producer": "nightly"})
        number += 1
        time.sleep(0.02)
"""


class Play:
    """A folder with an application, a store, workers on it, and an operator with a shell."""

    def __init__(self, folder: Path, url: str, stack: ExitStack) -> None:
        self.folder = folder
        self.url = url
        self._env = {**environment(), "LEASEHOLD_STORE": url}
        self._stack = stack
        self.deploy(APP)

    # The system

    def deploy(self, app: str) -> None:
        """Put a version of the application into the folder, for the workers that are started next."""
        (self.folder / "app.py").write_text(app)

    def touch(self, name: str) -> None:
        """Let the handlers that wait for this file go on."""
        (self.folder / name).touch()

    def worker(self, name: str, *arguments: str, lease_seconds: float = 30) -> subprocess.Popen[str]:
        """Start a worker with one slot, which has reported when this returns."""
        env = {**self._env, "LEASE": str(lease_seconds)}
        command = [*COMMAND, "worker", "app:router", "--name", name, "--concurrency", "1", *arguments]
        process = self._start(command, name, env)
        until(lambda: any(row["given_name"] == name for row in self.rows("workers")), f"a worker {name}")
        return process

    def producer(self) -> subprocess.Popen[str]:
        """Start a process that adds jobs for ever."""
        return self._start([sys.executable, "-c", PRODUCER], "producer", self._env)

    def _start(self, command: list[str], name: str, env: dict[str, str]) -> subprocess.Popen[str]:
        log = self._stack.enter_context((self.folder / f"{name}.log").open("w"))
        process = subprocess.Popen(command, cwd=self.folder, env=env, stdout=log, stderr=log, text=True)
        self._stack.callback(_end, process)
        return process

    # The operator

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run a command, which must end with that exit code; return what it printed, messages behind the data."""
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def again(self, printed: str, *more: str) -> str:
        """Run the command that another one has printed in its last line, as an operator copies it."""
        command = shlex.split(printed.strip().splitlines()[-1])
        assert command[0] == "leasehold"
        return self.run(*command[1:], *more)

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        """What a command lists."""
        found: list[dict[str, Any]] = self._asked(*arguments)["rows"]
        return found

    def show(self, job_id: str) -> dict[str, Any]:
        """What is known of a job."""
        return self._asked("show", job_id)

    def _asked(self, *arguments: str) -> dict[str, Any]:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            assert run([*arguments, "--json", "--store", self.url]) == 0, err.getvalue()
        found: dict[str, Any] = json.loads(out.getvalue())
        return found

    def until(self, job_id: str, status: str) -> dict[str, Any]:
        """Wait until the job has that status, and return it."""
        until(lambda: self.show(job_id)["status"] == status, f"{job_id} {status}")
        return self.show(job_id)

    def owners(self, job_id: str) -> list[tuple[str, str, str | None]]:
        """Who held a job, by given name: how each ownership began, and how it ended."""
        rows = [row for row in self.rows("history", job_id) if row["kind"] == "ownership"]
        return [(row["owner"].split(":")[0], row["began"], row["ended"]) for row in rows]

    def recorded(self, job_id: str, kind: str) -> list[dict[str, Any]]:
        """The facts that were recorded of a job under that kind."""
        return [row["facts"] for row in self.rows("history", job_id) if row["kind"] == kind]


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()  # even one that is stopped; the workers of a supervisor end when it is gone
    process.wait()


@contextmanager
def new_database() -> Iterator[str]:
    """A database that is there as long as the block lasts, with an empty store in it."""
    server_url = url_of(NEWEST)
    url = database(server_url, "incident")
    try:
        yield url
    finally:
        with psycopg.connect(server_url, autocommit=True) as connection:
            name = url.partition("?")[0].rpartition("/")[2]
            connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    """An empty store, and no worker yet."""
    with new_database() as url, ExitStack() as stack:
        play = Play(tmp_path, url, stack)
        play.run("store", "migrate", url)
        yield play


def test_a_wedged_worker_that_still_renews(play: Play) -> None:
    """Its lease never expires, and its work does not move: another worker gets the job, and this one is refused."""
    play.run("add", "export-may", "--task", "export", "--payload", '{"month": "May"}')
    play.worker("old", lease_seconds=10)
    until(lambda: play.show("export-may")["progress"] == 0.4)
    play.worker("spare", lease_seconds=10)
    [at_old, at_spare] = play.rows("workers")
    assert (at_old["alive"], at_old["holding"], at_old["holds"][0]["id"]) == (True, 1, "export-may")

    printed = play.run("doctor", "--quiet-seconds", "0.1", code=1)
    assert "not-moving: Job 'export-may' at 'old:" in printed
    assert "never-settles: Worker 'old:" in printed
    assert at_old["name"] in play.run("workers")
    assert '40% ("page 4 of 10")' in play.run("explain", "export-may")
    printed = play.run(
        "transfer", "export-may", "--to", "spare", "--as", "ann", "--note", "the disk of old hangs", code=2
    )
    assert at_spare["name"] in play.again(printed)
    play.until("export-may", "done")
    play.touch("disk")  # and the old worker goes on where it was
    until(lambda: "progress" in [facts["verb"] for facts in play.recorded("export-may", "refused")])

    assert play.owners("export-may") == [("old", "claim", "manual"), ("spare", "manual", "done")]
    [moved] = play.recorded("export-may", "transferred")
    assert (moved["by"], moved["note"]) == ("ann", "the disk of old hangs")
    assert "transferred" in play.run("history", "export-may")
    assert {facts["by"] for facts in play.recorded("export-may", "refused")} == {at_old["name"]}


def test_a_poison_job(play: Play) -> None:
    """It kills each process that claims it; the budget of reclaims ends it, and once it is harmless it is replayed."""
    play.run("add", "photo-13", "--task", "decode", "--payload", '{"file": "13.jpg"}')
    play.worker("w", "--processes", "2")
    play.until("photo-13", "failed")

    printed = play.run("events", "--kind", "reclaimed", "--last", "20")
    assert printed.count("photo-13") == 3
    printed = play.run("jobs", "--status", "failed")
    assert "RECLAIMS" in printed
    assert "is gone; that was reclaim 4" in play.run("explain", "photo-13")
    play.touch("fixed")
    printed = play.run("replay", "photo-13", "--as", "ann", "--note", "decoder 2.1 is out", code=2)
    play.again(printed)
    play.until("photo-13", "done")

    assert play.owners("photo-13") == [
        ("w", "claim", "recovery"),
        *[("w", "recovery", "recovery")] * 3,
        ("w", "manual", "done"),
    ]
    assert play.recorded("photo-13", "replayed") == [{"by": "ann", "note": "decoder 2.1 is out"}]
    assert "decoder 2.1 is out" in " ".join(play.run("history", "photo-13").split())


def test_a_wrong_deploy(play: Play) -> None:
    """The new workers do not know one task, and another one's arguments do not fit: nothing fails, nothing is spent."""
    play.deploy(NEXT_APP)
    play.touch("quick")
    wrong = play.worker("next")
    play.run("add", "charge-1", "--task", "charge", "--payload", '{"customer": 7}')
    play.run("add", "export-1", "--task", "export", "--payload", '{"month": "May"}')
    until(lambda: play.show("charge-1")["parked"])
    until(lambda: play.recorded("export-1", "released"))

    printed = play.run("doctor", code=1)
    assert "No live worker of queue 'default' knows the task 'charge', which has waiting jobs." in printed
    assert "charge_customer" in play.run("workers", "--fields", "name,queues,tasks")
    assert "knows the task 'charge' (1 live worker)" in play.run("explain", "charge-1")
    until(lambda: "its last error was: the payload has no 'year'" in play.show("export-1")["explanation"])
    play.run("explain", "export-1")
    play.deploy(APP)  # back to the version before
    wrong.terminate()
    assert wrong.wait(PATIENCE_SECONDS) == 0
    play.worker("right")
    play.until("charge-1", "done")
    job = play.until("export-1", "done")

    assert play.owners("charge-1") == [("right", "claim", "done")]
    owners = play.owners("export-1")
    assert owners[0] == ("next", "claim", "release")
    assert owners[-1] == ("right", "release", "done")
    assert "the payload has no 'year'" in play.recorded("export-1", "released")[0]["error"]
    assert (job["errors"], job["reclaims"]) == (0, 0)
    assert "released" in play.run("history", "export-1")


def test_a_failover(tmp_path: Path) -> None:
    """The standby that is promoted has not heard of a claim: its owner is refused, and every later epoch is greater."""
    must_have(NEWEST)
    with ExitStack() as stack:
        primary, common = stack.enter_context(server(NEWEST)), stack.enter_context(address())
        common.lead_to(primary)
        play = Play(tmp_path, common.url(), stack)
        play.run("store", "migrate", common.url())
        play.run("add", "charge-1", "--task", "charge", "--payload", '{"customer": 7}')
        follower = stack.enter_context(standby(primary))
        follower.catch_up(primary)
        follower.cut_off()
        play.worker("a", lease_seconds=5)
        until(lambda: (play.folder / "begun").exists())
        forgotten = play.show("charge-1")["epoch"]
        play.touch("quick")
        primary.stop(signal.SIGKILL)

        assert "cannot connect" in play.run("show", "charge-1", code=7)
        follower.promote()
        common.lead_to(follower)
        until(lambda: play.recorded("charge-1", "refused"))
        play.worker("b", lease_seconds=5)
        play.until("charge-1", "done")
        assert "Every invariant holds." in play.run("store", "check")

        [advanced] = play.rows("events", "--kind", "advanced", "--last", "1")
        assert advanced["epoch"] > forgotten
        assert forgotten in [facts["presented"] for facts in play.recorded("charge-1", "refused")]
        assert [(began, ended) for _, began, ended in play.owners("charge-1")] == [("claim", "done")]
        assert play.show("charge-1")["epoch"] > forgotten
        assert "refused" in play.run("history", "charge-1")
        assert "advanced" in play.run("events", "--last", "5")
        assert "is refused" in play.run("cancel", "charge-1", "--epoch", str(forgotten), code=3)


def test_a_backlog(play: Play) -> None:
    """Jobs wait, and the workers that are alive serve other queues: one more is started, and the queue empties."""
    play.worker("w", "--queues", "default")
    for number in range(3):
        play.run("add", f"mail-{number}", "--task", "send", "--payload", '{"to": "ann"}', "--queue", "mail")
    [row] = play.rows("queues")
    assert (row["name"], row["pending"], row["workers"]) == ("mail", 3, 0)
    assert "mail" in play.run("queues")

    printed = play.run("doctor", "--waiting-seconds", "0.1", code=1)
    assert "no-consumer: No live worker serves queue 'mail', which has due jobs." in printed
    assert "old-backlog: The oldest due job of queue 'mail' has waited for " in printed
    assert "1 live worker serves other queues" in play.run("explain", "mail-0")
    play.worker("m", "--queues", "mail")
    for number in range(3):
        play.until(f"mail-{number}", "done")
    assert "Nothing was found" in play.run("doctor")
    assert [(row["pending"], row["running"]) for row in play.rows("queues")] == [(0, 0)]

    assert play.owners("mail-0") == [("m", "claim", "done")]
    assert "began by claim, ended by done" in " ".join(play.run("history", "mail-0").split())


def test_a_stuck_lock(play: Play) -> None:
    """Its holder is stopped, with a long lease: the holder's job is taken from it, and those behind it go on."""
    first = play.worker("first", lease_seconds=3600)
    lock = ("--task", "charge", "--payload", '{"customer": 7}', "--lock", "customer:7")
    play.run("add", "charge-1", *lock)
    until(lambda: (play.folder / "begun").exists())
    first.send_signal(signal.SIGSTOP)
    play.touch("quick")
    play.worker("second")
    play.run("add", "charge-2", *lock)
    until(lambda: play.show("charge-2")["parked"])

    printed = play.run("explain", "charge-2")
    assert "waits for its lock 'customer:7', which job 'charge-1' holds: owner 'first:" in printed
    assert play.run("jobs", "--lock", "customer:7").count("charge-") == 2
    printed = play.run("requeue", "charge-1", "--as", "ann", "--note", "first is stopped", code=2)
    play.again(printed)
    play.until("charge-1", "done")
    play.until("charge-2", "done")
    play.touch("never")
    first.send_signal(signal.SIGCONT)
    until(lambda: play.recorded("charge-1", "refused"))

    assert play.owners("charge-1") == [("first", "claim", "manual"), ("second", "manual", "done")]
    assert [facts["note"] for facts in play.recorded("charge-1", "requeued")] == ["first is stopped"]
    assert all(facts["by"].startswith("first:") for facts in play.recorded("charge-1", "refused"))
    assert "refused" in play.run("history", "charge-1")
    assert play.owners("charge-2") == [("second", "claim", "done")]


def test_a_runaway_producer(play: Play) -> None:
    """Its queue is paused, it is stopped, and what it added is cancelled; the jobs of others are not touched."""
    play.run("add", "letter", "--task", "send", "--payload", '{"to": "ann"}', "--queue", "mail", "--delay-seconds", "1")
    producer = play.producer()
    until(lambda: any(row["pending"] > 100 for row in play.rows("queues")))

    play.run("queues", "pause", "mail", "--as", "ann", "--note", "nightly adds without end")
    play.worker("w")
    assert "nightly adds without end" in play.run("queues", "--fields", "name,pending,paused_by,paused_note")
    assert '{"producer": "nightly"}' in play.run("jobs", "--queue", "mail", "--limit", "3", "--fields", "id,task,meta")
    theirs = ("cancel", "--queue", "mail", "--status", "pending", "--meta", "producer=nightly", "--as", "ann")
    printed = play.run(*theirs, "--note", "nightly ran away")
    assert "Nothing was done. To cancel them:" in printed
    assert "jobs match, not the expected 1." in play.run(*theirs, "--apply", "--expect", "1", code=4)
    producer.kill()
    producer.wait()
    printed = play.run(*theirs, "--note", "nightly ran away")
    count = int(printed.strip().rpartition(" ")[2])
    assert f"{count} cancelled" in play.again(printed)
    play.run("queues", "resume", "mail", "--as", "ann")
    play.until("letter", "done")

    [bulk] = [row["facts"] for row in play.rows("events", "--kind", "bulk", "--last", "1")]
    assert (bulk["verb"], bulk["done"], bulk["by"], bulk["note"]) == ("cancel", count, "ann", "nightly ran away")
    [one] = play.rows("jobs", "--status", "cancelled", "--limit", "1")
    assert play.recorded(one["id"], "cancelled") == [{"by": "ann", "note": "nightly ran away"}]
    assert "by ann, note nightly ran away" in play.run("history", one["id"])
    assert [row["kind"] for row in play.rows("events", "--kind", "resumed")] == ["resumed"]
    assert play.owners("letter") == [("w", "claim", "done")]
    assert "bulk" in play.run("events", "--kind", "bulk", "--last", "1")
