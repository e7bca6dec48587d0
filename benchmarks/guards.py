"""
What a guard costs: guarded writes beside bare ones, on the same resource in the same minutes.

    python benchmarks/guards.py              every row, some minutes; it starts the servers that it needs
    python benchmarks/guards.py --quick      every row, smaller, under a minute
    python benchmarks/guards.py --json       one JSON object per line

The ratio is that of the rates: a write that takes 1.3 times as long has 0.77, and so has the goal of 1.3×.
"""

from __future__ import annotations

import functools
import itertools
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, whatever is installed
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psycopg
from benchmarks.guarded_service import RING
from benchmarks.harness import Row, Run, Sides, main, rate, row
from benchmarks.servers import postgres
from tests.guards.git_server import commit, daemon, git

from leasehold.guards import FileGuard, Gate, GitGuard, ObjectGuard, SqlGuard
from leasehold.guards.http import HEADER

OWNER: Any = {"epoch": 1_794_776_400_000_007, "owner": "worker-0", "store": "benchmark"}
KEYS = 64  # that the writes go to, in turn


def times(most: float) -> float:
    """Return the goal of a row whose guarded write may take *most* times as long as the bare one."""
    return 1 / most


def writing(write: Callable[[str, bytes], Any], writes: int) -> Callable[[], float]:
    """Return a round that writes to one key after the other, and returns how many writes it did per second."""
    numbers = itertools.count()

    def step() -> int:
        for _ in range(writes):
            number = next(numbers)
            write(f"key-{number % KEYS}", b"%020d" % number)
        return writes

    return lambda: rate(step)


@row(
    "PostgreSQL: a transaction with one row",
    peer="the same transaction without the fence (goal: 1.3×)",
    goal=times(1.3),
    unit="writes/s",
)
def in_postgres(run: Run) -> Iterator[Sides]:
    """psycopg, READ COMMITTED, a durable server: BEGIN, the fence, an upsert, COMMIT."""
    upsert = "insert into {} values (%s, %s) on conflict (key) do update set value = excluded.value"
    with ExitStack() as stack:
        url = stack.enter_context(postgres())
        guard = SqlGuard(url)
        stack.callback(guard.close)
        connection = stack.enter_context(psycopg.connect(url))
        for table in ("guarded", "bare"):
            connection.execute(f"create table {table} (key text primary key, value bytea)")
        connection.commit()

        def guarded(key: str, value: bytes) -> None:
            guard.fence(connection, key, **OWNER)
            connection.execute(upsert.format("guarded"), [key, value])
            connection.commit()

        def bare(key: str, value: bytes) -> None:
            connection.execute(upsert.format("bare"), [key, value])
            connection.commit()

        writes = run.pick(200, 50)
        yield writing(guarded, writes), writing(bare, writes)


@row(
    "SQLite: a transaction with one row",
    peer="the same transaction without the fence (goal: 1.3×)",
    goal=times(1.3),
    unit="writes/s",
)
def in_sqlite(run: Run) -> Iterator[Sides]:
    """sqlite3, WAL, synchronous=FULL: the fence, an upsert, COMMIT."""
    upsert = "insert into {} values (?, ?) on conflict (key) do update set value = excluded.value"
    with tempfile.TemporaryDirectory() as folder, closing(sqlite3.connect(f"{folder}/app.db")) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        guard = SqlGuard(f"sqlite:///{folder}/app.db")
        for table in ("guarded", "bare"):
            connection.execute(f"create table {table} (key text primary key, value blob)")

        def guarded(key: str, value: bytes) -> None:
            guard.fence(connection, key, **OWNER)
            connection.execute(upsert.format("guarded"), [key, value])
            connection.commit()

        def bare(key: str, value: bytes) -> None:
            connection.execute(upsert.format("bare"), [key, value])
            connection.commit()

        writes = run.pick(300, 50)
        yield writing(guarded, writes), writing(bare, writes)


def object_store() -> Any:
    """Start SeaweedFS, and return a client of its S3 gateway. What it acknowledges is not synced to the disk."""
    from tests.guards.object_clients import store_at
    from tests.guards.object_servers import seaweedfs

    return store_at(seaweedfs(), "benchmark")


