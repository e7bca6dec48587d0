"""C57 and C58: jobs whose task a claimer does not know wait behind it, cost nothing, and delay no other job."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ...core.job import Outcome, Settlement, Status, new_job
from ...core.ownership import Reason
from ...core.parking import LOCK, TASK, Parked
from ...store import Store
from .support import (
    SECOND,
    AlarmClock,
    Contract,
    Waiter,
    completed,
    expire,
    failed,
    ids,
    in_threads,
    one,
    released,
    settle,
)

OLD, NEW = ["old"], ["old", "new"]


class Parking(Contract):
    """What waits behind a task."""

    @pytest.mark.parametrize("limit", [1, 10])
    @pytest.mark.parametrize("task", ["new", None])
    def test_c57_a_job_of_an_unknown_task_is_passed_over_at_no_cost(
        self, store: Store, limit: int, task: str | None
    ) -> None:
        """No epoch, attempt or budget is spent; the first claim that passed it over is named, even after later ones."""
        store.add([new_job("a", task=task)])
        before = store.job("a")
        assert before.parked is None

        assert store.claim("first", limit=limit, tasks=OLD) == []
        assert store.claim("second", limit=limit, tasks=OLD) == []

        job = store.job("a")
        assert job.parked == Parked(TASK, task or "", "first")
        assert (job.status, job.epoch, job.attempt, job.errors, job.reclaims, job.updated_us) == (
            (before.status, before.epoch, before.attempt, before.errors, before.reclaims, before.updated_us)
        )
        assert store.ownerships("a") == []
        assert store.events() == []
        assert store.counts().parked == {task or "": {"default": 1}}
        assert [found.parked for found in store.jobs(status=Status.PENDING)] == [job.parked]

    @pytest.mark.parametrize("tasks", [None, NEW, ["new"]], ids=["by hand", "all", "its own"])
    @pytest.mark.parametrize("limit", [1, 10])
    def test_c58_a_claim_that_knows_the_task_takes_the_job(
        self, store: Store, limit: int, tasks: list[str] | None
    ) -> None:
        """As if no claim had passed it over."""
        store.add([new_job("a", task="new")])
        assert store.claim("first", tasks=OLD) == []

        [grant] = store.claim("b", limit=limit, tasks=tasks)

        assert (grant.spec.id, grant.attempt, grant.reason) == ("a", 0, Reason.CLAIM)
        assert store.job("a").parked is None
        assert store.counts().parked == {}
        settle(store, completed(grant))
        assert store.job("a").status is Status.DONE

    def test_c57_jobs_without_a_task_have_an_empty_name(self, store: Store) -> None:
        """A claim that names it gets them, and no others."""
        store.add([new_job("none"), new_job("new", task="new")])

        assert ids(store.claim("a", limit=10, tasks=[""])) == ["none"]
        assert store.job("new").parked == Parked(TASK, "new", "a")

    def test_c57_a_claim_that_knows_nothing_parks_everything(self, store: Store) -> None:
        """Also one with an empty list of tasks."""
        store.add([new_job("none"), new_job("new", task="new")])

        assert store.claim("a", limit=10, tasks=[]) == []

        assert store.counts().parked == {"": {"default": 1}, "new": {"default": 1}}
        assert ids(store.claim("a", limit=10)) == ["none", "new"]

    @pytest.mark.parametrize("locked", [False, True], ids=["without keys", "with keys"])
    @pytest.mark.parametrize("count", [50, 600])
    def test_c57_unknown_jobs_hold_up_nobody(self, store: Store, count: int, locked: bool) -> None:
        """A claim sees past any number of them, and fills its batch."""
        keys = [f"key-{number}" if locked else None for number in range(count)]
        store.add([new_job(f"new-{n}", task="new", priority=1, lock=key) for n, key in enumerate(keys)])
        store.add([new_job(f"old-{number}", task="old") for number in range(3)])

        assert ids(store.claim("a", tasks=OLD)) == ["old-0"]
        assert ids(store.claim("a", limit=2, tasks=OLD)) == ["old-1", "old-2"]
        assert store.counts().parked == {"new": {"default": count}}
        assert len(store.claim("b", limit=1000, tasks=NEW)) == count

    def test_c57_a_batch_of_unlike_jobs_has_those_that_are_known(self, store: Store) -> None:
        """The others wait behind their names, and a later batch has them in order."""
        tasks = ["old", "new", None, "other"]
        store.add([new_job(f"{n}", task=tasks[n % 4], lease_seconds=None if n % 3 else 60) for n in range(12)])

        assert ids(store.claim("a", limit=10, tasks=OLD)) == ["0", "4", "8"]
        assert ids(store.claim("b", limit=4, tasks=["new", "other"])) == ["1", "3", "5", "7"]
        assert ids(store.claim("c", limit=10)) == ["2", "6", "9", "10", "11"]

    @pytest.mark.parametrize("limit", [1, 2, 10])
    @pytest.mark.parametrize("queues", [None, ["default", "mail"]], ids=["any", "named"])
    def test_c58_parked_jobs_come_in_the_order_of_all(
        self, store: Store, clock: AlarmClock, limit: int, queues: list[str] | None
    ) -> None:
        """Together with jobs that were not passed over: by priority, time and insertion, across tasks and queues."""
        store.add(
            [
                new_job("3", task="new"),
                new_job("4", task="new", queue="mail"),
                new_job("1", task="more", priority=1, queue="mail"),
                new_job("7", task="new", priority=-1),
            ]
        )
        assert store.claim("old", limit=10, tasks=OLD) == []
        clock.advance(1)
        store.add([new_job("5", task="new"), new_job("2", priority=1), new_job("6", task="old", queue="mail")])
        order: list[str] = []

        while grants := store.claim("a", limit=limit, queues=queues, tasks=["", "new", "more", "old"]):
            order += ids(grants)

        assert order == ["1", "2", "3", "4", "5", "6", "7"]

    def test_c58_only_the_queues_of_the_claim_count(self, store: Store) -> None:
        """A job behind a task is of its queue, as everywhere."""
        store.add([new_job("a", task="new"), new_job("b", task="new", queue="mail")])
        assert store.claim("old", limit=10, tasks=OLD) == []

        assert ids(store.claim("a", limit=10, queues=["mail"], tasks=NEW)) == ["b"]
        assert store.claim("a", limit=10, queues=["another"], tasks=NEW) == []
        assert ids(store.claim("a", limit=10, queues=["another", "default"])) == ["a"]

    @pytest.mark.parametrize("before", [0, 1, 2])
    def test_c58_one_at_a_time_in_order_whatever_was_claimed_before(self, store: Store, before: int) -> None:
        """Also where a store remembers from earlier claims where to go on."""
        store.add([new_job(f"old-{number}", task="old") for number in range(before)])
        for _ in range(before):
            one(store, tasks=OLD)
        store.add([new_job("a", task="new"), new_job("b", task="old"), new_job("c", task="new")])

        assert ids(store.claim("x", tasks=OLD)) == ["b"]
        store.add([new_job("d", task="old"), new_job("e", task="new")])
        assert ids(store.claim("x", tasks=OLD)) == ["d"]
        assert [one(store, tasks=NEW).spec.id for _ in range(3)] == ["a", "c", "e"]
        assert store.claim("x") == []

    def test_c57_a_job_that_goes_back_is_passed_over_too(self, store: Store, clock: AlarmClock) -> None:
        """Released, retried, reclaimed or requeued: it keeps its budgets and its reason for the next owner."""
        store.add([new_job("a", task="new")])
        ways: list[tuple[Callable[[], object], Reason]] = [
            (lambda: settle(store, released(store.lease("a", "b"))), Reason.RELEASE),
            (lambda: settle(store, failed(store.lease("a", "b"))), Reason.RETRY),
            (lambda: expire(store, clock), Reason.TIMEOUT),
            (lambda: store.requeue("a", store.job("a").epoch, by="ops"), Reason.MANUAL),
        ]
        for way, reason in ways:
            one(store, "b", tasks=NEW)
            way()
            was = store.job("a")
            assert store.claim("old", tasks=OLD) == []
            job = store.job("a")
            assert job.parked == Parked(TASK, "new", "old")
            assert (job.epoch, job.attempt, job.errors, job.reclaims) == (
                (was.epoch, was.attempt, was.errors, was.reclaims)
            )
            assert job.reason is reason

    # Lock keys

    def test_c57_behind_a_free_key_the_known_jobs_come_although_the_first_is_unknown(self, store: Store) -> None:
        """The right to be next is handed on, in the same claim, by any number of unknown jobs."""
        store.add([new_job("holder", task="old", lock="k")])
        holder = one(store)
        store.add([new_job(f"new-{number}", task="new", lock="k") for number in range(3)])
        store.add([new_job("old", task="old", lock="k"), new_job("last", task="old", lock="k")])
        assert store.claim("b", limit=10) == []
        assert store.job("new-1").parked == Parked(LOCK, "k", "b")

        settle(store, completed(holder))

        assert ids(store.claim("a", limit=10, tasks=OLD)) == ["old"]
        assert store.job("new-1").parked == Parked(TASK, "new", "a")
        assert store.verify() == []
        assert store.claim("a", limit=10) == []
        assert store.job("new-0").parked == Parked(LOCK, "k", "a")

    @pytest.mark.parametrize("limit", [1, 3])
    def test_c57_a_known_job_behind_a_key_keeps_its_place_among_the_others(self, store: Store, limit: int) -> None:
        """What an unknown job let go comes before those that would have been next, if it is before them in order."""
        store.add([new_job("holder", lock="k")])
        holder = one(store)
        store.add([new_job("new", task="new", lock="k", priority=2), new_job("1", task="old", lock="k", priority=1)])
        assert store.claim("b", limit=10) == []
        settle(store, completed(holder))
        store.add([new_job("2", task="old"), new_job("3", task="old")])
        order: list[str] = []

        while grants := store.claim("a", limit=limit, tasks=OLD):
            order += ids(grants)

        assert order == ["1", "2", "3"]

    @pytest.mark.parametrize("limit", [1, 10])
    def test_c57_the_next_behind_the_key_comes_whatever_was_claimed_before(self, store: Store, limit: int) -> None:
        """Also if it stands before jobs that earlier claims have taken, and a store remembers where to go on."""
        store.add([new_job("holder", lock="k")])
        holder = one(store)
        store.add([new_job("woken", task="old", lock="k", priority=-1)])
        assert store.claim("b", limit=10) == []
        store.add([new_job("new", task="new", lock="k", priority=-2)])
        assert store.claim("b", limit=10) == []
        store.add([new_job(f"old-{number}", task="old", priority=-3) for number in range(3)])
        assert [one(store, tasks=OLD).spec.id for _ in range(2)] == ["old-0", "old-1"]

        settle(store, completed(holder))
        moved = store.transfer("woken", 0, to="c", by="ops")
        settle(store, released(moved))

        assert ids(store.claim("a", limit=limit, tasks=OLD))[0] == "woken"

    def test_c58_the_fast_path_sees_what_is_parked(self, store: Store) -> None:
        """One at a time, as a store may do it in a shorter way where nothing else is to be seen to."""
        store.add([new_job(f"old-{number}", task="old") for number in range(3)])
        assert one(store, tasks=NEW).spec.id == "old-0"
        store.add([new_job("new", task="new", priority=1), new_job("too", task="new", priority=1)])
        assert one(store, tasks=OLD).spec.id == "old-1"
        assert one(store, tasks=NEW).spec.id == "new"
        assert one(store).spec.id == "too"
        assert one(store, tasks=NEW).spec.id == "old-2"

    def test_c57_the_next_behind_the_key_is_of_the_same_queue(self, store: Store) -> None:
        """Who claims from one queue alone is not kept by an unknown job of it."""
        store.add([new_job("holder", lock="k")])
        holder = one(store)
        store.add([new_job("mail-new", queue="mail", task="new", lock="k"), new_job("other", task="old", lock="k")])
        store.add([new_job("mail-old", queue="mail", task="old", lock="k")])
        assert store.claim("b", limit=10) == []
        settle(store, completed(holder))

        assert ids(store.claim("a", limit=10, queues=["mail"], tasks=OLD)) == ["mail-old"]

    def test_c58_a_job_behind_a_task_whose_key_is_held_waits_behind_the_key(self, store: Store) -> None:
        """It is parked there by the claim that knows the task, and comes once the key is free."""
        store.add([new_job("new", task="new", lock="k")])
        assert store.claim("old", tasks=OLD) == []
        store.add([new_job("holder", task="old", lock="k")])
        holder = one(store, tasks=OLD)

        assert store.claim("b", limit=10, tasks=NEW) == []
        assert store.job("new").parked == Parked(LOCK, "k", "b")
        assert store.claim("old", limit=10, tasks=OLD) == []
        assert store.job("new").parked == Parked(LOCK, "k", "b")

        settle(store, completed(holder))
        assert ids(store.claim("b", limit=10, tasks=NEW)) == ["new"]

    def test_c58_of_one_key_behind_a_task_one_runs_at_a_time(self, store: Store) -> None:
        """Whether they wait behind the task or to be claimed."""
        store.add([new_job(f"{number}", task="new", lock="k") for number in range(3)])
        assert store.claim("old", limit=10, tasks=OLD) == []
        store.add([new_job("3", task="new", lock="k")])
        order = []

        while grants := store.claim("b", limit=10):
            [grant] = grants
            order.append(grant.spec.id)
            settle(store, completed(grant))

        assert order == ["0", "1", "2", "3"]

    def test_c7_a_key_and_a_task_of_one_name_have_nothing_to_do_with_each_other(self, store: Store) -> None:
        """Nor do they with a key that looks as if it were one of the store's own."""
        store.add([new_job("holder", lock="new"), new_job("another", lock="task:new")])
        holder, another = store.claim("a", limit=2)
        store.add([new_job("lock", lock="new"), new_job("task", task="new"), new_job("both", task="new", lock="new")])
        store.add([new_job("internal", task="new", lock="task:new")])

        assert store.claim("b", limit=10, tasks=[""]) == []
        assert [store.job(job_id).parked for job_id in ("lock", "task", "both")] == [
            Parked(LOCK, "new", "b"),
            Parked(TASK, "new", "b"),
            Parked(TASK, "new", "b"),
        ]
        settle(store, completed(holder))
        settle(store, completed(another))
        assert ids(store.claim("c", limit=10, tasks=["new"])) == ["task", "both", "internal"]
        assert store.job("lock").parked in (None, Parked(LOCK, "new", "c"), Parked(TASK, "", "c"))

    def test_c57_claims_at_the_same_time_lose_nothing(self, store: Store) -> None:
        """Claims of both kinds beside each other, with keys: every job runs once, and only where it is known."""
        store.add(
            [new_job(f"{n}", task=["old", "new"][n % 2], lock=f"key-{n % 3}" if n % 5 else None) for n in range(60)]
        )
        wrong: list[str] = []

        def work(tasks: list[str]) -> None:
            while grants := store.claim("w", limit=3, tasks=tasks):
                wrong.extend(grant.spec.id for grant in grants if grant.spec.task not in tasks)
                for grant in grants:
                    settle(store, completed(grant))

        in_threads(lambda: work(OLD), lambda: work(["new"]), lambda: work(NEW))
        work(NEW)

        assert wrong == []
        assert store.counts().done == 60

    # Queues that are paused, operators, and time

    @pytest.mark.parametrize("paused_before", [True, False])
    @pytest.mark.parametrize("tasks", [None, NEW])
    def test_c58_a_paused_queue_keeps_what_is_parked(
        self, store: Store, clock: AlarmClock, tasks: list[str] | None, paused_before: bool
    ) -> None:
        """Nothing is parked while it is paused; a claim that waits wakes when it is resumed."""
        store.add([new_job("a", task="new", queue="mail"), new_job("b", task="new")])
        if paused_before:
            store.pause("mail", by="ops")
            assert store.claim("old", limit=10, tasks=OLD) == []
            assert store.job("a").parked is None
            store.resume("mail", by="ops")
        assert store.claim("old", limit=10, tasks=OLD) == []
        assert store.job("a").parked == Parked(TASK, "new", "old")
        store.pause("mail", by="ops")

        assert ids(store.claim("c", limit=10, tasks=tasks)) == ["b"]
        waiter = Waiter(store, clock, tasks=tasks)
        assert waiter.is_waiting()

        store.resume("mail", by="ops")
        assert ids(waiter.result()) == ["a"]

    @pytest.mark.parametrize("verb", ["cancel", "finish", "transfer"])
    @pytest.mark.parametrize("lock", [None, "k"])
    def test_c58_operators_find_a_job_behind_a_task(self, store: Store, verb: str, lock: str | None) -> None:
        """They move it as they would move one that waits, and nothing of it stays behind the task."""
        store.add([new_job("a", task="new", lock=lock), new_job("b", task="new", lock=lock)])
        assert store.claim("old", limit=10, tasks=OLD) == []

        if verb == "transfer":
            settle(store, completed(store.transfer("a", 0, to="b", by="ops")))
        else:
            (store.cancel if verb == "cancel" else store.finish)("a", 0, by="ops")

        assert store.job("a").parked is None
        assert store.verify() == []
        assert ids(store.claim("b", limit=10, tasks=NEW)) == ["b"]

    def test_c58_a_job_behind_a_task_may_begin_too_late(self, store: Store, clock: AlarmClock) -> None:
        """Its `start_within` ends it there, too (C56)."""
        store.add([new_job("a", task="new", start_within_seconds=10), new_job("b", task="new", lock="k")])
        assert store.claim("old", limit=10, tasks=OLD) == []

        clock.advance(11)

        assert ids(store.claim("new", limit=10, tasks=NEW)) == ["b"]
        assert store.job("a").status is Status.CANCELLED

    def test_c17_a_waiting_claim_that_knows_the_task_wakes(self, store: Store, clock: AlarmClock) -> None:
        """Whether or not one that does not know it was quicker."""
        old, new = Waiter(store, clock, tasks=OLD), Waiter(store, clock, tasks=["new"])

        store.add([new_job("a", task="new")])
        assert ids(new.result()) == ["a"]
        assert old.is_waiting()

        store.add([new_job("b", task="old")])
        assert ids(old.result()) == ["b"]

    def test_c17_a_claim_that_waits_finds_what_becomes_due_behind_a_task(self, store: Store, clock: AlarmClock) -> None:
        """Time makes a job due, and the claim that knows it wakes, whichever claim looks first."""
        store.add([new_job("a", task="new", delay_seconds=5)])
        old, new = Waiter(store, clock, tasks=OLD), Waiter(store, clock, tasks=["new"])

        clock.advance(6)

        assert ids(new.result()) == ["a"]
        assert old.is_waiting()
        store.add([new_job("b", task="old")])
        assert ids(old.result()) == ["b"]

    def test_c57_what_is_parked_outlives_the_process(self, store: Store, another: Store) -> None:
        """A second store on the same data sees the same, and takes it."""
        store.add([new_job("a", task="new")])
        assert store.claim("old", tasks=OLD) == []

        assert another.job("a").parked == Parked(TASK, "new", "old")
        assert another.claim("b", tasks=OLD) == []
        assert ids(another.claim("b", tasks=NEW)) == ["a"]

    def test_c26_a_release_may_say_why(self, store: Store) -> None:
        """The job keeps it as its last error, and no budget is touched; a release without a reason leaves it there."""
        store.add([new_job("a")])
        grant = one(store)

        settle(store, Settlement("a", grant.epoch, Outcome.RELEASE, error="does not fit", delay_us=SECOND))

        job = store.job("a")
        assert (job.last_error, job.errors, job.reclaims, job.attempt) == ("does not fit", 0, 0, 1)
        assert store.ownerships("a")[0].note == "does not fit"
        moved = store.transfer("a", job.epoch, to="b", by="ops")
        settle(store, released(moved))
        assert store.job("a").last_error == "does not fit"
