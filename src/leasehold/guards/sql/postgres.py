"""Marks in PostgreSQL, compared and raised inside COMMIT; and what its errors mean."""

from __future__ import annotations

import itertools
import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from ...connections import IN_SAVEPOINT, Program, driver_error
from ...core.marks import Mark, unreadable
from ...errors import Conflict, GuardUnavailable, InvalidArgument, LeaseholdError, NotInTransaction, Unsupported
from .dialect import Dialect, Fenced, Known, Request, known_of, mark_of

REFUSED, UNREADABLE, IN_A_SAVEPOINT = "LG001", "LG005", "LG006"
SERIALIZATION, LOCK_TIMEOUT = "40001", "55P03"
_MISSING = {"42883", "3F000", "42P01"}  # no such function, schema or table
_FAILED = "25P02"  # the transaction has failed already
_NO_RIGHT = "42501"
_ARGUMENTS = 9  # of `fence` and `seal`, as `_sent` returns them
_NAME = re.compile(r"'leasehold_guard\.(\w+)'|\bleasehold_guard\b")


class Postgres(Dialect):
    """A schema of a PostgreSQL database."""

    vendor = "postgresql"

    def __init__(self, schema: str, kind: str) -> None:
        self._schema = _quoted(schema)
        self._kind = kind
        self._statements: dict[tuple[str, str, int], str] = {}

    def install(self, style: str) -> Program[None]:
        """Make the schema, under a lock: two processes that start at once do not meet in it."""
        yield f"SELECT pg_catalog.pg_advisory_xact_lock({_number(self._schema)})", (), False
        for statement in _script(self._schema):
            yield statement.replace("%", "%%") if style == "%s" else statement, (), False

    def version(self, style: str) -> Program[int]:
        """Return the version of the functions."""
        name = f"{self._schema}.version()"
        [(found,)] = yield f"SELECT pg_catalog.to_regprocedure({style}::text) IS NOT NULL", (name,), False
        if not found:
            return 0
        [(version,)] = yield f"SELECT {self._escaped(style)}.version()", (), False
        return int(version)

    def fence(self, request: Request, style: str) -> Program[Fenced]:
        """Insert a fence for each key, in their order, and read the marks: COMMIT compares."""
        sent = [value for key in request.keys for value in _sent(key, request, request.savepoint)]
        [replies] = yield self._calls("fence", style, len(request.keys)), sent, False
        marks: dict[str, Mark] = {}
        for key, reply in zip(request.keys, replies, strict=True):
            number, place, *unusual = reply.split(" ", 2)
            if unusual:
                marks[key] = mark_of(json.loads(unusual[0]), f"{self._kind}:{key}")
        return Fenced(marks, number, place=place)

    def place(self, style: str) -> Program[str]:
        """Ask the server which database this is."""
        [(place,)] = yield f"SELECT {self._escaped(style)}.place()", (), False
        return str(place)

    def number(self) -> Program[str | None]:
        """Ask for the number of the transaction that is open."""
        [(number,)] = yield "SELECT pg_catalog.pg_current_xact_id_if_assigned()::text", (), False
        return None if number is None else str(number)

    def seal(self, request: Request, style: str, busy_seconds: float) -> Program[tuple[Mark | None, Mark | None]]:
        """Raise the mark, waiting at most *busy_seconds* for a COMMIT that has it locked."""
        [key] = request.keys
        resource = f"{self._kind}:{key}"
        sent = _sent(key, request, max(int(busy_seconds * 1000), 1))
        [(reply,)] = yield self._calls("seal", style), sent, False
        facts = json.loads(reply)
        before = None if facts["before"] is None else mark_of(facts["before"], resource)
        return before, mark_of(facts["mark"], resource)

    def known(self, key: str, style: str) -> Program[Known | None]:
        """Read the mark."""
        [(reply,)] = yield self._call("mark", style), (key,), False
        return None if reply is None else known_of(json.loads(reply), f"{self._kind}:{key}")

    def end_proof(self, key: str, style: str) -> Program[None]:
        """Remove the mark of a proof."""
        yield self._call("end_proof", style), (key,), False

    def status(self, number: str, style: str) -> Program[str | None]:
        """Ask the server what became of a transaction."""
        [(status,)] = yield f"SELECT pg_catalog.pg_xact_status({style}::text::pg_catalog.xid8)", (number,), False
        return None if status is None else str(status)

    def holders(self, style: str) -> Program[list[int]]:
        """Return the sessions that have marks locked."""
        rows = yield f"SELECT * FROM {self._escaped(style)}.holders()", (), False
        return sorted(int(pid) for (pid,) in rows)

    def idle(self, style: str) -> Program[list[int]]:
        """Return the sessions that are idle in a transaction of this database."""
        rows = yield (
            "SELECT pid FROM pg_catalog.pg_stat_activity WHERE datname = pg_catalog.current_database() "
            "AND state IN ('idle in transaction', 'idle in transaction (aborted)') ORDER BY pid",
            (),
            False,
        )
        return [int(pid) for (pid,) in rows]

    def _calls(self, function: str, style: str, count: int = 1) -> str:
        """Return a statement that calls `fence` or `seal` for *count* keys."""
        text = self._statements.get((function, style, count))
        if text is None:
            # Without a cast for each: literals are parsed with every execution, and only one function has that name.
            numbers = itertools.count(1)
            calls = (
                f"{self._escaped(style)}.{function}("
                + ", ".join(f"${next(numbers)}" if style == "$1" else style for _ in range(_ARGUMENTS))
                + ")"
                for _ in range(count)
            )
            text = self._statements[function, style, count] = f"SELECT {', '.join(calls)}"
        return text

    def _call(self, function: str, style: str) -> str:
        return f"SELECT {self._escaped(style)}.{function}({style}::text)"

    def _escaped(self, style: str) -> str:
        return self._schema.replace("%", "%%") if style == "%s" else self._schema


