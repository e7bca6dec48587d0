"""Reads the .sql files of this folder, and puts the store's schema into them."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from psycopg import sql

from ...errors import InvalidArgument

_LITERAL = re.compile(r"'leasehold\.(\w+)'")
_NAME = re.compile(r"\bleasehold\.(?=[a-z_]+\b)")
_STATEMENT = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


class Migration(NamedTuple):
    """One step of the schema."""

    version: int
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
            found.append(Migration(int(number), name, in_schema(file.read_text(), schema)))
    return found


def functions(schema: str) -> list[str]:
    """Return the scripts that make or replace every function, in order."""
    found = sorted((files(__package__) / "functions").iterdir(), key=lambda file: file.name)
    return [in_schema(file.read_text(), schema) for file in found if file.name.endswith(".sql")]


@cache
def latest() -> int:
    """Return the version of the schema that this leasehold works with."""
    return migrations("leasehold")[-1].version


def in_schema(text: str, schema: str, *, escaped: bool = False) -> str:
    """Return *text* with its names in *schema*; *escaped*, if it will be run with parameters."""
    quoted = sql.Identifier(schema).as_string(None)
    if escaped:
        quoted = quoted.replace("%", "%%")

    def literal(match: re.Match[str]) -> str:
        return sql.Literal(f"{quoted}.{match[1]}").as_string(None)

    return _NAME.sub(lambda _: f"{quoted}.", _LITERAL.sub(literal, text))
