"""
Whether a PostgreSQL store is as fast and as small after a while as it was at its beginning.

    python benchmarks/soak.py --minutes 10             ten minutes on a server of its own, as durable as PostgreSQL is
    python benchmarks/soak.py --quick                  its minutes have ten seconds, and there are six of them
    python benchmarks/soak.py --url postgresql://…     on a server of yours, in a schema that is dropped afterwards

Some owners add, claim and complete jobs in batches of a hundred, as fast as they can, while finished jobs are pruned in
portions. Nothing is measured in the first minute: the server warms up, and the first jobs are not yet old enough to go.
The last minute is then compared with the second. Sizes are those of all tables and indexes of the store, at their
largest of the minute.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, whatever is installed
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psycopg
from benchmarks.harness import Figure, Result, Row, Run, Sides, shown, table
from benchmarks.servers import INSTALLED, NEWEST, postgres

from leasehold import Router
from leasehold.core.job import NewJob, Outcome, Settlement

BATCH = 100
BACKLOG = 2_000  # jobs that wait from the beginning: so no claim ever comes back with less than it asked for
OWNERS = 2
PRUNED_AT_ONCE = 1_000

_SIZES = """
    SELECT coalesce(sum(pg_table_size(c.oid)), 0), coalesce(sum(pg_indexes_size(c.oid)), 0),
           coalesce(sum(s.n_dead_tup), 0), pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    LEFT JOIN pg_stat_all_tables AS s ON s.relid = c.oid
    WHERE n.nspname = %s AND c.relkind = 'r'
"""


@dataclass(frozen=True)
class Sample:
    """How far the soak was at some instant, and how large the store."""

    seconds: float
    done: int
    tables: float  # bytes
    indexes: float
    dead: float  # row versions that nobody can see any more
    wal: float  # bytes that were written to the log, since the server was made


class Soak:
    """The owners, the pruner and what they have done."""

    def __init__(self, url: str, schema: str, keep_seconds: float) -> None:
        self._router = Router(url, schema=schema)
        self._keep_us = int(keep_seconds * 1_000_000)
        self._stop = threading.Event()
        self._numbers = [0] * OWNERS
        self.pruned = 0
        self.failure: BaseException | None = None

    @property
    def done(self) -> int:
        """How many jobs are complete."""
        return sum(self._numbers)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the owners and the pruner run for the block."""
        self._router.add_many([NewJob(f"backlog-{n}", '{"n":0}') for n in range(BACKLOG)])
        threads = [threading.Thread(target=self._guarded, args=[self._own, number]) for number in range(OWNERS)]
        threads.append(threading.Thread(target=self._guarded, args=[self._prune, 0]))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
            self._router.close()

    def _guarded(self, work: Callable[[int], None], number: int) -> None:
        try:
            while not self._stop.is_set():
                work(number)
        except BaseException as error:
            self.failure = error
            self._stop.set()

    def _own(self, number: int) -> None:
        first = self._numbers[number]
        self._router.add_many([NewJob(f"job-{number}-{first + n}", f'{{"n":{n}}}') for n in range(BATCH)])
        leases = self._router.claim_many(f"owner-{number}", limit=BATCH)
        said = [Settlement(lease.job_id, lease.epoch, Outcome.COMPLETE, result="null") for lease in leases]
        refused = [refusal for refusal in self._router.store.settle(said) if refusal is not None]
        if refused or len(leases) < BATCH:
            raise RuntimeError(
                f"{len(leases)} jobs were claimed, and {len(refused)} completions refused: {refused[:3]}"
            )
        self._numbers[number] += BATCH

    def _prune(self, number: int) -> None:
        removed = self._router.store.prune(self._keep_us, limit=PRUNED_AT_ONCE, keep_ids_us=0).jobs
        self.pruned += removed
        if removed < PRUNED_AT_ONCE:
            self._stop.wait(0.1)


def sampled(url: str, schema: str, soak: Soak, seconds: float, tell: Callable[[list[Sample]], None]) -> list[Sample]:
    """Look every second, and return what was seen."""
    samples: list[Sample] = []
    began = time.monotonic()
    with psycopg.connect(url, autocommit=True) as connection:
        while soak.failure is None:
            elapsed = time.monotonic() - began
            done = soak.done
            [(tables, indexes, dead, wal)] = connection.execute(_SIZES, [schema]).fetchall()
            samples.append(Sample(elapsed, done, float(tables), float(indexes), float(dead), float(wal)))
            tell(samples)
            if elapsed >= seconds:
                return samples
            time.sleep(max(0.0, len(samples) - (time.monotonic() - began)))
    raise RuntimeError("the soak has failed") from soak.failure


def between(samples: Sequence[Sample], begin: float, end: float) -> list[Sample]:
    """Return the samples of a stretch of time, both ends included."""
    return [sample for sample in samples if begin <= sample.seconds <= end + 0.5]


