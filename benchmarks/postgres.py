"""
How fast the PostgreSQL store is, beside statements written by hand for the same server in the same minutes.

    python benchmarks/postgres.py              every row, ten minutes or so; it starts a server of its own
    python benchmarks/postgres.py --quick      every row, smaller, under a minute
    python benchmarks/postgres.py --url URL    on a server of yours: it makes databases there, and drops them
"""

from __future__ import annotations

import itertools
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, whatever is installed
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psycopg
from benchmarks.harness import Run, Sides, main, rate, row
from benchmarks.postgres_peers import NarrowTables, OneTable, SameTables
from benchmarks.servers import postgres
from psycopg import sql

from leasehold import Router
from leasehold.core.job import Grant, NewJob, completion

BATCH = 100
OWNER = "worker-0"
URL = "LEASEHOLD_BENCHMARK_POSTGRES"

_numbers = itertools.count()


class Side(Protocol):
    """What is measured."""

    def add(self, jobs: Sequence[tuple[str, str]]) -> None: ...
    def claim(self, limit: int) -> list[Any]: ...
    def complete(self, claims: Sequence[Any]) -> int: ...


class Ours:
    """The store's verbs, in the shape of the peers."""

    def __init__(self, router: Router, queues: Sequence[str] = ("default",)) -> None:
        self.router = router
        self._store = router.store
        self._queues = queues

    def add(self, jobs: Sequence[tuple[str, str]]) -> None:
        """Keep each job, in the queues by turns."""
        for number, name in enumerate(self._queues):
            self._store.add([NewJob(id, payload, queue=name) for id, payload in jobs[number :: len(self._queues)]])

    def claim(self, limit: int) -> list[Grant]:
        """Lease the first *limit* jobs."""
        return self._store.claim(OWNER, limit=limit, queues=self._queues)

    def complete(self, claims: Sequence[Grant]) -> int:
        """End them."""
        return self._store.settle([completion(grant) for grant in claims]).count(None)


def jobs(count: int) -> list[tuple[str, str]]:
    """Return *count* jobs that nobody has seen before."""
    return [(f"job-{next(_numbers)}-{os.getpid()}", f'{{"n":{n}}}') for n in range(count)]


def fill(side: Side, count: int, run: Run) -> None:
    """Add *count* jobs."""
    for done in range(0, count, 5_000):
        side.add(jobs(min(5_000, count - done)))
        run.progress(f"{done + 5_000:,} of {count:,} jobs added")


def by_turns(side: Side, count: int, batch: int) -> int:
    """Claim and complete *count* jobs, one batch after the other."""
    for _ in range(0, count, batch):
        claims = side.claim(batch)
        assert len(claims) == batch
        assert side.complete(claims) == batch
    return count


def overlapped(side: Side, count: int, batch: int) -> int:
    """Claim and complete *count* jobs: while one thread completes a batch, the other claims the next."""
    claimed: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
    completed = 0

    def complete() -> None:
        nonlocal completed
        while (claims := claimed.get()) is not None:
            completed += side.complete(claims)

    completing = threading.Thread(target=complete)
    completing.start()
    for _ in range(0, count, batch):
        claimed.put(side.claim(batch))
    claimed.put(None)
    completing.join()
    assert completed == count
    return count


# The server


