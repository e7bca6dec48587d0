"""
Marks: the highest epoch that a guarded resource has admitted for a key, and the rule that compares with it.

A guard keeps one mark per key beside what it guards. `admit` is the whole rule. A guard runs it inside the atomic step
in which the resource compares and writes, and never before it.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from ..errors import GuardUnavailable, StaleEpoch
from .ownership import EPOCH_LIMIT


class Writer(NamedTuple):
    """What a caller presents to a guard: an epoch, who holds it, and the id of the store that issued it."""

    epoch: int
    owner: str
    store: str
    job_id: str | None = None


_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # `dumps` would make one each time


class Mark(NamedTuple):
    """
    The newest ownership that a key has admitted.

    *counter* goes up with every write and every seal, even under the same epoch: no two marks of a key are equal, so a
    resource that compares states cannot take a later one for an earlier one.
    """

    epoch: int
    counter: int
    owner: str
    store: str

    def encode(self) -> str:
        """Return the mark as JSON text."""
        return _encoded(self._asdict())

    @classmethod
    def decode(cls, text: str | bytes, resource: str) -> Mark:
        """Return the mark of JSON *text*; raise `GuardUnavailable` if it is not one, so that the write is refused."""
        try:
            facts = json.loads(text)
        except (ValueError, TypeError) as error:
            raise unreadable(resource, f"{type(error).__name__}: {error}") from None
        return cls.of(facts, resource)

    @classmethod
    def of(cls, facts: Any, resource: str) -> Mark:
        """Return the mark with these *facts*; raise `GuardUnavailable` if they are not those of one."""
        try:
            mark = cls(facts["epoch"], facts["counter"], facts["owner"], facts["store"])
        except (TypeError, KeyError) as error:
            raise unreadable(resource, f"{type(error).__name__}: {error}") from None
        if not (_is_count(mark.epoch) and _is_count(mark.counter) and _is_text(mark.owner) and _is_text(mark.store)):
            raise unreadable(resource, f"its fields are {facts!r}")
        return mark


def _is_count(value: object) -> bool:
    return type(value) is int and 0 < value < EPOCH_LIMIT


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def unreadable(resource: str, why: str) -> GuardUnavailable:
    """Return the error for a mark that cannot be read: nothing may be written, since an older epoch might pass."""
    return GuardUnavailable(
        f"{resource}: its mark cannot be read ({why}). Nothing was written: without the mark, a stale owner could not "
        "be refused. Restore the mark from a backup. Or, once you know that no older owner is still running, remove "
        "the mark and seal the key again."
    )


def admit(mark: Mark | None, writer: Writer, *, resource: str, verb: str = "write", strict_store: bool = False) -> Mark:
    """
    Return the mark that the key has after *writer*; raise `StaleEpoch` if it admits only newer owners.

    Equal epochs of one store are admitted: they are one owner's. An epoch of another store is compared all the same,
    since a later store begins above an earlier one, and has to be above the mark; with *strict_store* it is refused.
    """
    if mark is None:
        return Mark(writer.epoch, 1, writer.owner, writer.store)
    is_foreign = writer.store != mark.store
    if writer.epoch < mark.epoch or (is_foreign and (strict_store or writer.epoch == mark.epoch)):
        raise refusal(mark, writer, resource=resource, verb=verb)
    return Mark(writer.epoch, mark.counter + 1, writer.owner, writer.store)


def refusal(mark: Mark, writer: Writer, *, resource: str, verb: str = "write") -> StaleEpoch:
    """Return the refusal of *writer* by a key that stands at *mark*."""
    if writer.store == mark.store:
        why = f"the key stands at epoch {mark.epoch} (owner {mark.owner!r}). Stop working on it"
    elif writer.epoch <= mark.epoch:
        strict = "" if writer.epoch < mark.epoch else ", and the guard is without strict_store"
        why = (
            f"the key stands at epoch {mark.epoch} of another store (owner {mark.owner!r}, store {mark.store}), and "
            f"this epoch is from store {writer.store}. If store {writer.store} has replaced store "
            f"{mark.store}{strict}, raise the epochs of store {writer.store} with "
            f"`leasehold store advance URL --above {mark.epoch}`"
        )
    else:
        why = (
            f"the key belongs to store {mark.store} (owner {mark.owner!r}), this epoch is from store {writer.store}, "
            "and this guard accepts only one store (strict_store=True)"
        )
    return StaleEpoch(
        f"{resource}: {verb} with epoch {writer.epoch} is refused: {why}.",
        resource=resource,
        presented=writer.epoch,
        current=mark.epoch,
        owner=mark.owner,
        verb=verb,
    )
