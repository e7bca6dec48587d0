"""`Gate`: admits uses of what cannot compare epochs itself, such as the handler of a request, and drains older ones."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import ClassVar, Literal, Self, Unpack

from ...aio import Facade, abandonable, threaded
from ...core import checks
from ...core.clock import Clock, Countdown, SteadyClock
from ...core.marks import Mark, Writer
from ...errors import Conflict, GuardUnavailable, StaleEpoch, Unfenced
from ...guard import Doubt, Guard, Presented, Seal, Verifier
from ...liveness import is_gone, this_process
from ...logs import log
from .forks import unique_id
from .home import Home, Running

_LOOK_US = 200_000  # how often a seal looks whether the processes of older uses are alive
_CANARY = "leasehold:prove:"


class Use:
    """
    A use that a gate has admitted: it lasts until `end`, or until it is in doubt.

    `doubts` are older uses of the key that may still write: this one was the first under its epoch, and they did not
    end in time.
    """

    __slots__ = ("_gate", "_over", "_running", "doubts", "writer")

    def __init__(self, gate: Gate, running: Running, writer: Writer, doubts: tuple[Doubt, ...]) -> None:
        self._gate = gate
        self._running = running
        self._over = False
        self.writer = writer
        self.doubts = doubts

    def __repr__(self) -> str:
        return f"<Use {self._gate.resource(self.key)} epoch={self.epoch}{' ended' if self._over else ''}>"

    @property
    def key(self) -> str:
        """What is used."""
        return self._running.key

    @property
    def epoch(self) -> int:
        """Under which it was admitted."""
        return self._running.epoch

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self._running.owner

    def end(self) -> None:
        """Say that nothing of this use goes on any more. Later calls do nothing."""
        if not self._over:
            self._gate.at("end")
            self._over = True
            self._gate._home.end(self._running)

    def doubt(self, note: str) -> None:
        """
        Record that it is not known whether this use goes on, and why: no seal waits for it.

        If that cannot be recorded now, the use stays as it is, and the next seal waits for it.
        """
        if not self._over:
            self._over = True
            log.warning(
                "%s: the request under epoch %s of %r ended with an unknown outcome; recording it as in doubt: %s",
                self._gate.resource(self.key),
                self.epoch,
                self.owner,
                note,
            )
            try:
                self._gate._home.doubt(self.key, {self._running.id: note})
            except (Conflict, GuardUnavailable) as error:
                log.warning(
                    "%s: could not record that this request is in doubt, so the next seal waits for it: %s",
                    self._gate.resource(self.key),
                    error,
                )


class Gate(Guard):
    """
    Refuses uses under an older epoch, and waits for those that are running when a newer owner comes.

    It is for what cannot compare epochs in its own atomic step: a request handler, a tool, a device. If the resource
    has transactions, `SqlGuard` in the handler is stronger, since it refuses at COMMIT.

    *url* names where its state is kept. `sqlite:///gate.db`: the marks are in that file, and the uses in the memory of
    this process, so that a use costs microseconds. A second process with such a gate fails at start. With `uses="sql"`
    uses are rows too, and several processes share the gate. `postgresql://…`: marks and uses are rows, for processes on
    several machines.

    The first use under a newer epoch seals the key first, as `seal` does. A seal waits at most *drain_seconds* for
    older uses. What is left then is in doubt: `Seal.doubts` has it, it is recorded once, and it is not waited for
    again.

    Raises `Conflict` if another process has it open with uses in memory, and `GuardUnavailable` if the file or server
    cannot be had.
    """

    kind = "gate"
    STEPS: ClassVar[tuple[str, ...]] = ("admit", "use", "end")

    def __init__(
        self,
        url: str,
        *,
        uses: Literal["memory", "sql"] | None = None,
        drain_seconds: float = 10,
        keys: Verifier | None = None,
        audience: str | None = None,
        strict_store: bool = False,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(keys=keys, audience=audience, strict_store=strict_store)
        from .opening import open_home  # on use: it brings sqlite3

        self._drain_us = checks.microseconds(drain_seconds, "drain_seconds", zero=True)
        self._clock: Clock = clock or SteadyClock()
        self._closed = False
        self._canary = _CANARY + uuid.uuid4().hex
        self._home: Home = open_home(url, uses, self._clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file or the connections. Uses in memory that are still running are then in doubt."""
        if not self._closed:
            self._closed = True
            self._home.close()

    def rest(self) -> None:
        """
        Record that no use is running, if so, until the next one begins: when a server shuts down, for example.

        With uses in memory, a process that ends otherwise leaves the keys that it has used in doubt, since the next
        process cannot tell whether a use was running. `close`, and the end of the interpreter, do it too.
        """
        self._home.rest()

    @property
    def ends_at_once(self) -> bool:
        """Whether `Use.end` takes neither I/O nor waiting: where uses are in memory."""
        return not self._home.waits

    @property
    def aio(self) -> AsyncGate:
        """The same verbs for async callers."""
        return AsyncGate(self)

    # Uses

    @contextmanager
    def use(self, key: str, **presented: Unpack[Presented]) -> Iterator[Use]:
        """
        Use *key* for as long as the block runs, under the lease, epoch or credential that is presented.

        Until the block ends, a newer owner's seal waits for it. It ends with the block even if that raises. Nothing
        stops a block that lasts longer than `drain_seconds`: it is then in doubt.

        Raises `StaleEpoch` if a newer owner has been here, `NoLease` without a lease, `CredentialRefused` for a bad
        credential, and `GuardUnavailable` if the mark cannot be had. Then the block does not run.
        """
        use = self.begin(key, **presented)
        try:
            yield use
        finally:
            use.end()

    def begin(self, key: str, **presented: Unpack[Presented]) -> Use:
        """
        Begin a use whose end is elsewhere: call `end` on it, or `doubt`. `use` is the same as a block.

        Raises what `use` raises.
        """
        key = self.canonical(key)
        with self._attempt(key, "use", presented) as writer:
            return self._begin(key, writer)

    def _begin(self, key: str, writer: Writer) -> Use:
        self.at("admit")
        running, admit = self._running(key, writer), partial(self._admit, key, writer=writer, verb="use")
        doubts: tuple[Doubt, ...] = ()
        try:
            while self._home.begin(running, admit) is None:
                doubts = self._seal(key, writer).doubts
            return self._begun(running, writer, doubts)
        except BaseException as error:
            if not isinstance(error, StaleEpoch):
                self._home.end(running)  # Ctrl-C, or a lost reply: it may have been recorded
            raise

    def _try_begin(self, key: str, writer: Writer) -> Use | None:
        """Begin a use if that takes neither I/O nor waiting, for an event loop; else, or to be refused, None."""
        running = Running(unique_id(), key, writer.epoch, writer.owner, this_process())
        if not self._home.try_begin(running, writer.store):
            return None
        self.at("use")
        return Use(self, running, writer, ())

    def begin_at_once(self, key: str, credential: str) -> Use | None:
        """
        Begin a use if that takes neither I/O nor waiting, for a caller on an event loop; else None: call `begin`.

        Raises `CredentialRefused`. A use that a mark refuses is None too, so that `begin` raises and counts it.
        """
        key = self.canonical(key)
        return self._try_begin(key, self._by_credential(key, {"credential": credential}))

    def _running(self, key: str, writer: Writer) -> Running:
        return Running(unique_id(), key, writer.epoch, writer.owner, this_process())

    def _begun(self, running: Running, writer: Writer, doubts: tuple[Doubt, ...]) -> Use:
        self.at("use")
        return Use(self, running, writer, doubts)

    # Every guard has these

    def canonical(self, key: str) -> str:
        """Return *key*, which must be a name: 1 to 255 characters. Raises `InvalidArgument`."""
        return checks.name(key, "key")

    def mark(self, key: str) -> Mark | None:
        """Return the mark of *key*, or None. Raises `GuardUnavailable` if it cannot be read."""
        return self._home.mark(self.canonical(key))

    def _seal(self, key: str, writer: Writer) -> Seal:
        mark = self._home.seal(key, partial(self._admit, key, writer=writer, verb="seal"))
        return Seal(key, mark, self._drain(key, writer.epoch))

    def _drain(self, key: str, below: int) -> tuple[Doubt, ...]:
        """Wait for the uses of *key* under older epochs, and return those of which the end is not known."""
        patience = Countdown(self._clock, self._drain_us)
        while uses := self._home.running(key, below):
            left = patience.left()
            if notes := {use.id: note for use in uses if (note := self._why_doubt(use, left))}:
                self._home.doubt(key, notes)
            else:
                self._home.wait(key, below, min(left, _LOOK_US))
        doubts = tuple(doubt for doubt in self._home.doubts(key) if doubt.epoch < below)
        if doubts:
            shown = "; ".join(f"epoch {doubt.epoch} of {doubt.owner!r}: {doubt.note}" for doubt in doubts)
            log.warning(
                "%s: sealed at epoch %s, but the outcome of these older requests is unknown; they may have written, "
                "or may still write: %s",
                self.resource(key),
                below,
                shown,
            )
        return doubts

    def _why_doubt(self, use: Running, left: int) -> str:
        if use.process is not None and is_gone(use.process):
            return f"process {use.process.pid} on {use.process.host} ended during the use"
        if left <= 0:
            where = f" (process {use.process.pid} on {use.process.host})" if use.process else ""
            return f"it was running when a newer owner came, and did not end in {self._drain_us / 1_000_000:g} s{where}"
        return ""

    # Doubts

    def doubts(self, key: str | None = None) -> list[Doubt]:
        """Return what is in doubt and not resolved, of *key* or of all keys. Raises `GuardUnavailable`."""
        return self._home.doubts(None if key is None else self.canonical(key))

    def resolve(self, key: str, *, by: str, epoch: int | None = None, note: str = "") -> int:
        """
        Resolve the doubts of *key*, once you know what became of them; return how many uses they were.

        With *epoch*, only those under it. *by* and *note* are kept. It changes no mark: old epochs stay refused.
        Raises `GuardUnavailable`.
        """
        if epoch is not None:
            epoch = checks.whole(epoch, "epoch", least=1, most=2**53)
        return self._home.resolve(self.canonical(key), epoch, checks.name(by, "by"), checks.text(note, "note"))

    # Proof

    def _prove(self) -> None:
        """Seal over a use on a key of this gate's own, and try what must be refused."""
        key, before = self._canary, self._home.mark(self._canary)
        old = Writer(before.epoch + 1 if before else 1, "prove", "prove")
        new = old._replace(epoch=old.epoch + 1)
        use = self._home_use(key, old)
        self._home.seal(key, partial(self._admit, key, writer=new, verb="prove"))
        found = self._home.mark(key)
        if found is None or found.epoch != new.epoch:
            raise Unfenced(
                f"prove() failed: {self!r} did not record a test seal at epoch {new.epoch} (the mark is {found}), so "
                "it would admit the requests of older owners. Only a key of the test's own was used. Check that "
                "nothing else changes the gate's database."
            )
        if [one.id for one in self._home.running(key, new.epoch)] != [use.id]:
            raise Unfenced(
                f"prove() failed: {self!r} did not find a test request that was running, so a seal would not wait for "
                "the requests of older owners. Only a key of the test's own was used. Check that nothing else changes "
                "the gate's database."
            )
        self._home.end(use)
        with suppress(StaleEpoch):
            self._home.end(self._home_use(key, old))
            raise Unfenced(
                f"prove() failed: {self!r} admitted a test request under epoch {old.epoch} after a seal at epoch "
                f"{new.epoch}, so it would admit the requests of older owners. Only a key of the test's own was used. "
                "Check that nothing else changes the gate's database."
            )

    def _home_use(self, key: str, writer: Writer) -> Running:
        running, admit = self._running(key, writer), partial(self._admit, key, writer=writer, verb="prove")
        while self._home.begin(running, admit) is None:
            self._home.seal(key, admit)
        return running


