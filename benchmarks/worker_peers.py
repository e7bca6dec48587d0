"""
Other job systems, doing the same no-op jobs: each as its documentation recommends for throughput, as durable as ours.

A peer is filled with jobs, which nobody times, and then works them off: from the start of its worker, in this process
and with its connections open, to the moment when the last job is marked done, which each peer is asked for by itself.
What it does to stop is not counted. Afterwards `check` looks at what it has kept, and at how often the handler ran.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import itertools
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 300


class MissingPeer(SystemExit):
    """A peer is not installed."""


class Peer(Protocol):
    """What works off jobs."""

    def fill(self, count: int) -> None:
        """Keep *count* jobs, to be worked off."""

    def work(self, count: int) -> float:
        """Work off the *count* jobs that were kept; return the seconds until the last is marked done."""

    def check(self) -> None:
        """Raise unless each job so far ran once and is done."""

    def close(self) -> None:
        """Give back what is open."""


def named(package: str) -> str:
    """Return *package* with the version that is installed, for the table."""
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{package} (not installed)"


def need(package: str) -> None:
    """Raise unless *package* is installed."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise MissingPeer(
            f"{package} is not installed, and this row compares with it. Install the extra that has the peers: "
            "pip install -e '.[bench]' in a checkout."
        ) from None


class Countdown:
    """Counts how often handlers ran, from any thread, and says when as many did as were expected."""

    def __init__(self) -> None:
        self.total = 0
        self.finished_at = 0.0
        self.done = threading.Event()
        self._numbers = itertools.count(1)
        self.expected = 0

    def expect(self, count: int) -> None:
        """Begin a round of *count* runs."""
        self.total += count
        self.done.clear()
        self._numbers = itertools.count(1)
        self.expected = count

    def __call__(self) -> None:
        """Count one run. The count is one step of the interpreter, so no two threads get the same number."""
        if next(self._numbers) == self.expected:
            self.finished_at = time.perf_counter()
            self.done.set()

    @property
    def ran(self) -> int:
        """How many ran in this round."""
        return int(repr(self._numbers).removeprefix("count(").rstrip(")")) - 1  # to call next() would count one more

    def wait(self) -> float:
        """Return when the last one ran."""
        if not self.done.wait(PATIENCE_SECONDS):
            raise AssertionError(f"{self.ran} of {self.expected} jobs ran in {PATIENCE_SECONDS} seconds.")
        return self.finished_at

    def check(self) -> None:
        """Raise unless as many ran in this round as were expected."""
        must(self.ran == self.expected, f"{self.ran} handlers ran for {self.expected} jobs.")


def must(holds: bool, otherwise: str) -> None:
    """Raise unless it *holds*: an assertion that stays under -O."""
    if not holds:
        raise AssertionError(otherwise)


# In this process


class Pool:
    """The standard library's thread pool: not a job system, and the least that runs functions in threads."""

    def __init__(self, threads: int = 4) -> None:
        self._threads = threads
        self._count = Countdown()
        self._results: list[None] = []

    def fill(self, count: int) -> None:
        """Keep nothing: what is submitted runs at once."""
        self._count.expect(count)

    def work(self, count: int) -> float:
        """Submit *count* functions, run them, and wait for the results of all."""
        with ThreadPoolExecutor(self._threads) as pool:
            began = time.perf_counter()
            futures = [pool.submit(self._count) for _ in range(count)]
            self._results = [future.result() for future in futures]
            return time.perf_counter() - began

    def check(self) -> None:
        """Raise unless each ran once and had its result."""
        self._count.check()

    def close(self) -> None:
        """There is nothing to give back."""


class SubmittedPool(Pool):
    """The same pool, with everything submitted before the clock starts: its threads wait until then."""

    def work(self, count: int) -> float:
        """Run *count* functions that were submitted, and wait for the results of all."""
        gate = threading.Event()
        with ThreadPoolExecutor(self._threads) as pool:
            for _ in range(self._threads):
                pool.submit(gate.wait)
            futures = [pool.submit(self._count) for _ in range(count)]
            began = time.perf_counter()
            gate.set()
            self._results = [future.result() for future in futures]
            return time.perf_counter() - began


