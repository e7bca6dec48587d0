"""Traps of workers that are about values; those about runs are in tests/worker, by number."""

from __future__ import annotations

import threading

import pytest

from leasehold import InvalidArgument, NoLease, Router, current_lease


def test_trap_22_a_thread_of_the_handlers_own_inherits_no_lease() -> None:
    """It is told so, and the handler's own thread has its lease."""
    told: list[object] = []

    def look() -> None:
        try:
            told.append(current_lease())
        except NoLease as error:
            told.append(error)

    with Router() as router:

        @router.task
        def work() -> str:
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
            return current_lease().job_id

        added = work.add()
        router.drain()

        assert router.result(added.job.id) == added.job.id
    assert [type(one) for one in told] == [NoLease]


def test_trap_22_keys_that_json_would_change_are_refused() -> None:
    """{1: …} would come back as {"1": …}."""
    with Router() as router:

        @router.task
        def work(names: dict[str, str]) -> None: ...

        with pytest.raises(InvalidArgument, match=r"key 1 \(int\)"):
            work.add({1: "a"})  # type: ignore[dict-item]  # on purpose
        assert router.jobs() == []
