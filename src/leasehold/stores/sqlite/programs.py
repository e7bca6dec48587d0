"""
What programs are made of: named statements, the session that they work with, and who may write.

The session issues the epochs, finds the job that a caller holds, and records every refusal. The numbered steps of the
schema are programs too.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

from ...connections import Program as Program
from ...connections import Statement
from ...core.job import Status
from ...core.lifecycle import Verb, after, ending, only_its_id
from ...core.options import decode
from ...core.ownership import Ownership, Process, Reason, draw_epochs
from ...core.retry import Retry
from ...errors import InvalidArgument, Settled, StaleEpoch, UnknownJob
from ...logs import log
from ...store import Refusal
from .._stats import StoreStats, TableStats
from .._versions import refuse_newer, refuse_older, refuse_unreleased
from ..rows import SpecRow

T = TypeVar("T")

_REFUSALS = ("refused", "alarm")  # kinds of events that must outlive the transaction in which they happen
_PREFIX = re.compile(r"\bleasehold_")
_TABLE = re.compile(r"(?<!')\bleasehold_")
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_SPEC = ", ".join(f"j.{name}" for name in SpecRow._fields)


# Statements


def one(sql: str, *params: Any) -> Statement:
    """A statement to run once."""
    return sql, params, False


def many(sql: str, params: Sequence[tuple[Any, ...]]) -> Statement:
    """A statement to run for each of *params*; it returns no rows."""
    return sql, params, True


class Statements:
    """The statements of statements.sql as attributes, for tables with one prefix."""

    def __init__(self, schema: str) -> None:
        parts = _NAME.split((files(__package__) / "statements.sql").read_text())
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            text = _bare(with_prefix(_qualified(text), schema)).replace("{spec}", _SPEC)
            setattr(self, name, " ".join(text.split()))

    def __getattr__(self, name: str) -> str:  # for the type checker; a missing name is still an error
        raise AttributeError(f"statements.sql has no statement named {name!r}")


class Migration(NamedTuple):
    """One step of the schema."""

    version: int
    name: str
    statements: list[str]


@cache
def statements(schema: str) -> Statements:
    """Return the statements for tables whose names begin with *schema*."""
    if not isinstance(schema, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,39}", schema):
        raise InvalidArgument(f"schema must be a table prefix of letters, digits and underscores, not {schema!r}.")
    return Statements(schema)


@cache
def migrations(schema: str) -> list[Migration]:
    """Return every migration, in order."""
    found = []
    for file in sorted((files(__package__) / "migrations").iterdir(), key=lambda file: file.name):
        number, _, name = file.name.removesuffix(".sql").partition("_")
        if number.isdigit():
            found.append(Migration(int(number), name, split(with_prefix(file.read_text(), schema))))
    return found


def with_prefix(text: str, schema: str) -> str:
    """Return *text* for tables whose names begin with *schema*."""
    return _PREFIX.sub(f"{schema}_", text)


def _qualified(text: str) -> str:
    # A temporary table of the caller's would shadow a bare name, and the fence would compare with what is in there.
    return _TABLE.sub("main.leasehold_", text)


def split(script: str) -> list[str]:
    """Return the statements of *script*; SQLite itself says where each one ends."""
    found, begun = [], ""
    for line in script.splitlines():
        begun += line + "\n"
        if sqlite3.complete_statement(begun):
            if bare := _bare(begun):
                found.append(bare)
            begun = ""
    assert not _bare(begun), f"unfinished statement: {begun!r}"
    return found


def _bare(text: str) -> str:
    # A driver that looks at a statement's first word must find it there.
    return "\n".join(line.partition("--")[0].rstrip() for line in text.splitlines()).strip()


# The programs of the schema


def schema_version(sql: Statements, path: str, steps: list[Migration], *, older: bool = False) -> Program[int]:
    """Return the version of the file's schema, 0 for none; refuse another than ours, unless an *older* one will do."""
    if not (yield one(sql.installed))[0][0]:
        return 0
    version = int((yield one(sql.version))[0][0])
    if version > steps[-1].version:
        raise refuse_newer(f"the schema of {path}", version, steps[-1].version)
    if version < steps[0].version:
        raise refuse_unreleased(f"the schema of {path}", version, steps[0].version)
    if version < steps[-1].version and not older:
        raise refuse_older(f"the schema of {path}", version, steps[-1].version)
    return version


def migrate(sql: Statements, path: str, steps: list[Migration], now: int) -> Program[int]:
    """Bring the schema up to date; another process may have done so meanwhile. Return the version before."""
    version = yield from schema_version(sql, path, steps, older=True)
    for step in steps:
        if step.version > version:
            for statement in step.statements:
                yield one(statement)
    if version == 0:
        yield one(sql.create_store, steps[-1].version, str(uuid.uuid4()), now)
    else:
        yield one(sql.set_version, steps[-1].version)
    return version


