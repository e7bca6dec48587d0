"""
The guards of a router: known by name, so that a job's keys can be sealed before its handler and after its end.

Before a handler with `seals=` begins, its keys are recorded under its epoch and sealed. When the job is cancelled, is
completed by hand or fails for good, they are sealed above its last owner's epoch, since no successor will do so: at
once where that is known, and else by the next upkeep of a process that has the guard (`Guards.seal_open`).
"""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from ..aio import alone
from ..core import checks
from ..core.job import Job
from ..core.ownership import Note, NoteKind
from ..core.wording import counted, printable
from ..errors import Conflict, InvalidArgument, LeaseholdError, StaleEpoch, Unfenced
from ..guard import Guard, GuardKey, Writer, seal_keys
from ..logs import log
from ..store import OpenKey

if TYPE_CHECKING:
    from ..lease import Lease
    from .adder import Adder

Keys = Callable[..., Any]  # of the handler's arguments; returns `GuardKey`s

PROVE_SECONDS = 600.0
_MOST_KEYS = 1_000
_MOST_SKIPPED = 256  # passes of upkeep between two attempts to seal a key that cannot be reached
SEALER = "leasehold"  # who seals the keys of a job that upkeep or its owner has failed


class Unsealed(LeaseholdError):
    """The keys of a job could not be sealed, so its handler was not called; the job goes back."""


class Unreached(NamedTuple):
    """A key that could not be sealed, and why."""

    guard: str
    key: str
    why: str

    def __str__(self) -> str:
        return f"{self.guard}:{self.key} ({self.why})"


class Sealed(NamedTuple):
    """Which keys of a finished job were sealed, at which epoch, and which could not be reached."""

    job_id: str
    epoch: int
    sealed: tuple[tuple[str, str], ...] = ()
    unreached: tuple[Unreached, ...] = ()


