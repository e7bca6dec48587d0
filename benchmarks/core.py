"""
How fast the stores that need no server are, each against the least that could do the same work.

    python benchmarks/core.py              every row, some minutes
    python benchmarks/core.py --quick      every row, smaller, under a minute
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, whatever is installed
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness import Run, Sides, main, rate, row
from benchmarks.peers import BareRouter, RawSqlite, ScanningRouter

from leasehold import Router
from leasehold.core.job import NewJob, completion
from leasehold.store import Store

SOURCE = Path(__file__).resolve().parents[1] / "src"
BATCH = 100
OWNER = "worker-0"

# What leasehold is made of. sqlite3 is loaded with the first SQLite store, and asyncio with the first `.aio`. asyncio
# stays in this list, so that the row can be compared with earlier figures.
NEEDED = "asyncio, contextvars, dataclasses, datetime, enum, hashlib, json, logging, random, threading, typing, uuid"


def cpu_rate(step: Callable[[], int], *, steps: int = 1, before: Callable[[], object] | None = None) -> float:
    """Return a rate per second of this process's own time: what only computes is not slower for waiting its turn."""
    return rate(step, steps=steps, before=before, clock=time.process_time)


def ids() -> Callable[[], str]:
    """Return a function that returns another id each time."""
    numbers = itertools.count()
    return lambda: f"job-{next(numbers)}"


def fill(store: Store, count: int, new_id: Callable[[], str], run: Run) -> None:
    """Add *count* jobs with a small payload to *store*, as fast as it takes them."""
    for done in range(0, count, 10_000):
        store.add([NewJob(new_id(), f'{{"n":{n}}}') for n in range(done, min(done + 10_000, count))])
        if count > 10_000:
            run.progress(f"{done + 10_000:,} of {count:,} jobs added")


# The verbs that are measured


def one_by_one(router: Router, count: int) -> int:
    """Claim and complete *count* jobs through the public verbs."""
    for _ in range(count):
        lease = router.claim(OWNER)
        assert lease is not None
        lease.complete()
    return count


def in_batches(router: Router, count: int) -> int:
    """Claim and complete *count* jobs through the store's verbs."""
    store = router.store
    for _ in range(0, count, BATCH):
        grants = store.claim(OWNER, limit=BATCH)
        assert len(grants) == BATCH
        assert not any(store.settle([completion(grant) for grant in grants]))
    return count


def bare_one_by_one(bare: BareRouter, count: int) -> int:
    """Do on the bare router what `one_by_one` does."""
    for _ in range(count):
        claim = bare.claim(OWNER)
        assert claim is not None
        assert bare.complete(claim.id, claim.epoch)
    return count


def bare_in_batches(bare: BareRouter, count: int) -> int:
    """Do on the bare router what `in_batches` does."""
    for _ in range(0, count, BATCH):
        claims = bare.claim_many(OWNER, BATCH)
        assert len(claims) == BATCH
        assert all(bare.complete_many([(claim.id, claim.epoch, None) for claim in claims]))
    return count


# The memory store


def against_bare(
    run: Run, count: int, ours: Callable[[Router, int], int], theirs: Callable[[BareRouter, int], int]
) -> Iterator[Sides]:
    """Yield *ours* on a memory store and *theirs* on a bare router, each with *count* jobs."""
    router, bare, new_id = Router(), BareRouter(), ids()
    yield (
        lambda: cpu_rate(lambda: ours(router, count), before=lambda: fill(router.store, count, new_id, run)),
        lambda: cpu_rate(
            lambda: theirs(bare, count), before=lambda: bare.add_many((new_id(), {"n": n}) for n in range(count))
        ),
    )
    assert router.counts().pending == router.counts().running == 0


@row("memory: claim + complete, one by one", peer="a bare heap router", goal=0.2)
def memory_one_by_one(run: Run) -> Iterator[Sides]:
    yield from against_bare(run, run.pick(5_000, 3_000), one_by_one, bare_one_by_one)