def stats(schema: str, path: str) -> Program[StoreStats]:
    """Return the sizes of a store. SQLite keeps no estimates, so each table is counted: that takes a while."""
    names = yield one("SELECT name FROM sqlite_master WHERE type = 'table' AND substr(name, 1, ?) = ? ORDER BY name",
                      len(schema) + 1, f"{schema}_")  # fmt: skip
    [(version,)] = yield one(f"SELECT schema_version FROM {schema}_store")
    tables = []
    for (name,) in names:
        [(rows,)] = yield one(f"SELECT count(*) FROM {name}")
        tables.append(TableStats(name.removeprefix(f"{schema}_"), rows, exact=True))
    size = 0
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            size += os.stat(path + suffix).st_size
    return StoreStats(f"SQLite {sqlite3.sqlite_version}", version, size, tables)


# The session


class Session:
    """
    What programs work with: the statements, and what this process knows beyond the file.

    Programs are pure of drivers: they yield statements, and are sent rows. The file's only write lock is held from
    their first statement to the end of the transaction. So what a program has read stays true until it commits, and to
    compare and then write is one atomic step.
    """

    def __init__(self, sql: Statements, *, trace: bool) -> None:
        self.sql = sql
        self.trace = trace
        self.seen = 0  # the highest epoch that this process knows to be issued
        self.drawn = 0  # the same, if the current transaction commits
        self.defers = False  # whether refusals wait in `deferred`: a caller's transaction may roll back
        self.deferred: deque[tuple[Any, ...]] = deque()  # events of refusals, to be recorded separately
        self.recorded = 0  # how many of them the current transaction records

    def joined(self) -> Session:
        """Return the session of programs inside callers' transactions: the refusals are recorded by this one."""
        joined = Session(self.sql, trace=self.trace)
        joined.defers, joined.deferred = True, self.deferred
        return joined

    # A transaction of the store's own; the write lock is held

    def begin(self, program: Program[T]) -> Program[T]:
        """Return *program*, to run in a new transaction that first records the deferred refusals."""
        self.drawn = self.recorded = 0
        return self._record_deferred(program) if self.deferred else program

    def _record_deferred(self, program: Program[T]) -> Program[T]:
        self.recorded = len(self.deferred)
        yield many(self.sql.insert_event, [self.deferred[i] for i in range(self.recorded)])
        return (yield from program)

    def committed(self) -> None:
        """Remember what the transaction has made certain."""
        if self.drawn > self.seen:
            self.seen = self.drawn
        while self.recorded:
            self.deferred.popleft()
            self.recorded -= 1

    def record(
        self,
        now: int,
        kind: str,
        job_id: str | None,
        *,
        epoch: int | None = None,
        owner: str | None = None,
        **facts: Any,
    ) -> Program[None]:
        """Insert an event; a refusal in a caller's transaction is deferred instead."""
        known = {name: value for name, value in facts.items() if value is not None}
        event = now, kind, job_id, epoch, owner, json.dumps(known)
        if self.defers and kind in _REFUSALS:
            self.deferred.append(event)
        else:
            yield one(self.sql.insert_event, *event)


def draw(session: Session, now: int, count: int, last: int | None = None) -> Program[int]:
    """Issue *count* epochs and return the last; *last* is the last one so far, if the caller has just read it."""
    if last is None:
        last = yield from last_epoch(session)
    if last < session.seen:
        yield from session.record(now, "alarm", None, seen=session.seen, last=last)
        log.error(
            "the store's last epoch went back from %d to %d, so an older backup was probably restored; new epochs "
            "begin above both",
            session.seen,
            last,
        )
    session.drawn = draw_epochs(max(last, session.seen), count, now)
    yield one(session.sql.set_last_epoch, session.drawn)
    return session.drawn


def last_epoch(session: Session) -> Program[int]:
    """Return the last epoch that was issued."""
    [(last,)] = yield one(session.sql.last_epoch)
    return int(last)


class Standing(NamedTuple):
    """A job with its lease, if any, as the statement `standing` selects them."""

    seq: int
    id: str
    stored_status: str
    queue: str
    priority: int
    run_us: int
    lock: str | None
    unique: str | None
    max_errors: int
    max_reclaims: int
    attempt: int
    errors: int
    reclaims: int
    job_epoch: int
    job_reason: str
    last_error: str | None
    done_by: str | None
    done_granted_us: int | None
    done_expires_us: int | None
    settlement: str | None
    finished_us: int | None
    lease_epoch: int | None
    owner: str | None
    lease_reason: str | None
    granted_us: int | None
    expires_us: int | None
    progress: float | None
    note: str | None
    narrow: int
    claim_id: str | None
    picked_up: int | None
    task: str | None

    @property
    def status(self) -> Status:
        """Where the job stands, for a reader; the store itself only knows "unfinished"."""
        if self.stored_status != "unfinished":
            return Status(self.stored_status)
        return Status.PENDING if self.lease_epoch is None else Status.RUNNING

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return self.job_epoch if self.lease_epoch is None else self.lease_epoch

    @property
    def reason(self) -> Reason | None:
        """Why the current epoch was issued; None if none was."""
        return Reason(self.lease_reason or self.job_reason) if self.epoch else None

    def ownership(self, ended: str, at: int, by: str, note: str | None) -> Ownership:
        """Return the record of the current lease, ended as the arguments say."""
        assert self.lease_epoch is not None
        assert self.owner is not None
        assert self.granted_us is not None
        assert self.expires_us is not None
        began = Reason(self.lease_reason or "")
        return Ownership(
            self.id, self.lease_epoch, self.owner, began, self.granted_us, self.expires_us, ended, at, by, note
        )

    @property
    def retry(self) -> Retry:
        """The job's budgets; its back-off is its owner's affair."""
        return decode(None, self.max_errors, self.max_reclaims).retry


