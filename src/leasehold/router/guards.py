"""The guards of a router, and the sealing of a job's keys after its end."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from ..core import checks
from ..core.job import Job
from ..core.ownership import Ownership
from ..core.wording import printable
from ..errors import Conflict, LeaseholdError, UnknownJob
from ..logs import log

if TYPE_CHECKING:  # `Router` has these functions as its methods
    from ..guard import Guard
    from ..tasks.guarded import Sealed
    from .front import Router

G = TypeVar("G", bound="Guard")


def guard(router: Router, name: str, guard: G, *, prove: bool = True) -> G:
    """
    Know *guard* as *name*, and return it: `reports = router.guard("reports", FileGuard("out/"))`.

    Its keys can then be sealed before a handler (`@router.task(seals=…)`) and when a job is cancelled, completed by
    hand or failed for good; its refusals are recorded in the history of the job. A worker proves it when it starts
    and every ten minutes, unless *prove* is false, and does not start if it protects nothing (`Unfenced`).

    Raises `InvalidArgument` if the name belongs to another guard, or the guard has another name.
    """
    guards = router._registry.guards
    is_first = not guards
    guards.register(name, guard, prove=prove)
    if is_first:
        router.lifespan(guards.proving)
        router.on("failed")(guards.on_failed)
    return guard


def seal(router: Router, job: Job | str, *, by: str) -> Sealed:
    """
    Seal the guarded keys of a job that has ended, again if need be; return which could not be reached.

    Raises `UnknownJob`, and `Conflict` if the job has not ended: then its next owner seals them.
    """
    found = router.job(job if isinstance(job, str) else job.id)
    if found.finished_us is None:
        raise Conflict(
            f"job {found.id!r} is {found.status.value}: only the keys of a finished job are sealed by hand. Those of "
            "an unfinished job are sealed by its next owner."
        )
    return router._registry.guards.seal_ended(found, by=checks.name(by, "by="))


def note_failed(router: Router, ended: Ownership) -> None:
    """
    Record the keys of a job that has failed for good with this ownership and whose guards are not known here.

    No later owner seals the keys of such a job. `seal_all_open` tries those of known guards.
    """
    try:
        job = router.job(ended.job_id)
    except UnknownJob:  # removed meanwhile
        return
    if job.finished_us is not None:
        from ..tasks.guarded import SEALER  # on use: most programs have no guards

        sealed(router, job, SEALER, but=router._registry.guards.named)


def sealed(router: Router, ended: Job, by: str, *, but: Collection[str] = ()) -> Job:
    """
    Seal the keys of a job that was just ended, *but* not those of these guards, and return the job.

    The verb has succeeded, whatever becomes of the keys.
    """
    try:
        unreached = router._registry.guards.seal_ended(ended, by=by, but=but).unreached
    except LeaseholdError as error:
        log.error(
            "the guarded keys of job %r, which has ended, could not be read: %s. Try again: leasehold guard seal %s "
            "--app MODULE:ROUTER",
            ended.id,
            error,
            printable(ended.id),
        )
        return ended
    return replace(ended, unsealed=tuple(map(str, unreached))) if unreached else ended