@contextmanager
def database() -> Iterator[str]:
    """A database of its own, on the server that was named, or on one that runs as long as this process does."""
    name = f"leasehold_benchmark_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(_server(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield psycopg.conninfo.make_conninfo(_server(), dbname=name) if "://" not in _server() else _named(name)
    finally:
        with psycopg.connect(_server(), autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


_running = ExitStack()


def _server() -> str:
    if URL not in os.environ:
        os.environ[URL] = _running.enter_context(postgres(shared_buffers="512MB", max_wal_size="8GB"))
    return os.environ[URL]


def _named(name: str) -> str:
    from urllib.parse import urlsplit, urlunsplit

    return urlunsplit(urlsplit(_server())._replace(path=f"/{name}"))


@contextmanager
def both(peer: Callable[[str], Any]) -> Iterator[tuple[Ours, Any]]:
    """A store and a peer, in one database."""
    with database() as url, Router(url) as router, closing(peer(url)) as other:
        router.counts()  # the first verb makes the tables
        yield Ours(router), other


Work = Callable[[Side, int, int], int]


def against(run: Run, peer: Callable[[str], Any], count: int, batch: int, ours: Work, theirs: Work) -> Iterator[Sides]:
    """Yield *ours* on the store and *theirs* on the peer; each has 10,000 jobs waiting behind those that it does."""
    with both(peer) as (store, other):
        for side in (store, other):
            fill(side, 10_000, run)
        yield (
            lambda: rate(lambda: ours(store, count, batch), before=lambda: fill(store, count, run)),
            lambda: rate(lambda: theirs(other, count, batch), before=lambda: fill(other, count, run)),
        )


@row("batches of 100, one process", peer="one wide table", goal=1.2)
def batches_wide(run: Run) -> Iterator[Sides]:
    yield from against(run, OneTable, run.pick(5_000, 1_000), BATCH, overlapped, by_turns)


@row("batches of 100, one process", peer="narrow tables, overlapped", goal=0.75)
def batches_narrow(run: Run) -> Iterator[Sides]:
    yield from against(run, NarrowTables, run.pick(5_000, 1_000), BATCH, overlapped, overlapped)


@row("batches of 100, two processes", peer="one wide table, two processes", goal=1.0)
def two_processes(run: Run) -> Iterator[Sides]:
    count = run.pick(5_000, 1_000)
    with both(OneTable) as (store, other):
        url = store.router.store.database.url  # type: ignore[attr-defined]  # of a PostgreSQL store
        with Pair("ours", url, count) as ours, Pair("wide", url, count) as wide:
            for side in (store, other):
                fill(side, 10_000, run)
            yield (
                lambda: rate(ours.go, before=lambda: fill(store, 2 * count, run)),
                lambda: rate(wide.go, before=lambda: fill(other, 2 * count, run)),
            )


class Pair:
    """Two processes that each do *count* jobs when they are told to."""

    def __init__(self, what: str, url: str, count: int) -> None:
        command = [sys.executable, __file__, "--half", what, url, str(count)]
        self._count = count
        self._halves = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
        ]

    def __enter__(self) -> Pair:
        for half in self._halves:
            assert half.stdout is not None
            assert half.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        for half in self._halves:
            assert half.stdin is not None
            half.stdin.close()
            half.wait()

    def go(self) -> int:
        """Let both do their jobs, and return how many that were."""
        for half in self._halves:
            assert half.stdin is not None
            half.stdin.write("go\n")
            half.stdin.flush()
        for half in self._halves:
            assert half.stdout is not None
            assert half.stdout.readline() == "done\n"
        return 2 * self._count


def half(what: str, url: str, count: int) -> None:
    """Be one of two processes."""
    with ExitStack() as stack:
        side: Side
        if what == "ours":
            side, work = Ours(stack.enter_context(Router(url))), overlapped
        else:
            side, work = stack.enter_context(closing(OneTable(url))), by_turns
        print("ready", flush=True)
        for _ in sys.stdin:
            work(side, count, BATCH)
            print("done", flush=True)


@row("one at a time", peer="one wide table", goal=0.8)
def one_at_a_time(run: Run) -> Iterator[Sides]:
    yield from against(run, OneTable, run.pick(300, 60), 1, by_turns, by_turns)


@row("add_many of 1,000", peer="a raw INSERT into the same tables", goal=0.6)
def adding(run: Run) -> Iterator[Sides]:
    with both(SameTables) as (store, other):

        def ours() -> int:
            return len(store.router.add_many([{"id": id, "payload": {"n": 1}} for id, _ in jobs(1_000)]))

        def theirs() -> int:
            other.add(jobs(1_000))
            return 1_000

        steps = run.pick(5, 2)
        yield lambda: rate(ours, steps=steps), lambda: rate(theirs, steps=steps)


# Flat


def flat(run: Run, many: int, few: int, queues: Sequence[str] = ("default",)) -> Iterator[Sides]:
    """Yield batches with *many* pending, and with *few*."""
    count = run.pick(5_000, 1_000)
    with (
        database() as one,
        database() as other,
        Router(one) as crowded,
        Router(other) as empty,
    ):
        sides = Ours(crowded, queues), Ours(empty, queues)
        for side, backlog in zip(sides, (many, few), strict=True):
            fill(side, backlog, run)
        yield (
            lambda: rate(lambda: overlapped(sides[0], count, BATCH), before=lambda: fill(sides[0], count, run)),
            lambda: rate(lambda: overlapped(sides[1], count, BATCH), before=lambda: fill(sides[1], count, run)),
        )


@row("from 10,000 to many pending", peer="leasehold with 10,000 pending", goal=0.8)
def flat_one_queue(run: Run) -> Iterator[Sides]:
    yield from flat(run, run.pick(1_000_000, 100_000), 10_000)


