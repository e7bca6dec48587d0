"""
The front door, on every store: what a Router adds to the store's own verbs.

Long on purpose: one short test for each promise of the front door, in the order of its verbs.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_SECONDS
from tests.support import claimed

from leasehold import (
    Conflict,
    Event,
    InvalidArgument,
    Lease,
    NewJob,
    NoLease,
    Retry,
    Router,
    StaleEpoch,
    Status,
    StoreUnavailable,
    UnknownJob,
)
from leasehold.core import search
from leasehold.core.job import new_job
from leasehold.liveness import this_process
from leasehold.store import Store
from leasehold.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """The time, which only the test moves."""
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """A store of each kind in turn."""
    return None if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal"


@pytest.fixture
def router(url: str | None, clock: ManualClock) -> Iterator[Router]:
    """The store, whole at the end."""
    with Router(url, clock=clock, lease_seconds=20) as router:
        yield router
        assert router.store.verify() == []


def seconds_of(lease: Lease) -> float:
    """How long a lease was granted for."""
    return (lease.expires_at - lease.granted_at).total_seconds()


# Opening


def test_a_router_opens_nothing_until_its_first_verb(tmp_path: Path) -> None:
    """No file, no thread; after the first verb, a file and still no thread."""
    path = tmp_path / "jobs.db"
    threads = set(threading.enumerate())

    router = Router(f"sqlite:///{path}")
    assert not path.exists()
    assert repr(router) == f"<Router sqlite:///{path}>"
    router.add("a")
    assert path.exists()
    claimed(router).complete()
    assert router.claim("worker-0", wait_seconds=0.01) is None

    assert set(threading.enumerate()) <= threads, "others may end meanwhile"
    router.close()


def test_a_router_without_a_url_is_in_memory_and_starts_no_thread() -> None:
    """And says so."""
    threads = set(threading.enumerate())
    with Router() as router:
        assert repr(router) == "<Router memory:>"
        router.add("a")
        claimed(router).complete()
        assert set(threading.enumerate()) <= threads


def test_a_router_is_closed_by_its_block_and_for_good(url: str | None) -> None:
    """Every later verb says that it is closed; closing twice is nothing."""
    with Router(url) as router:
        router.add("a")
        lease = claimed(router)

    for verb in (lambda: router.add("b"), lambda: router.job("a"), lease.complete, lambda: router.claim("worker-0")):
        with pytest.raises(StoreUnavailable, match="closed"):
            verb()
    router.close()


@pytest.mark.parametrize("url", ["redis://host", "jobs.db", "sqlite://", "sqlite:///", "", 7])
def test_a_url_that_names_no_store_is_refused_at_once(url: Any) -> None:
    """With the ones that would do."""
    with pytest.raises(InvalidArgument, match=r"sqlite:///jobs\.db"):
        Router(url)


def test_a_setting_that_is_not_known_is_refused_with_the_near_one() -> None:
    """Before anything is opened."""
    with pytest.raises(InvalidArgument, match="Did you mean 'busy_seconds'"):
        Router("sqlite:///jobs.db?busy_second=3")
    with pytest.raises(InvalidArgument, match="must be a number of seconds"):
        Router("sqlite:///jobs.db?busy_seconds=soon")
    with pytest.raises(InvalidArgument, match="lease_seconds must be above zero"):
        Router(lease_seconds=0)


# Adding


def test_what_was_added_tells_its_id(router: Router) -> None:
    """Whether it was found or made, and whoever chose the id."""
    made, found, named = router.add("a"), router.add("a"), router.add(None)

    assert (made.id, found.id, named.id) == ("a", "a", named.job.id)
    assert router.job(named.id) == named.job


def test_an_add_says_whether_it_made_the_job(router: Router) -> None:
    """A second add of the same id finds the first."""
    first = router.add("a", {"total": 10})
    again = router.add("a", {"total": 10})

    assert (first.created, again.created) == (True, False)
    assert first.job == again.job == router.job("a")
    assert first.job.payload == {"total": 10}


def test_a_second_add_with_another_payload_leaves_the_first_and_is_logged(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    """It is most likely a mistake, and nobody else would tell."""
    router.add("a", 1)
    with caplog.at_level(logging.WARNING, "leasehold"):
        router.add("a", 1)
        assert caplog.messages == []
        added = router.add("a", 2)
        router.add_many([{"id": "a", "payload": 3}])

    assert (added.created, added.job.payload) == (False, 1)
    left = "job 'a' exists already, with another payload; the existing job was not changed, and the new payload was not"
    assert caplog.messages == [f"{left} stored"] * 2


def test_a_job_found_by_its_unique_key_is_another_job_and_no_mistake(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    """It may well have another payload."""
    router.add("a", 1, unique="mail:7")
    with caplog.at_level(logging.WARNING, "leasehold"):
        added = router.add("b", 2, unique="mail:7")

    assert (added.created, added.job.id) == (False, "a")
    assert caplog.messages == []


def test_ids_that_are_left_out_are_uuids_that_sort_by_their_time(router: Router, clock: ManualClock) -> None:
    """So that jobs in the order of their ids are in the order of their adding, to the millisecond."""
    ids = []
    for _ in range(5):
        ids.append(router.add(None).job.id)
        [added] = router.add_many([{"payload": 1}])
        ids.append(added.job.id)
        clock.advance(0.001)

    assert len(set(ids)) == 10
    assert [id[:13] for id in ids] == sorted(id[:13] for id in ids)
    assert {uuid.UUID(id).version for id in ids} == {7}
    assert {uuid.UUID(id).variant for id in ids} == {uuid.RFC_4122}


def test_many_jobs_are_added_by_the_names_of_adds_arguments(router: Router, clock: ManualClock) -> None:
    """All of them, in one call; jobs made elsewhere may stand between."""
    later = clock.time + timedelta(hours=1)
    wish = {
        "id": "a",
        "payload": [1],
        "task": "send",
        "queue": "mail",
        "priority": 3,
        "run_at": later,
        "lock": "customer:7",
        "unique": "mail:7",
        "retry": Retry(max_errors=2),
        "lease_seconds": 5,
        "stall_seconds": 9,
    }
    added = router.add_many([wish, new_job("b"), {"id": "c", "delay_seconds": 2}, {"id": "a"}])

    assert [one.created for one in added] == [True, True, True, False]
    job = router.job("a")
    assert (job.payload, job.task, job.queue, job.priority) == ([1], "send", "mail", 3)
    assert (job.run_at, job.lock, job.unique, job.retry) == (later, "customer:7", "mail:7", Retry(max_errors=2))
    assert (job.lease_seconds, job.stall_seconds) == (5, 9)
    assert router.job("c").run_at == clock.time + timedelta(seconds=2)


def test_a_wrong_option_is_refused_with_the_right_ones_and_adds_nothing(router: Router) -> None:
    """Neither of itself nor of its neighbours."""
    with pytest.raises(InvalidArgument, match=r"a job has no 'prioritiy': it takes delay_seconds, id, keep_seconds"):
        router.add_many([{"id": "a"}, {"id": "b", "prioritiy": 3}])
    with pytest.raises(InvalidArgument, match=r"add_many takes mappings.*not 'b'"):
        router.add_many([{"id": "a"}, "b"])  # type: ignore[list-item]  # that is the point
    with pytest.raises(TypeError, match=r"^add\(\) takes no 'prioritiy': it takes .*\. Did you mean 'priority'\?$"):
        router.add("a", prioritiy=3)  # type: ignore[call-arg]  # that is the point
    assert router.snapshot() == {}
    assert router.add_many([]) == []


WRONG: dict[str, dict[str, Any]] = {
    "an empty id": {"id": ""},
    "a long id": {"id": "x" * 256},
    "an id with NUL": {"id": "a\0b"},
    "an id that is no text": {"id": 7},
    "keys that are no text": {"payload": {1: 2}},
    "what JSON has no form for": {"payload": {1}},
    "no number": {"payload": float("nan")},
    "a megabyte and more": {"payload": "x" * 2**20},
    "a naive instant": {"run_at": datetime(2030, 1, 1)},
    "two instants": {"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay_seconds": 1},
    "a negative delay": {"delay_seconds": -1},
    "a negative time to be kept": {"keep_seconds": -1},
    "an endless delay": {"delay_seconds": float("inf")},
    "no lease": {"lease_seconds": 0},
    "half a priority": {"priority": 0.5},
    "a retry that is none": {"retry": 3},
    "an empty lock": {"lock": ""},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_kept_is_refused_and_changes_nothing(wrong: str, router: Router) -> None:
    """Through either door."""
    wish = {"id": "a", **WRONG[wrong]}
    with pytest.raises(InvalidArgument):
        router.add_many([{"id": "z"}, wish])
    with pytest.raises(InvalidArgument):
        router.add(wish.pop("id"), **wish)
    assert router.snapshot() == {}


# Claiming


def test_a_claims_lease_beats_the_jobs_which_beats_the_routers(router: Router) -> None:
    """In seconds, each said where it is known best."""
    router.add("plain")
    router.add("asking", lease_seconds=40)
    router.add("claimed", lease_seconds=40)

    assert seconds_of(claimed(router)) == 20
    assert seconds_of(claimed(router)) == 40
    assert seconds_of(claimed(router, lease_seconds=60)) == 60


def test_a_claim_finds_nothing_or_some_or_as_many_as_it_asks_for(router: Router) -> None:
    """None, a lease, or a list of them."""
    assert router.claim("worker-0") is None
    assert router.claim_many("worker-0") == []
    router.add_many([{"id": str(n)} for n in range(5)])

    assert [lease.job_id for lease in router.claim_many("worker-0", limit=3)] == ["0", "1", "2"]
    assert [lease.job_id for lease in router.claim_many("worker-0")] == ["3", "4"]


def test_a_claim_waits_on_although_a_worker_stops_beside_it(router: Router) -> None:
    """Which wakes all claims of the store: its own is one of them."""
    asked, claims, leases = threading.Semaphore(0), router.store.claim, []

    def claim(*args: Any, **kwargs: Any) -> Any:
        asked.release()
        return claims(*args, **kwargs)

    router.store.claim = claim  # type: ignore[method-assign]
    waiting = threading.Thread(target=lambda: leases.append(router.claim("agent", wait_seconds=60)))
    waiting.start()
    assert asked.acquire(timeout=PATIENCE_SECONDS)
    while waiting.is_alive() and not asked.acquire(timeout=0.01):
        router.store.wake()
    router.add("a")
    waiting.join(PATIENCE_SECONDS)

    [lease] = leases
    assert lease is not None
    assert lease.job_id == "a"


def test_a_claim_takes_from_the_queues_that_it_names(router: Router) -> None:
    """A single name is most likely a mistake: its letters would be queues."""
    router.add_many([{"id": "a", "queue": "mail"}, {"id": "b", "queue": "images"}])

    assert router.claim("worker-0", queues=["default"]) is None
    assert claimed(router, queues=["images", "default"]).job_id == "b"
    with pytest.raises(InvalidArgument, match=r"write \['mail'\]"):
        router.claim("worker-0", queues="mail")
    with pytest.raises(InvalidArgument, match="queues= is empty"):
        router.claim("worker-0", queues=[])


@pytest.mark.parametrize(
    "options", [{"limit": 0}, {"limit": 10_001}, {"limit": "1"}, {"lease_seconds": 0}, {"wait_seconds": -1}], ids=str
)
def test_a_claim_that_makes_no_sense_is_refused(options: dict[str, Any], router: Router) -> None:
    """Before the store is asked."""
    router.add("a")
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        router.claim_many("worker-0", **options)
    assert router.job("a").status is Status.PENDING


def test_a_claim_records_the_process_that_calls_unless_told_not_to(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever claims for somebody else must not prove that one's death by its own."""
    seen: list[Any] = []
    claim = router.store.claim

    def noted(*args: Any, **options: Any) -> Any:
        seen.append(options["process"])
        return claim(*args, **options)

    monkeypatch.setattr(router.store, "claim", noted)
    router.claim("worker-0")
    router.claim("worker-0", process=None)

    assert seen == [this_process(), None]