class Guards:
    """The guards of one router, by name."""

    def __init__(self, adder: Adder, pending: deque[Note]) -> None:
        self._adder = adder
        self._named: dict[str, Guard] = {}
        self._to_prove: set[str] = set()
        self._sealing = threading.Lock()
        self._open_from = 0  # where the pass of `seal_open` has come to
        self._passes = 0
        self._failed: dict[OpenKey, int] = {}  # how often each could not be sealed in `seal_open`
        self._pending = pending  # what is to be recorded when a transaction, open at the time, has ended

    def __bool__(self) -> bool:
        return bool(self._named)

    @property
    def named(self) -> Mapping[str, Guard]:
        """The guards by name."""
        return self._named

    def register(self, name: str, guard: Guard, *, prove: bool) -> None:
        """Know *guard* as *name*; raise `InvalidArgument` if the name or the guard is not free."""
        checks.name(name, "a guard's name")
        if not isinstance(guard, Guard):
            raise InvalidArgument(f"router.guard takes a Guard, not {guard!r}.")
        if self._named.get(name, guard) is not guard:
            raise InvalidArgument(
                f"two guards are called {name!r}: register one of them under another name, since jobs record the keys "
                "to seal by the name of their guard."
            )
        if guard.name not in (None, name):
            raise InvalidArgument(f"{guard!r} is already registered as {guard.name!r}.")
        guard.name, guard.on_refusal = name, self._refused
        self._named[name] = guard
        if prove:
            self._to_prove.add(name)

    # Before the handler

    def seal(self, keys: list[GuardKey], lease: Lease) -> None:
        """Record the keys of a handler under its epoch and seal them; raise `Unsealed` if that cannot be done."""
        for one in keys:
            if self._named.get(one.guard.name or "") is not one.guard:
                raise InvalidArgument(
                    f"{one.guard!r} is not a guard of this router, so its key {one.key!r} could not be sealed at the "
                    "job's end: register it with router.guard(name, guard)."
                )
        recorded = sorted({(str(one.guard.name), one.key) for one in keys})
        store = lease.store
        store.record(Note(NoteKind.GUARDED, lease.job_id, lease.epoch, lease.owner, {"keys": [*map(list, recorded)]}))
        try:
            seals = seal_keys(keys, lease=lease)
        except StaleEpoch as refusal:
            # The job has moved on; or an owner of another job has been there, and only a newer epoch can pass.
            lease.check()
            raise Unsealed(
                f"{refusal} The job is released, and will be claimed again under a newer epoch."
            ) from refusal
        except LeaseholdError as error:
            raise Unsealed(f"a key could not be sealed, so the handler was not called: {error}") from error
        doubts = [{"guard": one.guard.name, **doubt._asdict()} for one, seal in seals.items() for doubt in seal.doubts]
        if doubts:
            store.record(Note(NoteKind.DOUBTED, lease.job_id, lease.epoch, lease.owner, {"doubts": doubts}))

    # After the end

    def seal_ended(self, job: Job, *, by: str = SEALER, but: Collection[str] = ()) -> Sealed:
        """
        Seal the recorded keys of *job*, which was read after its end, *but* not those of these guards.

        Return which could not be reached.

        At one above the epoch that *job* was read with. Every later owner has at least that one, should the job be
        replayed meanwhile. An epoch drawn now could be above that owner's, and lock it out.
        """
        noted = self._adder.store.events(job_id=job.id, kind=NoteKind.GUARDED)
        keys = {(guard, key) for event in noted for guard, key in event.facts["keys"] if guard not in but}
        done = self._seal_each(job.id, job.epoch, keys, by)
        if done.unreached:
            self._note_unreached(done, by)
        return done

    def seal_open(self) -> bool:
        """
        Seal keys of jobs that have ended and whose keys were not sealed then; return whether there may be more.

        One portion: a part of upkeep. It is how a final failure outside of a worker is sealed, and what a listener had
        no time for. A key that cannot be reached is tried again less and less often.
        """
        if not self._named or not self._sealing.acquire(blocking=False):
            return False
        try:
            following = self._seal_portion(self._open_from, lambda one: not self._passes % self._every(one))
            self._open_from = following or 0
            self._passes += following is None
            return following is not None
        finally:
            self._sealing.release()

    def seal_all_open(self) -> None:
        """
        Try now to seal every key that `seal_open` would come to, however often that has failed.

        A pass of its own: that of `seal_open` may be in the middle, and has left behind what it could not reach. Waits
        while `seal_open` in another thread seals a portion.
        """
        after: int | None = 0
        while self._named and after is not None:
            with self._sealing:
                after = self._seal_portion(after, lambda one: True)

    def _seal_portion(self, after: int, is_due: Callable[[OpenKey], bool]) -> int | None:
        """Seal what is due of the next portion; return where the one after it begins, None at the end."""
        keys, following = self._adder.store.open_keys(self._named, after=after)
        for (job_id, epoch), some in groupby(filter(is_due, keys), key=lambda one: (one.job_id, one.epoch)):
            self._seal_again(job_id, epoch, list(some))
        if not keys and following is None:
            self._failed.clear()  # sealed by another process, or pruned
        return following

    def _every(self, key: OpenKey) -> int:
        """Return in how many passes the key is tried once."""
        return min(1 << self._failed.get(key, 0), _MOST_SKIPPED)

    def _seal_again(self, job_id: str, epoch: int, keys: list[OpenKey]) -> None:
        done = self._seal_each(job_id, epoch, {(one.guard, one.key) for one in keys}, SEALER)
        news: list[Unreached] = []
        left = {(one.guard, one.key): one for one in done.unreached}
        for one in keys:
            if (unreached := left.get((one.guard, one.key))) is None:
                self._failed.pop(one, None)
                continue
            if one not in self._failed:
                news.append(unreached)
            self._failed[one] = self._failed.get(one, 0) + 1
        if news:
            self._note_unreached(done._replace(unreached=tuple(news)), SEALER)

    def _seal_each(self, job_id: str, ended: int, keys: Collection[tuple[str, str]], by: str) -> Sealed:
        epoch = ended + 1
        sealed: list[tuple[str, str]] = []
        unreached: list[Unreached] = []
        identity = self._adder.store.identity() if keys else ""
        for name, key in sorted(keys):
            try:
                guard = self._named.get(name)
                if guard is None:
                    raise self._not_registered(name)
                guard.seal(key, epoch=epoch, owner=by, store=identity)
            except StaleEpoch:
                pass  # a newer owner has been there: nothing older passes any more
            except Exception as error:
                unreached.append(Unreached(name, key, str(error)))
                continue
            sealed.append((name, key))
        if sealed:
            facts = {"keys": [list(one) for one in sealed], "by": by}
            self._record(Note(NoteKind.SEALED, job_id, epoch, None, facts))
        return Sealed(job_id, epoch, tuple(sealed), tuple(unreached))

    def _not_registered(self, name: str) -> Conflict:
        only = f", only {', '.join(map(repr, sorted(self._named)))}" if self._named else ""
        return Conflict(
            f"no guard is registered as {name!r} in this process{only}: register it with router.guard({name!r}, "
            "guard), or try again in a process that has it"
        )

    def _note_unreached(self, done: Sealed, by: str) -> None:
        facts = {"keys": [[one.guard, one.key, _storable(one.why)] for one in done.unreached], "by": by}
        self._record(Note(NoteKind.UNSEALED, done.job_id, done.epoch, None, facts))
        log.error(
            "%s of job %r, which has ended, could not be sealed; its last owner may still write there: %s. "
            "Try again: leasehold guard seal %s --app MODULE:ROUTER",
            counted(len(done.unreached), "key", "keys"),
            done.job_id,
            ", ".join(printable(str(one)) for one in done.unreached),
            printable(done.job_id),
            extra={"job_id": done.job_id, "epoch": done.epoch - 1},
        )

    def on_failed(self, event: Any) -> None:
        """Seal the keys of a job that has failed for good: a listener of the worker's event `failed`."""
        self.seal_ended(event.job)

    def on_taken_back(self, event: Any) -> None:
        """
        Record that the keys of a job which upkeep has failed cannot be sealed here, where no guard is known.

        With a guard, `on_failed` seals them. Without one it is not called, and it may be another application's job.
        """
        if not self:
            self.seal_ended(event.job)

    # Refusals

    def _refused(self, guard: Guard, key: str, writer: Writer, refusal: StaleEpoch) -> None:
        store = self._adder.store
        try:
            own = writer.store == store.identity()
        except LeaseholdError:
            own = False
        facts = {
            "resource": refusal.resource,
            "guard": guard.name,
            "presented": refusal.presented,
            "current": refusal.current,
            "by": writer.owner,
            "verb": refusal.verb,
            "store": None if own else writer.store,
        }
        self._record(Note(NoteKind.REFUSED, writer.job_id if own else None, refusal.current, refusal.owner, facts))

    def _record(self, note: Note) -> None:
        self._pending.append(note)
        self.flush()

    def flush(self) -> None:
        """Record what could not be recorded inside an open transaction, on which the store might have to wait."""
        while self._pending:
            try:
                store = alone(self._adder.store)
            except Conflict:
                return  # a transaction is open here, and maybe it is the one in which the refusal was met
            try:
                note = self._pending.popleft()
            except IndexError:  # another thread was faster: an error here would replace the refusal of the caller
                return
            try:
                store.record(note)
            except LeaseholdError as error:
                of = "" if note.job_id is None else f" of job {note.job_id!r}"
                log.warning("could not record a %r event%s: %s", note.kind.value, of, error)

    # Proof

    def prove(self) -> list[str]:
        """Prove every guard that is to be; return their names. Raises `Unfenced` at the first that protects nothing."""
        for name in sorted(self._to_prove):
            self._named[name].prove()
        return sorted(self._to_prove)

    @contextmanager
    def proving(self) -> Iterator[None]:
        """Prove every guard now, and again every ten minutes: around a worker."""
        if not self._to_prove:
            yield
            return
        self.prove()
        ended = threading.Event()
        threading.Thread(target=self._prove_on, args=(ended,), name="leasehold-prove", daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _prove_on(self, ended: threading.Event) -> None:
        while not ended.wait(PROVE_SECONDS):
            try:
                self.prove()
            except Unfenced as error:
                log.error("a guard no longer protects its keys: %s", error)
            except Exception as error:
                log.warning(
                    "could not test whether a guard refuses stale writes; trying again in %d seconds: %s",
                    PROVE_SECONDS,
                    error,
                )


def _storable(text: str) -> str:
    return text.replace("\0", "\\0")


def keys_of(seals: Keys, arguments: Mapping[str, Any]) -> list[GuardKey]:
    """Return the keys that *seals* names for these arguments; it gets those of them that it takes."""
    parameters = inspect.signature(seals).parameters.values()
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    names = {parameter.name for parameter in parameters}
    found = seals(**{name: value for name, value in arguments.items() if takes_all or name in names})
    keys = [found] if isinstance(found, GuardKey) else list(found)
    for key in keys:
        if not isinstance(key, GuardKey):
            raise InvalidArgument(
                f"the function passed as seals= returned {key!r}, which is not a key of a guard: return "
                "[guard.key(name), …]."
            )
    if len(keys) > _MOST_KEYS:
        raise InvalidArgument(
            f"the function passed as seals= returned {len(keys)} keys, and a job can have at most {_MOST_KEYS}."
        )
    return keys
