"""`leasehold worker --processes 2`: a supervisor and two workers, each a process."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.cli.working import APP, Working, begun
from tests.support import until

from leasehold import Router, Status
from leasehold.liveness import _stat


def is_alive(pid: int) -> bool:
    found = _stat(pid)
    return found is not None and found[0] not in "ZX"


def owners(router: Router) -> set[int]:
    """The processes that hold jobs now; an owner's name has the pid in it."""
    return {int(job.owner.split(":")[1]) for job in router.jobs(status="running") if job.owner is not None}


def add_gated(router: Router, *gates: str) -> list[str]:
    return [router.add(None, {"gate": gate}, task="gated").job.id for gate in gates]


def test_a_process_that_is_killed_is_started_again_and_signals_are_for_all(tmp_path: Path, router: Router) -> None:
    arguments = ["app", "--processes", "2", "--concurrency", "1", "--name", "twin", "--grace-seconds", "3600"]
    done, undone = add_gated(router, "gate", "never")
    with Working(tmp_path, *arguments) as working:
        until(lambda: begun(tmp_path) == 2 and len(owners(router)) == 2)
        first, second = working.pids()

        [lost] = [job.id for job in router.jobs() if f":{first}:" in str(job.owner)]
        os.kill(first, signal.SIGKILL)
        (tmp_path / f"begun-{lost}").unlink()
        working.says("process 0 was killed by SIGKILL; restarting in 0.2 s")
        until(lambda: len(working.pids()) == 3)
        third = working.pids()[2]
        until(lambda: owners(router) == {second, third} and begun(tmp_path) == 2)

        # As a service manager does: to each of them. It counts once, before and after the supervisor's word.
        os.kill(second, signal.SIGTERM)
        until(lambda: working.said.count("leasehold.worker: stopping: waiting for running jobs (1)") == 1)
        working.terminate()
        until(lambda: working.said.count("leasehold.worker: stopping: waiting for running jobs (1)") == 2)
        os.kill(third, signal.SIGTERM)
        (tmp_path / "gate").touch()
        until(lambda: router.job(done).status is Status.DONE)
        assert "a second signal:" not in working.said
        assert router.job(undone).status is Status.RUNNING

        working.process.send_signal(signal.SIGINT)
        assert working.ends() == 0, working.said
    assert router.job(undone).status is Status.PENDING
    assert router.ownerships(lost)[0].ended == "recovery"
    assert not any(map(is_alive, working.pids()))


def test_none_is_left_when_the_supervisor_is_killed(tmp_path: Path, router: Router) -> None:
    """They finish what they have, and end."""
    add_gated(router, "gate", "gate")
    with Working(tmp_path, "app", "--processes", "2", "--concurrency", "1") as working:
        until(lambda: begun(tmp_path) == 2 and len(owners(router)) == 2)

        working.process.kill()
        until(lambda: working.said.count("the supervisor process is gone") == 2)
        (tmp_path / "gate").touch()

        until(lambda: not any(map(is_alive, working.pids())))
    assert {job.status for job in router.jobs()} == {Status.DONE}


def test_until_empty_ends_them_all_with_the_worst_of_their_codes(tmp_path: Path, router: Router) -> None:
    (tmp_path / "gate").touch()
    add_gated(router, "gate", "gate", "gate")
    app = APP + "@router.lifespan\ndef fail():\n    yield\n    raise OSError('at the end')\n"
    with Working(tmp_path, "app", "--processes", "2", "--until-empty", "--log-format", "json", app=app) as working:
        assert working.ends() == 1, working.said
    assert {job.status for job in router.jobs()} == {Status.DONE}
    lines = [json.loads(line) for line in working.said.splitlines()]
    assert any("OSError: at the end" in line["message"] for line in lines)


def test_a_mistake_is_told_once(tmp_path: Path) -> None:
    """The others wait for the first, and it would not help to start it again."""
    with Working(tmp_path, "ap", "--processes", "2") as working:
        assert working.ends() == 2, working.said
    assert working.said.count("no module 'ap' was found") == 1
    assert "process 0 exited with code 2 before any worker became healthy; not restarting" in working.said
