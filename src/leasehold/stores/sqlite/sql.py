"""The .sql files of this folder: named statements for programs to yield, and the numbered steps of the schema."""

from __future__ import annotations

import re
import sqlite3
import uuid
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from ...connections import Program as Program
from ...connections import Statement
from ...errors import InvalidArgument
from .._versions import refuse_newer, refuse_older, refuse_unreleased
from ..rows import SpecRow

_PREFIX = re.compile(r"\bleasehold_")
_TABLE = re.compile(r"(?<!')\bleasehold_")
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_SPEC = ", ".join(f"j.{name}" for name in SpecRow._fields)


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
        raise InvalidArgument(f"schema is a table prefix of letters, digits and underscores, not {schema!r}.")
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
