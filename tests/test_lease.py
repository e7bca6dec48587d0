"""
What an owner holds, on every store: the behaviour of a Lease beyond the store's own verbs.

One file, though a long one: each verb is a few short tests on the same lease.
"""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_SECONDS
from tests.support import claimed, overtaken

from leasehold import (
    Conflict,
    InDoubt,
    InvalidArgument,
    Lease,
    NoLease,
    Reason,
    Retry,
    Router,
    Settled,
    StaleEpoch,
    Status,
    StoreUnavailable,
    UnknownJob,
    current_lease,
)
from leasehold.core.job import new_job
from leasehold.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """The time, which only the test moves."""
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def router(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Router]:
    """A store of each kind in turn, whole at the end."""
    url = None if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal"
    with Router(url, clock=clock) as router:
        yield router
        assert router.store.verify() == []


@pytest.fixture
def lease(router: Router) -> Lease:
    """A lease on job "p"."""
    router.add("p", {"total": 10}, task="send", queue="mail", retry=Retry(max_errors=2, jitter=False), stall_seconds=60)
    return claimed(router)


# What is held


def test_a_lease_says_what_is_held(lease: Lease, clock: ManualClock) -> None:
    """Each fact as it was when the lease was granted."""
    assert (lease.job_id, lease.owner, lease.payload) == ("p", "worker-0", {"total": 10})
    assert (lease.task, lease.queue, lease.retry.max_errors) == ("send", "mail", 2)
    assert (lease.attempt, lease.reason, lease.checkpoint, lease.lost) == (0, Reason.CLAIM, None, False)
    assert (lease.granted_at, lease.expires_at) == (clock.time, clock.time + timedelta(seconds=30))
    assert repr(lease) == f"<Lease 'p' epoch={lease.epoch} owner='worker-0'>"


def test_a_payload_belongs_to_whoever_looks_at_it(lease: Lease) -> None:
    """A handler that changes it changes nothing else."""
    lease.payload["total"] = 0
    assert lease.payload == {"total": 10}


def test_the_next_lease_says_why_the_job_was_free(lease: Lease, router: Router, clock: ManualClock) -> None:
    """And how often it was started before."""
    lease.progress(checkpoint=[4])
    second = overtaken(router, clock)
    assert (second.attempt, second.reason, second.checkpoint) == (1, Reason.TIMEOUT, [4])
    second.release()
    third = claimed(router)
    assert (third.attempt, third.reason) == (2, Reason.RELEASE)
    assert lease.epoch < second.epoch < third.epoch


def test_a_renewal_moves_the_deadline_from_now(lease: Lease, router: Router, clock: ManualClock) -> None:
    """By as long as the lease was granted for, or as it says; for this lease and for everybody."""
    clock.advance(10)
    assert lease.renew() == lease.expires_at == clock.time + timedelta(seconds=30)
    assert lease.renew(5) == lease.expires_at == clock.time + timedelta(seconds=5)
    assert router.job("p").expires_at == lease.expires_at
    for wrong in (0, -1, float("inf"), "5", True):
        with pytest.raises(InvalidArgument, match="seconds"):
            lease.renew(wrong)  # type: ignore[arg-type]  # that is the point
    assert router.job("p").expires_at == lease.expires_at


def test_an_owner_past_its_deadline_whose_job_nobody_took_goes_on(
    lease: Lease, router: Router, clock: ManualClock
) -> None:
    """Time alone refuses nothing."""
    clock.advance(3600)
    lease.check()
    lease.renew()
    lease.progress(0.5)
    lease.complete()
    assert router.job("p").status is Status.DONE


def test_progress_keeps_what_it_is_not_told(lease: Lease, router: Router) -> None:
    """Everything is optional."""
    lease.progress()
    lease.progress(0.25, note="page 1", checkpoint={"page": 1})
    lease.progress(1)
    lease.progress(note="almost")

    job = router.job("p")
    assert (job.progress, job.note, job.checkpoint) == (1.0, "almost", {"page": 1})
    lease.progress(0)
    assert router.job("p").progress == 0


@pytest.mark.parametrize("wrong", [-0.1, 1.1, 40, float("nan"), "0.4", True, [0.5]], ids=repr)
def test_progress_is_a_number_from_0_to_1(wrong: Any, lease: Lease, router: Router) -> None:
    """40 for 40 % is most likely a mistake."""
    with pytest.raises(InvalidArgument, match="progress must be a number from 0 to 1"):
        lease.progress(wrong)
    assert router.job("p").progress is None


