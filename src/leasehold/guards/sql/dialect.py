"""CONTRACT: how marks are compared and raised in one kind of database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...connections import Program
from ...core.marks import Mark, Writer, unreadable

RECENT = 16  # how many writes a mark remembers


class Request(NamedTuple):
    """What a fence or a seal asks for; *nonce* is its own, by which it is found again."""

    keys: tuple[str, ...]  # sorted
    writer: Writer
    nonce: int
    token: str  # of the guard object that asks: an error at COMMIT names it
    strict: bool = False
    savepoint: bool = False


class Fenced(NamedTuple):
    """
    The marks as they stood before, by key, and the number of the transaction, where it has one.

    *refused*: keys whose marks were not raised. (PostgreSQL raises all of them in COMMIT.) *place*: the database.
    """

    before: Mapping[str, Mark]
    number: str | None = None
    refused: frozenset[str] = frozenset()
    place: str = ""


class Known(NamedTuple):
    """A mark, and the nonces of the last writes, the newest first."""

    mark: Mark
    recent: tuple[int, ...]


class Dialect(ABC):
    """One kind of database; programs are run on any connection to it."""

    vendor: str

    @abstractmethod
    def install(self, style: str) -> Program[None]:
        """Make the tables, and what else is needed, where it is missing."""

    @abstractmethod
    def version(self, style: str) -> Program[int]:
        """Return the version of what is installed; 0 if nothing is."""

    @abstractmethod
    def fence(self, request: Request, style: str) -> Program[Fenced]:
        """Fence the open transaction."""

    @abstractmethod
    def seal(self, request: Request, style: str, busy_seconds: float) -> Program[tuple[Mark | None, Mark | None]]:
        """Raise the mark of one key, and return it as it was and as it is; None for what it is if it refused."""

    @abstractmethod
    def known(self, key: str, style: str) -> Program[Known | None]:
        """Return the mark of *key* as it stands."""

    @abstractmethod
    def end_proof(self, key: str, style: str) -> Program[None]:
        """Remove the mark of a proof."""

    @abstractmethod
    def status(self, number: str, style: str) -> Program[str | None]:
        """Return "in progress", "committed" or "aborted" for the transaction of that number; None if not known."""


def mark_of(facts: Any, resource: str) -> Mark:
    """Return the mark of these *facts*, or raise `GuardUnavailable`."""
    return Mark.of(facts, resource)


def known_of(facts: Mapping[str, Any], resource: str) -> Known:
    """Return a mark and its nonces, or raise `GuardUnavailable`."""
    mark = mark_of(facts, resource)
    recent = facts.get("recent")
    if not isinstance(recent, list) or not all(isinstance(nonce, int) for nonce in recent):
        raise unreadable(resource, f"its recent writes are {recent!r}")
    return Known(mark, tuple(recent))
