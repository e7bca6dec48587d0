"""`kill -TERM` while a hundred jobs run: nothing is lost, nothing is settled twice, and the process ends in time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.cli.working import Working, begun
from tests.patience import PATIENCE_SECONDS
from tests.support import until

from leasehold import Reason, Router, Status

GRACE_SECONDS = 8.0  # in which sixty jobs end; on an idle machine they take a tenth of a second

APP = '''
import asyncio, pathlib, threading, time
from leasehold import Router, current_lease

router = Router("sqlite:///jobs.db", trace=True)

def is_open(gate: str) -> bool:
    pathlib.Path("begun-" + current_lease().job_id).touch()
    return pathlib.Path(gate).exists()

@router.task
def on_a_thread(gate: str) -> str:
    while not is_open(gate):
        time.sleep(0.05)
    return "finished"

@router.task
async def on_the_loop(gate: str) -> str:
    while not is_open(gate):
        await asyncio.sleep(0.05)
    return "finished"

@router.task
async def cleans_up(gate: str) -> str:
    """Ends although it was cancelled: what it says counts, since it is still the owner."""
    try:
        while not is_open(gate):
            await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        pass
    return "finished"
'''


def test_sigterm_while_a_hundred_jobs_run(tmp_path: Path) -> None:
    """Sixty end within the grace, thirty do not, and ten end when they are cancelled."""
    with Router(f"sqlite:///{tmp_path}/jobs.db", trace=True) as router:
        tasks = [("on_a_thread", "soon", 30), ("on_the_loop", "soon", 30)]
        tasks += [("on_a_thread", "late", 15), ("on_the_loop", "late", 15), ("cleans_up", "late", 10)]
        kinds = {
            router.add(None, {"gate": gate}, task=task).job.id: (task, gate)
            for task, gate, count in tasks
            for _ in range(count)
        }
        arguments = ["app", "--concurrency", "100", "--grace-seconds", str(GRACE_SECONDS)]
        with Working(tmp_path, *arguments, app=APP) as working:
            until(lambda: begun(tmp_path) == 100)

            working.terminate()
            working.says("waiting for running jobs (100)")
            (tmp_path / "soon").touch()

            # The grace, and what the worker allows itself afterwards to clean up, settle and leave.
            assert working.process.wait(GRACE_SECONDS + PATIENCE_SECONDS) == 0, working.said

        done = {id for id, (task, gate) in kinds.items() if gate == "soon" or task == "cleans_up"}
        assert {job.id for job in router.jobs(status=Status.DONE)} == done
        assert {job.id for job in router.jobs(status=Status.PENDING)} == kinds.keys() - done
        assert router.counts().running == 0
        assert "releasing 40 jobs whose handlers have not ended" in working.said
        assert "has stopped: 70 done, 30 released\n" in working.said, "and nothing else, such as a refusal"

        for id in kinds:
            [held] = router.ownerships(id)
            assert held.ended == ("done" if id in done else Reason.RELEASE)
        settled = Counter(
            event.job_id for event in router.events(limit=None) if event.kind in ("completed", "released")
        )
        assert settled == Counter(dict.fromkeys(kinds, 1)), "once each"
        assert router.events(kind="refused") == []
        assert router.verify() == []

        (tmp_path / "late").touch()
        with Working(tmp_path, "app", "--concurrency", "100", "--until-empty", app=APP) as working:
            assert working.ends() == 0, working.said
        assert {job.status for job in router.jobs()} == {Status.DONE}
        for id in kinds.keys() - done:
            first, second = router.ownerships(id)
            assert (first.ended, second.began, second.ended) == (Reason.RELEASE, Reason.RELEASE, "done")
            assert second.epoch > first.epoch
        assert all((job.errors, job.reclaims) == (0, 0) for job in router.jobs()), "no budget was touched"