def test_a_claim_whose_reply_is_lost_finds_its_leases_by_its_own_id(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a namesake stay the namesake's."""
    router.add_many([{"id": "a"}, {"id": "b"}])
    namesakes = claimed(router)
    claim = router.store.claim

    def losing(*args: Any, **options: Any) -> Any:
        claim(*args, **options)
        raise StoreUnavailable("the reply was lost")

    monkeypatch.setattr(router.store, "claim", losing)
    assert claimed(router).job_id == "b"
    with pytest.raises(StoreUnavailable, match="the reply was lost"):
        router.claim("worker-0")
    namesakes.check()


def test_whoever_was_handed_a_job_asks_for_its_lease(router: Router) -> None:
    """By its own name; under any other it is told who holds the job."""
    router.add("a")
    with pytest.raises(NoLease, match=r"no owner holds a lease on it\.$"):
        router.lease("a", owner="worker-0")
    lease = claimed(router)

    same = router.lease("a", owner="worker-0")
    assert (same.epoch, same.expires_at, same.granted_at) == (lease.epoch, lease.expires_at, lease.granted_at)
    with pytest.raises(NoLease, match="leased to 'worker-0'"):
        router.lease("a", owner="worker-1")
    with pytest.raises(UnknownJob):
        router.lease("nobody", owner="worker-0")
    same.complete()
    lease.complete()  # the same settlement, repeated


def test_a_lease_goes_on_in_a_second_router_on_the_same_file(tmp_path: Path, clock: ManualClock) -> None:
    """After a restart, an owner that kept its name takes up what it had."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Router(url, clock=clock) as first:
        first.add("a", {"total": 10})
        lease = claimed(first)
        lease.progress(checkpoint={"page": 4})

    with Router(url, clock=clock) as second:
        again = second.lease("a", owner="worker-0")
        assert (again.epoch, again.payload, again.checkpoint) == (lease.epoch, {"total": 10}, {"page": 4})
        again.complete()
        assert second.job("a").status is Status.DONE


# Operating

OPERATED: dict[str, Callable[..., Any]] = {
    "transfer": lambda router, *job, **seen: router.transfer(*job, to="agent-b", by="operator", **seen),
    "cancel": lambda router, *job, **seen: router.cancel(*job, by="operator", **seen),
    "complete": lambda router, *job, **seen: router.complete(*job, by="operator", result=1, **seen),
    "resolve": lambda router, *job, **seen: router.resolve(*job, "charge", by="operator", **seen),
}


def with_an_effect_in_doubt(router: Router) -> Lease:
    """A lease on "a" whose effect "charge" is in doubt."""
    router.add("a")
    lease = claimed(router)
    router.store.begin_effect("a", lease.epoch, "charge")
    return lease


@pytest.mark.parametrize("verb", OPERATED)
def test_an_operator_passes_the_job_that_it_saw_or_the_epoch(verb: str, router: Router) -> None:
    """Both say the same, and the verb is recorded with who acted."""
    lease = with_an_effect_in_doubt(router)
    OPERATED[verb](router, "a", epoch=lease.epoch)

    kinds = {"transfer": "transferred", "cancel": "cancelled", "complete": "finished", "resolve": "resolved"}
    [event] = router.events("a", kind=kinds[verb])
    assert event.facts["by"] == "operator"

    router.add("b")
    claimed(router)
    router.store.begin_effect("b", router.job("b").epoch, "charge")
    OPERATED[verb](router, router.job("b"))
    assert len(router.events("b", kind=kinds[verb])) == 1


@pytest.mark.parametrize("verb", OPERATED)
def test_an_operator_who_names_no_epoch_is_told_how(verb: str, router: Router) -> None:
    """A job that has moved since must not be moved again by mistake."""
    with_an_effect_in_doubt(router)
    with pytest.raises(InvalidArgument, match=r"job 'a' needs an epoch.*router\.job\('a'\)"):
        OPERATED[verb](router, "a")
    with pytest.raises(InvalidArgument, match="epoch must be"):
        OPERATED[verb](router, "a", epoch="7")


@pytest.mark.parametrize("verb", OPERATED)
def test_an_operator_who_saw_an_earlier_epoch_is_refused(verb: str, router: Router) -> None:
    """By the same door as a stale owner, with the same facts."""
    lease = with_an_effect_in_doubt(router)
    seen = router.job("a")
    moved = router.transfer(seen, to="agent-a", by="supervisor", note="quicker")
    before = router.snapshot()

    with pytest.raises(StaleEpoch) as refused:
        OPERATED[verb](router, seen)

    assert (refused.value.presented, refused.value.current) == (lease.epoch, moved.epoch)
    assert (refused.value.owner, refused.value.reason) == ("agent-a", "manual")
    assert router.snapshot() == before


def test_a_lease_can_be_waited_for(router: Router, clock: ManualClock) -> None:
    """As the store does; the time is checked before anything is asked."""
    router.add("a")
    assert router.transfer(router.job("a"), to="agent-b", by="supervisor") is not None
    assert router.lease("a", owner="agent-b", wait_seconds=60).owner == "agent-b"
    clock.advance(1)
    with pytest.raises(InvalidArgument, match="wait_seconds must be zero or more"):
        router.lease("a", owner="agent-c", wait_seconds=-1)


def test_a_job_is_handed_on_and_taken_back_by_hand(router: Router) -> None:
    """Each step issues an epoch above all before it, and says who and why."""
    never = router.add("a").job
    assert never.epoch == 0
    first = router.transfer(never, to="agent-a", by="supervisor", lease_seconds=5)
    second = router.transfer("a", epoch=first.epoch, to="agent-b", by="supervisor", note="asked for")
    assert (seconds_of(first), seconds_of(second)) == (5, 20)
    assert second.owner == "agent-b"
    with pytest.raises(StaleEpoch):
        first.complete()

    cancelled = router.cancel(router.job("a"), by="supervisor", note="not needed")
    replayed = router.replay(cancelled, by="supervisor")
    done = router.complete(replayed, by="supervisor", result={"by": "hand"})

    assert first.epoch < second.epoch < cancelled.epoch < replayed.epoch < done.epoch
    assert (done.status, done.result) == (Status.DONE, {"by": "hand"})
    assert [(past.owner, past.ended, past.by, past.note) for past in router.ownerships("a")] == [
        ("agent-a", "manual", "supervisor", "asked for"),
        ("agent-b", "cancellation", "supervisor", "not needed"),
    ]


def test_reclaim_says_what_it_took_back(router: Router, clock: ManualClock) -> None:
    """The ended ownerships, for whoever wants to tell somebody."""
    router.add("a")
    lease = claimed(router)
    assert router.reclaim() == []
    clock.advance(21)

    [ended] = router.reclaim()
    assert (ended.job_id, ended.epoch, ended.owner, ended.ended) == ("a", lease.epoch, "worker-0", "timeout")
    assert ended.ended_at == clock.time


# Reading


def test_jobs_are_listed_by_what_fits_and_page_by_page(router: Router) -> None:
    """In the order of their insertion, however they are filtered."""
    router.add_many(
        [{"id": f"mail-{n}", "queue": "mail", "task": "send"} for n in range(3)] + [{"id": "image", "priority": 9}]
    )
    lease = claimed(router)
    lease.add("child")
    mail = claimed(router, "worker-1", queues=["mail"])
    mail.complete()

    def ids(**filters: Any) -> list[str]:
        return [job.id for job in router.jobs(**filters)]

    everything = ["mail-0", "mail-1", "mail-2", "image", "image/child"]
    assert ids() == list(router.snapshot()) == everything
    assert ids(status="done") == ids(status=Status.DONE) == ["mail-0"]
    assert ids(status="pending") == ["mail-1", "mail-2", "image/child"]
    assert ids(queue="mail", status="pending") == ["mail-1", "mail-2"]
    assert (ids(task="send", limit=1), ids(owner="worker-0"), ids(owner="worker-1")) == (["mail-0"], ["image"], [])
    assert (ids(parent="image"), ids(parent="mail-0")) == (["image/child"], [])
    assert ids(limit=0) == []
    assert ids(limit=2) + ids(limit=2, after="mail-1") + ids(limit=None, after="image") == everything
    assert ids(after="image/child") == []


def test_a_question_that_makes_no_sense_is_refused(router: Router) -> None:
    """An empty answer would look like good news."""
    with pytest.raises(InvalidArgument, match="'finished' is not a status: use one of pending, running"):
        router.jobs(status="finished")
    with pytest.raises(InvalidArgument, match="limit"):
        router.jobs(limit=-1)
    with pytest.raises(UnknownJob):
        router.jobs(after="nobody")
    for reader in (router.job, router.ownerships, router.effects):
        with pytest.raises(UnknownJob, match="'nobody'"):
            reader("nobody")
        with pytest.raises(InvalidArgument, match="a job's id"):
            reader("")
    with pytest.raises(InvalidArgument, match="limit"):
        router.events(limit=-1)
    with pytest.raises(InvalidArgument, match="after"):
        router.events(after=-1)


def test_events_are_listed_by_what_fits_and_page_by_page(router: Router) -> None:
    """Oldest first; their numbers only go up."""
    router.add_many([{"id": "a"}, {"id": "b"}])
    for name in ("a", "b"):
        router.cancel(router.job(name), by="operator")
    router.replay(router.job("a"), by="operator")

    def told(events: list[Event]) -> list[tuple[str, str | None]]:
        return [(event.kind, event.job_id) for event in events]

    everything = router.events()
    assert told(everything) == [("cancelled", "a"), ("cancelled", "b"), ("replayed", "a")]
    assert [event.number for event in everything] == sorted({event.number for event in everything})
    assert told(router.events("a")) == [("cancelled", "a"), ("replayed", "a")]
    assert told(router.events(kind="cancelled")) == [("cancelled", "a"), ("cancelled", "b")]
    assert told(router.events("b", kind="replayed")) == []
    assert router.events(limit=1) + router.events(after=everything[0].number, limit=None) == everything
    assert router.events("nobody") == []


def test_a_router_that_traces_records_what_is_normal_too(url: str | None, clock: ManualClock) -> None:
    """Every step of one job's life."""
    with Router(url, clock=clock, trace=True) as router:
        router.add("a")
        lease = claimed(router)
        lease.renew()
        lease.progress(0.5)
        lease.complete()
        assert [event.kind for event in router.events("a")] == [
            "added",
            "claimed",
            "renewed",
            "progressed",
            "completed",
        ]


def test_counts_say_how_many_jobs_stand_where(router: Router) -> None:
    """In all, and the unfinished ones by queue."""
    router.add_many([{"id": "a"}, {"id": "b", "queue": "mail"}, {"id": "c", "queue": "mail"}])
    claimed(router).complete()
    claimed(router)

    counts = router.counts()
    assert (counts.pending, counts.running, counts.done, counts.failed, counts.cancelled) == (1, 1, 1, 0, 0)
    assert counts.queues == {"mail": {"pending": 1, "running": 1}}


def test_a_bulk_prune_takes_parents_before_their_children(router: Router) -> None:
    """In whatever order they are listed. A child whose parent does not fit stays, and is named."""
    router.add("a")
    router.add("other")
    for _ in range(2):
        lease = router.claim("w")
        assert lease is not None
        lease.add("one", queue="x")
        if lease.job_id == "a":
            child = router.claim("w", queues=["x"])
            assert child is not None
            child.add("two", queue="y")
            child.complete()
        lease.complete()
    for job in router.jobs(status=Status.PENDING):
        router.complete(job, by="ops")
    router.replay("other", epoch=router.job("other").epoch, by="ops")
    wanted = search.checked(status="done")
    count = len(router.search(status="done").jobs)

    outcome = router.bulk("prune", wanted, expect=count, by="ops", note="old")

    assert (count, outcome.done) == (4, 3)
    assert [event.job_id for event in router.events(kind="pruned")] == ["a", "a/one", "a/one/two"]
    assert all(event.facts == {"by": "ops", "note": "old"} for event in router.events(kind="pruned"))
    assert [(one.id, type(one.error)) for one in outcome.moved] == [("other/one", Conflict)]
    assert "its parent 'other' is kept" in outcome.moved[0].why
    assert sorted(job.id for job in router.jobs()) == ["other", "other/one"]


def test_a_bulk_action_inside_an_open_transaction_is_refused_as_a_whole(tmp_path: Path) -> None:
    """It would commit beside the transaction; no job is tried, none has moved, and no action is recorded."""
    tried: list[int] = []
    with Router(f"sqlite:///{tmp_path / 'jobs.db'}") as router:
        router.add_many([{"id": "a"}, {"id": "b"}])
        with claimed(router).transaction(), pytest.raises(Conflict, match="a transaction on this database is open"):
            router.bulk("cancel", search.checked(id_prefix="b"), expect=1, by="ops", on_each=tried.append)

        assert tried == []
        assert router.job("b").status == "pending"
        assert router.events(kind="bulk") == []


def test_prune_removes_what_finished_long_ago_however_many(router: Router, clock: ManualClock) -> None:
    """Unfinished jobs stay, and epochs go on above all that is gone."""
    router.add_many([{"id": str(n)} for n in range(2_500)])
    for lease in router.claim_many("worker-0", limit=2_499):
        lease.complete()
    clock.advance(60)
    last = claimed(router)
    router.add("young")
    router.cancel("young", epoch=0, by="operator")

    assert router.prune(keep_seconds=60).jobs == 0
    clock.advance(1)
    assert router.prune(keep_seconds=60, keep_ids_seconds=0).jobs == 2_499
    assert set(router.snapshot()) == {last.job_id, "young"}
    with pytest.raises(InvalidArgument, match="keep_seconds"):
        router.prune(keep_seconds=-1)
    router.add("0")
    assert claimed(router).epoch > last.epoch


def test_the_store_behind_the_door_takes_lists(router: Router) -> None:
    """For whoever settles many leases at once."""
    store: Store = router.store
    added = store.add([NewJob("a"), NewJob("b")])
    assert [one.job.id for one in added] == ["a", "b"]


def test_the_id_of_a_pruned_job_is_kept_if_the_caller_chose_it(router: Router, clock: ManualClock) -> None:
    """Also through a task and its options; what `add(None)` and a task named by themselves goes with its job."""

    @router.task
    def mail() -> None:
        pass

    chosen = [router.add("a").id, *(one.id for one in router.add_many([{"id": "b"}, mail.options(id="c").job()]))]
    chosen.append(mail.options(id="d").add().id)
    made = [router.add(None).id, *(one.id for one in router.add_many([{"payload": 1}, mail.job()])), mail.add().id]
    for job in router.snapshot().values():
        router.cancel(job, by="ops")
    clock.advance(1)

    assert router.prune(keep_seconds=0).jobs == 8

    assert [router.job(id).pruned for id in chosen] == [True] * 4
    for id in made:
        with pytest.raises(UnknownJob):
            router.job(id)
    with pytest.raises(UnknownJob, match="was pruned"):
        router.result("a")
    assert not router.add("a", "another payload").created
    with pytest.raises(Conflict, match="was pruned: only its id"):
        router.replay(router.job("a"), by="ops")
    clock.advance(90 * 86_400)
    assert router.prune(keep_seconds=0) == (0, 0, 4)
    assert router.add("a").created
