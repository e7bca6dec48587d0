"""The hunt as a whole: starts the processes, listens to them, looks at the store meanwhile, and judges at the end."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any

from ...core.clock import patience
from ...core.job import Job, Outcome, Settlement
from ...errors import InvalidArgument, StoreIncompatible, UnknownJob
from ...router import Router
from .judge import Accepted, EffectRow, Ended, Finding, Issued, Judge
from .owners import hunt_in
from .party import Orders, Ticks
from .tables import Tables, tables_of

PROCESSES = 3
THREADS = 5
COUNTED = ("fenced commits", "refused commits", "takeovers", "claims", "settles")
_START_SECONDS = 60.0
_LOOK_SECONDS = 2.0
_WIND_DOWN_SECONDS = 30.0
_DRAIN_SECONDS = 120.0
_PAGE = 1000
_TAKEOVERS = ("reclaimed", "failed", "transferred", "cancelled", "finished")


@dataclass
class Evidence:
    """A finding, with all that is known about its job."""

    what: str
    job_id: str | None = None
    traceback: str | None = None
    reports: list[str] = field(default_factory=list)
    ownerships: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)


@dataclass
class Result:
    """What a hunt has found: nothing, if all is well."""

    url: str = field(repr=False)  # it may have a password
    schema: str
    seed: int
    seconds: float
    counts: dict[str, int]
    findings: list[Evidence]
    interrupted: bool = False

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


Progress = Callable[[float, dict[str, int], int], None]  # seconds, counts, findings


def hunt(
    url: str,
    *,
    seconds: float,
    processes: int = PROCESSES,
    threads: int = THREADS,
    seed: int | None = None,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> Result:
    """
    Let *processes* times *threads* hunters loose on a new schema of the store of *url*, and judge what they saw.

    The schema is dropped afterwards, unless something was found. Setting *stop* ends it early, and Ctrl-C does.
    *seed* repeats the hunters' choices, and not the order in which the machine lets them act.
    """
    for what, value in (("seconds", seconds), ("processes", processes), ("threads", threads)):
        if not value > 0:  # nor nan
            raise InvalidArgument(f"{what} must be more than 0, not {value!r}.")
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    schema = f"hunt_{os.getpid()}_{random.SystemRandom().randrange(2**32):08x}"
    tables = tables_of(url, schema)
    with Router(url, schema=schema) as router:
        try:
            router.counts()  # makes the schema
        except StoreIncompatible as error:
            if getattr(error.__cause__, "sqlstate", None) != "42501":
                raise
            why = str(error.__cause__).partition("\n")[0]
            raise StoreIncompatible(
                f"a hunt creates two schemas of its own, and the role of that URL is not allowed to ({why}): GRANT "
                "CREATE ON DATABASE … TO that role, or name another role. Nothing was changed."
            ) from error
        tables.create()
        one = _Hunt(router, tables, Orders(url, schema, 0, threads, seed), progress or (lambda *_: None))
        took, interrupted = one.run(seconds, processes, stop or threading.Event())
        counts = {name: one.judge.counts[name] for name in {*COUNTED, *one.judge.counts}}
        findings = [one.evidence(finding) for finding in one.judge.findings[:20]]
    if not findings:
        tables.drop()
    return Result(url, schema, seed, took, counts, findings, interrupted)


class _Hunt:
    def __init__(self, router: Router, tables: Tables, orders: Orders, progress: Progress) -> None:
        self.judge = Judge()
        self._router = router
        self._tables = tables
        self._orders = orders
        self._progress = progress
        context = multiprocessing.get_context("spawn")
        self._context = context
        self._ticks = context.Value("q", 0)
        self._waiting = context.Value("i", 0)
        self._stop = context.Event()
        self._tick = Ticks(self._ticks)

    def run(self, seconds: float, processes: int, stop: threading.Event) -> tuple[float, bool]:
        """Hunt, then judge; return how long the hunters hunted, and whether they were interrupted."""
        deadlocks = self._tables.deadlocks()
        pipes: list[Connection] = []
        hunters: list[Any] = []
        with _ctrl_c_later():
            for number in range(processes):
                ours, theirs = self._context.Pipe(duplex=False)
                orders = replace(self._orders, number=number)
                args = (orders, self._ticks, self._waiting, self._stop, theirs)
                hunter = self._context.Process(target=hunt_in, args=args, daemon=True)
                hunter.start()
                theirs.close()
                pipes.append(ours)
                hunters.append(hunter)
        left = patience(seconds)
        interrupted = False
        try:
            for pipe in pipes:
                pipe.poll(_START_SECONDS)  # the time runs from when all of them hunt
            left = patience(seconds)
            self._listen(pipes, left, stop)
            interrupted = stop.is_set()
        except KeyboardInterrupt:
            interrupted = True
        took = seconds - max(left(), 0)
        self._wind_down(pipes, hunters)
        for step in (self._drain, self._judge):
            try:
                step()
            except Exception as error:
                trace = "".join(traceback.format_exception(error))
                self.judge.find(f"at the end: {type(error).__name__}: {error}", None, trace)
        self.judge.counts["deadlocks"] = self._tables.deadlocks() - deadlocks
        return took, interrupted

    def _listen(self, pipes: list[Connection], left: Callable[[], float], stop: threading.Event) -> None:
        total, look = left(), patience(0)
        while pipes and left() > 0 and not stop.is_set() and not self.judge.findings:
            self._hear(pipes, 0.1)
            if look() <= 0:
                self._look()
                look = patience(_LOOK_SECONDS)
                self._progress(total - left(), dict(self.judge.counts), len(self.judge.findings))

    def _hear(self, pipes: list[Connection], seconds: float) -> None:
        for pipe in wait(pipes, seconds):
            assert isinstance(pipe, Connection)
            try:
                self.judge.hear(pipe.recv())
            except (EOFError, OSError):
                pipes.remove(pipe)

    def _look(self) -> None:
        """Look at the store as it is at this moment, whatever the hunters do."""
        counts = self._router.counts()
        self._waiting.value = counts.pending
        for sentence in self._router.verify():
            self.judge.find(f"verify: {sentence}", _quoted(sentence))
        for row in self._tables.stale():
            self.judge.find(f"a stale row: {row}.", row.job_id)

    def _wind_down(self, pipes: list[Connection], hunters: list[Any]) -> None:
        self._stop.set()
        left = patience(_WIND_DOWN_SECONDS)
        while pipes and left() > 0:
            self._hear(pipes, 0.1)
        for hunter in hunters:
            hunter.join(max(left(), 1))
            if hunter.exitcode is None:
                hunter.terminate()
                hunter.join()
                self.judge.find(f"process {hunter.pid} of the hunt did not end: one of its verbs has not returned.")
            elif hunter.exitcode:
                self.judge.find(f"process {hunter.pid} of the hunt ended with {hunter.exitcode}.")

    def _drain(self) -> None:
        """End every job that is left, as a calm owner would."""
        seconds = 10.0 if self.judge.findings else _DRAIN_SECONDS  # what is known to be broken may never end
        left = patience(seconds)
        for queue in self._router.queues():  # a hunter that was ended may have left one paused
            self._router.resume(queue.name, by="calm")
        while left() > 0:
            sent = self._tick()
            leases = self._router.claim_many("calm", limit=200, lease_seconds=60, wait_seconds=0.2)
            replied = self._tick()
            for lease in leases:
                lock = (lease.payload or {}).get("lock")
                checkpoint = (lease.checkpoint or {}).get("epoch", 0)
                self.judge.hear([Issued(lease.job_id, lock, lease.epoch, sent, replied, "claim", "calm", checkpoint)])
            sent = self._tick()
            settlements = [Settlement(lease.job_id, lease.epoch, Outcome.COMPLETE, result='"calm"') for lease in leases]
            answers = self._router.store.settle(settlements)
            replied = self._tick()
            for lease, refusal in zip(leases, answers, strict=True):
                lock = (lease.payload or {}).get("lock")
                if refusal is not None:
                    self.judge.find(f"a calm owner was refused: {refusal}", lease.job_id)
                    continue
                self.judge.hear([Accepted(lease.job_id, lock, lease.epoch, sent, replied, "settle", "calm")])
                self.judge.hear([Ended(lease.job_id, lock, lease.epoch, replied, "settle")])
            counts = self._router.counts()
            if not leases and counts.pending == counts.running == 0:
                return
        for status in ("pending", "running"):
            for job in self._router.jobs(status=status, limit=5):
                self.judge.find(f"job {job.id} never ended: after {seconds:g} s it is {status}.", job.id)

    def _judge(self) -> None:
        self._look()
        self.judge.judge_issues()
        self.judge.judge_pauses()
        rows = self._tables.rows()
        self.judge.judge_rows(rows)
        jobs = list(self._jobs())
        self.judge.judge_jobs((_token(job), job.id) for job in jobs)
        self._judge_completions(jobs, rows)
        self._judge_pick_ups()
        # As the store has recorded them: hunters see those only that they bring about themselves.
        self.judge.counts["takeovers"] = sum(
            event.facts.get("was") is not None
            for kind in _TAKEOVERS
            for event in self._router.events(kind=kind, limit=None)
        )

    def _jobs(self) -> Iterator[Job]:
        last: str | None = None
        while page := self._router.jobs(after=last, limit=_PAGE):
            yield from page
            last = page[-1].id

    def _judge_completions(self, jobs: list[Job], rows: list[EffectRow]) -> None:
        """Each row that completes a job belongs to an ownership that ended so, and the other way round."""
        tokens = {row.token for row in rows}
        for job in jobs:
            result = job.result
            if isinstance(result, dict) and result.get("row") not in tokens:
                self.judge.find(
                    f"the result of job {job.id} names row {result.get('row')}, which does not exist.", job.id
                )
        completing: dict[str, set[int]] = {}
        for row in rows:
            if row.settles:
                completing.setdefault(row.job_id, set()).add(row.epoch)
        for job_id, epochs in completing.items():
            ownerships = self._router.ownerships(job_id)
            issued = [one.epoch for one in ownerships]
            if issued != sorted(set(issued)):
                self.judge.find(f"job {job_id}: the epochs of its ownerships do not rise: {issued}.", job_id)
            done = {one.epoch for one in ownerships if one.ended == "done"}
            for epoch in epochs - done:
                self.judge.find(
                    f"job {job_id}: a row says that it was completed under epoch {epoch}, but its ownerships do not.",
                    job_id,
                )

    def _judge_pick_ups(self) -> None:
        """What a worker has accepted did not expire as something that was never picked up."""
        for picked_up in self.judge.accepted.values():
            for held in self._router.ownerships(picked_up.job_id):
                if held.epoch == picked_up.epoch and held.note is not None and "never picked up" in held.note:
                    self.judge.find(f"a pick-up was forgotten: {picked_up}, and then {held}.", picked_up.job_id)

    def evidence(self, finding: Finding) -> Evidence:
        """Return *finding* with all that is known about its job."""
        evidence = Evidence(*finding)
        if finding.job_id is not None:
            evidence.reports = [str(report) for report in self.judge.history(finding.job_id)]
            try:
                evidence.ownerships = [str(one) for one in self._router.ownerships(finding.job_id)]
                evidence.events = [str(one) for one in self._router.events(finding.job_id)]
            except UnknownJob as unknown:
                evidence.events = [str(unknown)]
            evidence.rows = [str(row) for row in self._tables.rows() if row.job_id == finding.job_id]
        return evidence


@contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """Hold Ctrl-C back: the processes that start here are born so, and later ignore what was held back."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _token(job: Job) -> str:
    payload = job.payload
    token = payload.get("token") if isinstance(payload, dict) else None
    return job.id if token is None else str(token)


def _quoted(sentence: str) -> str | None:
    """Return the job that a sentence of `verify` names, if it does."""
    parts = sentence.split("'")
    return parts[1] if len(parts) > 2 and sentence.startswith("job ") else None


def as_json(result: Result) -> str:
    """Return *result* as one line of JSON."""
    facts = {
        "name": "hunt",
        "holds": result.holds,
        "seconds": round(result.seconds, 1),
        "seed": result.seed,
        "schema": result.schema,
        "interrupted": result.interrupted,
        "counts": dict(sorted(result.counts.items())),
        "findings": [vars(finding) for finding in result.findings],
    }
    return json.dumps(facts)
