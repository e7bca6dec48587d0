"""A verb makes one call to the server, where nothing is out of the ordinary; the exceptions are listed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasehold import Router
from leasehold.stores.postgres import PostgresStore

from .fixtures import NEWEST, Place, url_of
from .verbs import VERBS, Stage, Verb

# A sweep looks until nothing is left, then for processes that are gone. To begin behind a job, its place is looked up.
MORE = {
    "reclaim": ["reclaim", "reclaim", "read", "end_fenced"],
    "jobs behind one": ["read", "read"],
    "lease, its pick-up": ["read", "pick_up"],  # once for each transfer
    "queues": ["read", "read"],  # those that are paused, and those that have jobs
    "cancel": ["override", "read"],  # then the keys of the job that guards have recorded, which are to be sealed
    "finish": ["override", "read"],
}
# Of a block, the beginning with its fence is one, and the COMMIT another; neither is one of the verbs' own connections.
BLOCKS = {"begin a transaction", "commit", "commit with a completion"}


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """A store, and a router beside it that looks."""
    place = Place(url_of(NEWEST))
    store = place.store()
    url, schema = store.database.url, store.database.schema
    try:
        with Router(url, schema=schema) as router, Router(url, schema=schema) as seen:
            router.counts()
            yield Stage(router, seen)
    finally:
        place.clear()


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb.name not in BLOCKS], ids=lambda verb: verb.name)
def test_a_verb_asks_once(stage: Stage, verb: Verb) -> None:
    """Whatever is left to see to now and then was seen to just now."""
    stage.job = verb.name
    store = stage.router.store
    assert isinstance(store, PostgresStore)
    made = verb.prepare(stage)
    store.upkeep.ended_us = store.upkeep.recovered_us = store._timer.now()
    asked: list[str] = []
    store.database.point = asked.append
    try:
        verb.act(stage, made)
    finally:
        store.database.point = None

    assert len(asked) == 1 or asked == MORE.get(verb.name)
