"""The guard of rows in a database that is not leasehold's own."""

from __future__ import annotations

import asyncio
import secrets
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, NoReturn, Unpack, cast

from ...aio import Facade, require_awaited, threaded
from ...connections import Connection, Program, driver_error, look_at, recognise
from ...core import checks
from ...core.clock import patience
from ...core.marks import Mark, Writer, admit, refusal
from ...errors import (
    GuardUnavailable,
    InDoubt,
    InvalidArgument,
    LeaseholdError,
    NotInTransaction,
    StaleEpoch,
    StoreIncompatible,
    Unsupported,
    finders,
)
from ...guard import Guard, Presented, Seal, Verifier
from ...logs import log
from . import postgres, proof, sqlite
from .connecting import Source, begin, commit, has_failed, no_change, source_of
from .dialect import RECENT, Dialect, Fenced, Known, Request
from .postgres import Postgres
from .sqlite import Sqlite

VERSION = 3  # of what `install` makes
_END_SECONDS = 5.0  # for a server to notice that its client is gone
_guards: weakref.WeakValueDictionary[str, SqlGuard] = weakref.WeakValueDictionary()
_NOTED = "_leasehold_guard_noted"  # set on an error whose refusal has been counted


class Fence:
    """A fence of one transaction: which keys, under which epoch; and, once it has ended, what became of it."""

    def __init__(self, guard: SqlGuard, request: Request, number: str | None) -> None:
        self.keys = request.keys
        self.epoch = request.writer.epoch
        self._guard = guard
        self._nonce = request.nonce
        self._number = number

    def committed(self) -> bool:
        """
        Return whether the transaction was committed: for a COMMIT whose reply was lost.

        Raises `InDoubt` if the mark no longer shows it, or not yet: then ask again.
        """
        return self._guard._committed(self.keys[0], self.epoch, self._nonce, self._number)