def rates(samples: Sequence[Sample]) -> Figure:
    """Return the jobs per second of a stretch, and of its slowest and its fastest tenth."""
    part = max(1, len(samples) // 10)
    found = [_rate(samples[n], samples[min(n + part, len(samples) - 1)]) for n in range(0, len(samples) - 1, part)]
    return Figure(_rate(samples[0], samples[-1]), min(found), max(found))


def _rate(one: Sample, other: Sample) -> float:
    return (other.done - one.done) / (other.seconds - one.seconds)


def sizes(samples: Sequence[Sample], of: Callable[[Sample], float], unit: float = 1e6) -> Figure:
    """Return the largest size of a stretch, and its smallest and largest."""
    found = [max(of(sample), 1.0) / unit for sample in samples]
    return Figure(max(found), min(found), max(found))


def _nothing(run: Run) -> Iterator[Sides]:
    raise NotImplementedError("a soak is measured as a whole")
    yield


def results(samples: Sequence[Sample], minute: float) -> list[Result]:
    """Compare the last minute with the second."""
    second = between(samples, minute, 2 * minute)
    last = between(samples, samples[-1].seconds - minute, samples[-1].seconds)
    peer = "its second minute"
    made = []
    for name, unit, goal, figure in (
        ("throughput", "jobs/s", 0.85, rates),
        # Bounded: PostgreSQL vacuums once a minute, so the second one has not seen all of its effect. What is never
        # given back grows with every minute.
        ("tables", "MB", 0.5, lambda part: sizes(part, lambda sample: sample.tables)),
        ("indexes", "MB", 0.5, lambda part: sizes(part, lambda sample: sample.indexes)),
    ):
        row = Row(
            f"postgres: soak: {name} of the last minute",
            peer,
            goal,
            unit,
            "more" if name == "throughput" else "less",
            None,
            contextmanager(_nothing),
        )
        ours, theirs = figure(last), figure(second)
        ratio = ours.median / theirs.median if row.better == "more" else theirs.median / ours.median
        made.append(Result(row, ours, theirs, Figure(ratio, ratio, ratio)))
    return made


def told(samples: Sequence[Sample]) -> str:
    """Return one line about the last seconds."""
    last, before = samples[-1], samples[max(0, len(samples) - 6)]
    speed = _rate(before, last) if last is not before else 0.0
    wal = (last.wal - before.wal) / max(last.done - before.done, 1)
    return (
        f"{int(last.seconds) // 60}:{int(last.seconds) % 60:02d}  {speed:,.0f} jobs/s, {last.done:,} done, tables "
        f"{shown(last.tables / 1e6)} MB, indexes {shown(last.indexes / 1e6)} MB, {last.dead:,.0f} dead, "
        f"{wal:,.0f} bytes of WAL per job"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Soak as the command line says, and print what came of it. Return 0, goals met or not."""
    about = (__doc__ or "").strip().partition("\n")[0]
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--minutes", type=float, default=10, help="how long; at least 3 (default 10)")
    parser.add_argument("--quick", action="store_true", help="a minute has ten seconds, and there are six")
    parser.add_argument("--json", action="store_true", help="one JSON object per line instead of the table")
    parser.add_argument("--url", help="a server of yours, instead of one that is started here")
    parser.add_argument("--version", choices=sorted(INSTALLED), default=NEWEST, help="which PostgreSQL to start")
    options = parser.parse_args(argv)
    minute = 10.0 if options.quick else 60.0
    minutes = 6.0 if options.quick else options.minutes
    if minutes < 3:
        parser.error(f"--minutes must be 3 or more, not {minutes:g}: the last one is compared with the second.")
    run = Run(quick=options.quick)
    schema = f"soak_{os.getpid()}"
    with ExitStack() as stack:
        # PostgreSQL looks once a minute whether there is something to vacuum.
        settings = {"autovacuum_naptime": "10s"} if options.quick else {}
        url = options.url or stack.enter_context(postgres(options.version, **settings))
        if options.url:
            stack.callback(_drop, url, schema)
        soak = Soak(url, schema, keep_seconds=minute / 3)
        with soak.running():
            samples = sampled(url, schema, soak, minutes * minute, lambda so_far: run.progress(told(so_far)))
    made = results(samples, minute)
    dead = [statistics.median(sample.dead for sample in part) for part in _minutes(samples, minute)]
    wal = (samples[-1].wal - samples[0].wal) / max(samples[-1].done, 1)
    run.say(
        f"{samples[-1].done:,} jobs done, {soak.pruned:,} pruned, {wal:,.0f} bytes of WAL per job; dead rows in each "
        f"minute: {', '.join(f'{count:,.0f}' for count in dead)}"
    )
    print("\n".join(result.as_json() for result in made) if options.json else table(made))
    return 0


def _minutes(samples: Sequence[Sample], minute: float) -> list[list[Sample]]:
    count = max(1, round(samples[-1].seconds / minute))
    return [part for n in range(count) if (part := between(samples, n * minute, (n + 1) * minute))]


def _drop(url: str, schema: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


if __name__ == "__main__":
    sys.exit(main())
