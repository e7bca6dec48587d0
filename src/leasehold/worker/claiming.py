"""
Claims jobs while there is room for them.

As many as can begin at once, and, where handlers end within milliseconds, those that will have begun shortly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from ..core.clock import Clock, patience
from ..core.ids import new_claim_id
from ..core.job import Grant, handed_back
from ..errors import LeaseholdError, StoreUnavailable
from ..liveness import this_process
from ..store import Store
from ..tasks.task import AnyTask
from .log import log
from .queue_names import warn_of_unknown
from .until_empty import UntilEmpty

MOST = 10_000  # in one claim
WAIT_SECONDS = 1.0  # for jobs, before it looks whether there is room and whether to stop
LONGEST_REST_SECONDS = 5.0  # after failed claims
_EMPTY_SECONDS = (0.005, 0.2)  # the same with `until_empty`: at first, and after many in vain
_FIRST_REST_SECONDS = 0.1
_LAST_SECONDS = 2.0  # for a claim that is under way at the end
_AHEAD_SECONDS = 0.025  # what is begun within this time, at the speed of the moment, is claimed ahead
_AHEAD_MOST = 1_000


class Slots(Protocol):
    """What a claimer must know of the runs of its worker."""

    def room(self) -> int:
        """Return how many handlers could begin now."""
        ...

    def claims_ahead(self) -> bool:
        """Return whether jobs may be claimed that cannot begin at once."""
        ...

    def begin(self, grants: Sequence[Grant], sent_us: int) -> None:
        """Begin what a claim, sent at that instant, has got."""
        ...

    def is_empty(self) -> bool:
        """Return whether nothing is in flight here."""
        ...


class Claimer(threading.Thread):
    """
    Claims until `stop`, or until nothing is left, or until it cannot go on: then it calls *over*.

    After each claim it calls *swept*: upkeep in it may have failed jobs.
    """

    def __init__(
        self,
        store: Store,
        slots: Slots,
        steady: Clock,
        over: Callable[[BaseException | None], None],
        swept: Callable[[], None],
        *,
        owner: str,
        queues: Sequence[str] | None,
        tasks: Mapping[str, AnyTask],
        lease_us: int,
        until_empty: bool,
    ) -> None:
        super().__init__(name="leasehold-claim", daemon=True)
        self._store = store
        self._slots = slots
        self._steady = steady
        self._over = over
        self._swept = swept
        self._owner = owner
        self._queues = queues
        self._tasks = tasks
        self._lease_us = lease_us
        self._until_empty = (
            UntilEmpty(store, queues, steady, lambda task: (task or "") in tasks) if until_empty else None
        )
        self._free = threading.Event()  # a slot may have become free, or it is time to stop
        self._stopping = False
        self._failure: BaseException | None = None
        self._unknown: list[tuple[str, int]] = []  # claims whose reply was lost, and when they were sent
        self._failures = 0
        self._in_vain = 0  # claims that have got nothing, since the last that did
        self._pace = 0.0  # jobs that end in a second
        self._paced_us = 0
        self._began = 0
        self._ended = 0
        self.claimed_us: int | None = None  # when the store last answered

    @property
    def left(self) -> int:
        """How many pending jobs stay behind where it has ended because nothing else was left."""
        return self._until_empty.left if self._until_empty is not None else 0

    def freed(self) -> None:
        """Look again whether there is room; cheap, since each handler calls it at its end."""
        if not self._free.is_set():
            self._free.set()

    def stop(self) -> None:
        """Claim no more; return when the last claim is over, or will be by itself: what it gets then, goes back."""
        self._stopping = True
        self._free.set()
        left = patience(_LAST_SECONDS)
        while self.is_alive() and left() > 0:
            self._store.wake()  # again and again, since it may just have been about to wait
            self.join(0.05)

    def fail(self, error: BaseException) -> None:
        """Claim no more, since nothing that is claimed can be handled."""
        self._failure = error
        self._stopping = True
        self._free.set()

    def run(self) -> None:
        """Claim on."""
        try:
            warn_of_unknown(self._store, self._queues, self._tasks)
            while not self._stopping:
                limit = self._wait_for_room()
                if limit > 0:
                    self._claim(limit)
            if self._unknown:
                self._find()  # which hands back what it finds
            if self._failure is not None:
                raise self._failure
            self._over(None)
        except BaseException as error:
            known = isinstance(error, LeaseholdError)  # its message is enough
            log.critical("worker %s can no longer claim: %s", self._owner, error, exc_info=None if known else error)
            self._over(error)

    def _wait_for_room(self) -> int:
        """Return how many jobs to claim; 0 if it is time to stop."""
        ahead = self._ahead()
        while True:
            self._free.clear()  # before the look, so that a slot that becomes free after it is noticed
            if self._stopping:
                return 0
            room = self._slots.room() + ahead
            if room >= max(ahead // 2, 1):
                return min(room, MOST)
            if not self._free.wait(WAIT_SECONDS):
                self._swept()
                ahead = 0

    def _ahead(self) -> int:
        """Return how many to claim beyond what can begin at once: none, unless handlers end within milliseconds."""
        now, ended = self._steady.now(), self._began + self._slots.room()
        passed = now - self._paced_us
        if passed > 0:
            self._pace = (ended - self._ended) * 1_000_000 / passed
        self._paced_us, self._ended = now, ended
        return min(int(self._pace * _AHEAD_SECONDS), _AHEAD_MOST) if self._slots.claims_ahead() else 0

    def _claim(self, limit: int) -> None:
        """Claim up to *limit* jobs, waiting for the first one for a while, and have them begun."""
        if self._unknown:
            self._find()
            return
        claim_id, sent = new_claim_id(), self._steady.now()
        try:
            grants = self._store.claim(
                self._owner,
                limit=limit,
                queues=self._queues,
                default_lease_us=self._lease_us,
                claim_id=claim_id,
                process=this_process(),
                wait_us=round(self._wait_seconds() * 1_000_000),
                tasks=tuple(self._tasks),
            )
        except StoreUnavailable as error:
            # Maybe only the reply is lost: then those jobs are ours, and no other worker would begin them.
            self._unknown.append((claim_id, sent))
            self._rest(error)
            return
        self._answered()
        self._swept()
        self._in_vain = 0 if grants else min(self._in_vain + 1, 10)
        self._begin(grants, sent)
        if self._until_empty is not None:
            self._look(self._until_empty, grants)

    def _look(self, until_empty: UntilEmpty, grants: Sequence[Grant]) -> None:
        """End if nothing is left."""
        if grants:
            until_empty.got(grants)
        elif self._slots.is_empty():
            with suppress(StoreUnavailable):  # then the next claim finds out
                self._stopping = self._stopping or until_empty.nothing_left()

    def _wait_seconds(self) -> float:
        if self._until_empty is None:
            return WAIT_SECONDS
        least, most = _EMPTY_SECONDS
        return float(min(least * 2**self._in_vain, most))

    def _find(self) -> None:
        """Recover claims whose replies were lost, and begin what they got. No successful claim is counted."""
        try:
            while self._unknown:
                claim_id, sent = self._unknown[-1]
                grants = self._store.claimed(claim_id)
                self._unknown.pop()
                self._begin(grants, sent)
        except StoreUnavailable as error:
            self._rest(error)

    def _begin(self, grants: Sequence[Grant], sent: int) -> None:
        if grants and self._stopping:
            with suppress(StoreUnavailable):  # then they wait for their deadline
                self._store.settle([handed_back(grant) for grant in grants])
        elif grants:
            self._began += len(grants)
            self._slots.begin(grants, sent)

    def _answered(self) -> None:
        self.claimed_us = self._steady.now()
        if self._failures:
            log.info("the store answers again")
        self._failures = 0

    def _rest(self, error: StoreUnavailable) -> None:
        if not self._failures:
            log.warning("claim failed; retrying until the store answers: %s", error)
        self._failures += 1
        seconds = min(_FIRST_REST_SECONDS * 2 ** min(self._failures, 10), LONGEST_REST_SECONDS)
        until = self._steady.now() + round(seconds * 1_000_000)
        while not self._stopping and (left := until - self._steady.now()) > 0:
            self._free.clear()
            if not self._stopping:
                self._free.wait(left / 1_000_000)
