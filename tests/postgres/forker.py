"""
Forks after it has used a store, and lets both sides go on.

    forker.py CASE URL SCHEMA

It answers "ok", or dies of what went wrong.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable

import psycopg
import pytest

from leasehold import NotInTransaction, Router
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.connection import Connection

LIFE_SECONDS = 110  # of each side: if the other one dies, nobody may wait for ever


def fork(child: Callable[[], None]) -> None:
    """Run *child* in a forked process, which must end well."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(LIFE_SECONDS)
        try:
            child()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, "the child failed"


def sessions(router: Router) -> list[Connection]:
    """Every connection that the Router has: those of its verbs, of its transactions, and the one that listens."""
    store = router.store
    assert isinstance(store, PostgresStore)
    listener = store.claiming.listening._listener
    return [*store.database.pool.idle, *store.transactions.pool.idle, *([] if listener is None else [listener])]


def used(router: Router, name: str) -> list[int]:
    """Use every kind of connection; return the server's processes behind them."""
    router.add(name, queue=name)
    lease = router.claim(name, queues=[name])
    assert lease is not None
    with lease.transaction() as connection:
        lease.complete(connection=connection)
    while True:
        assert router.claim(name, queues=[name], wait_seconds=0.2) is None
        found = [connection.info.backend_pid for connection in sessions(router)]
        if len(found) == 3:
            return found


def both_go_on(router: Router) -> None:
    """Parent and child have sessions of their own, and the parent's are as they were."""
    before = used(router, "before")

    def child() -> None:
        assert sessions(router) == []
        assert not set(used(router, "child")) & set(before)
        router.close()

    fork(child)

    assert all(connection.is_alive() for connection in sessions(router))
    assert used(router, "after") == before


def child_closes(router: Router) -> None:
    """A child that closes what it never used ends none of its parent's sessions."""
    before = used(router, "before")
    fork(router.close)

    assert all(connection.is_alive() for connection in sessions(router))
    assert used(router, "after") == before


def child_exits(router: Router) -> None:
    """Nor does one that ends as a Python program does, with everything collected."""
    before = used(router, "before")
    pid = os.fork()
    if pid == 0:
        raise SystemExit(0)
    assert os.waitpid(pid, 0)[1] == 0

    assert all(connection.is_alive() for connection in sessions(router))
    assert used(router, "after") == before


def inside_a_transaction(router: Router) -> None:
    """A child that is forked inside a block, and leaves it, neither commits nor rolls back for its parent."""
    router.add("a")
    lease = router.claim("worker")
    assert lease is not None

    with lease.transaction() as connection:
        lease.complete(connection=connection)

        def statement() -> None:
            with pytest.raises(psycopg.InterfaceError, match="forked"):
                connection.execute("select 1")

        def commit() -> None:
            verbs = router.store.transactions
            assert verbs is not None
            with pytest.raises(NotInTransaction, match="forked"):
                verbs.commit(connection)
            verbs.rollback(connection)
            used(router, "child")

        fork(statement)
        fork(commit)
    assert router.job("a").status == "done"


CASES = {case.__name__: case for case in (both_go_on, child_closes, child_exits, inside_a_transaction)}


def main() -> None:
    """Run one case."""
    signal.alarm(LIFE_SECONDS)
    case, url, schema = sys.argv[1:]
    with Router(url, schema=schema) as router:
        CASES[case](router)
    sys.stdout.write("ok\n")


if __name__ == "__main__":
    main()