class AsyncGate(Facade):
    """The verbs of a `Gate`, to be awaited."""

    _sync: Gate

    mark = threaded(Gate.mark)
    doubts = threaded(Gate.doubts)
    resolve = threaded(Gate.resolve)
    prove = threaded(Gate.prove)
    rest = threaded(Gate.rest)

    async def seal(self, key: str, **presented: Unpack[Presented]) -> Seal:
        """Seal *key*, and raise, as `Gate.seal` does."""
        # On a thread of its own: a seal may wait for uses that need the shared ones to end.
        return await abandonable(lambda _: self._sync.seal(key, **presented))

    async def begin(self, key: str, **presented: Unpack[Presented]) -> Use:
        """Begin a use, as `Gate.begin` does; if the caller is cancelled meanwhile, it is ended."""
        gate = self._sync
        key = gate.canonical(key)
        if presented.get("credential") or presented.get("epoch"):  # else the store is asked for its id
            use = gate._try_begin(key, gate.writer(key, presented))
            if use is not None:
                return use
        return await abandonable(lambda _: gate.begin(key, **presented), Use.end)

    async def end(self, use: Use, doubt: str = "") -> None:
        """End *use*, or record that it is in *doubt*; that happens even if the caller is cancelled meanwhile."""
        if not doubt and self._sync.ends_at_once:
            use.end()
        else:
            await abandonable(lambda _: use.doubt(doubt) if doubt else use.end())

    @asynccontextmanager
    async def use(self, key: str, **presented: Unpack[Presented]) -> AsyncIterator[Use]:
        """Use *key* for as long as the block runs, and raise, as `Gate.use` does; a cancelled block has ended."""
        use = await self.begin(key, **presented)
        try:
            yield use
        finally:
            await self.end(use)
