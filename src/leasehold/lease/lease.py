"""`Lease`: what an owner holds on one job, under one epoch, and the verbs that it may call."""

from __future__ import annotations

import inspect
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from ..aio import transactions_of, warn_on_loops
from ..core import checks, documents, inputs, instants
from ..core.children import Child, as_child
from ..core.job import Added, Grant, NewJob, Outcome, Settlement, completion, handed_back
from ..core.settings import JobOptions
from ..errors import (
    Conflict,
    InvalidArgument,
    NotInTransaction,
    Settled,
    StaleEpoch,
    StaleSnapshot,
    StoreUnavailable,
    UnknownJob,
    Unsupported,
)
from ..store import Program, Renewal, Store, Transactions
from ..transaction import Block, Joined, inside, is_anything_open
from . import joining
from .adding import added_alone, added_in
from .block import commit, roll_back
from .children import Children
from .current import _current
from .effects import begin_effect, end_effect
from .keep import Keeping
from .minting import Minting
from .progress import Reports

if TYPE_CHECKING:
    from .aio import AsyncLease

T = TypeVar("T")

IDLE_SECONDS = 3600.0  # of `lease.transaction()`: only a stopped process is silent for that long
_LOOK_SECONDS = 1.0
_making = threading.Lock()  # held for an instant, by a lease that begins to count its children


