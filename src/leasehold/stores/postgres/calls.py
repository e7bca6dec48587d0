"""The statements that call the store's functions in the server."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from .rows import answer
from .sql import in_schema

_PLACES = [f"${number}" for number in range(100)]
_LITERALS = {None: "NULL", True: "true", False: "false"}
_SCALAR = {"fence", "has_job", "settled_in"}  # functions that answer with one value
_NUMBER = ", pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text"

SAVEPOINT: Any = object()  # stands for whether savepoints are allowed, which is known when a call is made
PIPED: Any = object()  # stands for whether the answer will not be waited for


class Call(NamedTuple):
    """One function and its arguments, as the programs of a transaction make it."""

    function: str
    args: tuple[Any, ...]
    fences: tuple[str, int] | None = None  # the job and the epoch that fence the transaction
    settles: str | None = None  # how its COMMIT will settle that job

    def filled(self, *, savepoint: bool, piped: bool) -> tuple[Any, ...]:
        """Return the arguments, with what is known now."""
        return tuple(savepoint if arg is SAVEPOINT else piped if arg is PIPED else arg for arg in self.args)


class Calls:
    """Makes statements of calls, for the functions of one schema."""

    def __init__(self, schema: str) -> None:
        self._schemas = {
            style: in_schema("leasehold.x", schema, escaped=style == "%s").removesuffix("x") for style in ("%s", "$1")
        }

    def statement(self, function: str, args: Sequence[Any], style: str = "$1") -> tuple[str, list[Any]]:
        """
        Return the statement that calls *function*, and its parameters, which are written in *style*.

        What is null, true or false, or the same in each call, is part of the text: a driver takes longer over a
        parameter than the server over it.
        """
        call, params = self._call(function, args, style)
        return f"SELECT {answer(function)} FROM {call} AS f", params

    def numbered(self, function: str, args: Sequence[Any], style: str) -> tuple[str, list[Any]]:
        """Return the statement likewise; the last column of each row is the number of the transaction that it is in."""
        call, params = self._call(function, args, style)
        if function in _SCALAR:
            return f"SELECT {call}{_NUMBER}", params
        return f"SELECT {answer(function)}{_NUMBER} FROM {call} AS f", params

    def _call(self, function: str, args: Sequence[Any], style: str) -> tuple[str, list[Any]]:
        places, params = [], []
        for arg in args:
            if arg is None or arg is True or arg is False:
                places.append(_LITERALS[arg])
            elif isinstance(arg, uuid.UUID):
                places.append(f"'{arg}'")
            else:
                params.append(arg)
                places.append(style if style == "%s" else _PLACES[len(params)])
        return f"{self._schemas[style]}{function}({', '.join(places)})", params
