"""
CONTRACT: what a guarded resource must refuse.

A guard stands where a write happens: at a file, an object, a table, a git branch, a service. It keeps a mark per key,
the highest epoch that it has admitted, and refuses every write under a lower one. `leasehold.testing.guard_contract`
checks each clause under its number, and a guard of your own can run it.

G1.   A write whose epoch is below the mark of its key is refused with `StaleEpoch`, which names both epochs and the
      owner of the mark. Writes under an equal epoch are admitted. A conflict between two of them is retried inside the
      guard, or is a `Conflict` where the resource cannot merge; it is never called stale.
G2.   Compare and write are one atomic step at the resource. Where the resource is code, the fence is in the handler's
      own transaction, or there is a `Gate`. A check before a call is advice.
G3.   `seal` raises the mark without writing, and is durable before it returns. `read` seals, checks that the lease is
      current where the store can be reached, then reads. `peek` needs no lease and never seals.
G4.   The mark is never lowered, never expires, is not deleted with the data, and survives restarts. Every write and
      every seal changes it.
G5.   If the mark cannot be read, the write is refused with `GuardUnavailable`.
G6.   `prove` shows on the real resource that the fence bites, or raises `Unfenced`.
G8.   After an unknown outcome the guard reads back: the write happened, or it was refused, or it raises `InDoubt`.
G9.   A mark carries the id of the store that issued its epoch. An epoch of another store is compared all the same;
      above the mark it takes the key over, and that is logged. An equal one is refused: it is another owner's. With
      `strict_store` every other store is refused.
G10.  When a job ends without a successor, its keys are sealed above its last owner's epoch, as far as they can be
      reached.

A guard protects only if every write goes through it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, ClassVar, NamedTuple, Protocol, TypedDict, Unpack

from .core import checks
from .core.marks import Mark, Writer, admit
from .core.ownership import EPOCH_LIMIT
from .errors import InvalidArgument, NoLease, StaleEpoch, StoreUnavailable
from .lease import Lease
from .lease.current import lease_here
from .logs import log

__all__ = ["Doubt", "Guard", "GuardKey", "Mark", "Presented", "Seal", "Verifier", "Writer", "seal_keys", "writing_as"]

# Whom the request speaks for that is being handled here; goes before the current lease.
request_writer: ContextVar[Writer | None] = ContextVar("leasehold_request_writer", default=None)


class Presented(TypedDict, total=False):
    """How a caller says which ownership it writes under; without any of them it is the current lease."""

    lease: Lease
    epoch: int  # with owner= and store=, for callers that have no lease
    owner: str
    store: str
    credential: str


_PRESENTED = frozenset(Presented.__annotations__)


class Verifier(Protocol):
    """Verifies credentials: a `KeyRing`."""

    def verify(self, credential: str, *, audience: str, key: str) -> Writer:
        """Return whom *credential* speaks for, if it is for *audience* and covers *key*. Raises `CredentialRefused`."""
        ...


class Doubt(NamedTuple):
    """A use under an older epoch that a seal could not wait for: it may still write. *note* says why."""

    key: str
    epoch: int
    owner: str
    note: str = ""
    uses: int = 1  # how many there are
    noted_at: datetime | None = None  # the last of them


class Seal(NamedTuple):
    """What `seal` did: the mark of the key now, and older uses of which it is not known whether they have ended."""

    key: str
    mark: Mark
    doubts: tuple[Doubt, ...] = ()


class GuardKey(NamedTuple):
    """One key of one guard, as `seals=` takes it."""

    guard: Guard
    key: str

    def seal(self, **presented: Unpack[Presented]) -> Seal:
        """Seal the key, as `Guard.seal` does."""
        return self.guard.seal(self.key, **presented)


class Guard(ABC):
    """
    Refuses writes under an epoch below the highest that a key has admitted, by the clauses of this module.

    A subclass implements `canonical`, `mark`, `_seal` and `_prove`, and the verbs that write. A verb that writes enters
    `_attempt`, which finds the writer and sees to refusals, and calls `_admit` inside the atomic step.
    """

    kind: ClassVar[str]  # what stands before the key in `StaleEpoch.resource`: "file" in "file:q3.csv"
    STEPS: ClassVar[tuple[str, ...]] = ()  # of a write, in their order: where `at` is called

    def __init__(
        self, *, keys: Verifier | None = None, audience: str | None = None, strict_store: bool = False
    ) -> None:
        self.name: str | None = None  # under which a router knows it
        self.strict_store = strict_store
        self.refused = 0  # writes that were refused here, since this process began
        self.at: Callable[[str], None] = _nothing  # called at each of STEPS; a test stops, kills or fails there
        self.on_refusal: Callable[[Guard, str, Writer, StaleEpoch], None] | None = None  # records it, for a router
        self._key_ring = keys
        self._audience = audience

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name or self.kind}>"

    # Every guard has these

    @abstractmethod
    def canonical(self, key: str) -> str:
        """Return the one name of *key*, or raise `InvalidArgument` if it cannot be one."""

    @abstractmethod
    def mark(self, key: str) -> Mark | None:
        """Return the mark of *key* as it stands, without a lease; None if no owner has written or sealed it."""

    def key(self, key: str) -> GuardKey:
        """Return *key* as one of this guard, for `seals=`."""
        return GuardKey(self, self.canonical(key))

    @property
    def takes_credentials(self) -> bool:
        """Whether it can verify a credential: it was made with keys and an audience."""
        return self._key_ring is not None and self._audience is not None

    def resource(self, key: str) -> str:
        """Return how a refusal names *key*."""
        return f"{self.kind}:{key}"

    def seal(self, key: str, **presented: Unpack[Presented]) -> Seal:
        """
        Raise the mark of *key* to this owner's epoch without writing; durable on return.

        From then on every older owner is refused, so what is read afterwards stays as it is read. Raises `StaleEpoch`
        if a newer owner has been here, `NoLease` without a lease, and `GuardUnavailable` if the mark cannot be had.
        """
        key = self.canonical(key)
        with self._attempt(key, "seal", presented) as writer:
            return self._seal(key, writer)

    def prove(self) -> None:
        """Show on the real resource, with a key of its own, that a stale write is refused; raise `Unfenced` if not."""
        self._prove()

    # For subclasses

    @abstractmethod
    def _seal(self, key: str, writer: Writer) -> Seal: ...

    @abstractmethod
    def _prove(self) -> None: ...

    @contextmanager
    def _attempt(self, key: str, verb: str, presented: Presented | dict[str, Any]) -> Iterator[Writer]:
        """Find the writer that *presented* names, for a write to *key*; count, log and record a refusal of it."""
        writer = self.writer(key, presented)
        try:
            yield writer
        except StaleEpoch as refusal:
            if refusal.resource == self.resource(key):
                self._note_refusal(key, writer, verb, refusal)
            raise

    def _admit(self, key: str, mark: Mark | None, writer: Writer, verb: str = "write") -> Mark:
        """
        Return the mark that *key* has after *writer*, by `core.marks.admit`; to be called inside the atomic step.

        Raises `StaleEpoch`. A key that passes to another store is logged.
        """
        after = admit(mark, writer, resource=self.resource(key), verb=verb, strict_store=self.strict_store)
        if mark is not None and mark.store != writer.store:
            log.warning(
                "%s is being taken over by another store: its mark is from store %s (epoch %s, owner %r), and the "
                "writer is from store %s (epoch %s, owner %r)",
                self.resource(key),
                mark.store,
                mark.epoch,
                mark.owner,
                writer.store,
                writer.epoch,
                writer.owner,
            )
        return after

    def _note_refusal(self, key: str, writer: Writer, verb: str, refusal: StaleEpoch) -> None:
        self.refused += 1
        log.warning(
            "refused %s of %s by %r under epoch %s: the mark of the key has epoch %s, of owner %r",
            verb,
            self.resource(key),
            writer.owner,
            writer.epoch,
            refusal.current,
            refusal.owner,
        )
        if self.on_refusal is not None:
            self.on_refusal(self, key, writer, refusal)

    def writer(self, key: str, presented: Presented | dict[str, Any]) -> Writer:
        """Return who writes: by a lease, an epoch or a credential, else by the current lease. Raises `NoLease`."""
        given = {name: value for name, value in presented.items() if value is not None}
        if not given.keys() <= _PRESENTED:
            unknown = min(given.keys() - _PRESENTED)
            raise TypeError(f"unknown argument {unknown!r}: a guard takes {', '.join(Presented.__annotations__)}")
        if "credential" in given:
            return self._by_credential(key, given)
        if "epoch" in given:
            return _by_epoch(given)
        if "owner" in given or "store" in given:
            raise InvalidArgument("owner= and store= need epoch= too: pass all three, or a lease, or a credential.")
        if "lease" not in given and (writer := request_writer.get()) is not None:
            return writer
        lease = given.get("lease") or lease_here()
        if lease is None:
            raise NoLease(
                f"no lease is active here, so {self.resource(key)} cannot tell whose write this is: call this from a "
                "handler, or pass lease=…, credential=…, or epoch=…, owner=… and store=…."
            )
        if not isinstance(lease, Lease):
            raise InvalidArgument(f"lease= must be a Lease, not {lease!r}.")
        return Writer(lease.epoch, lease.owner, lease.store.identity(), lease.job_id)

    def _by_credential(self, key: str, given: dict[str, Any]) -> Writer:
        if len(given) > 1:
            raise InvalidArgument(
                "a credential already contains epoch, owner and store: pass credential=… without lease=, epoch=, "
                "owner= or store=."
            )
        if self._key_ring is None or self._audience is None:  # as `takes_credentials`, for the type checker
            raise InvalidArgument(f"{self!r} does not accept credentials: make it with keys=KeyRing(…) and audience=….")
        return self._key_ring.verify(given["credential"], audience=self._audience, key=key)

    def _check_current(self, presented: Presented | dict[str, Any]) -> None:
        """Raise `StaleEpoch` if the lease is no longer current; a store that does not answer does not matter here."""
        lease = presented.get("lease") or (lease_here() if not any(presented.values()) else None)
        if lease is not None:
            try:
                lease.check()
            except StoreUnavailable as error:
                log.info(
                    "could not check whether the lease of job %r is still current; continuing, since the key is "
                    "sealed: %s",
                    lease.job_id,
                    error,
                )


@contextmanager
def writing_as(writer: Writer) -> Iterator[None]:
    """Make *writer* the one that guards find in the block, if nothing is passed: the caller has verified it."""
    token = request_writer.set(writer)
    try:
        yield
    finally:
        request_writer.reset(token)


def _nothing(step: str) -> None:
    """Do nothing at a step of a write."""


def _by_epoch(given: dict[str, Any]) -> Writer:
    if "owner" not in given or "store" not in given:
        missing = [f"{name}=" for name in ("owner", "store") if name not in given]
        raise InvalidArgument(f"epoch= needs {' and '.join(missing)} too: a mark records epoch, owner and store.")
    if "lease" in given:
        raise InvalidArgument("a lease already has an epoch, an owner and a store: pass lease= without the others.")
    epoch = checks.whole(given["epoch"], "epoch", least=1, most=EPOCH_LIMIT - 1)
    return Writer(epoch, checks.name(given["owner"], "owner"), checks.name(given["store"], "store"))


def seal_keys(keys: Iterable[GuardKey], **presented: Unpack[Presented]) -> dict[GuardKey, Seal]:
    """
    Seal several keys, in sorted order, so that two owners that seal the same ones do not hinder each other.

    Raises what `Guard.seal` raises, at the first that cannot be sealed. Those before it stay sealed, which is harmless.
    """
    ordered = sorted(set(keys), key=lambda one: (one.guard.name or "", one.guard.kind, one.key))
    return {one: one.guard.seal(one.key, **presented) for one in ordered}
