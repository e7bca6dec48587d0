"""
How claims look for jobs, and how they wait: for a notification, and for the next poll whatever happens.

No thread is started. Of the claims that wait in this process, one listens on a connection of its own and wakes the
others. The server notifies only while a process is registered, since NOTIFY takes a lock over all databases at commit.
Behind a pooler no claim listens, since the session that would be notified is the pooler's.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from ...core.clock import Clock, Countdown, SystemClock
from ...core.job import Grant
from ...core.lifecycle import no_lease
from ...errors import LeaseholdError, UnknownJob
from ..rows import grant_of
from .connection import Connection, inherited, outlive_fork
from .database import Database
from .owning import PATIENCE_MS
from .rows import Claim, granted
from .upkeep import Upkeep

log = logging.getLogger("leasehold")

POLL_SECONDS = 0.5
_POLL_BY_HAND_SECONDS = 0.005  # where the clock is moved by hand, no notification says that it was
_AGAIN = 20  # how often a claim that met others looks again at once
_REGISTERED_US = 10_000_000  # a registration outlives its wait: a wasted notification is cheaper than deregistering
_timer = SystemClock()  # how long to wait is the caller's affair; nothing is decided by it

# Between two looks from the bottom: twenty times as long as one takes, within these bounds.
_OFTEN_US, _RARELY_US, _SHARE = 100_000, 5_000_000, 20

_SETTLED_US = 1_000_000  # after which no transaction is taken to commit with a number that was drawn before

Found = list[Any] | None  # three numbers, and for each queue its name and its floor, in four lists; as `claim` has it
_FREED = 2  # the index of the number up to which keys that became free were seen to


class Claiming:
    """The claims of one process on one store."""

    def __init__(
        self, database: Database, upkeep: Upkeep, timer: Clock, now: Callable[[], int | None], *, by_hand: bool
    ) -> None:
        self._database = database
        self._upkeep = upkeep
        self._timer = timer
        self._now = now
        self._by_hand = by_hand  # whether the clock is moved by hand
        self._woken = 0  # how often claims that wait were made to return
        self.floors = Floors(timer)
        self.listening = Listening(database)

    def claim(self, claim: Claim, wait_us: int) -> list[Grant]:
        """Return the grants of *claim*, one call after the other until there is one; wait up to *wait_us* for it."""
        woken, again = self._woken, 0
        until = self._timer.now() + wait_us  # how long to wait is the caller's affair, and on its clock
        while True:
            floors = self.floors.next()
            function = "claim_next" if claim.is_plain(floors) else "claim"
            rows = self._database.call(function, *claim.args(floors), self._now())
            (_, ended, more, bottom, next_us, found), grants = granted(rows, claim)
            self.floors.keep(found, used=floors, bottom=bottom)
            if ended:
                self._upkeep.note(ended)
            if grants:
                return grants
            if more and again < _AGAIN:  # others are deciding about keys right now, or many jobs were parked
                again += 1
                continue
            again = 0
            left = until - self._timer.now()
            if left <= 0 or self._woken != woken:
                return []
            self.pause(left if next_us is None else max(min(left, next_us), 0))

    def lease(self, job_id: str, owner: str, wait_us: int) -> Grant:
        """Return the live lease of *owner* on the job, picked up; wait up to *wait_us* for it."""
        countdown = Countdown(self._timer, wait_us)
        while True:
            rows = self._database.read(self._database.statements.lease, {"id": job_id, "owner": owner})
            if not rows:
                raise UnknownJob(job_id)
            status, holder, epoch, picked_up, *grant = rows[0]
            if holder == owner:
                if not picked_up:
                    self._database.call("pick_up", job_id, epoch, PATIENCE_MS, self._now(), again=True)
                return grant_of(grant)
            if (left := countdown.left()) <= 0:
                raise no_lease(job_id, status, holder, epoch, owner)
            self.pause(left)

    def pause(self, us: int) -> None:
        """Wait until something may have changed, up to *us*."""
        if self._by_hand:
            self.listening.pause(_POLL_BY_HAND_SECONDS)
        else:
            self.listening.wait(us)

    def wake(self) -> None:
        """Make the claims that wait return soon: one that listens, after its next poll."""
        self._woken += 1
        self.listening.wake()


class Floors:
    """
    The floors that the last claim of this process has found: what the next one may skip. See functions/04_claiming.sql.

    They save work, and decide nothing. Without them, and with an old transaction left open, a sixth as many jobs per
    second are claimed and completed (`python benchmarks/postgres.py --only "old transaction"`).
    """

    def __init__(self, timer: Clock) -> None:
        self._timer = timer
        self._floors: Found = None
        self._began_us = 0
        self._until_us = 0
        self._freed = 0, 0  # the number that claims get now, and the one that they will get
        self._drawn_us = 0  # when the second came in

    def next(self) -> Found:
        """Return the floors for the next claim; None, if it should look from the bottom."""
        now = self._timer.now()
        if self._began_us <= now < self._until_us:
            return self._floors
        self._began_us = now
        return None

    def keep(self, floors: Found, *, used: Found, bottom: bool) -> None:
        """Remember what a claim that *used* floors has found; *bottom*: it looked from the bottom."""
        if not bottom and used is not self._floors:
            return  # another one has looked from the bottom meanwhile, or has been quicker
        if bottom:
            now = self._timer.now()
            self._until_us = now + min(max((now - self._began_us) * _SHARE, _OFTEN_US), _RARELY_US)
        # A claim that has found nothing returns none; those from which it has looked hold as they did.
        self._floors = self._with_an_older_number(floors) or self._floors

    def _with_an_older_number(self, floors: Found) -> Found:
        if floors is None or floors[_FREED] == self._freed[0]:
            return floors
        now = self._timer.now()
        if not self._drawn_us <= now < self._drawn_us + _SETTLED_US:
            self._freed = self._freed[1], floors[_FREED]
            self._drawn_us = now
        return [*floors[:_FREED], self._freed[0], *floors[_FREED + 1 :]]


class _Pooled(Exception):
    """The session on the server is not this connection's own."""


