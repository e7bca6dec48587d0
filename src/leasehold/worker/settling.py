"""
The group commit: how many handlers have ended is settled in one transaction.

A job whose settlement waits here is still in flight, and its lease is renewed.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..core.clock import Clock
from ..core.job import Settlement
from ..core.wording import counted
from ..errors import Settled, StoreUnavailable
from ..store import Refusal, Store
from .calling import Unsettled, failed
from .log import log
from .run import Run

_MOST = 1_000  # in one transaction
_REST_US = 50_000
_LONGEST_REST_US = 2_000_000
_LAST_REST_SECONDS = 0.01


class Ending(NamedTuple):
    """How a run ended; without a settlement, the handler has settled the job itself, and the store is asked."""

    run: Run
    settlement: Settlement | None
    error: BaseException | None = None


Answers = list["Refusal | Exception | None"]


class Settler(threading.Thread):
    """Settles what it is given, and tells *over* once it is committed or refused."""

    def __init__(
        self,
        store: Store,
        steady: Clock,
        over: Callable[[list[Ending], Answers], None],
        is_empty: Callable[[], bool],
        flush: Callable[[Iterable[Run]], None],
    ) -> None:
        super().__init__(name="leasehold-settle", daemon=True)
        self._store = store
        self._steady = steady
        self._over = over
        self._is_empty = is_empty  # nothing is in flight, so nothing more will be put
        self._flush = flush  # writes what handlers have reported so far
        self._endings: deque[Ending] = deque()
        self._parts: deque[list[Ending]] = deque()  # what the store did not take yet
        self._waits = threading.Event()  # set: there is something to settle, or it is to end
        self._pause = threading.Condition()
        self._rest = _REST_US
        self._ending = False
        self._given_up = False
        self.failing = False  # the store does not answer

    def put(self, ending: Ending) -> None:
        """Have this settled soon."""
        self._endings.append(ending)
        # It clears the event before it looks at what there is, so a look at the event is enough.
        if not self._waits.is_set():
            self._waits.set()

    def close(self, seconds: float) -> bool:
        """Settle what is left, for at most *seconds*; return whether that is everything."""
        self._ending = True
        self._waits.set()
        self._wake()
        self.join(seconds)
        settled = not self.is_alive()
        self._given_up = True
        self._wake()
        return settled

    def run(self) -> None:
        """Settle until the end."""
        while not self._given_up:
            if not self._parts:
                # During shutdown a run may have left the executing state, and not have been put here yet.
                self._waits.wait(_LAST_REST_SECONDS if self._ending else None)
            ending = self._ending
            self._waits.clear()
            self._round()
            if ending and not self._parts and self._is_empty():
                return

    def _round(self) -> None:
        """Settle everything, until the store does not answer; then leave the rest for later, and wait a while."""
        for turn in itertools.count():
            batch = self._next(late=turn % 2 == 1)
            if not batch:
                return
            try:
                self._commit(batch)
            except StoreUnavailable as error:
                self._later(batch, error)
                return
            self._rest = _REST_US
            if self.failing:
                self.failing = False
                log.info("settling again")

    def _next(self, *, late: bool) -> list[Ending]:
        """Return what to settle next: in turns what is new and what had to wait, so that neither keeps the other."""
        if self._parts and (late or not self._endings):
            return self._parts.popleft()
        return self._taken()

    def _taken(self) -> list[Ending]:
        endings = self._endings
        return [endings.popleft() for _ in range(min(len(endings), _MOST))]

    def _commit(self, batch: list[Ending]) -> None:
        try:
            self._flush(ending.run for ending in batch)
            answers = settled(self._store, batch)
        except StoreUnavailable:
            raise
        except Exception as error:
            if len(batch) > 1:  # one that cannot be settled must not keep the others
                self._parts.extend([ending] for ending in batch)
                return
            log.error("could not settle job %r; it will be reclaimed", batch[0].run.lease.job_id, exc_info=error)
            answers = [error]
        self._over(batch, answers)

    def _later(self, batch: list[Ending], error: StoreUnavailable) -> None:
        # Whether it was committed is not known. The same settlement again changes nothing if it was.
        if not self.failing:
            jobs = counted(len(batch), "job", "jobs")
            log.warning("could not settle %s (outcome unknown; retrying): %s", jobs, error)
        self.failing = True
        # Maybe only one of them needs a lock that another transaction holds: it must not delay the others for long.
        middle = len(batch) // 2
        self._parts.extend(part for part in (batch[:middle], batch[middle:]) if part)
        with self._pause:
            if not self._given_up:
                self._steady.wait(self._pause, self._steady.now() + self._rest)
        self._rest = min(2 * self._rest, _LONGEST_REST_US)

    def _wake(self) -> None:
        with self._pause:
            self._pause.notify_all()


def settled(store: Store, batch: list[Ending]) -> Answers:
    """
    Settle a batch of runs that have ended, and return the refusals.

    Where a handler has settled its job in a transaction that did not commit, the batch then has a failure instead.
    """
    settlements = [ending.settlement for ending in batch if ending.settlement is not None]
    if len(settlements) == len(batch):
        return [*store.settle(settlements)]
    answers: Answers = [None] * len(batch)
    _confirm(store, batch, answers, [number for number, ending in enumerate(batch) if ending.settlement is None])
    settlements = [ending.settlement for ending in batch if ending.settlement is not None]
    replies = iter(store.settle(settlements) if settlements else ())
    return [
        answer if ending.settlement is None else next(replies) for ending, answer in zip(batch, answers, strict=True)
    ]


def _confirm(store: Store, batch: list[Ending], answers: Answers, asked: list[int]) -> None:
    """Ask the store about jobs whose handlers have settled them; where it knows nothing of that, fail them."""
    grants = [batch[number].run.grant for number in asked]
    refusals = store.check([(grant.spec.id, grant.epoch) for grant in grants])
    for number, refusal in zip(asked, refusals, strict=True):
        if refusal is None:
            run, _, error = batch[number]
            batch[number] = Ending(run, _unsettled(run, error), error)
        elif not isinstance(refusal, Settled):
            answers[number] = refusal


def _unsettled(run: Run, error: BaseException | None) -> Settlement:
    if error is not None:
        return failed(run.task, run.grant, error)
    text = "the handler settled the job in a transaction of its own, which did not commit"
    return failed(run.task, run.grant, Unsettled(text), text=text)
