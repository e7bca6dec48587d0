"""What the tests of handlers in processes share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support import until
from tests.worker import process_tasks as tasks

from leasehold import Job, Status
from leasehold.testing import ManualClock
from leasehold.worker.worker import Worker

from .staging import has_looked

router = tasks.router


@contextmanager
def kept(url: str | None, folder: Path, schema: str = "leasehold") -> Iterator[None]:
    """Point the router of the tasks at the store *url*, here and in the processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEASEHOLD_TEST_URL", url or "memory:")
        patch.setenv("LEASEHOLD_TEST_SCHEMA", schema)
        patch.setenv("LEASEHOLD_TEST_FOLDER", str(folder))
        with router.override(url, schema=schema):
            yield


def renewed(worker: Worker, clock: ManualClock, id: str, times: int = 1) -> None:
    """Let a third of a lease of 600 s pass on the worker's own *clock*, and wait for the renewal; so many times."""
    for _ in range(times):
        until(lambda: has_looked(worker, clock))
        before = router.job(id).expires_at
        clock.advance(201)
        until(lambda: router.job(id).expires_at != before)  # noqa: B023 (it is called at once)


def done(*ids: str) -> list[Job]:
    """Wait until these jobs are finished, and return them."""
    ended = (Status.DONE, Status.FAILED)
    until(lambda: all(router.job(id).status in ended for id in ids))
    return [router.job(id) for id in ids]


def named(folder: Path, kind: str) -> list[int]:
    """The ids of the processes that have left a file of that kind."""
    return [int(path.name.rpartition("-")[2]) for path in folder.glob(f"{kind}-*")]


def is_running(pid: int) -> bool:
    """Whether there is such a process, other than as a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def now(job: Any) -> Job:
    """Add the job while a worker runs, and return it when it is finished."""
    [added] = router.add_many([job])
    return done(added.job.id)[0]
