"""Small programs of a lease's verbs, beside a transaction or in it, and what came of them."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from leasehold import Job, Lease, LeaseholdError, Router, StaleEpoch
from leasehold.testing import elsewhere

from .libraries import Direct, Library


class Step(NamedTuple):
    """One call: of a verb, on this lease, another one or the router, with or without `connection=`."""

    who: str
    verb: str
    joins: bool = False

    def __str__(self) -> str:
        return f"{self.who}.{self.verb}({'connection' if self.joins else ''})"


@dataclass
class Scene:
    """Two leases of one owner, a job that nobody has, and the caller's connection."""

    router: Router
    prefix: str
    mine: Lease
    other: Lease
    library: Library
    rows: Callable[[str], list[str]]  # what callers have committed under a prefix
    connection: Any = None  # what `connection=` is
    number: int = 0  # of the step
    outcomes: list[Any] = field(default_factory=list)
    beside: Callable[[Scene], Any] | None = None  # what happens elsewhere after each step
    asks: bool = False  # whether an error of the driver is taken to the store

    def verbs(self, of: Any) -> Any:
        """Return the verbs of a lease or the router, to be awaited, in the form that fits the connection."""
        return of.aio if self.library.is_async else Direct(of)

    def insert(self, what: str) -> str:
        """Return the statement that writes a row of the caller's own."""
        return f"insert into results values ('{self.prefix}', '{what}')"

    def transaction(self, lease: Lease) -> AbstractAsyncContextManager[Any]:
        """Return `lease.transaction()`, to be entered with `async with`."""
        if self.library.is_async:
            return lease.aio.transaction()

        @asynccontextmanager
        async def plain() -> Any:
            with lease.transaction() as connection:
                yield connection

        return plain()

    def job(self, name: str) -> Job:
        """Return one of the scene's jobs, as it is now: a read, which is never refused."""
        return self.router.job(self.prefix + name)


Verb = Callable[[Scene, Any, dict[str, Any]], Awaitable[Any]]


async def _task_add(scene: Scene, lease: Lease, kwargs: dict[str, Any]) -> Any:
    task: Any = scene.router.tasks["echo"]
    with lease.active():
        if scene.library.is_async:
            return await task.options(**kwargs).aio.add(scene.number)
        return task.options(**kwargs).add(scene.number)


async def _once(scene: Scene, lease: Lease, kwargs: dict[str, Any]) -> Any:
    if not scene.library.is_async:
        return lease.once("effect", lambda key: scene.number)

    async def call(key: str) -> int:
        return scene.number

    return await lease.aio.once("effect", call)


async def _transaction(scene: Scene, lease: Lease, kwargs: dict[str, Any]) -> Any:
    async with scene.transaction(lease) as connection:
        connection.execute(scene.insert(f"nested-{scene.number}"))


OF_A_LEASE: dict[str, Verb] = {
    "complete": lambda scene, lease, kwargs: scene.verbs(lease).complete(scene.number, **kwargs),
    "fail": lambda scene, lease, kwargs: scene.verbs(lease).fail("broken", delay_seconds=0, **kwargs),
    "release": lambda scene, lease, kwargs: scene.verbs(lease).release(**kwargs),
    "progress": lambda scene, lease, kwargs: scene.verbs(lease).progress((scene.number + 1) / 8, **kwargs),
    "checkpoint": lambda scene, lease, kwargs: scene.verbs(lease).progress(
        (scene.number + 1) / 8, note="rows", checkpoint={"row": scene.number}, **kwargs
    ),
    "add": lambda scene, lease, kwargs: scene.verbs(lease).add("child", scene.number, **kwargs),
    "task_add": _task_add,
    "fence": lambda scene, lease, kwargs: scene.verbs(lease).fence(*kwargs.values()),
    "once": _once,
    "transaction": _transaction,
    "renew": lambda scene, lease, kwargs: scene.verbs(lease).renew(7200),
    "check": lambda scene, lease, kwargs: scene.verbs(lease).check(),
}
OF_THE_ROUTER: dict[str, Verb] = {
    "add": lambda scene, router, kwargs: scene.verbs(router).add(f"{scene.prefix}new", 1, queue="new", **kwargs),
    "add_many": lambda scene, router, kwargs: scene.verbs(router).add_many(
        [{"id": f"{scene.prefix}new-{scene.number}", "queue": "new"}], **kwargs
    ),
    "claim": lambda scene, router, kwargs: scene.verbs(router).claim("claimer", queues=[scene.prefix]),
    "cancel": lambda scene, router, kwargs: scene.verbs(router).cancel(scene.job("free"), by="ops"),
    "transfer": lambda scene, router, kwargs: scene.verbs(router).transfer(scene.job("free"), to="heir", by="ops"),
    "complete": lambda scene, router, kwargs: scene.verbs(router).complete(scene.job("free"), by="ops", result=1),
    "cancel_mine": lambda scene, router, kwargs: scene.verbs(router).cancel(scene.job("mine"), by="ops"),
}
JOINING = ("complete", "fail", "release", "progress", "checkpoint", "add", "task_add", "fence")

STEPS: tuple[Step, ...] = (
    *(Step("mine", verb) for verb in OF_A_LEASE if verb != "fence"),
    *(Step("mine", verb, joins=True) for verb in JOINING),
    *(Step("other", verb) for verb in ("complete", "progress", "add", "once", "renew", "check")),
    *(Step("other", verb, joins=True) for verb in ("complete", "progress", "add", "fence")),
    *(Step("router", verb) for verb in OF_THE_ROUTER),
    *(Step("router", verb, joins=True) for verb in ("add", "add_many")),
)

