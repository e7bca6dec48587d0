"""
How claims look for jobs, and how they wait: for a notification, and for the next poll whatever happens. And the upkeep.

No thread is started. Of the claims that wait in this process, one listens on a connection of its own and wakes the
others. The server notifies only while a process is registered, since NOTIFY takes a lock over all databases at commit.
Behind a pooler no claim listens, since the session that would be notified is the pooler's.

The upkeep takes jobs back without a claim, ends what their owners left open, and prunes. It is here because a claim
takes back what is overdue first, and hands it to the upkeep.
"""

from __future__ import annotations

import functools
import os
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg import sql

from ...core.clock import Clock, Countdown, SystemClock
from ...core.job import Grant
from ...core.lifecycle import no_lease, reclaimed_in_part
from ...core.ownership import RECOVERY_EVERY_US, Ownership, Process
from ...core.retention import Retention
from ...errors import LeaseholdError, StoreUnavailable, UnknownJob
from ...liveness import is_gone, this_process
from ...logs import log
from ..policy import EVENTS, IDS, PORTION, WORKERS, Pass, Place
from ..reclaimed import Reclaimed
from ..rows import grant_of
from .connection import Connection, inherited, outlive_fork
from .database import Database
from .owning import PATIENCE_MS
from .rights import may_not_end
from .rows import NO_PROCESS, Claim, Row, as_json, granted, taken_back

POLL_SECONDS = 0.5
_POLL_BY_HAND_SECONDS = 0.005  # where the clock is moved by hand, no notification says that it was
_AGAIN = 20  # how often a claim that met others looks again at once
_REGISTERED_US = 10_000_000  # a registration outlives its wait: a wasted notification is cheaper than deregistering
_timer = SystemClock()  # how long to wait is the caller's affair; nothing is decided by it

# Between two looks from the bottom: twenty times as long as one takes, within these bounds.
_OFTEN_US, _RARELY_US, _SHARE = 100_000, 5_000_000, 20

_SETTLED_US = 1_000_000  # after which no transaction is taken to commit with a number that was drawn before

END_OUTLIVED_EVERY_US = 1_000_000
UPKEEP_PATIENCE_MS = 1_000  # with a lock that another transaction holds; the next upkeep tries again

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
        woken, again, waited = self._woken, 0, False
        until = self._timer.now() + wait_us  # how long to wait is the caller's affair, and on its clock
        while True:
            floors = self.floors.next(again=waited)
            # What ends a wait is nearly always one job, and the next claim gets the others. To look for all of them
            # takes 0.3 ms longer (python benchmarks/worker.py --only "add to handler").
            function = "claim_next" if (waited or claim.limit == 1) and claim.is_plain(floors) else "claim"
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
            waited = True

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

    def accept(
        self, owner: str, transfers: Sequence[tuple[str, int]], claim_id: str, process: Process | None
    ) -> list[Grant]:
        """Pick up those of *transfers* that are still *owner*'s, and return their leases."""
        items = as_json([{"id": job_id, "epoch": epoch} for job_id, epoch in transfers])
        args = owner, items, claim_id, *(process or NO_PROCESS), PATIENCE_MS, self._now()
        accepted = {grant.epoch: grant for grant in map(grant_of, self._database.call("accept", *args, again=True))}
        return [accepted[epoch] for _, epoch in transfers if epoch in accepted]

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

    def next(self, *, again: bool = False) -> Found:
        """
        Return the floors for the next claim; None, if it should look from the bottom.

        One that looks *again*, after a wait, gets them in any case. It looks from the bottom if it finds nothing.
        """
        now = self._timer.now()
        if self._began_us <= now < self._until_us:
            return self._floors
        if again:
            self._began_us = now
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
            log.info("connected to PostgreSQL through a pooler, so a waiting claim polls every %g s", POLL_SECONDS)
            self._pooled = True
            self._hang_up()
        except (psycopg.Error, LeaseholdError) as error:
            log.debug("cannot listen for notifications; polling instead: %s", error)
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


# Without a claim


