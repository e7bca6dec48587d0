"""The async face: the same verbs, on a loop that is never blocked, and no lease lost to a cancellation."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.patience import PATIENCE_SECONDS

from leasehold import AsyncLease, AsyncRouter, InvalidArgument, Lease, NoLease, Router, StaleEpoch, Status, UnknownJob
from leasehold.aio import Facade
from leasehold.testing import ManualClock

# What has no async form, and why.
NOT_VERBS = {
    Router: {
        "aio",  # is where the async form is
        "task",  # these ask no store
        "around",
        "lifespan",
        "on",
        "guard",
        "override",
        "worker",  # `async with router.worker():`
        "work",  # has the main thread to itself
    },
    Lease: {
        "aio",
        "active",  # asks no store: `with lease.active():` is right in async code too
    },
}


@pytest.fixture
def clock() -> ManualClock:
    """The time, which only the test moves."""
    return ManualClock()


@pytest.fixture
def router(clock: ManualClock) -> Iterator[Router]:
    """A store in memory, whole at the end."""
    with Router(clock=clock) as router:
        yield router
        assert router.store.verify() == []


def verbs_of(kind: type[Any]) -> dict[str, Callable[..., Any]]:
    """The public methods of *kind*, its own and inherited; properties ask nobody, and are no verbs."""
    return dict(inspect.getmembers(kind, lambda value: inspect.isfunction(value) and value.__name__[0] != "_"))


@pytest.mark.parametrize(("face", "kind"), [(AsyncRouter, Router), (AsyncLease, Lease)])
def test_the_async_face_has_exactly_the_verbs(face: type[Facade], kind: type[Any]) -> None:
    """With the same parameters, by the same names, in the same order, with the same defaults."""
    verbs = {name: verb for name, verb in verbs_of(kind).items() if name not in NOT_VERBS[kind]}

    assert set(verbs_of(face)) == set(verbs)
    for name, verb in verbs.items():
        theirs = inspect.signature(getattr(face, name), follow_wrapped=True)
        ours = inspect.signature(verb)
        # But for the first one: `self`, or the router in a function that is its method.
        shape = [(one.name, one.kind, one.default) for one in ours.parameters.values()][1:]
        assert [(one.name, one.kind, one.default) for one in theirs.parameters.values()][1:] == shape, name


@pytest.mark.parametrize("face", [AsyncRouter, AsyncLease])
def test_every_async_verb_is_documented(face: type[Facade]) -> None:
    """Those that are made from the synchronous verb take over its words."""
    for name, verb in verbs_of(face).items():
        assert verb.__doc__, name


def test_every_verb_of_a_router_works(router: Router, clock: ManualClock) -> None:
    """From the first add to the close."""

    async def body() -> None:
        aio = router.aio
        assert (await aio.add("a", 1)).created
        assert [added.created for added in await aio.add_many([{"id": "b"}, {"id": "c", "queue": "q"}])] == [True] * 2
        lease = await aio.claim("worker-0")
        assert lease is not None
        assert (await aio.lease("a", owner="worker-0")).epoch == lease.epoch
        [other] = await aio.claim_many("worker-0", limit=9, queues=["q"], lease_seconds=5)
        moved = await aio.transfer("a", to="worker-1", by="operator", epoch=lease.epoch)
        with pytest.raises(StaleEpoch):
            await lease.aio.check()
        with pytest.raises(RuntimeError):
            await moved.aio.once("charge", charge)
        assert [effect.known for effect in await aio.effects("a")] == [False]
        assert (await aio.resolve(await aio.job("a"), "charge", by="operator", outcome=7)).owner == "worker-1"
        clock.advance(6)
        assert [ended.job_id for ended in await aio.reclaim()] == [other.job_id]
        assert (await aio.complete(await aio.job("a"), by="operator", result=1)).status is Status.DONE
        assert (await aio.cancel(await aio.job("b"), by="operator")).status is Status.CANCELLED
        assert (await aio.replay(await aio.job("b"), by="operator")).status is Status.PENDING
        assert await aio.claim("worker", queues=["default"]) is not None
        assert (await aio.requeue(await aio.job("b"), by="operator")).status is Status.PENDING
        assert (await aio.pause("q", by="operator", note="why")).paused
        assert [(queue.name, queue.paused_note) for queue in await aio.queues()] == [("default", None), ("q", "why")]
        assert not (await aio.resume("q", by="operator")).paused
        assert set(await aio.snapshot()) == {"a", "b", "c"}
        assert [job.id for job in await aio.jobs(status="done")] == ["a"]
        assert [past.owner for past in await aio.ownerships("a")] == ["worker-0", "worker-1"]
        assert {event.kind for event in await aio.events("b")} == {"cancelled", "replayed", "requeued"}
        assert (await aio.counts()).done == 1
        clock.advance(1)
        assert (await aio.prune(keep_seconds=0)).jobs == 1

    async def charge(key: str) -> None:
        raise RuntimeError(key)

    asyncio.run(body())


def test_closing_is_a_verb_too() -> None:
    """Afterwards the router is closed for everybody."""
    router = Router()
    asyncio.run(router.aio.close())

    with pytest.raises(Exception, match="closed"):
        router.add("a")


def test_every_verb_of_a_lease_works(router: Router, clock: ManualClock) -> None:
    """And moves what its synchronous twin would move."""

    async def effect(key: str) -> str:
        return key

    async def body() -> None:
        router.add_many([{"id": name} for name in ("a", "b", "c")])
        first, second, third = await router.aio.claim_many("worker-0", lease_seconds=30)
        aio = first.aio
        await aio.check()
        clock.advance(5)
        assert await aio.renew(60) == first.expires_at
        await aio.progress(0.5, note="half", checkpoint={"page": 1})
        assert (router.job("a").progress, router.job("a").checkpoint) == (0.5, {"page": 1})
        assert (await aio.add("child")).job.id == "a/child"
        key = await aio.once("charge", effect)
        assert [(one.key, one.known) for one in router.effects("a")] == [(key, True)]
        assert not await aio.wait_lost(0)
        await aio.complete(1, then=[{"id": "next"}])
        await second.aio.fail("no luck", retry=False)
        await third.aio.release(delay_seconds=5)
        assert [str(router.job(name).status) for name in "abc"] == ["done", "failed", "pending"]
        assert set(router.snapshot()) == {"a", "a/child", "a/next", "b", "c"}

    asyncio.run(body())


def test_errors_come_out_as_they_are(router: Router, clock: ManualClock) -> None:
    """A refusal, a wrong argument, an unknown job: the same exceptions, through any verb."""
    router.add("a")

    async def body() -> None:
        lease = await router.aio.claim("worker-0")
        assert lease is not None
        with pytest.raises(UnknownJob):
            await router.aio.job("nobody")
        with pytest.raises(InvalidArgument, match="owner"):
            await router.aio.claim("")
        with pytest.raises(InvalidArgument, match="progress must be a number"):
            await lease.aio.progress(2)
        clock.advance(31)
        assert await router.aio.claim("worker-1") is not None
        with pytest.raises(StaleEpoch):
            await lease.aio.complete()

    asyncio.run(body())


def test_many_waiting_claims_neither_block_the_loop_nor_starve_other_verbs(router: Router) -> None:
    """Fifty claims wait for a job; the verbs of everybody else go through, and those claims end when jobs come."""
    router.add("held")
    held = router.claim("worker-0")
    assert held is not None

    jobs = [{"id": str(n)} for n in range(50)]

    async def body() -> None:
        waiting = [asyncio.create_task(router.aio.claim(f"waiter-{n}", wait_seconds=1000)) for n in range(50)]
        await asyncio.sleep(0)  # each has begun to wait
        try:
            await asyncio.wait_for(held.aio.renew(), PATIENCE_SECONDS)
            await asyncio.wait_for(held.aio.complete(), PATIENCE_SECONDS)
            assert (await router.aio.job("held")).status is Status.DONE
            assert not any(task.done() for task in waiting)
        finally:
            router.add_many(jobs)  # or the claims would outlive a test that fails
        leases = await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_SECONDS)
        assert sorted(int(lease.job_id) for lease in leases if lease) == list(range(50))

    asyncio.run(body())


class Gate:
    """Holds a claim at the moment when the store has granted it, and the caller does not know yet."""

    def __init__(self, router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
        self.granted, self.go_on, self.given_back = threading.Event(), threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None
        self.error: Exception | None = None
        claim, settle = router.store.claim, router.store.settle

        def held(*args: Any, **kwargs: Any) -> Any:
            grants = claim(*args, **kwargs)
            self.thread = threading.current_thread()
            self.granted.set()
            assert self.go_on.wait(PATIENCE_SECONDS)
            if self.error is not None:
                raise self.error
            return grants

        def settled(*args: Any) -> Any:
            reply = settle(*args)
            self.given_back.set()
            return reply

        monkeypatch.setattr(router.store, "claim", held)
        monkeypatch.setattr(router.store, "settle", settled)


def test_an_async_caller_waits_for_a_lease() -> None:
    """Until a transfer grants it, for longer than one slice of the wait; else until the time is over."""

    async def body() -> None:
        aio = here.aio
        await aio.add("a")
        waiting = asyncio.create_task(aio.lease("a", owner="agent-b", wait_seconds=PATIENCE_SECONDS))
        with pytest.raises(NoLease, match=r"'a' is pending.* No lease was granted within 0\.15 s\.$"):
            await aio.lease("a", owner="agent-b", wait_seconds=0.15)
        moved = await aio.transfer("a", epoch=0, to="agent-b", by="operator")
        assert (await waiting).epoch == moved.epoch

    with Router() as here:
        asyncio.run(body())


def test_a_cancelled_claim_gives_back_what_it_gets(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that waits cannot be stopped; what it gets after its task has gone is released at once."""
    gate = Gate(router, monkeypatch)
    router.add("a")

    async def body() -> None:
        task = asyncio.create_task(router.aio.claim("worker-0", wait_seconds=1000))
        assert await asyncio.to_thread(gate.granted.wait, PATIENCE_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert router.job("a").owner == "worker-0"
        gate.go_on.set()
        assert await asyncio.to_thread(gate.given_back.wait, PATIENCE_SECONDS)

    asyncio.run(body())

    job = router.job("a")
    assert (job.status, job.owner, job.errors, job.reclaims) == (Status.PENDING, None, 0, 0)


def test_a_claim_that_is_cancelled_after_its_delivery_gives_it_back(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease has come, and the task is cancelled before its turn to take it: nobody else knows of that lease."""
    gate = Gate(router, monkeypatch)
    router.add("a")

    async def body() -> None:
        task = asyncio.create_task(router.aio.claim("worker-0", wait_seconds=1000))
        assert await asyncio.to_thread(gate.granted.wait, PATIENCE_SECONDS)
        gate.go_on.set()
        assert gate.thread is not None
        gate.thread.join(PATIENCE_SECONDS)  # blocks the loop on purpose: the delivery is queued, and not made
        asyncio.get_running_loop().call_soon(task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(gate.given_back.wait, PATIENCE_SECONDS)

    asyncio.run(body())

    assert (router.job("a").status, router.job("a").owner) == (Status.PENDING, None)


def test_a_claim_that_outlives_its_loop_gives_back_what_it_gets(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that shuts down leaves no job with an owner that is gone."""
    gate = Gate(router, monkeypatch)
    router.add("a")

    async def body() -> None:
        asyncio.get_running_loop().create_task(router.aio.claim("worker-0", wait_seconds=1000))
        assert await asyncio.to_thread(gate.granted.wait, PATIENCE_SECONDS)

    asyncio.run(body())
    gate.go_on.set()

    assert gate.given_back.wait(PATIENCE_SECONDS)
    assert router.job("a").status is Status.PENDING


def test_a_cancelled_claim_whose_call_fails_is_only_cancelled(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to give back, and nobody to tell."""
    gate = Gate(router, monkeypatch)

    async def body() -> None:
        task = asyncio.create_task(router.aio.claim("worker-0"))
        assert await asyncio.to_thread(gate.granted.wait, PATIENCE_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.error = RuntimeError("too late for anybody")
        gate.go_on.set()
        assert gate.thread is not None
        await asyncio.to_thread(gate.thread.join, PATIENCE_SECONDS)

    asyncio.run(body())
    assert not gate.given_back.is_set()


def test_async_effects_end_in_every_way_a_synchronous_one_can(router: Router, clock: ManualClock) -> None:
    """Recorded, undone, in doubt, tried again with the same key."""
    router.add("a")
    keys: list[str] = []

    async def body() -> None:
        lease = await router.aio.claim("worker-0")
        assert lease is not None

        async def declined(key: str) -> None:
            raise KeyError(key)

        async def charge(key: str) -> dict[str, int]:
            keys.append(key)
            return {"paid": len(keys)}

        with pytest.raises(KeyError):
            await lease.aio.once("charge", declined, undone=(KeyError,))
        assert router.effects("a") == []
        with pytest.raises(KeyError):
            await lease.aio.once("charge", declined)
        with pytest.raises(Exception, match="its outcome is not known"):
            await lease.aio.once("charge", charge)
        assert await lease.aio.once("charge", charge, in_doubt="retry") == {"paid": 1}
        assert await lease.aio.once("charge", charge) == {"paid": 1}
        assert keys == [router.effects("a")[0].key]

    asyncio.run(body())