class Huey:
    """
    huey with its consumer's threads in this process.

    A job that is taken is gone from its storage, and a result of None is not kept: there is no mark to wait for behind
    the handler's own run. On SQLite its defaults are WAL and SQLite's own `synchronous`, which is FULL.
    """

    def __init__(self, path: str | None = None, *, workers: int = 4) -> None:
        need("huey")
        import huey
        import huey.consumer

        self._huey: Any = huey.MemoryHuey() if path is None else huey.SqliteHuey(filename=path)
        self._count = Countdown()
        self._workers = workers
        count = self._count

        @self._huey.task()  # type: ignore[untyped-decorator]  # it has no types
        def noop() -> None:
            count()

        self._noop = noop

        class Consumer(huey.consumer.Consumer):  # type: ignore[misc]  # it has no types
            def _set_signal_handlers(self) -> None:
                """Leave the signals to the benchmark."""

        self._consumer = Consumer
        if path is not None:
            [(synchronous,)] = self._huey.storage.sql("PRAGMA synchronous", results=True)
            must(synchronous == 2, f"huey's connection has synchronous = {synchronous}, which is not FULL.")

    def fill(self, count: int) -> None:
        """Keep *count* jobs."""
        self._count.expect(count)
        for _ in range(count):
            self._noop()

    def work(self, count: int) -> float:
        """Run a consumer until all of them ran."""
        consumer = self._consumer(self._huey, workers=self._workers, periodic=False)
        began = time.perf_counter()
        consumer.start()
        took = self._count.wait() - began
        consumer.stop(graceful=True)
        return took

    def check(self) -> None:
        """Raise unless each ran once and none is left."""
        self._count.check()
        must(self._huey.pending_count() == 0, "huey has jobs left.")

    def close(self) -> None:
        """Close its file."""
        self._huey.storage.close()


# On PostgreSQL


class Loop:
    """An event loop that stays open between rounds, with the connections that belong to it."""

    def __init__(self, *, uvloop: bool) -> None:
        if uvloop:
            import uvloop as fast

            self._runner = asyncio.Runner(loop_factory=fast.new_event_loop)
        else:
            self._runner = asyncio.Runner()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run *coroutine* to its end, with a limit."""
        return self._runner.run(asyncio.wait_for(coroutine, PATIENCE_SECONDS))

    def close(self) -> None:
        """Close the loop."""
        self._runner.close()


class Pgqueuer:
    """
    pgqueuer on asyncpg and uvloop, as its command line runs it: tables durable, `pgq autovac` applied.

    Its queue manager has one connection, as its guide advises, and a hundred jobs at once. Its batch may be half of
    that at most, and the larger the faster.
    """

    def __init__(self, url: str, *, batch_size: int = 50, max_concurrent_tasks: int | None = 100) -> None:
        need("pgqueuer")
        need("asyncpg")
        self._url = url
        self._loop = Loop(uvloop=True)
        self._options = {"batch_size": batch_size, "max_concurrent_tasks": max_concurrent_tasks}
        self._count = Countdown()
        self._loop.run(self._open())

    async def _open(self) -> None:
        import asyncpg
        from pgqueuer.queries import Queries

        self._connection: Any = await asyncpg.connect(self._url)
        self._queries: Any = Queries.from_asyncpg_connection(self._connection)
        await self._queries.install()
        await self._queries.optimize_autovacuum()

    def fill(self, count: int) -> None:
        """Keep *count* jobs."""
        self._count.expect(count)
        self._loop.run(self._queries.enqueue(["noop"] * count, [None] * count, [0] * count))

    def work(self, count: int) -> float:
        """Run its queue manager until the last job's completion is committed."""
        return self._loop.run(self._work(count))

    async def _work(self, count: int) -> float:
        from pgqueuer.qm import QueueManager
        from pgqueuer.queries import Queries

        logged, finished_at = 0, 0.0

        class Logging(Queries):  # type: ignore[misc]  # its types are not looked at
            async def log_jobs(self, job_status: Any) -> None:
                nonlocal logged, finished_at
                await super().log_jobs(job_status)
                logged += len(job_status)
                if logged == count:
                    finished_at = time.perf_counter()
                    manager.shutdown.set()

        async def noop(job: Any) -> None:
            self._count()

        await self._connection.reset()  # it listens to nothing, whatever the last manager listened to
        manager = QueueManager(Logging.from_asyncpg_connection(self._connection))
        manager.entrypoint("noop")(noop)
        began = time.perf_counter()
        await manager.run(**self._options)
        return finished_at - began

    def check(self) -> None:
        """Raise unless each was picked once, ran once and is logged as successful."""
        self._count.check()
        self._loop.run(self._check())

    async def _check(self) -> None:
        left = await self._connection.fetchval("SELECT count(*) FROM pgqueuer")
        must(left == 0, f"pgqueuer has {left} jobs left.")
        rows = await self._connection.fetch("SELECT status::text, count(*) FROM pgqueuer_log GROUP BY status")
        kept = dict(map(tuple, rows))
        total = self._count.total
        expected = {"queued": total, "picked": total, "successful": total}
        must(kept == expected, f"pgqueuer's log has {kept}, not {expected}.")

    @contextmanager
    def idling(self) -> Iterator[Callable[[], float]]:
        """Run a queue manager in a thread; give what adds a job and returns the seconds until its handler starts."""
        import asyncpg
        from pgqueuer.qm import QueueManager
        from pgqueuer.queries import Queries

        started: queue.SimpleQueue[float] = queue.SimpleQueue()
        ready = threading.Event()
        stop: list[Callable[[], object]] = []

        async def noop(job: Any) -> None:
            started.put(time.perf_counter())

        async def serve() -> None:
            connection = await asyncpg.connect(self._url)
            manager = QueueManager(Queries.from_asyncpg_connection(connection))
            manager.entrypoint("noop")(noop)
            loop = asyncio.get_running_loop()
            stop.append(lambda: loop.call_soon_threadsafe(manager.shutdown.set))
            ready.set()
            await manager.run(**self._options)
            await connection.close()

        def thread() -> None:
            loop = Loop(uvloop=True)
            loop.run(serve())
            loop.close()

        def once() -> float:
            began = time.perf_counter()
            self._loop.run(self._queries.enqueue("noop", None))
            return started.get(timeout=PATIENCE_SECONDS) - began

        serving = threading.Thread(target=thread)
        serving.start()
        ready.wait(PATIENCE_SECONDS)
        try:
            yield once
        finally:
            for end in stop:
                end()
            serving.join()

    def close(self) -> None:
        """Hang up."""
        self._loop.run(self._connection.close())
        self._loop.close()