def find(session: Session, job_id: str) -> Program[Standing | None]:
    """Return the job with its lease, if any."""
    rows = yield one(session.sql.standing, job_id)
    return Standing(*rows[0]) if rows else None


def find_held(session: Session, now: int, job_id: str, epoch: int, verb: str) -> Program[Standing | Refusal]:
    """Return the job if *epoch* is its owner's current one, else the refusal."""
    standing = yield from find(session, job_id)
    if standing is None:
        return UnknownJob(job_id)
    if standing.lease_epoch == epoch:
        return standing
    return (yield from refuse(session, now, standing, epoch, verb))


def find_seen(session: Session, now: int, job_id: str, epoch: int, verb: Verb, by: str) -> Program[Standing | Refusal]:
    """
    Return the job if *epoch* is the current one, else the refusal; for operators, who name the epoch that they saw.

    Raises `Conflict` if *verb* is not legal for the job as it stands.
    """
    standing = yield from find(session, job_id)
    if standing is None:
        return UnknownJob(job_id)
    if standing.epoch != epoch:
        return (yield from refuse(session, now, standing, epoch, verb.value, by))
    after(verb, standing.status, job_id)
    if standing.narrow:
        raise only_its_id(job_id, verb)
    return standing


def refuse_by_id(session: Session, now: int, job_id: str, epoch: int, verb: str) -> Program[Refusal]:
    """Return why *epoch* may not write, knowing that it may not."""
    standing = yield from find(session, job_id)
    return UnknownJob(job_id) if standing is None else (yield from refuse(session, now, standing, epoch, verb))


def refuse(
    session: Session, now: int, standing: Standing, presented: int, verb: str, actor: str | None = None
) -> Program[StaleEpoch]:
    """Return the refusal of a write, and record it."""
    kind: type[StaleEpoch] = StaleEpoch
    reason, by = standing.reason, None
    # The epoch of a narrow row is that of the lease that ended the job; its settlement is not kept.
    if standing.epoch == presented and (standing.settlement is not None or standing.narrow):
        kind, reason, by = Settled, None, standing.done_by
    moved: tuple[str | None, str | None] = None, None
    for owner, ended, settlement, moved_by, note in (yield one(session.sql.ownership, standing.seq, presented)):
        by = owner
        if settlement is not None:
            kind, reason = Settled, None
        else:
            kind, reason, moved = StaleEpoch, Reason(ended), (moved_by, note)
    last = yield one(session.sql.last_ownership, standing.seq)
    facts: dict[str, Any] = {
        "presented": presented,
        "current": standing.epoch,
        "owner": standing.owner,
        "reason": reason,
    }
    how = ending(
        standing.status,
        standing.job_reason,
        standing.finished_us,
        standing.done_by,
        moved=moved,
        last=last[0] if last else None,
    )
    refusal = kind.of_job(standing.id, **facts, verb=verb, ending=how)
    event = {"epoch": standing.epoch, "verb": verb, "by": actor or by, **facts}
    issued = yield from last_epoch(session)
    if presented > max(issued, session.seen):
        yield from session.record(now, "alarm", standing.id, **event)
        log.error("%s", refusal)
    if verb != "check" or kind is not Settled:
        yield from session.record(now, "refused", standing.id, **event)
    return refusal


def archive(
    session: Session, now: int, held: Standing, how: str, *, by: str, note: str | None, settlement: str | None = None
) -> Program[None]:
    """Insert the record of the current lease, which ends."""
    yield one(
        session.sql.insert_ownership,
        held.seq,
        held.lease_epoch,
        held.owner,
        held.lease_reason,
        held.granted_us,
        held.expires_us,
        str(how),
        now,
        by,
        note,
        settlement,
    )


@lru_cache(maxsize=64)
def process_number(process: Process) -> int:
    """Return the number of a process's row: a digest of its name, so that no other process ever has it."""
    digest = hashlib.blake2b("\0".join(map(str, process)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
