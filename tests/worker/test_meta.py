"""The meta of a job in handlers, and what the jobs that they add inherit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leasehold import InvalidArgument, Lease, Router, current_lease

META = {"tenant": "a", "n": 1, "traceparent": "00-1"}
KEPT = {"tenant": "a", "n": 1}


def test_a_handler_sees_it_and_its_children_inherit_it(any_router: Router) -> None:
    """However a child is added: by name, by a task, by its async form, by a completion."""
    seen: dict[str, Any] = {}

    @any_router.task
    def step(n: int) -> None:
        seen[current_lease().job_id] = current_lease().meta

    @any_router.task
    def parent(lease: Lease) -> None:
        seen["parent"] = lease.meta
        lease.add("name", task="step", payload={"n": 1})
        lease.add("override", {"n": 1}, task="step", meta={"n": 2})
        lease.add("detached", {"n": 1}, task="step", meta=None)
        step.options(id="task").add(1)
        step.options(id="task-override", meta={"own": [1]}).add(1)
        step.options(id="task-detached", meta=None).add(1)
        step.options(id="stranger", parent=None).add(1)
        asyncio.run(step.options(id="async").aio.add(1))
        lease.complete(
            then=[
                {"id": "then", "task": "step", "payload": {"n": 1}},
                {"id": "then-detached", "task": "step", "payload": {"n": 1}, "meta": None},
                step.options(id="job").job(1),
                step.options(id="job-stranger", parent=None).job(1),
            ]
        )

    parent.options(id="parent", meta=META).add()
    any_router.drain(raise_errors=True)

    assert seen["parent"] == META
    kept = {job.id: job.meta for job in any_router.jobs() if job.id != "parent"}
    assert kept == {
        "parent/name": KEPT,
        "parent/override": {"tenant": "a", "n": 2},
        "parent/detached": {},
        "parent/task": KEPT,
        "parent/task-override": {**KEPT, "own": [1]},
        "parent/task-detached": {},
        "stranger": {},
        "parent/async": KEPT,
        "parent/then": KEPT,
        "parent/then-detached": {},
        "parent/job": KEPT,
        "job-stranger": {},
    }
    assert {name: value for name, value in seen.items() if name != "parent"}.items() <= kept.items()


def test_it_is_given_with_each_way_of_adding(any_router: Router) -> None:
    """Without it, or with None, a job that has no parent has none."""

    @any_router.task
    def step(n: int) -> None: ...

    any_router.add("a", meta={"n": 1})
    any_router.add_many(
        [{"id": "b", "meta": {"n": 2}}, {"id": "c", "meta": None}, step.options(id="d", meta={"n": 4}).job(1)]
    )
    step.options(id="e", meta=None).add(1)

    assert {job.id: job.meta for job in any_router.jobs()} == {
        "a": {"n": 1},
        "b": {"n": 2},
        "c": {},
        "d": {"n": 4},
        "e": {},
    }


def test_a_second_run_leaves_what_its_children_have(any_router: Router) -> None:
    """Its children exist, so what a changed handler says about their meta changes nothing."""
    any_router.add("parent", meta={"n": 1})
    lease = any_router.claim("worker")
    assert lease is not None
    lease.add("child")
    lease.release()
    again = any_router.claim("worker")
    assert again is not None

    added = again.add("child", meta={"n": 2})

    assert (added.created, added.job.meta) == (False, {"n": 1})


def test_what_cannot_be_kept_is_refused_where_it_is_given(any_router: Router) -> None:
    """By the options of a task too, before a job is made."""

    @any_router.task
    def step(n: int) -> None: ...

    with pytest.raises(InvalidArgument, match=r"begin with 'leasehold\.'"):
        step.options(meta={"leasehold.x": 1})
    with pytest.raises(InvalidArgument, match="meta= must be a dict"):
        any_router.add("a", meta="text")  # type: ignore[arg-type]
    assert any_router.jobs() == []
