"""Reads the .sql files of this folder, and puts the store's schema into them."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from psycopg import sql

from ...errors import InvalidArgument

# In one pass, since a schema's own name may contain `leasehold.`.
_NAME = re.compile(r"'leasehold\.(\w+)'|\bleasehold\.(?=[a-z_]+\b)")
_OLDEST = re.compile(r"^-- oldest code: (\d+)$", re.MULTILINE)
_STATEMENT = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


class Migration(NamedTuple):
    """
    One step of the schema.

    *oldest* is the version of the oldest code that works with the tables and functions as they are after it: its own,
    unless a line `-- oldest code: N` says that code of version N, which runs while this is installed, goes on working.
    """

    version: int
    oldest: int
    name: str
    script: str


class Statements:
    """The statements of statements.sql as attributes, for one schema."""

    def __init__(self, schema: str) -> None:
        parts = _STATEMENT.split((files(__package__) / "statements.sql").read_text())
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            setattr(self, name, in_schema(text, schema, escaped=True))

    def __getattr__(self, name: str) -> str:  # for the type checker; a missing name is still an error
        raise AttributeError(f"statements.sql has no statement named {name!r}")


@cache
def statements(schema: str) -> Statements:
    """Return the statements for the tables of *schema*."""
    return Statements(schema)


def checked(schema: object) -> str:
    """Return *schema* if PostgreSQL can have a schema of that name, and our functions can name it."""
    if not isinstance(schema, str) or not 0 < len(schema.encode(errors="replace")) <= 63:
        raise InvalidArgument(f"schema is the name of a PostgreSQL schema, of 1 to 63 bytes, not {schema!r}.")
    if "\0" in schema or "$lh$" in schema or schema.startswith("pg_"):
        raise InvalidArgument(
            f"schema cannot be {schema!r}: names that begin with pg_ are PostgreSQL's own; NUL and $lh$ cannot occur."
        )
    return schema


def migrations(schema: str) -> list[Migration]:
    """Return every migration, in order."""
    found = []
    for file in sorted((files(__package__) / "migrations").iterdir(), key=lambda file: file.name):
        number, _, name = file.name.removesuffix(".sql").partition("_")
        if number.isdigit():
            text = file.read_text()
            declared = _OLDEST.search(text)
            oldest = int(declared[1]) if declared else int(number)
            found.append(Migration(int(number), oldest, name, in_schema(text, schema)))
    return found


def functions(schema: str) -> list[str]:
    """Return the scripts that make or replace every function, in order."""
    found = sorted((files(__package__) / "functions").iterdir(), key=lambda file: file.name)
    return [in_schema(file.read_text(), schema) for file in found if file.name.endswith(".sql")]


@cache
def first() -> int:
    """Return the oldest version of the schema from which migrations lead on."""
    return migrations("leasehold")[0].version


@cache
def latest() -> int:
    """Return the version of the schema that this leasehold works with."""
    return migrations("leasehold")[-1].version


def oldest() -> int:
    """Return the version of the oldest code that works with the latest schema."""
    return max(step.oldest for step in migrations("leasehold"))


def in_schema(text: str, schema: str, *, escaped: bool = False) -> str:
    """Return *text* with its names in *schema*; *escaped*, if it will be run with parameters."""
    quoted = sql.Identifier(schema).as_string(None)

    def named(match: re.Match[str]) -> str:
        name = sql.Literal(f"{quoted}.{match[1]}").as_string(None) if match[1] else f"{quoted}."
        return name.replace("%", "%%") if escaped else name

    return _NAME.sub(named, text)