@row("from 10,000 to many pending, three queues", peer="leasehold with 10,000 pending", goal=0.8)
def flat_three_queues(run: Run) -> Iterator[Sides]:
    yield from flat(run, run.pick(1_000_000, 100_000), 9_999, ("a", "b", "c"))


@row("with an old transaction left open", peer="leasehold without one", goal=0.8)
def old_transaction(run: Run) -> Iterator[Sides]:
    count = run.pick(5_000, 1_000)
    with (
        database() as one,
        database() as other,
        Router(one) as hindered,
        Router(other) as free,
        psycopg.connect(one) as old,
    ):
        sides = Ours(hindered), Ours(free)
        for side in sides:
            fill(side, 10_000, run)
        # Of this database: no row that goes from now on can be removed in it.
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT pg_catalog.pg_current_xact_id()")
        for side in sides:  # how dead entries pile up
            fill(side, run.pick(100_000, 20_000), run)
            overlapped(side, run.pick(100_000, 20_000), BATCH)
        yield (
            lambda: rate(lambda: overlapped(sides[0], count, BATCH), before=lambda: fill(sides[0], count, run)),
            lambda: rate(lambda: overlapped(sides[1], count, BATCH), before=lambda: fill(sides[1], count, run)),
        )


# Latency


@row("from add to claim, idle", peer="one wide table with LISTEN/NOTIFY", goal=1 / 1.5, unit="ms p50", better="less")
def picking_up(run: Run) -> Iterator[Sides]:
    count, stop = run.pick(30, 10), threading.Event()
    with both(OneTable) as (store, _):
        router = store.router
        url = router.store.database.url  # type: ignore[attr-defined]  # of a PostgreSQL store
        claimed: queue.SimpleQueue[float] = queue.SimpleQueue()

        def claim() -> None:
            while not stop.is_set():
                lease = router.claim(OWNER, wait_seconds=1)
                if lease is not None:
                    claimed.put(time.perf_counter())
                    lease.complete()

        def listen() -> None:
            with psycopg.connect(url, autocommit=True) as listener, closing(OneTable(url)) as wide:
                listener.execute("LISTEN here")
                while not stop.is_set():
                    for _ in listener.notifies(timeout=1, stop_after=1):
                        claims = wide.claim(1)
                        claimed.put(time.perf_counter())
                        wide.complete(claims)

        def measured(add: Callable[[str], object]) -> float:
            spent = []
            for id, _ in jobs(count):
                time.sleep(0.03)  # until whoever claims waits again
                began = time.perf_counter()
                add(id)
                spent.append(claimed.get() - began)
            return sorted(spent)[count // 2] * 1_000

        def notify(id: str) -> None:
            with notifier.transaction():
                notifier.execute(
                    "INSERT INTO wide (id, queue, priority, run_at, payload, created_at) "
                    "VALUES (%s, 'default', 0, 1, 'null', 1)",
                    [id],
                )
                notifier.execute("NOTIFY here")

        threads = [threading.Thread(target=claim), threading.Thread(target=listen)]
        for thread in threads:
            thread.start()
        try:
            with psycopg.connect(url, autocommit=True) as notifier:
                yield lambda: measured(router.add), lambda: measured(notify)
        finally:
            stop.set()
            for thread in threads:
                thread.join()


@row("a fenced transaction of one row", peer="the same, not fenced", goal=1 / 1.35, unit="ms", better="less")
def fencing(run: Run) -> Iterator[Sides]:
    count = run.pick(200, 50)
    with database() as url, Router(url) as router, psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE results (n bigint)")
        router.add("long")
        lease = router.claim(OWNER, lease_seconds=3_600)
        assert lease is not None

        def measured(fence: bool) -> float:
            began = time.perf_counter()
            for n in range(count):
                with connection.pipeline(), connection.transaction():
                    if fence:
                        lease.fence(connection)
                    connection.execute("INSERT INTO results VALUES (%s)", [n])
            return (time.perf_counter() - began) / count * 1_000

        yield lambda: measured(True), lambda: measured(False)


ROWS = [
    batches_wide,
    batches_narrow,
    two_processes,
    one_at_a_time,
    adding,
    flat_one_queue,
    flat_three_queues,
    old_transaction,
    picking_up,
    fencing,
]

if __name__ == "__main__":
    if sys.argv[1:2] == ["--half"]:
        half(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        sys.exit()
    with _running:
        sys.exit(main(ROWS, about=__doc__, on_server=lambda url: os.environ.update({URL: url})))
