"""C59: the workers that a store knows."""

from __future__ import annotations

from ...core.job import new_job
from ...core.ownership import Process
from ...core.workers import WorkerReport, WorkerStatus
from ...store import Store
from .support import (
    SECOND,
    AlarmClock,
    Contract,
    Waiter,
    ids,
)

_DAY = 86_400
PROCESS = Process("host", "boot", "namespace", 7, 12)


def reported(store: Store, name: str, given_name: str = "shop", **facts: object) -> WorkerReport:
    """Have a worker report, and return the report."""
    usual = WorkerReport(name, given_name, None, None, (), 16, 0, 0)
    report = usual._replace(**facts)  # type: ignore[arg-type]  # the tests name its fields
    store.report(report)
    return report


class Workers(Contract):
    """Workers report, and are forgotten once they are gone."""

    def test_c59_a_worker_is_listed_as_it_reports_itself(self, store: Store, clock: AlarmClock) -> None:
        """By name, with when it was started and seen on the store's clock; a later report replaces the earlier one."""
        clock.advance(100)
        started = clock.now() - 5 * SECOND
        reported(store, "b", given_name="other")
        reported(store, "a", process=PROCESS, queues=("mail", "x"), tasks=("send",), running=1, up_us=5 * SECOND)
        clock.advance(10)
        reported(store, "a", tasks=("send", "sweep"), concurrency=4, running=3, up_us=99 * SECOND)

        listed = store.workers()

        assert [worker.name for worker in listed] == ["a", "b"]
        assert listed[0] == WorkerStatus(
            "a", "shop", None, None, ("send", "sweep"), 4, 3, started, clock.now(), alive=True
        )
        assert (listed[1].given_name, listed[1].seen_us) == ("other", clock.now() - 10 * SECOND)
        reported(store, "a", process=PROCESS, queues=("mail", "x"))
        assert (store.workers()[0].process, store.workers()[0].queues) == (PROCESS, ("mail", "x"))

    def test_c59_a_worker_is_alive_for_thirty_seconds(self, store: Store, clock: AlarmClock) -> None:
        """After its last report, on the store's clock."""
        reported(store, "a")
        clock.advance(29.999999)
        assert [worker.alive for worker in store.workers()] == [True]

        clock.advance(0.000001)
        assert [worker.alive for worker in store.workers()] == [False]

        reported(store, "a")
        assert [worker.alive for worker in store.workers()] == [True]

    def test_c59_a_worker_that_retires_is_gone(self, store: Store) -> None:
        """And only that one; to retire one that is not known changes nothing."""
        reported(store, "a"), reported(store, "b")

        store.retire("a")
        store.retire("a")

        assert [worker.name for worker in store.workers()] == ["b"]

    def test_c59_upkeep_forgets_a_dead_worker_after_a_day(self, store: Store, clock: AlarmClock) -> None:
        """And no other."""
        reported(store, "a")
        clock.advance(60)
        reported(store, "b")
        clock.advance(_DAY - 60.000001)
        store.tend()
        assert [worker.name for worker in store.workers()] == ["a", "b"]

        clock.advance(60)
        store.tend()

        assert [worker.name for worker in store.workers()] == ["b"]

    def test_c59_a_report_wakes_no_claim(self, store: Store, clock: AlarmClock) -> None:
        """Nor ends its wait; an add does."""
        waiter = Waiter(store, clock)

        reported(store, "a")
        store.retire("a")

        assert waiter.is_waiting()
        store.add([new_job("a")])
        assert ids(waiter.result()) == ["a"]

    def test_c59_a_second_store_lists_them_too(self, store: Store, another: Store) -> None:
        """Whichever process they are of."""
        reported(store, "a"), reported(another, "b")

        assert (
            [worker.name for worker in store.workers()] == [worker.name for worker in another.workers()] == ["a", "b"]
        )
