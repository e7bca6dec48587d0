"""Claims that meet other claims where jobs are parked behind tasks."""

from __future__ import annotations

import pytest
from psycopg import sql

from leasehold.core.job import new_job
from leasehold.stores.postgres import PostgresStore

from .owners import PATIENCE_MS
from .staging import Call, session, until_blocked

pytestmark = pytest.mark.usefixtures("kept_sessions")


@pytest.mark.parametrize("limit", [1, 2])
def test_what_another_claim_takes_from_behind_a_task_holds_up_no_other_job(store: PostgresStore, limit: int) -> None:
    """The other claim has not committed; the jobs that nobody takes are there for this one."""
    store.add([new_job("parked", task="new")])
    assert store.claim("old", tasks=["old"]) == []
    store.add([new_job(f"ready-{number}", task="old") for number in range(limit)])
    with session(store) as other:
        assert other.claim(1, ["new"]) == ["parked"]

        grants = store.claim("mine", limit=limit, tasks=["old", "new"])

        assert [grant.spec.id for grant in grants] == [f"ready-{number}" for number in range(limit)]
        other.connection.rollback()


def test_what_another_claim_takes_from_one_queue_holds_up_no_other_queue(store: PostgresStore) -> None:
    """The same of two queues, without any task."""
    store.add([new_job("first", queue="a")])
    store.add([new_job("second", queue="b")])
    with session(store) as other:
        assert other.claim(1) == ["first"]

        assert [grant.spec.id for grant in store.claim("mine")] == ["second"]
        other.connection.rollback()


def test_a_key_that_becomes_free_between_two_looks_of_a_claim_is_not_lost(store: PostgresStore) -> None:
    """
    The claim parks a job behind a key, then passes over a job of an unknown task, and so sees to keys that became free.

    By then the first key is one of them. What the claim wakes, it must not park behind the same key again.
    """
    store.add([new_job("holder", lock="key", task="old")])
    [held] = store.claim("owner", tasks=["old"])
    store.add([new_job("next", lock="key", task="old")])
    store.add([new_job("unknown", lock="another key", task="new")])
    with session(store) as other:
        # The claim's own note of a key that became free waits for this: in between, the holder ends.
        other.connection.execute(sql.SQL("lock table {} in share mode").format(store_table(store, "freed")))
        claiming = Call(lambda: store.claim("mine", tasks=["old"]))
        until_blocked(store, claiming)
        other.call("complete", ["holder"], [held.epoch], None, None, PATIENCE_MS)
        other.connection.commit()

        grants = claiming.result()

    assert store.verify() == []
    assert [grant.spec.id for grant in grants or store.claim("mine", tasks=["old"])] == ["next"]


def store_table(store: PostgresStore, name: str) -> sql.Identifier:
    """A table of the store."""
    return sql.Identifier(store.database.schema, name)