class SqlGuard(Guard):
    """
    Guards rows of a PostgreSQL or SQLite database that is not leasehold's own.

    `fence` makes the transaction that the caller has open commit only if no newer owner has written or sealed the key.
    On PostgreSQL the server compares inside COMMIT, so an owner that is paused in its transaction cannot block the seal
    of its successor; on SQLite the fence is a conditional write and holds the file's write lock until the end.

    *connect* is for the guard's own connections: a URL, an engine of SQLAlchemy, or a function that returns a new
    connection of sqlite3, psycopg, SQLAlchemy or Django. What it needs in the database (a schema on PostgreSQL, a table
    on SQLite, named by *schema*) is made by `install`, or by the first use.

    It protects only the rows of transactions that are fenced.
    """

    kind = "sql"
    STEPS: ClassVar[tuple[str, ...]] = ("fencing", "fenced", "committing", "committed")

    def __init__(
        self,
        connect: Any,
        *,
        schema: str = "leasehold_guard",
        busy_seconds: float = 30,
        keys: Verifier | None = None,
        audience: str | None = None,
        strict_store: bool = False,
    ) -> None:
        super().__init__(keys=keys, audience=audience, strict_store=strict_store)
        self._busy_seconds = checks.microseconds(busy_seconds, "busy_seconds", zero=True) / 1_000_000
        self._source: Source = source_of(connect, self._busy_seconds)
        self._schema = schema
        dialects = (Postgres(schema, self.kind), Sqlite(schema, self.kind, self._source.file))
        self._dialects: dict[str, Dialect] = {dialect.vendor: dialect for dialect in dialects}
        self._token = uuid.uuid4().hex
        self._installed = False
        self._place: str | None = None  # which database of PostgreSQL the guard's own connections are to
        self._installing = threading.Lock()
        _guards[self._token] = self

    def close(self) -> None:
        """Close the connections that the guard keeps."""
        self._source.close()

    @property
    def aio(self) -> AsyncSqlGuard:
        """The same verbs for async callers; `fence` takes connections of an event loop there."""
        return AsyncSqlGuard(self)

    def canonical(self, key: str) -> str:
        """Return *key*: 1 to 255 characters, without NUL."""
        name = checks.name(key, "key")
        if name.startswith(proof.KEYS):
            raise InvalidArgument(
                f"the key {name!r} cannot be used: keys that begin with {proof.KEYS!r} are reserved for prove()."
            )
        return name

    # In the caller's transaction

    def fence(self, connection: Any, *keys: str, savepoint: bool = False, **presented: Unpack[Presented]) -> Fence:
        """
        Make the transaction that *connection* has open commit only if no newer owner has been at *keys*.

        Its COMMIT raises their marks. Raises `StaleEpoch` if a newer owner has been there; on PostgreSQL that may come
        from your COMMIT instead, as the driver's exception, and `StaleEpoch.find` converts it. Raises
        `NotInTransaction` if none is open; `Conflict` inside a savepoint, unless *savepoint*; `StaleSnapshot` if a
        SQLite transaction has to be run again; `GuardUnavailable` if a mark cannot be read; `InvalidArgument` for a
        connection to another SQLite file than the guard's URL, or another kind of database.

        A fence is not a seal: seal the keys before you read what you are going to change.
        """
        request = self._request(keys, presented, savepoint=savepoint)
        found = look_at(connection)
        if found.is_async:
            require_awaited(connection)
            return cast(Fence, self._fence_async(found, request))
        self.at("fencing")
        found.enter()
        dialect = self._joined(found, savepoint)
        self._prepare(dialect)
        try:
            fenced = found.run(dialect.fence(request, found.style))
        except Exception as error:
            self._explain(error, self.resource(request.keys[0]), found)
        fence = self._fenced(request, fenced)
        self.at("fenced")
        return fence

    async def _fence_async(self, found: Connection, request: Request) -> Fence:
        self.at("fencing")
        await found.enter_async()
        dialect = self._joined(found, request.savepoint)
        if not self._installed:
            await asyncio.to_thread(self._prepare, dialect)
        try:
            fenced = await found.run_async(dialect.fence(request, found.style))
        except Exception as error:
            self._explain(error, self.resource(request.keys[0]), found)
        fence = self._fenced(request, fenced)
        self.at("fenced")
        return fence

    @contextmanager
    def transaction(self, *keys: str, **presented: Unpack[Presented]) -> Iterator[Any]:
        """
        Open a transaction on a connection of the guard's own, fence it, and commit it at the end of the block.

        Yields the connection. An exception in the block rolls back. Raises what `fence` raises; `StaleEpoch` if the
        COMMIT was refused; `InDoubt` if its reply was lost and the marks do not show whether it happened;
        `GuardUnavailable` if a row is locked for longer than *busy_seconds*, by an older owner that is paused for
        example.
        """
        handle = self._source.open()
        whole, restore = False, no_change
        try:
            with self._explaining(keys[0] if keys else "", None):
                restore = begin(handle)
            fence = self.fence(handle, *keys, **presented)
            try:
                yield handle
            except Exception as error:
                if postgres.sqlstate_of(error) == postgres.LOCK_TIMEOUT:
                    raise self._row_locked(self.resource(fence.keys[0])) from error
                raise
            self.at("committing")
            if has_failed(handle):
                raise NotInTransaction(
                    f"{self.resource(fence.keys[0])}: the block caught an error that had already aborted the "
                    "transaction, so PostgreSQL commits nothing. Let the error leave the block, or use a "
                    "savepoint."
                )
            try:
                self._require_fence(handle, fence)
                commit(handle)
            except NotInTransaction:
                raise
            except Exception as error:
                self._answer(error, fence)
            self.at("committed")
            whole = True
        except BaseException:
            with suppress(Exception):  # it may be gone; what matters is what left the block
                handle.rollback()
            raise
        finally:
            with suppress(Exception):
                restore()
            self._source.give(handle, whole=whole)

    def _require_fence(self, handle: Any, fence: Fence) -> None:
        """Raise `NotInTransaction` if the block has ended the transaction that was fenced."""
        own = recognise(handle)
        holds, dialect = own.in_transaction(), self._dialect(own)
        if holds and isinstance(dialect, Postgres):
            holds = own.run(dialect.number()) == fence._number
        elif holds:
            # Of each key: behind a COMMIT in the block the nonces stay, and a newer owner may have come since.
            marks = [own.run(dialect.known(key, own.style)) for key in fence.keys]
            holds = all(one and one.mark.epoch == fence.epoch and fence._nonce in one.recent for one in marks)
        if not holds:
            raise NotInTransaction(
                f"{self.resource(fence.keys[0])}: a COMMIT, ROLLBACK or ROLLBACK TO inside this block has ended its "
                "fence. What followed was not fenced, and was rolled back. Let the end of the block commit; raise an "
                "exception to roll back."
            )

    def _answer(self, error: Exception, fence: Fence) -> None:
        """Say what became of a COMMIT that raised *error*; return if it happened."""
        found = StaleEpoch.find(error)
        if found is not None:
            raise found from error
        if sqlite.is_busy(error):
            raise GuardUnavailable(
                f"{self.resource(fence.keys[0])}: COMMIT gave up after {self._busy_seconds:g} s (busy_seconds), since "
                "another connection is reading. Nothing was written; try again. With PRAGMA journal_mode = WAL, "
                "readers do not block a COMMIT."
            ) from error
        if not postgres.is_lost(error):
            explained = postgres.explained(error, self.resource(fence.keys[0]), self._schema)
            raise explained or error from error
        if not fence.committed():
            raise GuardUnavailable(
                f"{self.resource(fence.keys[0])}: the connection to its database was lost before the COMMIT took "
                f"effect ({driver_error(error)}). Nothing was written."
            ) from error

    # On connections of the guard's own

    def install(self, connection: Any = None) -> None:
        """
        Make what the guard needs in the database, where it is missing: in *connection*'s transaction, or in its own.

        On PostgreSQL a schema with two tables and their functions; a role that may create schemas is needed, and other
        roles then need USAGE on that schema. On SQLite one table.
        """
        if connection is not None:
            found = recognise(connection)
            found.run(self._dialect(found).install(found.style))
            return
        with self._explaining("", None), self._source.lend() as own:
            if own.vendor == "postgresql" and not own.begins() and own.library == "psycopg":
                own.execute("BEGIN")
            own.run(self._dialect(own).install(own.style))
        self._installed = True

    def mark(self, key: str) -> Mark | None:
        """Return the mark of *key* as it stands; None if no owner has written or sealed it."""
        known = self._known(self.canonical(key))
        return None if known is None else known.mark

    def _known(self, key: str) -> Known | None:
        with self._explaining(key, None), self._source.lend() as own:
            dialect = self._dialect(own)
            if own.vendor == "postgresql" and not self._installed and not own.run(dialect.version(own.style)):
                return None
            return own.run(dialect.known(key, own.style))

    def _seal(self, key: str, writer: Writer) -> Seal:
        request = self._request_of((key,), writer)
        for again in (True, False):
            try:
                return self._seal_once(key, request)
            except GuardUnavailable as error:
                # A seal whose reply was lost can be repeated: it only raises the mark.
                if not again or not (error.__cause__ and postgres.is_lost(error.__cause__)):
                    raise
        raise AssertionError("unreachable")

    def _seal_once(self, key: str, request: Request) -> Seal:
        self._ensure()
        with self._explaining(key, None), self._source.lend() as own:
            dialect = self._dialect(own)
            before, mark = own.run(dialect.seal(request, own.style, self._busy_seconds))
            if mark is None or before is not None:
                self._admit(key, before, request.writer, "seal")
        if mark is None:
            raise self._disagreement(key)
        return Seal(key, mark)

    def _prove(self) -> None:
        """Let a stale transaction commit, which must be refused, with keys that no owner has."""
        proof.prove(self)

    def _committed(self, key: str, epoch: int, nonce: int, number: str | None) -> bool:
        left, pause = patience(_END_SECONDS), threading.Event()
        while True:
            status = None
            with self._explaining(key, None), self._source.lend() as own:
                dialect = self._dialect(own)
                # The status first: a transaction that has ended before the mark is read has left its trace there.
                if number is not None:
                    status = own.run(dialect.status(number, own.style))
                known = own.run(dialect.known(key, own.style))
            if known is not None and nonce in known.recent:
                return True
            if status == "aborted" or (status is None and number is None):
                return False
            if status != "in progress" or left() <= 0:
                why = (
                    "its transaction has not ended yet"
                    if status == "in progress"
                    else f"more than {RECENT} later writes hide it, or the server was restored"
                )
                raise InDoubt.of_resource(self.resource(key), epoch=epoch, why=why)
            pause.wait(0.01)  # the server is about to notice that its client is gone

    # Requests and replies

    def _request(self, keys: tuple[str, ...], presented: Presented, *, savepoint: bool) -> Request:
        if not keys:
            raise InvalidArgument("fence() needs at least one key: fence(connection, key).")
        names = tuple(sorted({self.canonical(key) for key in keys}))
        for name in names:  # of the same owner each: but a credential must cover every key
            writer = self.writer(name, presented)
        return self._request_of(names, writer, savepoint=savepoint)

    def _request_of(self, names: tuple[str, ...], writer: Writer, *, savepoint: bool = False) -> Request:
        return Request(names, writer, secrets.randbits(63), self._token, self.strict_store, savepoint)

    def _fenced(self, request: Request, fenced: Fenced) -> Fence:
        """Raise a refusal that is known already, and log a key that passes to another store."""
        if fenced.place and fenced.place != self._place and fenced.place != self._own_place():
            raise InvalidArgument(
                f"that connection is not to the guard's own database, {self._source.where}: a stale write of "
                f"{request.keys[0]!r} there would not be refused, even after a seal. Roll the transaction back, and "
                "make the guard with the URL of the database that you write to."
            )
        for key, before in fenced.before.items():
            try:
                self._admit(key, before, request.writer)
            except StaleEpoch as refusal:
                self._note_refusal(key, request.writer, "write", refusal)
                raise
        if fenced.refused:
            raise self._disagreement(min(fenced.refused))
        return Fence(self, request, fenced.number)

    def _refused_at_commit(self, key: str, writer: Writer, refusal: StaleEpoch) -> None:
        """Count, log and record what a COMMIT of the caller's has refused."""
        self._note_refusal(key, writer, "write", refusal)

    def _disagreement(self, key: str) -> GuardUnavailable:
        return GuardUnavailable(
            f"{self.resource(key)}: the database did not raise its mark, and the mark does not show why. Nothing was "
            "written: look at the guard's table for triggers and rules."
        )

    def _joined(self, found: Connection, savepoint: bool) -> Dialect:
        found.require_transaction()
        if not savepoint:
            found.require_no_savepoint()
        if self._source.vendor not in (None, found.vendor):
            raise InvalidArgument(
                f"that connection is to {found.vendor}, and this guard keeps its marks in {self._source.where}: a "
                "stale write there would not be refused, even after a seal. Make the guard with the URL of the "
                "database that you write to."
            )
        return self._dialect(found)

    def _dialect(self, connection: Connection) -> Dialect:
        found = self._dialects.get(connection.vendor)
        if found is None:
            raise Unsupported(
                f"SqlGuard supports PostgreSQL and SQLite, not {connection.vendor}: the table of resources in the "
                "explanation of guards says what to do instead."
            )
        return found

    def _prepare(self, dialect: Dialect) -> None:
        """Learn what a fence needs to know about the guard's own database, once."""
        if dialect.vendor == "postgresql":
            self._ensure()
        elif isinstance(dialect, Sqlite) and dialect.file is None:
            dialect.file = self._file(None) or ""

    def _own_place(self) -> str:
        """Ask again which database the marks are in: it may have been restored or replaced."""
        with self._explaining("", None), self._source.lend() as own:
            dialect = self._dialect(own)
            self._place = own.run(dialect.place(own.style)) if isinstance(dialect, Postgres) else ""
        return self._place

    def _ensure(self) -> None:
        """Install what is missing, once per guard; on SQLite the first write does it."""
        if self._installed:
            return
        with self._installing:
            if self._installed:
                return
            with self._explaining("", None), self._source.lend() as own:
                version = VERSION
                if own.vendor == "postgresql":
                    version = own.run(self._dialect(own).version(own.style))
            if version > VERSION:
                raise StoreIncompatible(
                    f"the guard's schema {self._schema!r} has version {version}, and this leasehold supports "
                    f"{VERSION} at most: a newer leasehold has installed it. Upgrade leasehold. Nothing was changed."
                )
            if version < VERSION:
                self.install()
            self._installed = True

    @contextmanager
    def _explaining(self, key: str, connection: Connection | None) -> Iterator[None]:
        """Turn a driver's error into one of leasehold's, where it is about the guard."""
        try:
            yield
        except Exception as error:
            resource = self.resource(key) if key else f"the guard in {self._source.where}"
            self._explain(error, resource, connection)

    def _explain(self, error: Exception, resource: str, connection: Connection | None) -> NoReturn:
        """Raise *error*, or what it means in leasehold's words."""
        if isinstance(error, LeaseholdError):
            raise error
        found = find(error)
        if found is not None:
            raise found from error
        if postgres.sqlstate_of(error) == postgres.LOCK_TIMEOUT:
            raise self._locked(resource) from error
        explained = postgres.explained(error, resource, self._schema) or sqlite.explained(
            error, resource, lambda: self._file(connection)
        )
        if explained is None:
            raise error
        raise explained from error

    def _file(self, connection: Connection | None) -> str | None:
        """Return the file of a SQLite database, for a message."""
        with suppress(Exception):
            if connection is not None and not connection.is_async:
                return str(connection.execute("PRAGMA database_list")[0][2]) or None
            with self._source.lend() as own:
                return str(own.execute("PRAGMA database_list")[0][2]) or None
        return None

    def _row_locked(self, resource: str) -> GuardUnavailable:
        return GuardUnavailable(
            f"{resource}: a row of this transaction was locked for {self._busy_seconds:g} s (busy_seconds). "
            f"{self._sessions(Postgres.idle)} in a transaction, perhaps of an older owner that is paused: end it with "
            "pg_terminate_backend. Nothing was written."
        )

    def _sessions(self, which: Callable[[Postgres, str], Program[list[int]]]) -> str:
        """Return the sessions that may be in the way, for a message."""
        pids: list[int] = []
        with suppress(Exception), self._source.lend() as own:
            dialect = self._dialect(own)
            assert isinstance(dialect, Postgres)
            pids = own.run(which(dialect, own.style))
        return f"Sessions {', '.join(map(str, pids))} are" if pids else "Another session is"

    def _locked(self, resource: str) -> GuardUnavailable:
        return GuardUnavailable(
            f"{resource}: its mark was locked for {self._busy_seconds:g} s (busy_seconds). "
            f"{self._sessions(Postgres.holders)} in a COMMIT, which perhaps waits for a standby. Nothing was written: "
            "try again."
        )


