"""C32: the whole table of transitions, walked against the store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ...core.job import Outcome, Settlement, Status, new_job
from ...core.lifecycle import TRANSITIONS, Verb
from ...core.retry import Retry
from ...errors import Conflict, StaleEpoch
from ...store import Store
from .support import AlarmClock, Contract, all_of, completed, expire, failed, one, released, settle

Arrange = Callable[[Store, AlarmClock], object]


def _seen(store: Store) -> int:
    return store.job("a").epoch


def _completed(store: Store) -> int:
    grant = one(store)
    settle(store, completed(grant))
    return grant.epoch


def _picked_up(store: Store) -> Store:
    """Have its owner ask for the lease: one that was transferred and not picked up is not exhausted."""
    owner = store.job("a").owner
    if owner is not None:
        store.lease("a", owner)
    return store


# Every way to stand somewhere: how a new job "a" gets there.
STANDINGS: dict[str, tuple[Status, Arrange]] = {
    "pending": (Status.PENDING, lambda store, clock: None),
    "released": (Status.PENDING, lambda store, clock: settle(store, released(one(store)))),
    "retried": (Status.PENDING, lambda store, clock: settle(store, failed(one(store)))),
    "reclaimed": (Status.PENDING, lambda store, clock: (one(store), expire(store, clock))),
    "requeued": (Status.PENDING, lambda store, clock: store.requeue("a", one(store).epoch, by="ops")),
    "replayed": (Status.PENDING, lambda store, clock: store.replay("a", _completed(store), by="ops")),
    "running": (Status.RUNNING, lambda store, clock: one(store)),
    "handed out": (Status.RUNNING, lambda store, clock: store.transfer("a", 0, to="b", by="ops")),
    "handed on": (Status.RUNNING, lambda store, clock: store.transfer("a", one(store).epoch, to="b", by="ops")),
    "done": (Status.DONE, lambda store, clock: _completed(store)),
    "finished": (Status.DONE, lambda store, clock: store.finish("a", 0, by="ops")),
    "failed": (Status.FAILED, lambda store, clock: settle(store, failed(one(store), retry=False))),
    "exhausted": (Status.FAILED, lambda store, clock: (one(store), expire(store, clock))),
    "cancelled": (Status.CANCELLED, lambda store, clock: store.cancel("a", 0, by="ops")),
    "stopped": (Status.CANCELLED, lambda store, clock: store.cancel("a", one(store).epoch, by="ops")),
}

OWNERS = {
    Verb.COMPLETE: Settlement("a", 0, Outcome.COMPLETE, '"walked"'),
    Verb.FAIL: Settlement("a", 0, Outcome.FAIL, error="walked", retry=False),
    Verb.RETRY: Settlement("a", 0, Outcome.FAIL, error="walked"),
    Verb.RELEASE: Settlement("a", 0, Outcome.RELEASE),
}
OPERATORS: dict[Verb, Callable[[Store, int], object]] = {
    Verb.TRANSFER: lambda store, epoch: store.transfer("a", epoch, to="c", by="ops"),
    Verb.CANCEL: lambda store, epoch: store.cancel("a", epoch, by="ops"),
    Verb.REPLAY: lambda store, epoch: store.replay("a", epoch, by="ops"),
    Verb.REQUEUE: lambda store, epoch: store.requeue("a", epoch, by="ops"),
    Verb.FINISH: lambda store, epoch: store.finish("a", epoch, by="ops"),
}
STORES: dict[Verb, Callable[[Store, AlarmClock], object]] = {
    Verb.CLAIM: lambda store, clock: store.claim("c", limit=10),
    Verb.RECLAIM: expire,
    Verb.EXHAUST: lambda store, clock: expire(_picked_up(store), clock),
}


def _budget(standing: str, verb: Verb) -> Retry:
    if standing == "reclaimed":
        return Retry(max_reclaims=1)
    return Retry(max_reclaims=0 if Verb.EXHAUST is verb or standing == "exhausted" else 3)


def _act(store: Store, clock: AlarmClock, verb: Verb) -> Exception | None:
    """Do to job "a" what *verb* says, under its current epoch; return the refusal."""
    if verb in STORES:
        STORES[verb](store, clock)
        return None
    if verb in OWNERS:
        return store.settle([OWNERS[verb]._replace(epoch=_seen(store))])[0]
    try:
        OPERATORS[verb](store, _seen(store))
    except (Conflict, StaleEpoch) as refused:
        return refused
    return None


class Transitions(Contract):
    """The store moves a job where the table says, and nowhere else."""

    @pytest.mark.parametrize("standing", STANDINGS)
    @pytest.mark.parametrize("verb", list(Verb), ids=str)
    def test_c32_every_verb_from_every_standing(
        self, store: Store, clock: AlarmClock, verb: Verb, standing: str
    ) -> None:
        """A listed transition leads where the table says; any other is refused, and changes nothing."""
        status, arrange = STANDINGS[standing]
        store.add([new_job("a", retry=_budget(standing, verb))])
        arrange(store, clock)
        before, kept = store.job("a"), all_of(store)
        assert before.status is status

        refused = _act(store, clock, verb)

        after = store.job("a")
        if status in TRANSITIONS[verb]:
            assert refused is None
            assert after.status is TRANSITIONS[verb][status]
            assert (after.epoch == before.epoch) == (verb in OWNERS)
            return
        assert all_of(store) == kept
        if verb in OPERATORS:
            assert type(refused) is Conflict
            assert f"'a' is {status}" in str(refused)
        elif verb in OWNERS and (verb, standing) != (Verb.RELEASE, "released"):  # that one is a repetition (C27)
            assert isinstance(refused, StaleEpoch)
            assert refused.presented == before.epoch

    def test_c32_the_walk_knows_every_verb_and_status(self) -> None:
        """A row that is added to the table is walked, or this fails."""
        assert {*OWNERS, *OPERATORS, *STORES} == set(TRANSITIONS) == set(Verb)
        assert {status for status, _ in STANDINGS.values()} == set(Status)
