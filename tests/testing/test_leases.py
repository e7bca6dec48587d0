"""A lease for a handler's test is a real one, and can be made stale."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from leasehold import Conflict, Lease, Reason, Router, StaleEpoch, Status, current_lease
from leasehold.testing import ManualClock, lease, take_over


def test_every_verb_works_on_it() -> None:
    """It is a lease of a real store."""
    mine = lease({"image": 42}, task="resize")

    assert (mine.payload, mine.task, mine.owner, mine.attempt) == ({"image": 42}, "resize", "test", 0)
    assert (mine.checkpoint, mine.reason) == (None, Reason.CLAIM)
    mine.check()
    mine.renew(60)
    mine.progress(0.5, note="half", checkpoint={"page": 5})
    assert mine.add("child", {"n": 1}).created
    assert mine.once("charge", lambda key: "charged") == "charged"
    mine.complete({"ok": True})

    job = mine.store.job(mine.job_id)
    assert (job.status, job.result, job.checkpoint) == (Status.DONE, {"ok": True}, {"page": 5})
    assert mine.store.verify() == []


@pytest.mark.parametrize("verb", ["fail", "release"])
def test_it_can_be_ended_otherwise(verb: str) -> None:
    """The job is pending again."""
    mine = lease()
    if verb == "fail":
        mine.fail("why")
    else:
        mine.release()

    assert mine.store.job(mine.job_id).status is Status.PENDING


def test_its_verbs_can_be_awaited() -> None:
    """As in an async handler."""
    mine = lease()
    asyncio.run(mine.aio.complete("done"))

    assert mine.store.job(mine.job_id).result == "done"


def test_it_can_be_the_current_one() -> None:
    """Inside its block."""
    with lease(owner="me").active():
        assert current_lease().owner == "me"


def test_a_task_stands_for_its_name() -> None:
    """As `@router.task` made it."""
    router = Router()

    @router.task(name="images.resize")
    def resize(lease: Lease, image: int) -> str:
        return f"{lease.task} {image}"

    assert resize(lease(task=resize), 42) == "images.resize 42"


def test_a_checkpoint_was_left_by_an_earlier_owner() -> None:
    """So this is the second attempt."""
    mine = lease(checkpoint={"page": 4})

    assert (mine.checkpoint, mine.attempt, mine.reason) == ({"page": 4}, 1, Reason.RELEASE)
    assert mine.store.job(mine.job_id).errors == 0


def test_its_time_is_the_clocks() -> None:
    """Which a test moves."""
    clock = ManualClock()
    mine = lease(clock=clock, lease_seconds=5)

    assert (mine.expires_at - clock.time).total_seconds() == 5
    clock.advance(6)
    mine.check()  # time alone refuses nothing
    mine.store.reclaim()
    with pytest.raises(StaleEpoch) as refusal:
        mine.check()
    assert refusal.value.reason is Reason.TIMEOUT


def test_each_has_a_store_of_its_own() -> None:
    """Two tests cannot meet."""
    assert lease().store is not lease().store


def test_a_lease_that_is_taken_over_is_stale() -> None:
    """It is not told before it writes; then it is refused, and its successor is not."""
    mine = lease({"image": 42}, lease_seconds=5)
    mine.progress(checkpoint=1)

    successor = take_over(mine)

    assert not mine.lost
    with pytest.raises(StaleEpoch) as refusal:
        mine.complete("mine")
    assert mine.lost
    assert (refusal.value.presented, refusal.value.current) == (mine.epoch, successor.epoch)
    assert (refusal.value.owner, refusal.value.reason) == ("successor", Reason.MANUAL)
    assert (successor.owner, successor.payload, successor.checkpoint) == ("successor", {"image": 42}, 1)
    assert (successor.expires_at - successor.granted_at).total_seconds() == 5
    successor.complete("theirs")
    assert mine.store.job(mine.job_id).result == "theirs"


def test_a_successor_can_be_taken_over_in_turn() -> None:
    """And a lease that is stale already, or settled, cannot."""
    mine = lease()
    second = take_over(mine)
    third = take_over(second, owner="third")

    assert third.epoch > second.epoch > mine.epoch
    assert third.owner == "third"
    with pytest.raises(StaleEpoch):
        take_over(mine)
    third.complete()
    with pytest.raises(Conflict, match="is done"):
        take_over(third)


def test_a_lease_of_any_store_can_be_taken_over(tmp_path: Path) -> None:
    """Also of one with transactions: a stale owner begins none."""
    with Router(f"sqlite:///{tmp_path}/jobs.db") as router:
        router.add("a")
        mine = router.claim("worker-0")
        assert mine is not None
        successor = take_over(mine)

        with pytest.raises(StaleEpoch), mine.transaction():
            pytest.fail("a stale owner has begun")
        successor.complete()