class Procrastinate:
    """
    procrastinate on its psycopg pool, with async jobs and finished jobs kept, as by default.

    It takes jobs one by one, so more than a few at once do not make it faster; nor do more than four connections.
    """

    def __init__(self, url: str, *, concurrency: int = 10, connections: int = 4) -> None:
        need("procrastinate")
        import procrastinate

        self._concurrency = concurrency
        self._loop = Loop(uvloop=False)
        self._count = Countdown()
        self._finished = 0
        self._finished_at = 0.0
        connector = procrastinate.PsycopgConnector(conninfo=url, min_size=connections, max_size=connections)
        self._app: Any = procrastinate.App(connector=connector)
        count = self._count

        @self._app.task(name="noop")  # type: ignore[untyped-decorator]  # its types are not looked at
        async def noop() -> None:
            count()

        self._noop = noop
        finish = self._app.job_manager.finish_job

        async def counted(*args: Any, **options: Any) -> None:
            await finish(*args, **options)
            self._finished += 1
            self._finished_at = time.perf_counter()

        self._app.job_manager.finish_job = counted
        self._loop.run(self._open())

    async def _open(self) -> None:
        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()

    def fill(self, count: int) -> None:
        """Keep *count* jobs."""
        self._count.expect(count)
        self._loop.run(self._noop.batch_defer_async(*({} for _ in range(count))))

    def work(self, count: int) -> float:
        """Run its worker until the last job's completion is committed."""
        self._finished = 0
        began = time.perf_counter()
        self._loop.run(
            self._app.run_worker_async(concurrency=self._concurrency, wait=False, install_signal_handlers=False)
        )
        must(self._finished == count, f"procrastinate finished {self._finished} of {count} jobs.")
        return self._finished_at - began

    def check(self) -> None:
        """Raise unless each ran once, at the first attempt, and is kept as succeeded."""
        self._count.check()
        rows = self._loop.run(
            self._app.connector.execute_query_all_async(
                "SELECT status::text, attempts, count(*) AS number FROM procrastinate_jobs GROUP BY status, attempts"
            )
        )
        kept = {(row["status"], row["attempts"]): row["number"] for row in rows}
        must(kept == {("succeeded", 1): self._count.total}, f"procrastinate has {kept}.")

    def close(self) -> None:
        """Hang up."""
        self._loop.run(self._app.close_async())
        self._loop.close()
