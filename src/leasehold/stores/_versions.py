"""
What the stores that keep a schema share: which versions go together, and how to say that two do not.

A schema is made by the first verb that finds none. From then on it changes only on request
(`leasehold store migrate URL`): a release that is rolled out must not change the tables under one that still runs.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import StoreIncompatible


class Migrated(NamedTuple):
    """What a migration has done, or would do: the version before (0: there was no schema) and after, and its steps."""

    before: int
    after: int
    steps: list[str]


def refuse_older(where: str, version: int, needed: int) -> StoreIncompatible:
    """Return the error for a schema that is older than this leasehold."""
    return StoreIncompatible(
        f"{where} has version {version}, and this leasehold needs version {needed}: bring it up to date with "
        "`leasehold store migrate URL` (--dry-run says what it would do). Nothing was changed."
    )


def refuse_unreleased(where: str, version: int, first: int) -> StoreIncompatible:
    """Return the error for a schema from before the *first* one that was released: no migration begins there."""
    return StoreIncompatible(
        f"{where} has version {version}, from before the first release of leasehold (version {first}), and cannot be "
        "brought up to date: use a new file, or a new schema (schema=…), and add the jobs again. Nothing was changed."
    )


def refuse_newer(where: str, version: int, known: int, oldest: int | None = None) -> StoreIncompatible:
    """Return the error for a schema of a newer leasehold, which works with code of version *oldest* or later."""
    works = "" if oldest is None else f", which works with leasehold versions for schema {oldest} or later"
    return StoreIncompatible(
        f"{where} has version {version}{works}, and this leasehold supports {known} at most: a newer leasehold has "
        "installed it. Upgrade leasehold. Nothing was changed."
    )