class Lease(Minting, Keeping):
    """
    The right to try, and the epoch that proves it.

    Every verb is conditional on the epoch, in one atomic step at the store. Once the job has moved on, each raises
    `StaleEpoch`, and `lost` is true from then on. Time alone refuses nothing: an owner past `expires_at` may still
    write as long as its job was not taken over.

    Every verb also raises `UnknownJob` if the job is gone from the store, `StoreUnavailable` if the store cannot do it
    now (`outcome_unknown` tells whether it may have happened), and `InvalidArgument` for a wrong argument.
    """

    __slots__ = (
        "__weakref__",
        "_children",
        "_grant",
        "_joined",
        "_lost",
        "_settled",
        "_store",
    )

    def __init__(self, store: Store, grant: Grant, reports: Reports | None = None) -> None:
        self._store = store
        self._grant = grant
        self._reports = reports
        self._expires_us = grant.expires_us
        self._asked_us = 0
        self._lost = False
        self._children: Children | None = None
        self._joined: tuple[Joined, ...] = ()  # the caller's own transactions; of each connection the last
        self._moves = 0
        self._settled: bool | None = False  # None: in a transaction of the caller's, which may have rolled back

    def __repr__(self) -> str:
        return f"<Lease {self.job_id!r} epoch={self.epoch} owner={self.owner!r}{' lost' if self._lost else ''}>"

    # What is held

    @property
    def store(self) -> Store:
        """The store that granted it, whose verbs take and return lists."""
        return self._store

    @property
    def expires_at(self) -> datetime:
        """Before this the job is not reclaimed for its deadline; its own renewals move it."""
        return instants.aware(self._expires_us)

    @property
    def lost(self) -> bool:
        """Whether this lease is known to be no longer current. Does not query the store, so False is no guarantee."""
        return self._lost

    def wait_lost(self, seconds: float) -> bool:
        """
        Wait up to *seconds* until the lease is lost, asking the store about once a second; return whether it is.

        Raises `StoreUnavailable` if the store cannot be asked.
        """
        left = checks.microseconds(seconds, "seconds", zero=True) / 1_000_000
        pause = threading.Event()
        while not self._lost:
            try:
                self.check()
            except (StaleEpoch, UnknownJob):
                break
            if left <= 0:
                break
            pause.wait(min(left, _LOOK_SECONDS))
            left -= _LOOK_SECONDS
        return self._lost

    @contextmanager
    def active(self) -> Iterator[Lease]:
        """Make this the `current_lease()` of the block."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)

    @property
    def aio(self) -> AsyncLease:
        """The same verbs for async callers."""
        return _facade()(self)

    # Verbs

    def check(self) -> None:
        """Return if this is still the current epoch; the answer may be old at once. Raises `StaleEpoch` otherwise."""
        if (run := joining.run_here(self)) is not None:
            self._check_inside(run)
        self._check_store()

    def _check_store(self) -> None:
        [refusal] = self._store.check([(self.job_id, self.epoch)])
        if refusal is not None:
            raise self._note_refusal(refusal)

    def _check_inside(self, run: joining.Run, verb: str = "check") -> None:
        """Raise the refusal if the transaction has settled the lease: for its verbs that counts before it commits."""
        with suppress(NotInTransaction, StoreUnavailable):
            self._noting(lambda: run(lambda verbs: verbs.check(self.job_id, self.epoch, verb), savepoint=True))

    def renew(self, seconds: float | None = None) -> datetime:
        """
        Keep the job for *seconds* from now, or for as long as it was granted for; return the new `expires_at`.

        On PostgreSQL it takes effect at once, even inside a transaction of this lease. On SQLite, where the job cannot
        be taken over before that transaction ends, it is part of it.

        Raises `StaleEpoch` if the job has moved on. After `StoreUnavailable` the lease is not lost: renew again.
        """
        lasts = None if seconds is None else checks.microseconds(seconds, "seconds")
        renewal = Renewal(self.job_id, self.epoch, lasts)
        if (inside_us := self._renewed_inside(renewal)) is not None:
            return instants.aware(inside_us)  # `expires_at` stays: the transaction may yet roll back
        reply = self._store.renew([renewal])[0]
        if not isinstance(reply, int):
            raise self._note_refusal(reply)
        self._renewed(reply, lasts or 0)
        return self.expires_at

    def _renewed(self, expires_us: int, asked_us: int) -> None:
        self._expires_us, self._asked_us = expires_us, asked_us

    def _renewed_inside(self, renewal: Renewal) -> int | None:
        """Renew as part of an open transaction, where one keeps every other writer out; else return None."""
        if (run := joining.run_here(self)) is None:
            return None
        if not self._transactions().exclusive:
            self._check_inside(run, "renew")
            return None
        # Even in a savepoint: rolled back, the lease is what it was before.
        expires_us = int(self._noting(lambda: run(lambda verbs: verbs.renew(renewal), savepoint=True)))
        if (block := joining.block_here(self)) is not None:
            block.renewed = renewal.lease_us or 0
        return expires_us

    def add(
        self,
        name: str | NewJob | None = None,
        payload: object = None,
        *,
        connection: Any = None,
        savepoint: bool = False,
        **options: Unpack[JobOptions],
    ) -> Added:
        """
        Add a child job; it takes `Router.add`'s options. Raises `StaleEpoch` if the job has moved on, and adds nothing.

        The child's id comes from this job, *name* (or task and payload) and how many of that name this lease has added,
        so that a second run of this job finds its children instead of adding them again. A `NewJob`, as `task.job(…)`
        returns, stands for all of them.

        With *connection*, it raises what `fence` raises.
        """
        if isinstance(name, NewJob) and (payload is not None or options):
            raise InvalidArgument("a NewJob already has a payload and options: pass no others with it.")
        child, name = as_child(name if isinstance(name, NewJob) else {"id": name, "payload": payload, **options})
        within = joining.within(self, connection)
        return self._write(
            connection,
            savepoint,
            lambda verbs: added_in(self, verbs, name, child, within),
            lambda: added_alone(self, name, child),
            note=within.join,
        )

    def _is_stored(self, job_id: str) -> bool:
        try:
            self._store.job(job_id)
        except UnknownJob:
            return False
        return True

    def _counter(self) -> Children:
        if self._children is None:
            with _making:
                self._children = self._children or Children()
        return self._children

    def once(
        self,
        name: str,
        call: Callable[[str], T],
        *,
        in_doubt: Literal["raise", "retry"] = "raise",
        undone: tuple[type[BaseException], ...] = (),
    ) -> T:
        """
        Bring about a named effect of this job, once over all its owners; return its outcome, recorded or new.

        *call* gets an idempotency key that every owner gets. An exception listed in *undone* says that nothing
        happened. Any other leaves the effect in doubt: the next `once` raises `InDoubt`, or calls again with the same
        key if *in_doubt* is "retry". The outcome must be JSON, and comes back as JSON gives it, the first time too.

        Raises `StaleEpoch` if the job has moved on: before *call*, then nothing was called; or after it, then the
        effect stays in doubt. Raises what *call* raises.
        """
        if inspect.iscoroutinefunction(call):
            raise InvalidArgument("once() calls a plain function; await lease.aio.once(…) for an async one.")
        effect = begin_effect(self, name, call, in_doubt, undone)
        outcome = effect.outcome
        if not effect.known:
            try:
                value = call(effect.key)
            except undone:
                end_effect(self, name, None)
                raise
            outcome = documents.encode(value, f"the outcome of effect {name!r}")
            end_effect(self, name, outcome)
        return documents.decode(outcome)  # type: ignore[no-any-return]  # as typed as JSON is

    def complete(
        self, result: object = None, *, then: Iterable[Child] = (), connection: Any = None, savepoint: bool = False
    ) -> None:
        """
        End the job as done, with its *result*, and add the jobs of *then* in the same step.

        With *connection*, the completion is part of that transaction: the caller's rows and the completion are one
        commit. Nothing is settled until it commits.

        Raises `StaleEpoch` if the job has moved on, `Settled` if this lease has ended it otherwise. Repeating the same
        completion is not an error. With *connection*, raises what `fence` raises, and `Settled` for a repetition too.
        """
        document = "null" if result is None else documents.encode(result, "result")
        children = self._counter().following(self._grant.spec, then, self._is_stored) if then else ()
        return self._settle(completion(self._grant, document, children), connection, savepoint)

    def fail(
        self,
        error: str,
        *,
        retry: bool = True,
        delay_seconds: float | None = None,
        connection: Any = None,
        savepoint: bool = False,
    ) -> None:
        """
        End this run with an *error*: the job comes back after its back-off, or is failed if its budget is spent.

        The text is `last_error` and `error_message` of the job. Raises as `complete` does.
        """
        error = checks.text(error, "error")
        if delay_seconds is None:
            delay_seconds = self.retry.delay(self._grant.errors + 1, random.random())
        delay = checks.microseconds(delay_seconds, "delay_seconds", zero=True)
        settlement = Settlement(self.job_id, self.epoch, Outcome.FAIL, error=error, retry=bool(retry), delay_us=delay)
        return self._settle(settlement, connection, savepoint)

    def release(self, *, delay_seconds: float | None = None, connection: Any = None, savepoint: bool = False) -> None:
        """Put the job back to be claimed; it counts against no budget. Raises as `complete` does."""
        delay = 0 if delay_seconds is None else checks.microseconds(delay_seconds, "delay_seconds", zero=True)
        return self._settle(handed_back(self._grant, delay), connection, savepoint)

    def _settle(self, settlement: Settlement, connection: Any, savepoint: bool) -> None:
        before, self._settled = self._settled, None
        try:
            # Without this shortcut, a claim and completion in memory take a tenth longer
            # (python benchmarks/core.py --only "memory: claim + complete, one by one").
            if connection is None and not self._joined and not is_anything_open():
                if (refusal := self._settle_alone(settlement)) is not None:
                    raise self._note_refusal(refusal)
                return None
            return self._write(
                connection,
                savepoint,
                lambda verbs: self._settle_in(verbs, settlement),
                lambda: self._settle_alone(settlement),
            )
        except (Conflict, InvalidArgument, NotInTransaction, StaleSnapshot, Unsupported):
            self._settled = before  # nothing has happened
            raise

    def _settle_alone(self, settlement: Settlement) -> Exception | None:
        if self._reports is not None:
            self._flush()
        refusal = self._store.settle([settlement])[0]
        if refusal is None:
            self._settled = True
        return refusal

    # In the caller's own transaction

    @contextmanager
    def transaction(self, *, idle_seconds: float | None = IDLE_SECONDS) -> Iterator[Any]:
        """
        Open a transaction on the store's database that commits at the end of the block only if the epoch is current.

        An exception rolls it back. Inside the block this lease's verbs are part of it: rows, checkpoint and completion
        are one commit. Other leases and the router need `connection=…` there; without it they are refused (`Conflict`).

        A PostgreSQL server ends the transaction once nothing was sent to it for *idle_seconds* at a stretch, an hour by
        default, so that a process that was stopped does not keep its rows locked for ever. That refuses a current owner
        too. None leaves it to the server's own `idle_in_transaction_session_timeout`; on SQLite there is no such thing.

        Raises `StaleEpoch` at the beginning or the end of the block if the job has moved on; then nothing is committed.
        Raises `StoreUnavailable` with `outcome_unknown` if the reply to COMMIT was lost, `Conflict` for a COMMIT or
        ROLLBACK of your own inside, and `Unsupported` on a memory store.
        """
        verbs, idle = self._transactions("lease.transaction()"), inputs.idle_us(idle_seconds)
        connection = block = None
        try:
            joining.refuse_beside(self)
            self._flush()
            connection = self._noting(lambda: verbs.begin(self.job_id, self.epoch, idle_us=idle))
            verbs.entered(connection)
            block = Block(verbs, (self.job_id, self.epoch), connection)
            with inside(block):
                yield connection
            commit(self, verbs, block)
        except BaseException as error:
            # Even if `connection` is None: Ctrl-C may have come after BEGIN, before `begin` returned.
            roll_back(self, verbs, connection, block, error)
            raise

    def fence(self, connection: Any, *, savepoint: bool = False) -> None:
        """
        Make the transaction that *connection* has open commit only if this epoch is current.

        Raises `StaleEpoch` if it is not; `NotInTransaction` if none is open; `Conflict` inside a savepoint, unless
        *savepoint*; `StaleSnapshot` if the transaction has to be run again; `InvalidArgument` for one of another
        database; `Unsupported` for a connection or store that cannot join. On PostgreSQL the refusal may come from your
        COMMIT instead, as the driver's exception: `StaleEpoch.find` converts it.
        """
        return joining.join(self, connection, lambda verbs: verbs.fence(self.job_id, self.epoch), savepoint=savepoint)

    def _write(
        self,
        connection: Any,
        savepoint: bool,
        program: Callable[[Transactions], Program[T]],
        separately: Callable[[], T | Exception],
        *,
        note: Callable[[Joined], None] | None = None,
    ) -> T:
        """
        Run a verb where it belongs: in the caller's transaction, in this lease's open block, or separately.

        *note* is called with the transaction of a connection of the caller's own.
        """
        if connection is not None or self._joined or is_anything_open():
            block = joining.block_here(self)
            if block is not None and connection in (None, block.connection):
                return joining.unless_lost(self, lambda: block.run(program, savepoint=savepoint))
            if connection is not None:
                return joining.join(self, connection, program, savepoint=savepoint, note=note)
            joining.refuse_beside(self)
        reply = self._noting(separately)
        if isinstance(reply, Exception):
            raise self._note_refusal(reply)
        return reply

    def _transactions(self, what: str = "connection=…") -> Transactions:
        return transactions_of(self._store, what)

    # Shared

    def _note_refusal(self, refusal: Exception) -> Exception:
        # What an open transaction has settled may yet roll back.
        self._lost = self._lost or not isinstance(refusal, Settled) or self._settled is not None
        return refusal

    def _noting(self, verb: Callable[[], T]) -> T:
        """Run a verb, and remember that the lease is lost if it was refused."""
        try:
            return verb()
        except (StaleEpoch, UnknownJob) as refusal:
            self._note_refusal(refusal)
            raise
        except StoreUnavailable as error:
            self._lost = self._lost or error.is_stale
            raise


def _facade() -> type[AsyncLease]:
    from .aio import AsyncLease  # which stands on this module

    return AsyncLease


warn_on_loops(Lease, _facade, "lease")