class Listening:
    """How the claims of one process that wait on one store are notified."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._begin()
        outlive_fork(self)

    def _begin(self) -> None:
        self._name = os.urandom(8).hex()
        self._listens = threading.Lock()
        self._changed = threading.Condition()
        self._listener: Connection | None = None
        self._registered_us = 0
        self._pooled = False

    def forked(self) -> None:
        """Begin anew, in a child process."""
        inherited.append(self._listener)
        self._begin()

    def wait(self, us: int) -> None:
        """
        Block until it is worth claiming again: a notification, the poll interval, or *us*.

        Returns at once after it has registered, since a job may have come in between.
        """
        seconds = min(POLL_SECONDS * random.uniform(0.75, 1.25), us / 1_000_000)
        if self._pooled or not self._listens.acquire(blocking=False):
            self.pause(seconds)
            return
        try:
            if not self._register():
                self._listen(seconds)
        except _Pooled:
            log.info("a pooler stands before PostgreSQL, so claims that wait poll every %g s", POLL_SECONDS)
            self._pooled = True
            self._hang_up()
        except (psycopg.Error, LeaseholdError) as error:
            log.debug("cannot listen for notifications, so this polls: %s", error)
            self._hang_up()
            self.pause(seconds)
        finally:
            self._listens.release()
            self.wake()  # the others too; and one of them listens next

    def _register(self) -> bool:
        """Make sure that this process is notified; return whether it was not until now, so that one must look again."""
        if self._listener is not None and not self._listener.closed and _timer.now() < self._registered_us:
            return False
        if self._listener is None or self._listener.closed:
            self._listener = self._database.connect(Connection)
            if self._database.pooled:
                raise _Pooled
        statement = self._database.calls.statement("await_jobs", [self._name, _REGISTERED_US / 1_000_000])
        [(channel,)] = self._listener.ask(*statement)
        self._listener.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        self._registered_us = _timer.now() + _REGISTERED_US // 2
        return True

    def _listen(self, seconds: float) -> None:
        assert self._listener is not None
        for _ in self._listener.notifies(timeout=seconds, stop_after=1):
            pass

    def _hang_up(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def pause(self, seconds: float) -> None:
        """Wait for `wake`, or for *seconds*."""
        with self._changed:
            self._changed.wait(seconds)

    def wake(self) -> None:
        """Wake the claims of this process that wait and do not listen."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Hang up, once the thread that listens has noticed that the store is closed."""
        self.wake()
        with self._listens:
            self._hang_up()