def test_what_cannot_be_kept_is_refused_and_the_lease_goes_on(lease: Lease, router: Router) -> None:
    """A wrong call costs nothing but itself."""
    before = router.snapshot()
    untyped: Any = lease
    wrong: list[Callable[[], Any]] = [
        lambda: untyped.progress(checkpoint={1: 2}),
        lambda: untyped.progress(note=7),
        lambda: untyped.complete({"result": {1}}),
        lambda: untyped.complete(then={"id": "next"}),
        lambda: untyped.complete(then="next"),
        lambda: untyped.complete(then=["next"]),
        lambda: untyped.complete(then=[{"id": "next", "colour": "red"}]),
        lambda: untyped.fail(RuntimeError()),
        lambda: untyped.fail("why", delay_seconds=-1),
        lambda: untyped.release(delay_seconds=float("nan")),
        lambda: untyped.add("", None),
        lambda: untyped.add("child", colour="red"),
        lambda: untyped.once("", lambda key: None),
        lambda: untyped.once("charge", lambda key: None, in_doubt="ignore"),
        lambda: untyped.wait_lost(-1),
    ]
    for call in wrong:
        with pytest.raises(InvalidArgument):
            call()
    assert router.snapshot() == before
    assert not lease.lost
    lease.complete()


# The loser is told


def test_a_lease_is_lost_from_its_first_refusal_on(lease: Lease, router: Router, clock: ManualClock) -> None:
    """Not before: it asks nobody."""
    successor = overtaken(router, clock)
    assert not lease.lost

    with pytest.raises(StaleEpoch) as refused:
        lease.check()

    assert lease.lost
    assert repr(lease).endswith(" lost>")
    assert (refused.value.presented, refused.value.current) == (lease.epoch, successor.epoch)
    assert not successor.lost


@pytest.mark.parametrize(
    "verb", ["check", "renew", "progress", "add", "once", "complete", "fail", "release", "wait_lost"]
)
def test_every_verb_tells_the_loser(verb: str, lease: Lease, router: Router, clock: ManualClock) -> None:
    """With the same facts, and changes nothing."""
    successor = overtaken(router, clock)
    before = router.snapshot()
    called: list[str] = []
    arguments: dict[str, tuple[Any, ...]] = {
        "add": ("child",),
        "once": ("charge", called.append),
        "fail": ("why",),
        "wait_lost": (0,),
    }

    if verb == "wait_lost":
        assert lease.wait_lost(0)
    else:
        with pytest.raises(StaleEpoch) as refused:
            getattr(lease, verb)(*arguments.get(verb, ()))
        assert (refused.value.presented, refused.value.current) == (lease.epoch, successor.epoch)
        assert (refused.value.owner, refused.value.reason) == ("worker-1", "timeout")

    assert lease.lost
    assert called == []
    assert router.snapshot() == before


def test_a_refusal_survives_the_way_to_another_process(lease: Lease, router: Router, clock: ManualClock) -> None:
    """Pickled and copied with its facts and its words."""
    overtaken(router, clock)
    with pytest.raises(StaleEpoch) as refused:
        lease.complete()
    doubt = InDoubt("p", "charge", key="k", epoch=7)

    for error in (refused.value, Settled.of_job("p", presented=1, current=1), doubt):
        for same in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert (type(same), str(same), vars(same)) == (type(error), str(error), vars(error))


