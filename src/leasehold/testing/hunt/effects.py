"""Fenced transactions of many kinds, each with one row, a pause somewhere, and maybe the end of the job."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ...errors import LeaseholdError, Settled, StaleEpoch, StaleSnapshot
from ...lease import Lease, worker_side
from .judge import Accepted, Counted, EffectRow, Ended, Finding, Refused, Report, Token
from .tables import LOST, Tables

Say = Callable[[Report], None]

_ENDS = ("complete", "complete", "complete", "release", "fail")


def another(lease: Lease) -> Lease:
    """
    Return the same ownership as a lease of its own.

    A lease refuses to write beside a transaction that another thread has it in. Here the two shall meet at the store.
    """
    return Lease(lease.store, worker_side.grant_of(lease))


class _Undone(Exception):
    """The hunter rolls back on purpose."""


@dataclass
class Plan:
    """One transaction, as it was drawn."""

    steps: list[str]
    isolation: str | None  # None: lease.transaction()
    settles: str | None  # the verb, or None
    follows: bool  # a job is added in the same transaction
    rolls_back: bool
    savepoint: bool  # the fence is set inside a savepoint, which stays
    pause: float
    rest: float  # of a job that goes back

    def __str__(self) -> str:
        place = f"own connection, {self.isolation}" if self.isolation else "lease.transaction()"
        return f"{place}: {' '.join(self.steps)}"


def draw(rng: random.Random, tables: Tables, may_release: Callable[[], bool]) -> Plan:
    """Draw a transaction."""
    isolation = None if rng.random() < 0.4 else rng.choice(tables.isolations)
    settles = rng.choice(_ENDS) if rng.random() < 0.15 else None
    if settles == "release" and not may_release():
        settles = "fail"
    # The row comes after its mark; everything else stands where it may. What settles is itself a fence.
    steps = ["mark", "row"]
    extra = ["pause"] + ["settle"] * (settles is not None) + ["undone"] * (rng.random() < 0.2)
    follows = settles is None and rng.random() < 0.05
    extra += ["child"] * follows
    if isolation is not None and (settles is None or rng.random() < 0.5):
        extra.append("fence")
    for step in rng.sample(extra, len(extra)):
        steps.insert(rng.randrange(len(steps) + 1), step)
    if isolation in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE") and rng.random() < 0.03:
        # From here on a fence compares at once, and holds the lease: behind the mark, which others lock before it, too.
        steps.insert(rng.randrange(steps.index("mark"), len(steps)) + 1, "immediate")
    if steps[0] == "pause" and isolation is not None:
        steps = [*steps[1:], "pause"]
    if "fence" in steps and "settle" in steps:
        # A fence behind the settlement is refused, and rightly.
        steps.remove("settle")
        steps.insert(rng.randrange(steps.index("fence"), len(steps)) + 1, "settle")
    pause = (
        rng.choice((0.0, 0.002, 0.01, 0.03, 0.05, 0.1)) * rng.random() if rng.random() < 0.85 else rng.random() * 0.6
    )
    return Plan(
        steps,
        isolation,
        settles,
        follows,
        rolls_back=rng.random() < 0.04,
        savepoint=isolation is not None and rng.random() < 0.1,
        pause=pause,
        rest=rng.randrange(1, 100_000) / 1_000_000,
    )


class Effects:
    """Carries plans out, on connections of one thread's own, and says what became of them."""

    def __init__(self, tables: Tables, tick: Callable[[], int], say: Say, new_token: Callable[[], str]) -> None:
        self._tables = tables
        self._tick = tick
        self._say = say
        self._new_token = new_token
        self._connections: dict[str, Any] = {}
        self._fresh = False  # whether the connection of the transaction at hand has had no other before

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()

    def run(self, lease: Lease, lock: str | None, plan: Plan) -> bool:
        """Carry *plan* out under *lease*; return whether the lease may be used further."""
        token, child = self._new_token(), self._new_token()
        written: bool | None = False
        sent = self._tick()
        committing = [sent]
        try:
            with self._transaction(lease, plan) as connection:
                self._steps(connection, lease, plan, token, child)
                if plan.rolls_back:
                    raise _Undone
                committing.append(self._tick())
            written = True
        except _Undone:
            self._say(Counted("rolled back", 1))
        except Exception as error:
            written = self._failed(error, lease, plan, committing)
        finally:
            self._say(Token(token, "row", lease.job_id, lease.epoch, written))
            if plan.follows:
                self._say(Token(child, "job", lease.job_id, lease.epoch, written))
        if not written:
            return plan.rolls_back
        self._say(Counted("fenced commits", 1))
        verb = f"commit of {plan}"
        after = self._tick()
        self._say(Accepted(lease.job_id, lock, lease.epoch, committing[-1], after, verb, lease.owner))
        if plan.settles:
            self._say(Ended(lease.job_id, lock, lease.epoch, after, verb))
            self._say(Counted("settles", 1))
        return plan.settles is None

    @contextmanager
    def _transaction(self, lease: Lease, plan: Plan) -> Iterator[Any]:
        self._fresh = False
        if plan.isolation is None:
            with another(lease).transaction() as connection:
                yield connection
            return
        connection = self._connections.pop(plan.isolation, None)
        self._fresh = connection is None
        if connection is None:
            connection = self._tables.connect(plan.isolation)
        try:
            yield connection
            connection.commit()
        except BaseException as error:
            if isinstance(error, _Undone) or isinstance(StaleEpoch.find(error), Settled):
                connection.rollback()
                self._connections[plan.isolation] = connection
                raise
            # Closed, and not used again: once its job is taken over, the server may be about to end this session.
            with suppress(Exception):
                connection.close()
            raise
        self._connections[plan.isolation] = connection

    def _steps(self, connection: Any, lease: Lease, plan: Plan, token: str, child: str) -> None:
        place = before = 0
        for step in plan.steps:
            match step:
                case "mark":
                    place, before = self._tables.mark(connection, lease.job_id, lease.epoch)
                case "row":
                    row = EffectRow(
                        token, lease.job_id, lease.epoch, place, before, plan.settles == "complete", str(plan)
                    )
                    self._tables.write(connection, row)
                case "undone":
                    self._tables.begin(connection)
                    connection.execute("SAVEPOINT undone")
                    row = EffectRow(f"{token}/undone", lease.job_id, lease.epoch, 0, 0, False, str(plan))
                    self._tables.write(connection, row)
                    connection.execute("ROLLBACK TO SAVEPOINT undone")
                    connection.execute("RELEASE SAVEPOINT undone")
                case "fence":
                    if plan.savepoint:
                        self._tables.begin(connection)
                        connection.execute("SAVEPOINT kept")
                    lease.fence(connection, savepoint=plan.savepoint)
                    if plan.savepoint:
                        connection.execute("RELEASE SAVEPOINT kept")
                case "immediate":
                    connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
                case "child":
                    lease.add(child, {"token": child}, connection=connection)
                case "settle":
                    self._settle(connection, lease, plan, token)
                case "pause":
                    time.sleep(plan.pause * self._tables.pauses)

    def _settle(self, connection: Any, lease: Lease, plan: Plan, token: str) -> None:
        # No two settlements of a lease have the same words: to repeat one is accepted, whatever has happened since.
        if plan.settles == "complete":
            lease.complete({"row": token}, connection=connection)
        elif plan.settles == "fail":
            lease.fail(token, delay_seconds=0.01, connection=connection)
        else:
            lease.release(delay_seconds=plan.rest, connection=connection)

    def _failed(self, error: Exception, lease: Lease, plan: Plan, committing: list[int]) -> bool | None:
        """Say what an error means, and return whether the row is there."""
        states = {state for one in _chain(error) if (state := self._tables.state_of(one)) is not None}
        trace = "".join(traceback.format_exception(error))
        if "40P01" in states:
            self._say(Finding(f"a deadlock: {error} in {plan}", lease.job_id, trace))
            return False
        found = StaleEpoch.find(error)
        conflict = "40001" in states or isinstance(error, StaleSnapshot)
        if found is None and not conflict and LOST not in states:
            self._say(Finding(f"{type(error).__name__}: {error} in {plan}", lease.job_id, trace))
            return False
        try:
            refusal = found or StaleEpoch.find(error, lease)
            if found is not None:
                lease.check()
                self._say(Finding(f"{plan} was refused, though its epoch is current: {found}", lease.job_id, trace))
        except StaleEpoch:
            refusal = found
        except LeaseholdError as unexpected:
            self._say(Finding(f"{type(unexpected).__name__}: {unexpected} after {error}", lease.job_id, trace))
            return None
        if refusal is not None:
            self._say(Counted("refused commits", 1))
            self._say(
                Refused(lease.job_id, lease.epoch, refusal.current, committing[-1], f"commit of {plan}", lease.owner)
            )
        elif conflict:
            self._say(Counted("conflicts", 1))
        elif not self._fresh:
            # A takeover ends the session of the previous owner. If that has just ended its transaction, the next one on
            # the same connection is cut off instead. Nothing is committed, and it can be run again.
            self._say(Counted("cut off", 1))
        else:
            self._say(Finding(f"the connection of a current owner was ended: {error} in {plan}", lease.job_id, trace))
        # Whether a COMMIT was heard by a server that then hung up is written in the table, and nowhere else.
        return None if LOST in states and found is None and len(committing) > 1 else False


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