@row("memory: claim + complete, batches of 100", peer="a bare heap router, batches of 100", goal=0.3)
def memory_in_batches(run: Run) -> Iterator[Sides]:
    yield from against_bare(run, run.pick(10_000, 5_000), in_batches, bare_in_batches)


def flat(
    router: Router, backlog: int, run: Run, work: Callable[[int], int], measured: Callable[..., float] = cpu_rate
) -> Callable[[], float]:
    """
    Return a round of *work* on 1,000 jobs, with *backlog* more pending behind them.

    As many are added, and those that are done removed, both untimed: the backlog alone is the difference.
    """
    new_id = ids()
    fill(router.store, backlog, new_id, run)

    def before() -> None:
        router.prune(keep_seconds=0, keep_ids_seconds=0)
        fill(router.store, 1_000, new_id, run)

    return lambda: measured(lambda: work(1_000), steps=run.pick(3, 1), before=before)


@row("memory: one by one, from 1,000 to many pending", peer="leasehold with 1,000 pending", goal=0.8)
def memory_flat(run: Run) -> Iterator[Sides]:
    many, few = Router(), Router()
    yield (
        flat(many, run.pick(1_000_000, 100_000), run, lambda count: one_by_one(many, count)),
        flat(few, 1_000, run, lambda count: one_by_one(few, count)),
    )


@row("memory: batches of 100, from 1,000 to many pending", peer="leasehold with 1,000 pending", goal=0.8)
def memory_flat_in_batches(run: Run) -> Iterator[Sides]:
    many, few = Router(), Router()
    yield (
        flat(many, run.pick(1_000_000, 100_000), run, lambda count: in_batches(many, count)),
        flat(few, 1_000, run, lambda count: in_batches(few, count)),
    )


@row("memory: one by one, with 10,000 pending", peer="a router that scans its jobs", goal=100)
def memory_against_scanning(run: Run) -> Iterator[Sides]:
    router, scanning, new_id = Router(), ScanningRouter(), ids()
    fill(router.store, 10_000, new_id, run)
    for n in range(10_000):
        scanning.add(new_id(), {"n": n})

    def scan() -> int:
        for n in range(10):
            job = scanning.claim(OWNER)
            assert job is not None
            assert scanning.complete(OWNER, job.id)
            scanning.add(new_id(), {"n": n})
        return 10

    yield (
        lambda: cpu_rate(lambda: one_by_one(router, 1_000), before=lambda: fill(router.store, 1_000, new_id, run)),
        lambda: cpu_rate(scan, steps=run.pick(2, 1)),
    )


@row("memory: add, one by one", peer="a bare heap router", goal=0.05)
def memory_add(run: Run) -> Iterator[Sides]:
    router, bare, count, new_id = Router(), BareRouter(), run.pick(5_000, 3_000), ids()

    def ours() -> int:
        for n in range(count):
            router.add(new_id(), {"n": n})
        return count

    def theirs() -> int:
        for n in range(count):
            bare.add(new_id(), {"n": n})
        return count

    yield lambda: cpu_rate(ours), lambda: cpu_rate(theirs)


@row("memory: bytes of a pending job", peer="1 KiB", goal=1.0, unit="bytes", better="less", rounds=1)
def memory_bytes(run: Run) -> Iterator[Sides]:
    def ours() -> float:
        count, router, new_id = 100_000, Router(), ids()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for n in range(count):
                router.add(new_id(), {"n": n})
            return (tracemalloc.get_traced_memory()[0] - before) / count
        finally:
            tracemalloc.stop()

    yield ours, lambda: 1024.0


# The SQLite store, durable as it is by default: every commit waits for the disk