def test_wait_lost_waits_for_the_loss_or_for_the_time(
    lease: Lease, router: Router, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever comes first; afterwards it asks nobody."""
    monkeypatch.setattr("leasehold.lease.lease._LOOK_SECONDS", 0.01)
    assert not lease.wait_lost(0)
    assert not lease.wait_lost(0.001)
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(lease.wait_lost(600)))
    waiting.start()
    overtaken(router, clock)
    waiting.join(PATIENCE_SECONDS)

    assert answers == [True]
    assert lease.wait_lost(600)


def test_the_lease_of_a_job_that_is_gone_is_lost(lease: Lease, router: Router, clock: ManualClock) -> None:
    """It was cancelled and pruned; whoever waits for the loss is told that it has come."""
    router.cancel("p", epoch=lease.epoch, by="operator")
    clock.advance(1)
    assert router.prune(keep_seconds=0, keep_ids_seconds=0).jobs == 1

    assert lease.wait_lost(600)
    assert lease.lost
    for verb in (lease.check, lease.renew, lambda: lease.add("child"), lease.complete):
        with pytest.raises(UnknownJob):
            verb()


# The current lease


def test_the_current_lease_is_that_of_the_innermost_block(lease: Lease, router: Router) -> None:
    """Outside of any there is none, and the message says what to do."""
    router.add("b")
    other = claimed(router)
    with pytest.raises(NoLease, match=r"with lease\.active\(\)"):
        current_lease()
    with lease.active() as held:
        assert held is current_lease() is lease
        with pytest.raises(RuntimeError), other.active():  # noqa: PT012  # a block is tested
            assert current_lease() is other
            raise RuntimeError
        assert current_lease() is lease
    with pytest.raises(NoLease):
        current_lease()


def test_threads_of_ones_own_do_not_inherit_the_current_lease(lease: Lease) -> None:
    """It has to be handed to them."""
    seen: list[object] = []

    def look() -> None:
        try:
            seen.append(current_lease())
        except NoLease as error:
            seen.append(error)

    with lease.active():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    [told] = seen
    assert isinstance(told, NoLease)
    assert "does not inherit" in str(told)


def test_tasks_and_to_thread_inherit_the_current_lease(lease: Lease) -> None:
    """Each keeps it for itself."""

    async def look() -> Lease:
        await asyncio.sleep(0)
        return current_lease()

    async def body() -> None:
        with lease.active():
            assert await asyncio.create_task(look()) is lease
            assert await asyncio.to_thread(current_lease) is lease
            late = asyncio.create_task(look())
        assert await late is lease
        with pytest.raises(NoLease):
            current_lease()

    asyncio.run(body())


# once


def test_an_effect_happens_once_and_its_outcome_is_kept_for_every_owner(
    lease: Lease, router: Router, clock: ManualClock
) -> None:
    """As JSON gives it back. The key is the same for all."""
    keys: list[str] = []

    def charge(key: str) -> Any:
        keys.append(key)
        return (1, 2)

    assert lease.once("charge", charge) == [
        1,
        2,
    ]  # the first time too: a second run must not be the first to see a list
    assert lease.once("charge", charge) == [1, 2]
    assert overtaken(router, clock).once("charge", charge) == [1, 2]
    assert keys == [effect.key for effect in router.effects("p")]
    assert [effect.known for effect in router.effects("p")] == [True]


def test_an_outcome_of_none_is_an_outcome(lease: Lease) -> None:
    """A call that returns nothing is not made again."""
    calls: list[str] = []
    for _ in range(2):
        assert lease.once("mail", calls.append) is None
    assert len(calls) == 1


def test_effects_of_other_names_and_jobs_have_other_keys(lease: Lease, router: Router) -> None:
    """So that one payment provider can tell them apart."""
    router.add("b")
    other = claimed(router)
    keys = {one.once(name, lambda key: key) for one in (lease, other) for name in ("charge", "refund")}
    assert len(keys) == 4


def test_an_exception_leaves_the_effect_in_doubt(lease: Lease, router: Router, clock: ManualClock) -> None:
    """For this owner and for the next, who is told how to look it up."""

    def fails(key: str) -> None:
        raise TimeoutError(key)

    with pytest.raises(TimeoutError) as raised:
        lease.once("charge", fails)
    key = str(raised.value)
    owners: list[Callable[[], Lease]] = [lambda: lease, lambda: overtaken(router, clock)]
    for owner in owners:
        with pytest.raises(InDoubt, match=r"router\.resolve") as doubt:
            owner().once("charge", fails)
        assert (doubt.value.job_id, doubt.value.name, doubt.value.key) == ("p", "charge", key)
        assert doubt.value.epoch == lease.epoch
    assert [(effect.name, effect.known) for effect in router.effects("p")] == [("charge", False)]


def test_a_harmless_effect_is_tried_again_with_the_same_key(lease: Lease, router: Router, clock: ManualClock) -> None:
    """If the caller says that it is harmless."""
    keys: list[str] = []

    def flaky(key: str) -> str:
        keys.append(key)
        if len(keys) < 3:
            raise TimeoutError
        return "paid"

    with pytest.raises(TimeoutError):
        lease.once("charge", flaky, in_doubt="retry")
    with pytest.raises(TimeoutError):
        lease.once("charge", flaky, in_doubt="retry")
    assert overtaken(router, clock).once("charge", flaky, in_doubt="retry") == "paid"
    assert len(set(keys)) == 1


def test_an_effect_that_was_undone_begins_anew(lease: Lease, router: Router) -> None:
    """The exception says that nothing happened; it comes out all the same."""

    class Declined(Exception):
        pass

    def declined(key: str) -> None:
        raise Declined(key)

    with pytest.raises(Declined):
        lease.once("charge", declined, undone=(OSError, Declined))
    assert router.effects("p") == []
    assert lease.once("charge", lambda key: "paid") == "paid"


def test_an_outcome_that_cannot_be_kept_leaves_the_effect_in_doubt(lease: Lease) -> None:
    """It has happened, and nobody could record how."""
    with pytest.raises(InvalidArgument, match="the outcome of effect 'charge'"):
        lease.once("charge", lambda key: {key})
    with pytest.raises(InDoubt):
        lease.once("charge", lambda key: key)


def test_an_owner_that_lost_the_job_during_the_effect_is_told(lease: Lease, router: Router, clock: ManualClock) -> None:
    """What it did stays in doubt for its successor: unknown means refused."""
    successors: list[Lease] = []

    def slow(key: str) -> str:
        successors.append(overtaken(router, clock))
        return "paid"

    with pytest.raises(StaleEpoch):
        lease.once("charge", slow)
    with pytest.raises(InDoubt):
        successors[0].once("charge", lambda key: "paid twice")


def test_an_operator_resolves_what_is_in_doubt(lease: Lease, router: Router) -> None:
    """With the outcome, which the next call returns without calling; or as not having happened."""

    def fails(key: str) -> None:
        raise TimeoutError

    def never(key: str) -> Any:
        raise AssertionError("called although the outcome is known")

    for name in ("charge", "mail"):
        with pytest.raises(TimeoutError):
            lease.once(name, fails)
    router.resolve(router.job("p"), "charge", by="operator", outcome={"paid": 10}, note="looked it up")
    router.resolve("p", "mail", epoch=lease.epoch, by="operator", happened=False)

    assert lease.once("charge", never) == {"paid": 10}
    assert lease.once("mail", lambda key: "sent") == "sent"
    with pytest.raises(Conflict, match="is not in doubt"):
        router.resolve(router.job("p"), "charge", by="operator", outcome=1)
    with pytest.raises(Conflict, match="has no record of an effect named 'fax'"):
        router.resolve(router.job("p"), "fax", by="operator")
    [first, _] = router.events("p", kind="resolved")
    assert (first.facts["by"], first.facts["note"]) == ("operator", "looked it up")


# Children


def test_the_ids_of_children_come_from_the_parent_and_the_name(lease: Lease, router: Router) -> None:
    """The second of a name is numbered; without a name, task and payload are the name."""
    ids = [lease.add("child").job.id, lease.add("child").job.id, lease.add("other").job.id]
    assert ids == ["p/child", "p/child#2", "p/other"]

    by_payload = [lease.add(None, {"to": who}, task="send").job.id for who in ("x", "y", "x")]
    assert by_payload[0].startswith("p/send:")
    assert by_payload[2] == by_payload[0] + "#2"
    assert len(set(by_payload)) == 3
    assert lease.add(payload=1).job.id.startswith("p/job:")
    assert {job.parent for job in router.jobs(parent="p")} == {"p"}
    assert len(router.jobs(parent="p")) == 7


def test_children_take_the_options_of_add(lease: Lease, router: Router, clock: ManualClock) -> None:
    """All of them."""
    job = lease.add("child", [1], queue="q", priority=2, delay_seconds=3, lock="k", retry=Retry(max_errors=1)).job
    assert (job.payload, job.queue, job.priority, job.lock, job.retry.max_errors) == ([1], "q", 2, "k", 1)
    assert job.run_at == clock.time + timedelta(seconds=3)


def test_a_childs_id_that_would_be_too_long_is_a_digest(router: Router) -> None:
    """The same one in every run, and another one for another child."""
    router.add("p" * 250)
    lease = claimed(router)
    first, second = lease.add("child").job, lease.add("child").job
    assert first.id.startswith("child:")
    assert first.id != second.id
    assert first.parent == "p" * 250
    lease.release()
    again = claimed(router)
    if again.job_id != "p" * 250:  # the children came first
        pytest.fail("jobs are claimed in the order of their insertion")
    assert not again.add("child").created


def test_a_second_run_finds_its_children(lease: Lease, router: Router, clock: ManualClock) -> None:
    """Whatever the first one got to; what it did not get to is added."""

    def run(owner: Lease, names: list[str | None]) -> list[tuple[str, bool]]:
        return [(added.job.id, added.created) for added in (owner.add(name, 1) for name in names)]

    first = run(lease, ["a", "a", None])
    clock.advance(31)
    second = router.claim("worker-1", queues=["mail"])
    assert second is not None
    again = run(second, ["a", "a", None, "a"])

    assert again == [(id, False) for id, _ in first] + [("p/a#3", True)]
    assert len(router.jobs(parent="p")) == 4


def test_what_a_completion_sets_off_is_numbered_after_what_was_added(lease: Lease, router: Router) -> None:
    """Mappings and jobs made elsewhere alike."""
    lease.add("a")
    lease.complete(then=[{"id": "a"}, new_job("a"), {"payload": 1, "task": "send"}, {"id": "b"}])

    ids = [job.id for job in router.jobs(parent="p")]
    assert [ids[0], ids[1], ids[2], ids[4]] == ["p/a", "p/a#2", "p/a#3", "p/b"]
    assert ids[3].startswith("p/send:")


def test_a_completion_that_is_repeated_after_a_lost_reply_sets_off_nothing_twice(
    lease: Lease, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same words ask for the same ids, and are accepted; other words are not."""
    settle = router.store.settle

    def losing(*args: Any) -> Any:
        settle(*args)
        raise StoreUnavailable("the reply was lost")

    lease.add("a")
    monkeypatch.setattr(router.store, "settle", losing)
    with pytest.raises(StoreUnavailable):
        lease.complete(1, then=[{"id": "a"}, {"payload": 2}])
    monkeypatch.undo()
    before = router.snapshot()
    lease.complete(1, then=[{"id": "a"}, {"payload": 2}])

    assert router.snapshot() == before
    assert len(before) == 4
    with pytest.raises(Settled) as refused:
        lease.complete(2)
    assert refused.value.reason is None


def test_an_add_that_is_repeated_after_a_lost_reply_asks_for_the_same_id(
    lease: Lease, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is counted once the store has said yes, and not before."""
    add = router.store.add_children

    def losing(*args: Any) -> Any:
        add(*args)
        raise StoreUnavailable("the reply was lost")

    monkeypatch.setattr(router.store, "add_children", losing)
    with pytest.raises(StoreUnavailable):
        lease.add("child")
    monkeypatch.undo()

    assert lease.add("child") == (router.job("p/child"), False)
    assert lease.add("child").job.id == "p/child#2"


# Settling


def test_an_error_goes_back_after_its_rest_until_the_budget_is_spent(
    lease: Lease, router: Router, clock: ManualClock
) -> None:
    """The rest is the job's own, or what the owner says."""
    lease.fail("first")
    job = router.job("p")
    assert (job.status, job.errors, job.last_error) == (Status.PENDING, 1, "first")
    assert job.run_at == clock.time + timedelta(seconds=1)

    clock.advance(1)
    claimed(router).fail("second", delay_seconds=100)
    job = router.job("p")
    assert (job.status, job.errors, job.last_error) == (Status.FAILED, 2, "second")


def test_an_error_that_must_not_be_tried_again_is_final(lease: Lease, router: Router) -> None:
    """Whatever the budget says."""
    lease.fail("hopeless", retry=False)
    assert (router.job("p").status, router.job("p").errors) == (Status.FAILED, 1)


def test_a_release_costs_nothing(lease: Lease, router: Router, clock: ManualClock) -> None:
    """And may ask for a rest."""
    lease.release(delay_seconds=5)
    assert router.claim("worker-1") is None
    clock.advance(5)
    again = claimed(router)
    assert (again.attempt, router.job("p").errors, router.job("p").reclaims) == (1, 0, 0)


def test_a_settled_lease_writes_no_more(lease: Lease, router: Router) -> None:
    """It is told that it was itself who settled."""
    lease.complete(7)
    for verb in (lease.renew, lambda: lease.progress(0.5), lambda: lease.add("child"), lambda: lease.fail("late")):
        with pytest.raises(Settled, match="its owner has already settled"):
            verb()
    assert (router.job("p").result, list(router.snapshot())) == (7, ["p"])
