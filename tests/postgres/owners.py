"""The verbs of an owner, for tests that put each of them beside another transaction, or after its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leasehold import StaleEpoch
from leasehold.core.children import new_child
from leasehold.core.job import Grant, NewJob, Outcome, Progress, Settlement, new_job
from leasehold.core.ownership import Note, NoteKind
from leasehold.store import Refusal, Renewal
from leasehold.stores.postgres import PostgresStore

from .staging import Session

PATIENCE_MS = 60_000  # of a staged session with a lock


def one(store: PostgresStore, owner: str = "worker", **options: Any) -> Grant:
    """Claim exactly one job."""
    [grant] = store.claim(owner, **options)
    return grant


def settling(grant: Grant, outcome: Outcome = Outcome.COMPLETE) -> Settlement:
    """How the owner settles its lease."""
    return Settlement(grant.spec.id, grant.epoch, outcome, "null" if outcome is Outcome.COMPLETE else None)


def child(grant: Grant) -> NewJob:
    """A child of the job."""
    return new_child(grant.spec.id, new_job("child"), 1)


def transfer(other: Session, grant: Grant) -> None:
    """Transfer the job in the session's transaction, which stays open."""
    [row] = other.call("transfer", grant.spec.id, grant.epoch, "thief", "ops", None, None, 30_000_000, PATIENCE_MS)
    assert row[0] is None


OWNERS: dict[str, Callable[[PostgresStore, Grant], Any]] = {
    "add": lambda store, grant: store.add_children(grant.spec.id, grant.epoch, [child(grant)]),
    "begin_effect": lambda store, grant: store.begin_effect(grant.spec.id, grant.epoch, "mail"),
    "complete": lambda store, grant: store.settle([settling(grant)]),
    "end_effect": lambda store, grant: store.end_effect(grant.spec.id, grant.epoch, "charge", "1"),
    "progress": lambda store, grant: store.progress([Progress(grant.spec.id, grant.epoch, 0.5, None, "1")]),
    "record": lambda store, grant: store.record(Note(NoteKind.GUARDED, grant.spec.id, grant.epoch, "me", {"keys": []})),
    "release": lambda store, grant: store.settle([settling(grant, Outcome.RELEASE)]),
    "renew": lambda store, grant: store.renew([Renewal(grant.spec.id, grant.epoch)]),
}


def refused(call: Callable[[], Any]) -> Refusal | None:
    """The refusal that *call* raises or returns."""
    try:
        reply = call()
    except StaleEpoch as error:
        return error
    return next((one for one in reply if isinstance(one, StaleEpoch)), None) if isinstance(reply, list) else None


# What shows that each of the verbs above was done.
DONE: dict[str, Callable[[PostgresStore], bool]] = {
    "add": lambda store: [job.id for job in store.jobs()] == ["a", "a/child"],
    "begin_effect": lambda store: [effect.name for effect in store.effects("a")] == ["charge", "mail"],
    "complete": lambda store: store.job("a").status == "done",
    "end_effect": lambda store: [effect.known for effect in store.effects("a")] == [True],
    "progress": lambda store: store.job("a").progress == 0.5 and store.job("a").checkpoint == 1,
    "record": lambda store: len(store.events(job_id="a", kind="guarded")) == 1,
    "release": lambda store: store.job("a").status == "pending",
    "renew": lambda store: (store.job("a").expires_us or 0) > store.job("a").updated_us + 50_000_000,
}