class Files:
    """Stores and raw connections in a folder that goes away with them."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="leasehold-")))

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def router(self, name: str) -> Router:
        """Return a Router whose file is *name*."""
        return self._stack.enter_context(Router(self._url(name)))

    def raw(self, name: str) -> RawSqlite:
        """Return raw statements on the tables that a store has made in the file *name*."""
        with Router(self._url(name)) as router:
            router.counts()  # the first verb makes the tables
        return self._stack.enter_context(closing(RawSqlite(str(self._folder / name))))

    def _url(self, name: str) -> str:
        return f"sqlite:///{quote(str(self._folder / name))}"


def raw_claim_and_complete(raw: RawSqlite, count: int, batch: int) -> int:
    """Claim and complete *count* jobs by the raw statements."""
    for _ in range(0, count, batch):
        claims = raw.claim(OWNER, batch)
        assert len(claims) == batch
        assert raw.complete(claims) == batch
    return count


def against_raw(run: Run, count: int, batch: int, work: Callable[[Router, int], int]) -> Iterator[Sides]:
    """Yield *work* on a SQLite store, and the raw statements for batches of *batch*."""
    with Files() as files:
        router, raw, new_id = files.router("ours.db"), files.raw("theirs.db"), ids()
        fill(router.store, 10_000, new_id, run)
        raw.add_many((new_id(), {"n": n}) for n in range(10_000))
        yield (
            lambda: rate(lambda: work(router, count), before=lambda: fill(router.store, count, new_id, run)),
            lambda: rate(
                lambda: raw_claim_and_complete(raw, count, batch),
                before=lambda: raw.add_many((new_id(), {"n": n}) for n in range(count)),
            ),
        )
        assert router.counts().pending == 10_000


@row("sqlite: claim + complete, one by one", peer="raw statements, a transaction each", goal=0.75)
def sqlite_one_by_one(run: Run) -> Iterator[Sides]:
    yield from against_raw(run, run.pick(200, 50), 1, one_by_one)


@row("sqlite: claim + complete, batches of 100", peer="raw statements, batches of 100", goal=0.5)
def sqlite_in_batches(run: Run) -> Iterator[Sides]:
    yield from against_raw(run, run.pick(5_000, 1_000), BATCH, in_batches)


@row("sqlite: batches of 100, from 10,000 to many pending", peer="leasehold with 10,000 pending", goal=0.8)
def sqlite_flat(run: Run) -> Iterator[Sides]:
    with Files() as files:
        many, few = files.router("many.db"), files.router("few.db")
        yield (
            flat(many, run.pick(1_000_000, 100_000), run, lambda count: in_batches(many, count), rate),
            flat(few, 10_000, run, lambda count: in_batches(few, count), rate),
        )


@row("sqlite: add, 1,000 at once", peer="raw statements, 1,000 at once", goal=0.05)
def sqlite_add(run: Run) -> Iterator[Sides]:
    with Files() as files:
        router, raw, new_id = files.router("ours.db"), files.raw("theirs.db"), ids()

        def ours() -> int:
            return len(router.add_many([{"id": new_id(), "payload": {"n": n}} for n in range(1_000)]))

        def theirs() -> int:
            raw.add_many((new_id(), {"n": n}) for n in range(1_000))
            return 1_000

        steps = run.pick(5, 1)
        yield lambda: rate(ours, steps=steps), lambda: rate(theirs, steps=steps)


# The package


@row("import leasehold", peer="the modules of the standard library that it needs", goal=2 / 3, unit="ms", better="less")
def importing(run: Run) -> Iterator[Sides]:
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); start = time.perf_counter(); "
        "import {}; print((time.perf_counter() - start) * 1000)"
    )

    with tempfile.TemporaryDirectory() as folder:

        def fresh(modules: str) -> float:
            # Isolated, without site: neither an editable install's hook nor a .pth file may load something first.
            python = [sys.executable, "-I", "-S", "-X", f"pycache_prefix={folder}"]
            command = [*python, "-c", code.format(modules), str(SOURCE)]
            return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

        fresh("leasehold")  # compiles
        fresh(NEEDED)
        yield lambda: fresh("leasehold"), lambda: fresh(NEEDED)


ROWS = [
    memory_one_by_one,
    memory_in_batches,
    memory_flat,
    memory_flat_in_batches,
    memory_against_scanning,
    memory_add,
    memory_bytes,
    sqlite_one_by_one,
    sqlite_in_batches,
    sqlite_flat,
    sqlite_add,
    importing,
]

if __name__ == "__main__":
    sys.exit(main(ROWS, about=__doc__))
