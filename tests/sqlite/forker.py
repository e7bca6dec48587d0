"""
Forks after it has used a store, and lets both sides go on. Every step waits for the other side; nothing sleeps.

    forker.py CASE URL

It answers "ok", or dies of what went wrong.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextvars import Context

from tests.patience import PATIENCE_SECONDS
from tests.support import claimed

from leasehold import Router, StoreUnavailable
from leasehold.stores.sqlite import SqliteStore

LIFE_SECONDS = 110  # of each side: if the other one dies, nobody may wait for ever


class Turn:
    """One side waits until the other one says so."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def give(self) -> None:
        os.write(self._write, b".")

    def take(self) -> None:
        os.read(self._read, 1)


def fork(child: Callable[[], None]) -> int:
    """Run *child* in a forked process, and return its id."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(LIFE_SECONDS)
        try:
            child()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid


def join(pid: int) -> None:
    """Wait for a child, which must have ended well."""
    assert os.waitpid(pid, 0)[1] == 0, "the child failed"


def refused(call: Callable[[], object], why: str) -> None:
    """The call must raise `StoreUnavailable`, for this reason."""
    said = "nothing"
    try:
        call()
    except StoreUnavailable as error:
        said = str(error)
    assert why in said, f"the child was told {said}"


def both_go_on(url: str) -> None:
    """The parent closes the file, as its last user but one, and the child has still written to the real one."""
    router, to_child, to_parent = Router(url), Turn(), Turn()
    router.add_many({"id": name} for name in "abcd")
    first = claimed(router, "parent")
    with first.transaction():
        pass  # this connection, too, must not be carried over

    def child() -> None:
        lease = claimed(router, "child")
        assert lease.epoch > first.epoch
        with lease.transaction() as connection:
            lease.complete("by the child", connection=connection)
        to_parent.give()
        to_child.take()
        router.add("after")
        assert router.job("after").status == "pending"
        claimed(router, "child").complete("by the child")
        to_parent.give()
        to_child.take()

    pid = fork(child)
    to_parent.take()
    first.complete("by the parent")
    assert router.job("b").result == "by the child"
    router.close()
    to_child.give()
    to_parent.take()
    with Router(url) as other:
        results = {job.id: job.result for job in other.jobs(status="done")}
        assert results == {"a": "by the parent", "b": "by the child", "c": "by the child"}, results
        assert other.job("after").status == "pending"
        assert other.store.verify() == []
    to_child.give()
    join(pid)


def inside_a_write(url: str) -> None:
    """Another thread of the parent is inside a write: the fork waits for it, and both sides see it."""
    router = Router(url)
    assert isinstance(router.store, SqliteStore)
    router.add("a")
    inside, forking = threading.Event(), threading.Event()

    def point(where: str) -> None:
        if where == "before commit" and not inside.is_set():
            inside.set()
            forking.wait(PATIENCE_SECONDS)

    router.store.database.point = point
    thread = threading.Thread(target=router.add, args=("b",))
    thread.start()
    assert inside.wait(PATIENCE_SECONDS)
    before_fork = router.store.database.before_fork

    def noticed() -> bool:
        forking.set()
        return before_fork()

    router.store.database.before_fork = noticed  # type: ignore[method-assign]  # so that the write ends after the fork began

    def child() -> None:
        router.add("c")
        assert sorted(router.snapshot()) == ["a", "b", "c"]

    join(fork(child))
    thread.join()
    router.add("d")
    assert sorted(router.snapshot()) == ["a", "b", "c", "d"]
    assert router.store.verify() == []


def inside_a_transaction(url: str) -> None:
    """The thread that forks holds the transaction itself: it cannot wait, so the child is refused, and says why."""
    router = Router(url)
    router.add("a")
    lease = claimed(router, "parent")

    def child() -> None:
        # As a thread of the child would, which is not inside any transaction.
        refused(lambda: Context().run(router.add, "b"), "forked while its parent had a transaction open")
        with Router(url.replace("jobs.db", "other.db")) as other:
            other.add("b")

    with lease.transaction() as connection:
        pid = fork(child)
        join(pid)
        lease.complete("both", connection=connection)
    assert router.job("a").result == "both"
    assert router.store.verify() == []


def memory(url: str) -> None:
    """A copy of a memory store would issue the same epochs again."""
    router = Router("memory:")
    router.add("a")

    def child() -> None:
        calls: list[Callable[[], object]] = [lambda: router.add("b"), lambda: router.claim("child"), router.counts]
        for call in calls:
            refused(call, "belongs to the process that made it, and a forked child has only a copy")
        with Router("memory:") as own:
            own.add("a")

    join(fork(child))
    claimed(router, "parent").complete()


CASES = {case.__name__: case for case in (both_go_on, inside_a_write, inside_a_transaction, memory)}

if __name__ == "__main__":
    signal.alarm(LIFE_SECONDS)
    CASES[sys.argv[1]](sys.argv[2])
    os.write(1, b"ok\n")