class AsyncSqlGuard(Facade):
    """The verbs of a `SqlGuard` for async callers."""

    _sync: SqlGuard

    fence = threaded(SqlGuard.fence)
    seal = threaded(SqlGuard.seal)
    mark = threaded(SqlGuard.mark)
    prove = threaded(SqlGuard.prove)
    install = threaded(SqlGuard.install)


def find(error: BaseException) -> StaleEpoch | None:
    """Return the refusal that *error* brings from a COMMIT, counted by the guard that fenced it."""
    facts = postgres.facts_of(error)
    if facts is None:
        return None
    guard = _guards.get(facts["token"])
    writer = Writer(facts["epoch"], facts["owner"], facts["store"], facts.get("job"))
    key, verb = facts["key"], facts["verb"]
    resource = f"{SqlGuard.kind}:{key}" if guard is None else guard.resource(key)
    if postgres.sqlstate_of(error) == postgres.SERIALIZATION:
        found = _read_again(guard, key, writer, resource)
    elif postgres.sqlstate_of(error) == postgres.REFUSED:
        mark = Mark.of(facts["mark"], resource)
        found = refusal(mark, writer, resource=resource, verb=verb)
    else:
        found = None
    if found is not None and guard is not None and verb == "write" and not getattr(error, _NOTED, False):
        setattr(error, _NOTED, True)
        guard._refused_at_commit(key, writer, found)
    return found


def _read_again(guard: SqlGuard | None, key: str, writer: Writer, resource: str) -> StaleEpoch | None:
    """
    Return the refusal of a transaction whose snapshot was older than the mark, by the mark as it is now.

    None if the owner is still the newest: a sibling of its own was faster, and the transaction is to be run again.
    """
    if guard is None:
        return None
    try:
        known = guard._known(key)
    except LeaseholdError as error:
        log.info("could not read the mark of %s after a serialization failure: %s", resource, error)
        return None
    try:
        admit(known and known.mark, writer, resource=resource, strict_store=guard.strict_store)
    except StaleEpoch as found:
        return found
    return None


finders.append(find)