class Upkeep:
    """Looks after jobs whose owners do not, and removes what is no longer needed."""

    def __init__(self, database: Database, timer: Clock, now: Callable[[], int | None]) -> None:
        self._database = database
        self._timer = timer
        self._now = now
        self.reclaimed = Reclaimed()
        self.portions = Pass()
        self.recovered_us = 0
        self.ended_us = timer.now()
        self._warned_of_rights = False

    def reclaim(self) -> list[Ownership]:
        """Take back what expired, does not progress, or whose process is gone."""
        ended: list[Ownership] = []
        try:
            while rows := self._database.call("reclaim", self._now()):
                ended += self._taken_back(rows)
            ended += self.recover(always=True)
        except StoreUnavailable as error:
            raise reclaimed_in_part(error, len(ended)) from error.__cause__
        self.end_outlived(always=True)
        return ended

    def tend(self, retention: Retention) -> bool:
        """Take back what is overdue or whose process is gone, and prune a portion; return whether more is due."""
        self._taken_back(self._database.call("reclaim", self._now()))
        self.recover()
        self.end_outlived()
        return self.portions.portion(self._timer.now(), retention, functools.partial(self._prune, retention))

    def _taken_back(self, rows: list[Row]) -> list[Ownership]:
        self.note(rows)
        return [taken_back(row) for row in rows]

    def note(self, ended: Sequence[Sequence[Any]]) -> None:
        """Keep what was taken back: job, epoch, …, and whether a transaction of its owner is open, which is ended."""
        self.reclaimed.note((row[0], row[1]) for row in ended)
        if fenced := [row[1] for row in ended if row[-1]]:
            self.end_fenced(fenced)

    def recover(self, *, always: bool = False) -> list[Ownership]:
        """Take back the jobs of processes of this machine that are gone."""
        # Looking up processes costs system calls, so this looks at most once a second.
        now = self._timer.now()
        if not always and now < self.recovered_us + RECOVERY_EVERY_US:
            return []
        self.recovered_us = now
        mine = this_process()
        rows = self._database.read(self._database.statements.processes, {})
        known = [(row[0], Process(*row[1:])) for row in rows]
        gone = [number for number, process in known if process != mine and is_gone(process)]
        return self._taken_back(self._database.call("recover", gone, self._now())) if gone else []

    def end_outlived(self, *, always: bool = False) -> None:
        """End what is left of such transactions: the taker may have died, or may not have had the right."""
        now = self._timer.now()
        if always or now >= self.ended_us + END_OUTLIVED_EVERY_US:
            self.ended_us = now
            self.end_fenced(None)

    def end_fenced(self, epochs: list[int] | None) -> None:
        """End the transactions of owners that have lost their job, so that the rows they locked are free; None: all."""
        try:
            self._database.call("end_fenced", epochs)
        except LeaseholdError as error:  # the takeover has been done; the fence itself refuses what they wrote
            if not (self._warned_of_rights or self._database.closed):
                self._warned_of_rights = True
                log.warning(
                    "could not end the open transaction of an owner that lost its job. The transaction cannot commit, "
                    "but the rows that it has locked stay locked until it ends: %s",
                    may_not_end(error),
                )

    def _prune(self, retention: Retention, kind: str, keep_us: int, place: Place) -> Place | None:
        """Prune one portion by policy (see `policy.Pass`)."""
        call, now = self._database.call, self._now()
        if kind == IDS:
            [(count,)] = call("prune_ids", keep_us, PORTION, UPKEEP_PATIENCE_MS, now)
            return place if count else None
        if kind == WORKERS:
            call("forget_workers", keep_us, UPKEEP_PATIENCE_MS, now)
            return None
        if kind == EVENTS:
            [(_, following)] = call("prune_events", keep_us, place[0], PORTION, UPKEEP_PATIENCE_MS, now)
        else:
            ids_us = retention.keep_us(IDS)
            [(_, following)] = call("prune_due", kind, keep_us, place[0], PORTION, ids_us, UPKEEP_PATIENCE_MS, now)
        return None if following is None else (following, 0)
