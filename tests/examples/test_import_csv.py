"""The import with checkpoints, killed at every statement: each row is there exactly once."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.cli.command import TOP, environment, run
from tests.patience import PATIENCE_SECONDS
from tests.postgres.fixtures import database, each_version
from tests.postgres.proxy import READY, Proxy, Where

from leasehold import Retry, Router

ROWS = 3  # two batches of the importer


class Importer:
    """A process that runs the example as often as it is told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, url: str, path: Path, *, fatal: int = 0, started: Callable[[int], None] = lambda pid: None) -> bool:
        """Run the example to its end, and return whether it was killed. *started* gets its pid before it begins."""
        self._tell([url, str(path), fatal])
        started(self._answer())
        self._tell("go")
        code = self._answer()
        assert code in (0, -signal.SIGKILL)
        return code != 0

    def _tell(self, what: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def _answer(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@pytest.fixture
def importer() -> Iterator[Importer]:
    """What runs the example."""
    with subprocess.Popen(
        [sys.executable, str(TOP / "tests" / "examples" / "importer.py")],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield Importer(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file to be imported."""
    made = tmp_path / "people.csv"
    made.write_text("name,age\n" + "".join(f"p{number},{number}\n" for number in range(1, ROWS + 1)))
    return made


def are_consistent(rows: list[int], checkpoint: dict[str, int] | None) -> None:
    """See that each row is there once, and that the checkpoint says how many there are."""
    assert rows == list(range(1, (checkpoint or {"row": 0})["row"] + 1))


def state_in(url: str, path: Path, connect: Callable[[], Any]) -> tuple[list[int], Any]:
    """Return the numbers of the rows that are there, and the checkpoint."""
    rows: list[int] = []
    query = f"select number from imported where file = '{path}' order by number"
    with closing(connect()) as connection, suppress(sqlite3.OperationalError, psycopg.errors.UndefinedTable):
        rows = [number for (number,) in connection.execute(query).fetchall()]
    with Router(url) as router:
        jobs = [job for job in router.jobs() if job.id == f"import:{path}"]
    return rows, jobs[0].checkpoint if jobs else None


def test_it_can_be_run_twice(tmp_path: Path, path: Path) -> None:
    """The second run finds the first one's job."""
    command = [sys.executable, str(TOP / "examples" / "import_csv.py"), path.name]
    for _ in range(2):
        shown = run(command, cwd=tmp_path)
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.splitlines()[-1] == f"{ROWS} rows"
    with closing(sqlite3.connect(tmp_path / "import.db")) as connection:
        assert connection.execute("select count(*) from imported").fetchall() == [(ROWS,)]


def test_it_is_killed_more_often_than_a_job_usually_may_be(importer: Importer, tmp_path: Path, path: Path) -> None:
    """One import, killed one statement later with each start, until it comes to its end."""
    url = f"sqlite:///{tmp_path}/import.db"
    fatal = 1
    while importer.run(url, path, fatal=fatal):
        fatal += 1

    with Router(url) as router:
        job = router.job(f"import:{path}")
    assert (job.status, job.result) == ("done", ROWS)
    assert job.reclaims > Retry().max_reclaims


def killed_everywhere(
    importer: Importer,
    path: Path,
    url: str,
    connect: Callable[[], Any],
    attempt: Callable[[Path, int], bool],
) -> None:
    """
    Import a file of its own with each *attempt*, which says whether it was killed, until one was not.

    See what is there, and import the rest.
    """
    killed, seen = 0, set()
    while True:
        file = path.with_name(f"{killed}.csv")
        file.symlink_to(path)
        if not attempt(file, killed):
            break
        killed += 1
        rows, checkpoint = state_in(url, file, connect)
        are_consistent(rows, checkpoint)
        seen.add(len(rows))
        assert not importer.run(url, file)
        assert state_in(url, file, connect) == (list(range(1, ROWS + 1)), {"row": ROWS})
    assert killed > 20
    assert seen == {0, 2, 3}, "it was killed after each batch"


def test_on_sqlite_it_is_killed_before_every_statement(importer: Importer, tmp_path: Path, path: Path) -> None:
    """COMMIT is a statement too, and so is what follows it."""
    file = tmp_path / "import.db"
    url = f"sqlite:///{file}"
    killed_everywhere(
        importer,
        path,
        url,
        lambda: sqlite3.connect(file),
        lambda csv, number: importer.run(url, csv, fatal=number + 1),
    )


class Killing(Proxy):
    """A proxy that kills its client when it sends its n-th message."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.pid, self.left, self.where = 0, 0, Where.BEFORE
        self.struck = threading.Event()

    def aim(self, pid: int, fatal: int, where: Where) -> None:
        """Kill *pid* at its *fatal*-th message, which reaches the server, and has its effect there, or does not."""
        self.struck.clear()
        self.pid, self.left, self.where = pid, fatal, where

    def _struck(self, request: bytes) -> Where | None:
        with self._lock:
            self.left -= 1
            if self.left != 0:
                return None
        with suppress(ProcessLookupError):  # it is done, and says goodbye
            os.kill(self.pid, signal.SIGKILL)
        return self.where

    def _strike(self, where: Where, request: bytes, client: socket.socket, server: socket.socket) -> None:
        try:
            if where is Where.AFTER:
                server.sendall(request)
                reply = b""
                while reply[-6:-1] != READY and (data := server.recv(65536)):
                    reply += data
        finally:
            self.struck.set()


@each_version
@pytest.mark.soak  # half a minute on each server
def test_on_postgresql_it_is_killed_at_every_message(importer: Importer, path: Path, server_url: str) -> None:
    """Before it reaches the server, and after the server has done what it says, when nobody hears of that any more."""
    url = database(server_url, "import")
    proxy = Killing(url)

    def attempt(csv: Path, number: int) -> bool:
        where = Where.AFTER if number % 2 else Where.BEFORE
        was_killed = importer.run(proxy.url, csv, started=lambda pid: proxy.aim(pid, number // 2 + 1, where))
        assert not was_killed or proxy.struck.wait(PATIENCE_SECONDS), "the server has not answered"
        proxy.heal()
        return was_killed

    with proxy:
        killed_everywhere(importer, path, url, lambda: psycopg.connect(url), attempt)
