"""
How fast a worker runs jobs that do nothing, from the store and back, beside other job systems in the same minutes.

    python benchmarks/worker.py              every row, some minutes; it starts servers of its own
    python benchmarks/worker.py --quick      every row, smaller, under a minute

Both sides have all of their jobs before the clock starts, unless a row says otherwise. It stops when the last one is
marked done, as durably as each side does by default: on SQLite and PostgreSQL that is fsync at each commit. A worker is
started within that time, and stopped after it. The peers are the extra `bench`; `worker_peers.py` says how each is set
up, and checks after each round that every job ran once.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, whatever is installed
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psycopg
from benchmarks.harness import Run, Sides, main, row
from benchmarks.servers import postgres
from benchmarks.worker_peers import Countdown, Huey, Peer, Pgqueuer, Pool, Procrastinate, must, named

from leasehold import Lease, Router
from leasehold.core.job import Settlement, handed_back, new_job
from leasehold.store import Refusal

SOURCE = Path(__file__).resolve().parents[1] / "src"
IDLE_SECONDS = 0.05


class Leasehold:
    """A worker of ours, in the shape of the peers."""

    def __init__(self, url: str | None = None, *, concurrency: int, schema: str = "leasehold") -> None:
        self._router = Router(url, schema=schema)
        self._concurrency = concurrency
        self._count = Countdown()
        count = self._count

        @self._router.task
        def noop() -> None:
            count()

        self._noop = noop
        self._settled = 0
        self._settled_at = 0.0
        settle = self._router.store.settle

        def counted(settlements: Sequence[Settlement]) -> list[Refusal | None]:
            reply = settle(settlements)
            self._settled += reply.count(None)
            self._settled_at = time.perf_counter()
            return reply

        self._router.store.settle = counted  # type: ignore[method-assign]  # as the peers are asked

    def fill(self, count: int) -> None:
        """Keep *count* jobs, and none that is done."""
        self._router.prune(keep_seconds=0, keep_ids_seconds=0)
        self.add(count)

    def add(self, count: int) -> None:
        """Add *count* jobs."""
        self._count.expect(count)
        for done in range(0, count, 5_000):
            self._router.add_many([self._noop.job() for _ in range(min(5_000, count - done))])

    def work(self, count: int) -> float:
        """Start a worker that stops when nothing is left, and return when the last settlement was confirmed."""
        self._settled = 0
        began = time.perf_counter()
        self._router.work(concurrency=self._concurrency, until_empty=True)
        must(self._settled == count, f"{self._settled} of {count} jobs were settled.")
        return self._settled_at - began

    def check(self) -> None:
        """Raise unless each ran once and is kept as done."""
        self._count.check()
        counts = self._router.counts()
        kept = (counts.pending, counts.running, counts.done)
        must(kept == (0, 0, self._count.expected), f"pending, running and done are {kept}.")

    @contextmanager
    def idling(self) -> Iterator[Callable[[], float]]:
        """Run a worker in the background; give what adds a job and returns the seconds until its handler starts."""
        started: queue.SimpleQueue[float] = queue.SimpleQueue()

        @self._router.task
        def stamp() -> None:
            started.put(time.perf_counter())

        def once() -> float:
            began = time.perf_counter()
            stamp.add()
            return started.get(timeout=60) - began

        with self._router.worker(concurrency=self._concurrency):
            yield once

    def close(self) -> None:
        """Close the store."""
        self._router.close()


class Mixed(Leasehold):
    """The same worker, with an async task beside the plain one: every tenth job is for it."""

    def __init__(self, url: str | None = None, *, concurrency: int) -> None:
        super().__init__(url, concurrency=concurrency)
        count = self._count

        @self._router.task
        async def async_noop() -> None:
            count()

        self._async_noop = async_noop

    def add(self, count: int) -> None:
        """Add *count* jobs of both kinds."""
        self._count.expect(count)
        jobs = [(self._noop if number % 10 else self._async_noop).job() for number in range(count)]
        for done in range(0, count, 5_000):
            self._router.add_many(jobs[done : done + 5_000])


class AddedToo(Leasehold):
    """The same worker, with the adding counted."""

    def fill(self, count: int) -> None:
        """Keep nothing yet."""
        self._router.prune(keep_seconds=0, keep_ids_seconds=0)

    def work(self, count: int) -> float:
        """Add the jobs at once, and work them off."""
        began = time.perf_counter()
        self.add(count)
        return time.perf_counter() - began + super().work(count)


class BesidePaused(Leasehold):
    """The same worker beside *paused* jobs in a queue that is paused."""

    def __init__(self, url: str, *, schema: str, concurrency: int, paused: int) -> None:
        super().__init__(url, schema=schema, concurrency=concurrency)
        self._paused = paused
        for done in range(0, paused, 5_000):
            count = min(5_000, paused - done)
            self._router.add_many([self._noop.options(queue="a paused one").job() for _ in range(count)])
        self._router.pause("a paused one", by="benchmark")

    def check(self) -> None:
        """Raise unless each ran once and is kept as done, and the paused ones wait."""
        self._count.check()
        counts = self._router.counts()
        kept = (counts.pending, counts.running, counts.done)
        must(kept == (self._paused, 0, self._count.expected), f"pending, running and done are {kept}.")


class BesideUnknown(Leasehold):
    """The same worker, with *unknown* jobs of a task that it does not know before its own."""

    def __init__(self, url: str, *, schema: str, concurrency: int, unknown: int) -> None:
        super().__init__(url, schema=schema, concurrency=concurrency)
        self._unknown = unknown
        for done in range(0, unknown, 5_000):
            jobs = [
                new_job(f"unknown-{done + n}", task="unknown", priority=1) for n in range(min(5_000, unknown - done))
            ]
            self._router.store.add(jobs)

    def fill(self, count: int) -> None:
        """Keep *count* jobs; and those before them wait to be claimed, as if nobody had passed them over."""
        grants = self._router.store.claim("benchmark", limit=self._unknown, tasks=["unknown"], lease_us=3_600_000_000)
        must(len(grants) == self._unknown, f"{len(grants)} of {self._unknown} jobs were there.")
        self._router.store.settle([handed_back(grant) for grant in grants])
        super().fill(count)
        must(self._router.counts().parked == {}, "some are parked before the worker starts.")

    def check(self) -> None:
        """Raise unless each ran once and is kept as done, and the unknown ones wait."""
        self._count.check()
        counts = self._router.counts()
        kept = (counts.pending, counts.running, counts.done)
        must(kept == (self._unknown, 0, self._count.expected), f"pending, running and done are {kept}.")
        must(counts.parked == {"unknown": {"default": self._unknown}}, f"parked are {counts.parked}.")


def a_round(side: Peer, count: int, tidy: Callable[[], object]) -> float:
    """Fill *side*, let it work, look at what it did, and return its jobs per second."""
    side.fill(count)
    tidy()
    took = side.work(count)
    side.check()
    return count / took


def against(
    ours: Peer, theirs: Peer, count: int, their_count: int | None = None, tidy: Callable[[], object] = lambda: None
) -> Iterator[Sides]:
    """
    Yield rounds of *count* jobs; the peer has *their_count*, if it is so slow that as many would take minutes.

    Each round begins with what *tidy* leaves.
    """
    with closing(ours), closing(theirs):
        yield lambda: a_round(ours, count, tidy), lambda: a_round(theirs, their_count or count, tidy)


# In this process


@row("memory: 4 threads", peer=f"{named('huey')}, MemoryHuey, 4 threads", goal=1.0)
def memory_huey(run: Run) -> Iterator[Sides]:
    yield from against(Leasehold(concurrency=4), Huey(workers=4), run.pick(10_000, 5_000))


@row("memory: 4 threads", peer="ThreadPoolExecutor(4): submit, run, wait for all results", goal=1.0)
def memory_pool(run: Run) -> Iterator[Sides]:
    yield from against(Leasehold(concurrency=4), Pool(4), run.pick(10_000, 5_000))


@row("memory: add_many and work, 4 threads", peer="ThreadPoolExecutor(4): submit, run, wait for all results", goal=0.3)
def memory_add_and_work(run: Run) -> Iterator[Sides]:
    yield from against(AddedToo(concurrency=4), Pool(4), run.pick(10_000, 5_000))


# On a disk


@row("sqlite: synchronous=FULL", peer=f"{named('huey')}, SqliteHuey, its defaults: WAL, FULL, 1 thread", goal=8.0)
def sqlite_huey(run: Run) -> Iterator[Sides]:
    with tempfile.TemporaryDirectory(prefix="leasehold-") as folder:
        ours = Leasehold(f"sqlite:///{quote(folder)}/ours.db", concurrency=16)
        yield from against(ours, Huey(f"{folder}/huey.db", workers=1), run.pick(5_000, 1_000), run.pick(500, 200))


@row("sqlite: plain and async handlers, 4 slots", peer="the same worker without an async task", goal=0.8)
def sqlite_mixed(run: Run) -> Iterator[Sides]:
    """One async task used to turn claiming ahead off, for all jobs."""
    with tempfile.TemporaryDirectory(prefix="leasehold-") as folder:
        mixed = Mixed(f"sqlite:///{quote(folder)}/mixed.db", concurrency=4)
        pure = Leasehold(f"sqlite:///{quote(folder)}/pure.db", concurrency=4)
        yield from against(mixed, pure, run.pick(10_000, 5_000))


@row("sqlite: lease.progress() in a handler", peer="by hand, a transaction each", goal=20.0, unit="calls/s")
def sqlite_progress(run: Run) -> Iterator[Sides]:
    """A worker writes the newest report of a job once a second; by hand each is written at once."""
    count, took = run.pick(50_000, 20_000), queue.SimpleQueue[float]()

    def report(lease: Lease, count: int) -> float:
        began = time.perf_counter()
        for step in range(count):
            lease.progress(step / count)
        return count / (time.perf_counter() - began)

    with (
        tempfile.TemporaryDirectory(prefix="leasehold-") as folder,
        Router(f"sqlite:///{quote(folder)}/progress.db", lease_seconds=3600) as router,
    ):

        @router.task
        def reporting(lease: Lease) -> None:
            took.put(report(lease, count))

        def ours() -> float:
            reporting.add()
            return took.get(timeout=60)

        router.add("by hand", queue="by hand")
        lease = router.claim("by hand", queues=["by hand"])
        assert lease is not None
        with router.worker(concurrency=1, queues=["default"]):
            yield ours, lambda: report(lease, count // 50)


PAUSED = 100_000


@row("sqlite: beside 100,000 jobs of a paused queue", peer="the same worker without them", goal=0.9)
def sqlite_paused(run: Run) -> Iterator[Sides]:
    with tempfile.TemporaryDirectory(prefix="leasehold-") as folder:
        url = f"sqlite:///{quote(folder)}/"
        ours = BesidePaused(f"{url}ours.db", schema="ours", concurrency=16, paused=run.pick(PAUSED, 20_000))
        theirs = Leasehold(f"{url}theirs.db", schema="theirs", concurrency=16)
        yield from against(ours, theirs, run.pick(20_000, 5_000))


UNKNOWN = 10_000


@row("sqlite: behind 10,000 jobs of an unknown task", peer="the same worker without them", goal=0.8)
def sqlite_unknown(run: Run) -> Iterator[Sides]:
    with tempfile.TemporaryDirectory(prefix="leasehold-") as folder:
        url = f"sqlite:///{quote(folder)}/"
        ours = BesideUnknown(f"{url}ours.db", schema="ours", concurrency=16, unknown=run.pick(UNKNOWN, 2_000))
        theirs = Leasehold(f"{url}theirs.db", schema="theirs", concurrency=16)
        yield from against(ours, theirs, run.pick(40_000, 8_000))


# A worker of a deployment: the old one does not know the task, the new one says how long after its add each job began.
DEPLOYED = """
import sys, time
sys.path.insert(0, sys.argv[1])
from leasehold import Router