# Where the steps run. "joined": in a transaction that nothing but the steps themselves has made known.
PLACES = ("inside", "fenced", "joined", "outside")


class Case(NamedTuple):
    """A program: its steps, where they run, and how the transaction ends."""

    place: str
    steps: tuple[Step, ...]
    end: str = "commit"

    def __str__(self) -> str:
        return f"{self.place}: {', '.join(map(str, self.steps))}; {self.end}"

    @property
    def is_meant(self) -> bool:
        """Whether it says anything: before its first step has joined, the store knows of no transaction."""
        return self.place != "joined" or self.steps[0].joins


class Came(NamedTuple):
    """What came of a program: of each step, of the end, and what is in the tables afterwards."""

    outcomes: tuple[Any, ...]
    tables: tuple[Any, ...]


_numbers = itertools.count()


def scene_of(router: Router, library: Library, rows: Callable[[str], list[str]]) -> Scene:
    """Make jobs and claim two of them."""
    prefix = f"{next(_numbers)}-"
    router.add_many(
        [{"id": f"{prefix}{name}", "queue": f"{prefix}leased"} for name in ("mine", "other")]
        + [{"id": f"{prefix}free", "queue": prefix}]
    )
    mine, other = router.claim_many("worker", queues=[f"{prefix}leased"])
    return Scene(router, prefix, mine, other, library, rows)


class _Undo(Exception):
    """Rolls a block back."""


async def came_of(case: Case, scene: Scene) -> Came:
    """Run a program to its end; no error of a step keeps it from the next."""
    library = scene.library
    scene.connection = library.connection
    if case.place == "inside":
        await _outcome(scene, lambda: _inside(case, scene))
    elif case.place == "outside":
        for step in case.steps:
            if step.joins:
                await library.begin()
                await library.execute(scene.insert(f"with-{scene.number}"))
            await _step(scene, step)
            if step.joins:
                await _outcome(scene, library.commit if case.end == "commit" else library.rollback)
    else:
        await library.begin()
        if case.place == "fenced":
            await library.execute(scene.insert("before"))
            await _outcome(scene, lambda: scene.verbs(scene.mine).fence(library.connection))
        for step in case.steps:
            await _step(scene, step)
        await _outcome(scene, lambda: library.execute(scene.insert("after")))
        await _outcome(scene, library.commit if case.end == "commit" else library.rollback)
    return Came(tuple(scene.outcomes), elsewhere(_tables, scene))


async def _inside(case: Case, scene: Scene) -> None:
    try:
        async with scene.transaction(scene.mine) as connection:
            scene.connection = connection
            connection.execute(scene.insert("before"))
            for step in case.steps:
                await _step(scene, step)
            connection.execute(scene.insert("after"))
            if case.end == "rollback":
                raise _Undo
    except _Undo:
        pass


async def _step(scene: Scene, step: Step) -> None:
    of: Any = {"mine": scene.mine, "other": scene.other, "router": scene.router}[step.who]
    verb = (OF_THE_ROUTER if step.who == "router" else OF_A_LEASE)[step.verb]
    kwargs = {"connection": scene.connection} if step.joins else {}
    await _outcome(scene, lambda: verb(scene, of, kwargs))
    scene.number += 1
    if scene.beside is not None:
        elsewhere(scene.beside, scene)


async def _outcome(scene: Scene, call: Callable[[], Awaitable[Any]]) -> None:
    try:
        value = await call()
    except Exception as error:
        known = isinstance(error, LeaseholdError)
        found = error if known else StaleEpoch.find(error, scene.mine if scene.asks else None)
        scene.outcomes.append(type(found).__name__ if found is not None else f"an error of the driver: {error!r}")
    else:
        scene.outcomes.append(_shown(value, scene.prefix))


def _shown(value: Any, prefix: str) -> Any:
    """Return what two stores can agree on."""
    if isinstance(value, list):
        return [_shown(one, prefix) for one in value]
    if isinstance(value, tuple) and len(value) == 2:
        job, created = value
        return job.id.removeprefix(prefix), created
    if isinstance(value, Lease):
        return value.job_id.removeprefix(prefix)
    return value if value is None or isinstance(value, int) else "done"


def _tables(scene: Scene) -> tuple[Any, ...]:
    prefix, router = scene.prefix, scene.router
    epochs = {0: "none", scene.mine.epoch: "mine", scene.other.epoch: "other"}
    found = [scene.job("mine"), *router.jobs(after=f"{prefix}mine", limit=None)]
    jobs = sorted(
        (
            job.id.removeprefix(prefix),
            str(job.status),
            job.payload,
            job.result,
            (job.progress, job.note, job.checkpoint),
            job.error_message,
            (job.attempt, job.errors),
            (job.owner, epochs.get(job.epoch, "a later one")),
            (job.expires_us or 0) - (job.granted_us or 0) > 7000 * 10**6,  # whether it was renewed
        )
        for job in found
    )
    effects = [(effect.name, effect.known, effect.outcome) for effect in router.effects(f"{prefix}mine")]
    refused = [len(router.events(f"{prefix}{name}", kind="refused")) for name in ("mine", "other")]
    lost = (scene.mine.lost, scene.other.lost)
    return *jobs, ("rows", scene.rows(prefix)), ("effects", effects), ("refused", refused), ("lost", lost)
