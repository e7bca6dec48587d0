"""C60 to C62: to which worker a transfer goes, and how it is picked up."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from ...core.job import Grant, Progress, Status, new_job
from ...core.ownership import Reason
from ...core.retry import Retry
from ...errors import Conflict, StaleEpoch
from ...store import Renewal, Store
from .support import (
    SECOND,
    AlarmClock,
    Contract,
    Waiter,
    a_process,
    completed,
    expire,
    ids,
    in_threads,
    last_event,
    one,
    refusal,
    released,
    settle,
)
from .workers import PROCESS, reported


def handed(store: Store, to: str = "b", job_id: str = "a") -> Grant:
    """Transfer a new job, which was never claimed."""
    store.add([new_job(job_id)])
    return store.transfer(job_id, 0, to=to, by="ops")


# How an owner picks a transfer up.
PICK_UPS: dict[str, Callable[[Store, Grant], object]] = {
    "lease": lambda store, grant: store.lease("a", "b"),
    "accept": lambda store, grant: store.accept("b", [("a", grant.epoch)], claim_id="mine"),
    "renew": lambda store, grant: store.renew([Renewal("a", grant.epoch)]),
}

# What everybody may look at, and what the owner may say without having asked for the lease.
LOOKS: dict[str, Callable[[Store, Grant], object]] = {
    "job": lambda store, grant: store.job("a"),
    "jobs": lambda store, grant: store.jobs(owner="b"),
    "ownerships": lambda store, grant: store.ownerships("a"),
    "transfers": lambda store, grant: store.transfers("b"),
    "check": lambda store, grant: store.check([("a", grant.epoch)]),
    "progress": lambda store, grant: store.progress([Progress("a", grant.epoch, 0.5)]),
    "another's accept": lambda store, grant: store.accept("c", [("a", grant.epoch)], claim_id="mine"),
}

# What takes a transfer from its owner before it was picked up.
MOVES: dict[str, Callable[[Store, AlarmClock, Grant], object]] = {
    "expired": lambda store, clock, grant: expire(store, clock),
    "transferred to another": lambda store, clock, grant: store.transfer("a", grant.epoch, to="c", by="ops"),
    "transferred again": lambda store, clock, grant: store.transfer("a", grant.epoch, to="b", by="ops"),
    "cancelled": lambda store, clock, grant: store.cancel("a", grant.epoch, by="ops"),
    "requeued": lambda store, clock, grant: store.requeue("a", grant.epoch, by="ops"),
    "finished": lambda store, clock, grant: store.finish("a", grant.epoch, by="ops"),
    "completed": lambda store, clock, grant: settle(store, completed(grant)),
}


class PickingUp(Contract):
    """Transfers reach their owners."""

    # To whom a transfer goes

    def test_c60_a_workers_own_name_comes_first(self, store: Store) -> None:
        """Also if others were given it as their name."""
        reported(store, "w1", given_name="shop"), reported(store, "w2", given_name="w1"), reported(store, "w3", "w1")

        assert handed(store, "w1").owner == "w1"
        assert last_event(store, "transferred").owner == "w1"

    @pytest.mark.parametrize("running", [False, True], ids=["pending", "running"])
    def test_c60_a_given_name_is_the_only_live_worker_that_has_it(
        self, store: Store, clock: AlarmClock, running: bool
    ) -> None:
        """Dead ones do not count; the job, its record and its event have the worker's own name."""
        reported(store, "w1")
        clock.advance(30)
        reported(store, "w2"), reported(store, "w3", given_name="other")
        store.add([new_job("a")])
        epoch = one(store).epoch if running else 0

        grant = store.transfer("a", epoch, to="shop", by="ops")

        assert (grant.owner, store.job("a").owner, store.ownerships("a")[-1].owner) == ("w2", "w2", "w2")
        assert last_event(store, "transferred").owner == "w2"
        assert store.transfers("w2") == [("a", grant.epoch)]

    def test_c60_a_name_of_several_live_workers_is_a_conflict(self, store: Store) -> None:
        """It names them, and nothing has changed."""
        reported(store, "w2"), reported(store, "w1")
        store.add([new_job("a")])
        before = store.job("a")

        with pytest.raises(Conflict, match=r"'a' .* 'shop': 2 live workers .* name of one of them: 'w1', 'w2'"):
            store.transfer("a", 0, to="shop", by="ops")

        assert store.job("a") == before
        assert store.transfer("a", 0, to="w1", by="ops").owner == "w1"

    def test_c60_any_other_name_is_taken_as_it_is(self, store: Store, clock: AlarmClock) -> None:
        """That of an owner without a worker, and that of workers which are dead or gone."""
        reported(store, "w1"), reported(store, "w2"), reported(store, "w3", given_name="gone")
        store.retire("w3")
        assert handed(store, "agent", "a").owner == "agent"
        assert handed(store, "gone", "b").owner == "gone"
        clock.advance(30)
        assert handed(store, "shop", "c").owner == "shop"
        assert handed(store, "w1", "d").owner == "w1"

    def test_c60_a_stale_operator_is_refused_before_the_name_is_looked_at(self, store: Store) -> None:
        """The refusal is the more important one."""
        reported(store, "w1"), reported(store, "w2")
        store.add([new_job("a")])
        one(store)

        with pytest.raises(StaleEpoch):
            store.transfer("a", 0, to="shop", by="ops")

    # What counts as picked up

    @pytest.mark.parametrize("way", PICK_UPS)
    def test_c61_its_owner_picks_a_transfer_up(self, store: Store, clock: AlarmClock, way: str) -> None:
        """Then it waits no longer, and its expiry counts a reclaim as that of a claim does (C36)."""
        grant = handed(store)
        assert store.transfers("b") == [("a", grant.epoch)]

        PICK_UPS[way](store, grant)

        assert store.transfers("b") == []
        [ended] = expire(store, clock)
        assert (ended.ended, store.job("a").reclaims) == (Reason.TIMEOUT, 1)
        assert store.job("a").last_error == "the lease of 'b' expired; reclaimed"

    @pytest.mark.parametrize("way", LOOKS)
    def test_c61_nothing_else_picks_it_up(self, store: Store, way: str) -> None:
        """Readers look at it, and another owner asks in vain."""
        grant = handed(store)

        LOOKS[way](store, grant)

        assert store.transfers("b") == [("a", grant.epoch)]

    def test_c61_a_claim_is_picked_up_by_itself(self, store: Store) -> None:
        """Of whatever path."""
        store.add([new_job("a"), new_job("b"), new_job("c", lock="k")])
        one(store, "w"), store.claim("w", limit=5)

        assert store.transfers("w") == []

    def test_c61_the_oldest_transfer_comes_first(self, store: Store) -> None:
        """Of its owner, and of no other."""
        second, first = handed(store, "b", "z"), handed(store, "b", "a")
        handed(store, "c", "b")

        assert store.transfers("b") == [("z", second.epoch), ("a", first.epoch)]

    @pytest.mark.parametrize("move", MOVES)
    def test_c61_a_transfer_that_moved_on_waits_no_longer(self, store: Store, clock: AlarmClock, move: str) -> None:
        """But for one to the same owner again, under its own epoch."""
        grant = handed(store)

        MOVES[move](store, clock, grant)

        again = [("a", store.job("a").epoch)] if move == "transferred again" else []
        assert store.transfers("b") == again
        settled = store.job("a")
        if settled.status is Status.PENDING:
            assert one(store, "b").epoch > grant.epoch
            assert store.transfers("b") == []

    def test_c36_a_transfer_that_was_not_picked_up_counts_no_reclaim(self, store: Store, clock: AlarmClock) -> None:
        """It expires as often as it is handed on, and the job has its whole budget left."""
        store.add([new_job("a", retry=Retry(max_reclaims=0))])
        for _ in range(2):
            grant = store.transfer("a", store.job("a").epoch, to="b", by="ops")

            [ended] = expire(store, clock)

            job = store.job("a")
            assert (ended.epoch, ended.ended, ended.by) == (grant.epoch, Reason.TIMEOUT, "leasehold")
            assert ended.note == job.last_error == "the lease of 'b' expired; it was never picked up"
            assert (job.status, job.reclaims, job.errors, job.reason) == (Status.PENDING, 0, 0, Reason.TIMEOUT)
            assert job.epoch > grant.epoch
            assert refusal(store.check([("a", grant.epoch)])[0]).reason == Reason.TIMEOUT
        assert one(store).reason == Reason.TIMEOUT
        expire(store, clock)
        assert store.job("a").status is Status.FAILED

    def test_c36_nor_one_that_stalls_before_it_is_picked_up(self, store: Store, clock: AlarmClock) -> None:
        """No work could move."""
        store.add([new_job("a", stall_seconds=5)])
        store.transfer("a", 0, to="b", by="ops")
        clock.advance(5)

        [ended] = store.reclaim()

        assert (ended.ended, store.job("a").reclaims) == (Reason.STALL, 0)
        assert ended.note == "'b' made no progress in time; it was never picked up"

    def test_c36_nor_one_that_a_claim_takes_back(self, store: Store, clock: AlarmClock) -> None:
        """A claim sweeps by the same rule."""
        handed(store)
        clock.advance(30)

        assert one(store).reason == Reason.TIMEOUT
        assert store.job("a").reclaims == 0

    def test_c19_a_lease_is_picked_up_by_its_owner_alone(self, store: Store, clock: AlarmClock) -> None:
        """Waiting for it, too; the lease itself is as it was granted."""
        store.add([new_job("a")])
        waiter = Waiter(store, clock, call=functools.partial(store.lease, "a", "b"))

        grant = store.transfer("a", 0, to="b", by="ops")

        assert waiter.result() == grant
        assert store.transfers("b") == []
        expire(store, clock)
        assert store.job("a").reclaims == 1

    # Accepting

    def test_c62_an_accepted_transfer_lasts_from_now_on(self, store: Store, clock: AlarmClock) -> None:
        """With the claim's id and process; `claimed` finds it."""
        store.add([new_job("a", stall_seconds=20)])
        grant = store.transfer("a", 0, to="b", by="ops")
        clock.advance(15)

        [accepted] = store.accept("b", [("a", grant.epoch)], claim_id="mine", process=PROCESS)

        expires = clock.now() + 30 * SECOND
        assert accepted == grant._replace(claim_id="mine", process=PROCESS, expires_us=expires)
        assert store.claimed("mine") == [accepted]
        assert store.lease("a", "b") == accepted
        assert store.job("a").renewed_us == clock.now()
        clock.advance(15)
        assert store.reclaim() == []
        store.progress([Progress("a", grant.epoch)])
        clock.advance(15)
        assert [ended.ended for ended in store.reclaim()] == [Reason.TIMEOUT]

    def test_c62_an_accepted_transfer_stalls_from_now_on(self, store: Store, clock: AlarmClock) -> None:
        """The time before it does not count: no owner had the job."""
        store.add([new_job("a", stall_seconds=20)])
        grant = store.transfer("a", 0, to="b", by="ops")
        clock.advance(15)
        store.accept("b", [("a", grant.epoch)], claim_id="mine")

        clock.advance(19)
        assert store.reclaim() == []
        clock.advance(1)
        assert [ended.ended for ended in store.reclaim()] == [Reason.STALL]
        assert store.job("a").reclaims == 1

    def test_c62_the_same_call_again_answers_the_same(self, store: Store, clock: AlarmClock) -> None:
        """After a lost reply; its lease lasts from the last call."""
        grant = handed(store)
        [first] = store.accept("b", [("a", grant.epoch)], claim_id="mine", process=PROCESS)
        clock.advance(5)

        [again] = store.accept("b", [("a", grant.epoch)], claim_id="mine", process=PROCESS)

        assert again == first._replace(expires_us=clock.now() + 30 * SECOND)
        assert len(store.ownerships("a")) == 1

    def test_c62_what_was_picked_up_before_is_left_out(self, store: Store) -> None:
        """By another call of the same owner, or by `lease`; and so is what was claimed."""
        grants = [handed(store, "b", job_id) for job_id in ("a", "b", "c")]
        store.accept("b", [("a", grants[0].epoch)], claim_id="other")
        store.lease("b", "b")
        store.add([new_job("d")])
        grants.append(one(store, "b"))

        accepted = store.accept("b", [(grant.spec.id, grant.epoch) for grant in grants], claim_id="mine")

        assert ids(accepted) == ["c"]
        assert [grant.claim_id for grant in store.claimed("other")] == ["other"]

    def test_c62_of_two_calls_at_once_one_gets_the_lease(self, store: Store) -> None:
        """Two threads under one worker's name, and however often."""
        for number in range(5):
            grant = handed(store, "b", f"job-{number}")
            call = functools.partial(store.accept, "b", [(f"job-{number}", grant.epoch)])

            answers = in_threads(*(functools.partial(call, claim_id=f"{number}-{n}") for n in range(2)))

            assert sorted(map(len, answers)) == [0, 1]
            [[accepted]] = [answer for answer in answers if answer]
            assert store.claimed(accepted.claim_id) == [accepted]

    @pytest.mark.parametrize("move", MOVES)
    def test_c62_what_has_moved_since_is_left_out(self, store: Store, clock: AlarmClock, move: str) -> None:
        """And stays as it is: the name and the epoch are compared in the same step."""
        grant = handed(store)
        MOVES[move](store, clock, grant)
        before = store.job("a"), store.ownerships("a")

        assert store.accept("b", [("a", grant.epoch)], claim_id="mine", process=PROCESS) == []

        assert (store.job("a"), store.ownerships("a")) == before
        assert store.claimed("mine") == []

    @pytest.mark.parametrize(("owner", "off"), [("c", 0), ("b", 1), ("b", -1)], ids=["name", "above", "below"])
    def test_c62_a_wrong_name_or_epoch_is_left_out(self, store: Store, owner: str, off: int) -> None:
        """And so is a job that does not exist; the transfer still waits."""
        grant = handed(store)

        assert store.accept(owner, [("a", grant.epoch + off), ("no-such-job", 1)], claim_id="mine") == []

        assert store.transfers("b") == [("a", grant.epoch)]

    def test_c62_past_its_deadline_it_can_be_accepted_until_it_is_taken(self, store: Store, clock: AlarmClock) -> None:
        """Time only permits a takeover (C4)."""
        grant = handed(store)
        clock.advance(40)

        [accepted] = store.accept("b", [("a", grant.epoch)], claim_id="mine")

        assert store.reclaim() == []
        settle(store, completed(accepted))

    def test_c62_the_expiry_and_the_pick_up_exclude_each_other(self, store: Store, clock: AlarmClock) -> None:
        """Whichever comes first, the job is its owner's or waits, and no reclaim is counted."""
        for number in range(5):
            job_id = f"job-{number}"
            grant = handed(store, "b", job_id)
            clock.advance(30)

            accepted, ended = in_threads(
                functools.partial(store.accept, "b", [(job_id, grant.epoch)], claim_id=job_id), store.reclaim
            )

            assert len(accepted) + len(ended) == 1
            assert store.job(job_id).reclaims == 0
            assert (store.job(job_id).owner == "b") is bool(accepted)
            store.cancel(job_id, store.job(job_id).epoch, by="ops")

    @pytest.mark.parametrize("verb", ["transfer", "cancel"])
    def test_c62_an_operator_and_the_pick_up_exclude_each_other(self, store: Store, verb: str) -> None:
        """The operator's verb is done in any case: it names the epoch, which a pick-up keeps; the owner is refused."""
        for number in range(5):
            job_id = f"job-{number}"
            grant = handed(store, "b", job_id)
            options = {"to": "c"} if verb == "transfer" else {}
            move = functools.partial(getattr(store, verb), job_id, grant.epoch, by="ops", **options)

            accepted, _ = in_threads(
                functools.partial(store.accept, "b", [(job_id, grant.epoch)], claim_id=job_id), move
            )

            assert len(accepted) <= 1
            assert store.transfers("b") == []
            assert store.claimed(job_id) == []
            refusal(store.renew([Renewal(job_id, grant.epoch)])[0])
            assert store.job(job_id).owner == ("c" if verb == "transfer" else None)

    def test_c62_trap_20_the_process_of_who_picks_up_can_be_proved_dead(self, store: Store) -> None:
        """That of the operator, or of the owner before, proves nothing (C37)."""
        with a_process() as process:
            grant = handed(store)
            store.accept("b", [("a", grant.epoch)], claim_id="mine", process=process.name)
            process.die()

            [ended] = store.reclaim()

        assert (ended.ended, store.job("a").reclaims) == (Reason.RECOVERY, 1)

    def test_c62_a_job_that_is_handed_back_keeps_its_budgets(self, store: Store) -> None:
        """As one that its worker does not know is."""
        grant = handed(store)
        [accepted] = store.accept("b", [("a", grant.epoch)], claim_id="mine")

        settle(store, released(accepted))

        job = store.job("a")
        assert (job.status, job.reclaims, job.errors) == (Status.PENDING, 0, 0)

    def test_c62_a_second_store_accepts_too(self, store: Store, another: Store) -> None:
        """The worker is usually another process than the operator."""
        grant = handed(store)

        assert another.transfers("b") == [("a", grant.epoch)]
        [accepted] = another.accept("b", [("a", grant.epoch)], claim_id="mine")
        assert store.transfers("b") == []
        assert store.claimed("mine") == [accepted]