router = Router(sys.argv[2])

@router.task
def known_to_all() -> None:
    pass

if sys.argv[3] == "new":
    @router.task
    def stamp(added: float) -> None:
        sys.stdout.write(f"{time.time() - added}\\n")  # in one piece, whatever other threads write
        sys.stdout.flush()

with router.worker(concurrency=16):
    print("up", flush=True)
    sys.stdin.read()
"""


@contextmanager
def deployed(url: str, which: str) -> Iterator[subprocess.Popen[str]]:
    """Run a worker of a deployment, the `old` or the `new` one, in a process of its own."""
    command = [sys.executable, "-c", DEPLOYED, str(SOURCE), url, which]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        must(process.stdout.readline() == "up\n", f"the {which} worker does not start.")
        yield process
        process.communicate()


def start_delay(url: str, count: int) -> Iterator[Sides]:
    """Yield rounds of *count* jobs, added one by one, that only one of two workers on their queue knows."""
    with Router(url) as router, deployed(url, "old"), deployed(url, "new") as new:

        def worst() -> float:
            for _ in range(count):
                router.add(None, {"added": time.time()}, task="stamp")
            assert new.stdout is not None
            delays = sorted(float(new.stdout.readline()) for _ in range(count))
            return delays[-(-count * 99 // 100) - 1]

        yield worst, lambda: 2.0


@row("sqlite: start delay beside an old worker", peer="2 s", goal=1.0, unit="s p99", better="less")
def sqlite_deployment(run: Run) -> Iterator[Sides]:
    with tempfile.TemporaryDirectory(prefix="leasehold-") as folder:
        yield from start_delay(f"sqlite:///{quote(folder)}/deployment.db", 100)


# On PostgreSQL, as durable as it is by itself


@contextmanager
def server(run: Run) -> Iterator[str]:
    """A server for one row, with memory enough for it."""
    with postgres(shared_buffers="512MB", max_wal_size="8GB") as url:
        with psycopg.connect(url) as connection:
            run.say(f"    PostgreSQL {connection.info.server_version // 10_000}, fsync on")
        yield url


def on_server(run: Run, theirs: Callable[[str], Peer], count: int, their_count: int | None = None) -> Iterator[Sides]:
    """
    Yield rounds of ours and of a peer in one database.

    It is vacuumed before each round: autovacuum looks once a minute, and whose turn that would fall on is chance.
    """
    with server(run) as url, psycopg.connect(url, autocommit=True) as keeper:
        ours = Leasehold(url, concurrency=100)
        yield from against(ours, theirs(url), count, their_count, lambda: keeper.execute("VACUUM ANALYZE"))


@row("postgres: concurrency 100", peer=f"{named('pgqueuer')}, asyncpg, concurrency 100, batches of 50", goal=1.6)
def postgres_pgqueuer(run: Run) -> Iterator[Sides]:
    yield from on_server(run, Pgqueuer, run.pick(5_000, 2_000))


@row("postgres: concurrency 100", peer=f"{named('procrastinate')}, psycopg, concurrency 10", goal=20.0)
def postgres_procrastinate(run: Run) -> Iterator[Sides]:
    yield from on_server(run, Procrastinate, run.pick(5_000, 2_000), run.pick(300, 100))


@row("postgres: beside 100,000 jobs of a paused queue", peer="the same worker without them", goal=0.9)
def postgres_paused(run: Run) -> Iterator[Sides]:
    with server(run) as url, psycopg.connect(url, autocommit=True) as keeper:
        ours = BesidePaused(url, schema="ours", concurrency=100, paused=run.pick(PAUSED, 20_000))
        theirs = Leasehold(url, schema="theirs", concurrency=100)
        yield from against(ours, theirs, run.pick(10_000, 3_000), None, lambda: keeper.execute("VACUUM ANALYZE"))


@row("postgres: behind 10,000 jobs of an unknown task", peer="the same worker without them", goal=0.8)
def postgres_unknown(run: Run) -> Iterator[Sides]:
    with server(run) as url, psycopg.connect(url, autocommit=True) as keeper:
        ours = BesideUnknown(url, schema="ours", concurrency=100, unknown=run.pick(UNKNOWN, 2_000))
        theirs = Leasehold(url, schema="theirs", concurrency=100)
        yield from against(ours, theirs, run.pick(40_000, 8_000), None, lambda: keeper.execute("VACUUM ANALYZE"))


@row("postgres: start delay beside an old worker", peer="2 s", goal=1.0, unit="s p99", better="less")
def postgres_deployment(run: Run) -> Iterator[Sides]:
    with server(run) as url:
        yield from start_delay(url, 100)


@row("postgres: from add to handler, idle", peer=named("pgqueuer"), goal=1.0, unit="ms p50", better="less")
def postgres_latency(run: Run) -> Iterator[Sides]:
    count = run.pick(30, 10)

    def middle(once: Callable[[], float]) -> float:
        spent = []
        for _ in range(count):
            time.sleep(IDLE_SECONDS)  # until the worker waits again
            spent.append(once())
        return sorted(spent)[count // 2] * 1_000

    with (
        server(run) as url,
        closing(Leasehold(url, concurrency=16)) as ours,
        closing(Pgqueuer(url)) as theirs,
        ours.idling() as our_once,
        theirs.idling() as their_once,
    ):
        our_once(), their_once()  # both are up
        yield lambda: middle(our_once), lambda: middle(their_once)


# What a worker's process needs. It says its peak, which is what a container's limit is about.
WORKER = """
import sys
sys.path.insert(0, sys.argv[1])
from leasehold import Lease, Router
from leasehold.core.job import Settlement
from leasehold.store import Refusal