def objects_known(run: Run, size: int) -> Iterator[Sides]:
    """One guard that writes to its keys in turn; what it replaces is removed in the same run."""
    store, padding = object_store(), bytes(size - 20)
    guard = ObjectGuard(store, grace_seconds=1)
    for number in range(KEYS):
        guard.write(f"key-{number}", b"", **OWNER)
    writes = run.pick(200, 50)
    yield (
        writing(lambda key, value: guard.write(key, value + padding, **OWNER), writes),
        writing(lambda key, value: store.put(f"bare/{key}", value + padding), writes),
    )


def objects_unknown(run: Run, size: int) -> Iterator[Sides]:
    """A new guard in each round, which writes once to keys that have been written before."""
    store, data = object_store(), bytes(size)
    keys = [f"key-{number}" for number in range(KEYS)]
    guards = [ObjectGuard(store, grace_seconds=1)]

    def renew() -> None:
        guards[:] = [ObjectGuard(store, grace_seconds=1)]

    def guarded() -> int:
        for key in keys:
            guards[0].write(key, data, **OWNER)
        return len(keys)

    def bare() -> int:
        for key in keys:
            store.put(f"bare/{key}", data)
        return len(keys)

    guarded()
    yield lambda: rate(guarded, before=renew, steps=run.pick(3, 1)), lambda: rate(bare, steps=run.pick(3, 1))


def objects_row(name: str, most: float, sides: Callable[[Run], Iterator[Sides]]) -> Row:
    """Return a row of ObjectGuard beside the same put without a guard."""
    return row(name, peer=f"a bare put (goal: {most}×)", goal=times(most), unit="writes/s")(sides)


OBJECTS = [
    objects_row("S3: 64 KiB to a known key", 2.2, lambda run: objects_known(run, 64 * 1024)),
    objects_row("S3: 64 KiB to an unknown key", 3.3, lambda run: objects_unknown(run, 64 * 1024)),
    objects_row("S3: 1 KiB to a known key", 2.2, lambda run: objects_known(run, 1024)),
    objects_row("S3: 1 KiB to an unknown key", 3.3, lambda run: objects_unknown(run, 1024)),
]


def replacing(run: Run, size: int) -> Iterator[Sides]:
    """Files of *size* bytes on a disk; both sides sync, and neither makes a new name."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # /tmp is in memory on some machines
        (Path(folder) / "bare").mkdir()
        guard = FileGuard(f"{folder}/guarded", create=True)
        padding = b"x" * size

        def guarded(key: str, value: bytes) -> None:
            guard.write(key, value + padding, **OWNER)

        def bare(key: str, value: bytes) -> None:
            path = f"{folder}/bare/{key}"
            with open(f"{path}.new", "wb") as file:
                file.write(value + padding)
                file.flush()
                os.fsync(file.fileno())
            os.rename(f"{path}.new", path)
            handle = os.open(f"{folder}/bare", os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)

        for number in range(KEYS):
            guarded(f"key-{number}", b"")
            bare(f"key-{number}", b"")
        writes = run.pick(40, 10)
        yield writing(guarded, writes), writing(bare, writes)


@row(
    "files: 1 kB replaced",
    peer="write, fsync, rename, fsync of the folder (goal: 2.0×)",
    goal=times(2.0),
    unit="writes/s",
)
def small_files(run: Run) -> Iterator[Sides]:
    """As most results are."""
    yield from replacing(run, 1000)


@row(
    "files: 1 MB replaced",
    peer="write, fsync, rename, fsync of the folder (goal: 2.0×)",
    goal=times(2.0),
    unit="writes/s",
)
def large_files(run: Run) -> Iterator[Sides]:
    """The data costs both sides the same."""
    yield from replacing(run, 1_000_000)


@row("git: a commit pushed", peer="git push (goal: 1.3×)", goal=times(1.3), unit="pushes/s")
def in_git(run: Run) -> Iterator[Sides]:
    """Over git's own protocol to this machine, one commit at a time; the commits are there before the clock starts."""
    pushes = run.pick(8, 3)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, daemon(Path(folder)) as url:
        for name in ("server.git", "clone.git"):
            git("init", "--quiet", "--bare", name, cwd=folder)
        clone, url = f"{folder}/clone.git", f"{url}/server.git"
        guard = GitGuard(url)

        def pushing(branch: str, push: Callable[[str], Any]) -> Callable[[], float]:
            def commits() -> Iterator[str]:
                parent = None
                for number in itertools.count():
                    yield (parent := commit(clone, b"%s %d" % (branch.encode(), number), parent))

            made = commits()
            push(next(made))

            def round_of_pushes() -> float:
                ready = list(itertools.islice(made, pushes))

                def step() -> int:
                    for one in ready:
                        push(one)
                    return pushes

                return rate(step)

            return round_of_pushes

        yield (
            pushing("guarded", lambda one: guard.push(clone, "guarded", one, **OWNER)),
            pushing("bare", lambda one: git("push", "--porcelain", url, f"{one}:refs/heads/bare", cwd=clone)),
        )