def _sent(key: str, request: Request, last: bool | int) -> tuple[Any, ...]:
    """Return the arguments of `fence` and `seal`, which differ in the *last*."""
    epoch, owner, store, job_id = request.writer
    return key, epoch, owner, store, job_id, request.nonce, request.token, request.strict, last


@cache
def _script(quoted: str) -> list[str]:
    """Return the statements of postgres.sql, for the schema of that name: drivers take them one by one."""
    text = (files(__package__) / "postgres.sql").read_text()

    def named(match: re.Match[str]) -> str:
        literal = f"{quoted}.{match[1]}".replace("'", "''")
        return f"'{literal}'" if match[1] else quoted

    statements = re.split(r";\n(?=\n|-- |\Z)", "\n".join(line for line in text.splitlines()) + "\n")
    return [_NAME.sub(named, statement).strip() for statement in _whole(statements)]


def _whole(statements: list[str]) -> list[str]:
    """Join what was split inside of a function's body, and drop comments that stand alone."""
    joined: list[str] = []
    for statement in statements:
        if joined and joined[-1].count("$lh$") % 2:
            joined[-1] += ";\n" + statement
        else:
            joined.append(statement)
    return [each for each in joined if re.sub(r"--[^\n]*", "", each).strip()]


def _quoted(schema: str) -> str:
    if not isinstance(schema, str) or not 0 < len(schema.encode(errors="replace")) <= 63:
        raise InvalidArgument(f"schema must be the name of a PostgreSQL schema, of 1 to 63 bytes, not {schema!r}.")
    if "\0" in schema or "$lh$" in schema or schema.startswith("pg_"):
        raise InvalidArgument(
            f"schema cannot be {schema!r}: names that begin with pg_ belong to PostgreSQL, and a name cannot "
            "contain NUL or $lh$."
        )
    return '"' + schema.replace('"', '""') + '"'


def _number(name: str) -> int:
    """Return a number for the advisory lock of an installation."""
    return int.from_bytes(name.encode()[:6].ljust(6), "big") ^ 0x6C65_6173


# Errors


def sqlstate_of(error: BaseException) -> str | None:
    """Return the SQLSTATE of a driver's error, whichever driver."""
    inner = driver_error(error)
    for name in ("sqlstate", "pgcode"):
        code = getattr(inner, name, None)
        if isinstance(code, str):
            return code
    return None


def facts_of(error: BaseException) -> dict[str, Any] | None:
    """Return the facts that a function of ours put into the error's DETAIL, if this is such an error."""
    if sqlstate_of(error) not in (REFUSED, UNREADABLE, SERIALIZATION):
        return None
    inner = driver_error(error)
    detail = getattr(getattr(inner, "diag", None), "message_detail", None) or getattr(inner, "detail", None)
    try:
        facts = json.loads(detail or "")
    except (TypeError, ValueError):
        return None  # another error, or an ORM's copy of ours without its facts, which are in its cause
    return facts if isinstance(facts, dict) and {"key", "epoch", "token"} <= facts.keys() else None


def is_lost(error: BaseException) -> bool:
    """Return whether *error* says that the connection is gone, so that the outcome of a COMMIT is not known."""
    inner = driver_error(error)
    if isinstance(inner, ConnectionError):
        return True
    code = sqlstate_of(inner)
    if code is None:
        module = type(inner).__module__.partition(".")[0]
        return module in ("psycopg", "asyncpg") and type(inner).__name__ in (
            "OperationalError",
            "InterfaceError",
            "ConnectionDoesNotExistError",
        )
    return code.startswith("08") or code in ("57P01", "57P02", "57P03", "57P05", "25P03")


def explained(error: BaseException, resource: str, schema: str) -> LeaseholdError | None:
    """Return the driver's *error* about a guard in leasehold's words; None if it is not about one."""
    reason = str(driver_error(error)).strip().partition("\n")[0]
    code = sqlstate_of(error)
    if code == UNREADABLE:
        facts = facts_of(error) or {}
        return unreadable(resource, f"it is {facts.get('mark')!r}")
    if code == IN_A_SAVEPOINT:
        return Conflict(IN_SAVEPOINT)
    if code == _FAILED:
        return NotInTransaction("that transaction has failed at an earlier statement: roll it back, and run it again.")
    if code in _MISSING:
        return GuardUnavailable(
            f"{resource}: the schema {schema!r} of the guard is missing or incomplete ({reason}). Nothing was written: "
            "call guard.install() with a role that may create it."
        )
    if code == _NO_RIGHT:
        return Unsupported(
            f"{resource}: this role may not use the guard's schema ({reason}). As the owner of the schema, run GRANT "
            f"USAGE ON SCHEMA {_quoted(schema)} TO the role; or install the guard with a role that may create schemas."
        )
    if is_lost(error):
        return GuardUnavailable(f"{resource}: the connection to its database was lost: {reason}.")
    return None