router = Router(sys.argv[2])
ran = []

@router.task
def noop() -> None:
    ran.append(None)

if sys.argv[3] != "0":
    router.add_many([noop.job() for _ in range(int(sys.argv[3]))])
else:
    router.work(until_empty=True)
    [peak] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
    print(len(ran), peak)
"""


@row("postgres: a worker's memory", peer="60 MiB", goal=1.0, unit="MiB", better="less", rounds=3)
def postgres_memory(run: Run) -> Iterator[Sides]:
    count = run.pick(10_000, 5_000)

    def process(url: str, add: int) -> str:
        command = [sys.executable, "-c", WORKER, str(SOURCE), url, str(add)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def ours(url: str) -> float:
        process(url, count)
        ran, peak = map(int, process(url, 0).split())
        must(ran == count, f"{ran} handlers ran for {count} jobs.")
        return peak / 1024

    with server(run) as url:
        yield lambda: ours(url), lambda: 60.0


ROWS = [
    memory_huey,
    memory_pool,
    memory_add_and_work,
    sqlite_huey,
    sqlite_mixed,
    sqlite_progress,
    sqlite_paused,
    sqlite_unknown,
    sqlite_deployment,
    postgres_pgqueuer,
    postgres_procrastinate,
    postgres_paused,
    postgres_unknown,
    postgres_deployment,
    postgres_latency,
    postgres_memory,
]

if __name__ == "__main__":
    sys.exit(main(ROWS, about=__doc__))