@contextmanager
def served(url: str) -> Iterator[Callable[[str, str], float]]:
    """Run benchmarks/guarded_service.py in a process; yield a function that sends it a request for a key."""
    command = [sys.executable, "-P", str(Path(__file__).with_name("guarded_service.py")), url]
    with ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(process.kill)
        assert process.stdout is not None
        port = int(process.stdout.readline())
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def send(path: str, key: str) -> float:
            head = f"PUT {path}/{key} HTTP/1.1\r\nHost: x\r\n{HEADER}: {credential(key)}\r\nContent-Length: 0\r\n\r\n"
            connection.sendall(head.encode())
            answer = connection.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 200"), answer
            return 1.0

        yield send


@functools.cache
def credential(key: str) -> str:
    """Return what the owner presents for a key."""
    return RING.mint(**OWNER, job_id="job-1", audience="benchmark", keys=[key], seconds=None)


@row(
    "HTTP: a handler that only answers, uses in memory",
    peer="the same handler without the gate (goal: 1.2×)",
    goal=times(1.2),
    unit="requests/s",
)
def over_http(run: Run) -> Iterator[Sides]:
    """uvicorn in a process of its own, one connection that is kept: credential, use, handler, end."""
    with tempfile.TemporaryDirectory() as folder, served(f"sqlite:///{folder}/gate.db") as send:
        requests = run.pick(500, 100)
        for number in range(KEYS):  # the first use of a key in a process is written to the disk
            send("/guarded", f"key-{number}")
        yield (
            writing(lambda key, value: send("/guarded", key), requests),
            writing(lambda key, value: send("/bare", key), requests),
        )


def _gate(run: Run, url: str) -> Iterator[Sides]:
    """A use and its end, beside a commit of one row on the same kind of database."""
    with Gate(url, uses="sql") as gate, closing(_connected(url)) as connection:
        connection.execute("create table bare (number bigint)")

        def used(key: str, value: bytes) -> None:
            gate.begin(key, **OWNER).end()

        def bare(key: str, value: bytes) -> None:
            connection.execute("insert into bare values (1)")
            connection.execute("delete from bare")

        uses = run.pick(100, 30)
        yield writing(used, uses), writing(bare, uses)


def _connected(url: str) -> Any:
    if url.startswith("postgresql"):
        return psycopg.connect(url, autocommit=True)
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute("pragma journal_mode = truncate")
    connection.execute("pragma synchronous = full")
    return connection


@row(
    "gate: a use as rows in PostgreSQL",
    peer="a row that is inserted and deleted, with two commits (goal: 2×)",
    goal=times(2),
    unit="uses/s",
)
def gate_in_postgres(run: Run) -> Iterator[Sides]:
    """A durable server; one statement to begin and one to end."""
    with postgres() as url:
        yield from _gate(run, url)


@row(
    "gate: a use as rows in SQLite",
    peer="a row that is inserted and deleted, with two commits (goal: 2×)",
    goal=times(2),
    unit="uses/s",
)
def gate_in_sqlite(run: Run) -> Iterator[Sides]:
    """A file on a disk, synchronous=FULL."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _gate(run, f"sqlite:///{folder}/gate.db")


ROWS: list[Row] = [
    in_postgres,
    in_sqlite,
    small_files,
    large_files,
    *OBJECTS,
    in_git,
    over_http,
    gate_in_postgres,
    gate_in_sqlite,
]


if __name__ == "__main__":
    sys.exit(main(ROWS, about=__doc__))
