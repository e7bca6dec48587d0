"""One turn of the memory store's lock: a verb, whole or undone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

from ...errors import Conflict

if TYPE_CHECKING:
    from .state import State

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="State")


def turn(verb: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """
    Return *verb* as one turn of the store's lock.

    Ctrl-C can strike between any two steps, and leave a job in no place at all. Then what was begun is undone, and
    every job is put back where its record says, before anybody else has a turn.
    """

    @functools.wraps(verb)
    def taken(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:  # which its own thread may take again, and then it finds out here
            if self._inside:
                raise inside(verb.__name__)
            self._inside = True
            try:
                return verb(self, *args, **kwargs)
            except BaseException as error:
                self._mend(error)
                raise
            finally:
                self._inside = False

    return cast(Callable[Concatenate[S, P], R], taken)


def inside(verb: str) -> Conflict:
    """Return the refusal of a verb that was called while another one was under way."""
    return Conflict(
        f"{verb}() was called while another verb of this store was under way, for instance from a signal handler, and "
        f"would see a half-made change. Set a flag in the signal handler, and call {verb}() after it has returned."
    )
