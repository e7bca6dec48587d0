"""Tasks that run in processes of their own; a process imports this module, and the tests do."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from leasehold import Conflict, Lease, Retry, Router, StaleEpoch, current_lease

router = Router(
    os.environ.get("LEASEHOLD_TEST_URL"), schema=os.environ.get("LEASEHOLD_TEST_SCHEMA", "leasehold"), lease_seconds=30
)
seen: list[str] = []  # what the hooks of this very process have seen
once = Retry(max_errors=1)


@router.lifespan
def counted() -> Iterator[None]:
    """Write down each process, and its end."""
    seen.append("lifespan")
    if multiprocessing.parent_process() is not None and (go := os.environ.get("LEASEHOLD_TEST_BEGIN")):
        while not Path(go).exists():
            time.sleep(0.01)
    folder = os.environ.get("LEASEHOLD_TEST_FOLDER")
    if folder:
        Path(folder, f"lives-{os.getpid()}").touch()
    yield
    if folder:
        Path(folder, f"ended-{os.getpid()}").touch()


@router.around
def noted(lease: Lease) -> Iterator[None]:
    """Write down each run."""
    seen.append(f"before {lease.job_id}")
    yield
    seen.append(f"after {lease.job_id}")


class Hopeless(Exception):
    """Cannot be pickled: it takes two arguments and keeps one."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


class NoWay(Exception):
    """Is final."""


def delayed(errors: int, error: BaseException) -> float:
    """How long to wait after an error; known by its class."""
    return 77.0 if isinstance(error, Hopeless) else 1.0


@router.task(process=True)
def double(n: int) -> int:
    """Return twice the number."""
    return 2 * n


@router.task(process=True)
def pid() -> int:
    """Return who runs it."""
    return os.getpid()


@router.task(process=True)
def hooks() -> list[str]:
    """Return what the hooks of this process have seen."""
    return list(seen)


@router.task(process=True, retry=Retry(max_errors=2, delay_seconds=0, only=(Hopeless,)))
def picky(how: str) -> None:
    """Raise what is tried again, or something else."""
    raise Hopeless("of no use", "at all") if how == "only" else ValueError("once")


@router.task(process=True, retry=Retry(max_errors=3), final=(NoWay,), delay=delayed)
def errs(how: str) -> None:
    """Raise."""
    if how == "final":
        raise NoWay("never")
    raise Hopeless("of no use", how)


@router.task(process=True, retry=once)
def ignorant(n: int) -> object:
    """Return what has no form in JSON."""
    return object()


@router.task(process=True)
def verbs(lease: Lease) -> dict[str, Any]:
    """Use every verb of a lease."""
    lease.check()
    before = lease.expires_at
    after = lease.renew(300)
    lease.progress(0.5, note="half", checkpoint={"page": 4})
    child = lease.add("child", {"n": 1})
    adopted = double.add(4)
    paid = lease.once("pay", lambda key: key[:3])
    again = lease.once("pay", lambda key: "twice")
    return {
        "renewed": after > before,
        "child": child.job.id,
        "adopted": adopted.job.parent,
        "same": paid == again,
        "current": current_lease() is lease,
        "detached": double.options(parent=None, id="detached").add(5).job.parent,
        "read": router.job(lease.job_id).status,
    }


@router.task(process=True)
def settles(lease: Lease) -> str:
    """Complete the job by hand; what is returned then counts nothing."""
    lease.complete("by hand")
    return "ignored"


@router.task(process=True, retry=once)
def rows(lease: Lease, how: str) -> None:
    """Write a row of one's own, with the job."""
    with suppress(KeyError), lease.transaction() as connection:
        connection.execute("create table if not exists results (job text)")
        place = "?" if isinstance(connection, sqlite3.Connection) else "%s"
        connection.execute(f"insert into results values ({place})", (lease.job_id,))
        if how == "refused":
            try:
                router.add("beside")
            except Conflict as error:
                raise KeyError("refused") from error
        if how == "joined":
            lease.progress(0.5)
            lease.complete(how)
            return
        if how != "rows only":
            lease.complete(how, connection=connection)
        if how == "swallowed":
            raise KeyError("rolled back, and nobody hears of it")


@router.task(process=True)
def crashes(how: str, folder: str) -> str:
    """End the process in a way that Python does not get to see; the second time, if told so, do not."""
    ran = Path(folder, "ran")
    first = not ran.exists()
    ran.open("a").write("x")
    if how.startswith("first ") and not first:
        return "survived"
    match how.removeprefix("first "):
        case "exit":
            program = os.fork()  # which keeps everything open that this process has
            if program == 0:
                time.sleep(600)
            Path(folder, "program").write_text(str(program))
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError(how)


@contextmanager
def told(folder: str) -> Iterator[None]:
    """Tell that this process runs, and what it has started; at the end, that it has not been killed."""
    Path(folder, f"began-{os.getpid()}").touch()
    yield
    Path(folder, "outlived").touch()


@router.task(process=True, run_seconds=0.2, retry=once)
def lasts(folder: str) -> None:
    """Run for longer than it may."""
    with told(folder):
        time.sleep(60)


@router.task(process=True)
def waits(folder: str) -> str:
    """Run until a file is there."""
    with told(folder):
        while not Path(folder, "go").exists():
            time.sleep(0.01)
    return "went"


@router.task(process=True)
def starts(folder: str) -> None:
    """Start a program that outlives everything but a signal, and wait for it."""
    program = subprocess.Popen(["sleep", "600"])
    Path(folder, "program").write_text(str(program.pid))
    Path(folder, f"began-{os.getpid()}").touch()
    program.wait()


def hold(path: str) -> None:
    """Hold the interpreter's lock until somebody writes into the fifo: nothing else in this process runs meanwhile."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(fd, True)
    keeper = os.open(path, os.O_WRONLY)  # so that there is a writer, and a read waits
    Path(path + ".held").touch()
    ctypes.PyDLL(None).read(fd, ctypes.create_string_buffer(1), 1)  # PyDLL, unlike CDLL, keeps the lock
    os.close(keeper)
    os.close(fd)


@router.task(process=True)
def holds(path: str) -> str:
    """Hold the interpreter's lock."""
    hold(path)
    return "held"


@router.task
def holds_thread(path: str) -> str:
    """Hold the interpreter's lock of the whole worker."""
    hold(path)
    return "held"


@router.task(process=True)
def stalls_no_more(lease: Lease, folder: str) -> str:
    """Say that the work moves for as long as it takes."""
    with told(folder):
        while not Path(folder, "go").exists():
            lease.progress()
            time.sleep(0.01)
    return "moved"


@router.task(process=True)
def reports_often(lease: Lease, count: int) -> str:
    """Report each step, and one of them with a checkpoint."""
    for step in range(1, count + 1):
        lease.progress(step / count, note=f"step {step}", checkpoint={"step": step} if 2 * step == count else None)
    return "reported"


@router.task(process=True)
def reports_and_settles(lease: Lease, how: str) -> None:
    """Report, and settle the job by hand."""
    lease.progress(0.5)
    if how == "transaction":
        with lease.transaction():
            lease.complete("mine")
    else:
        lease.complete("mine")


@router.task(process=True, retry=Retry(max_errors=1, max_reclaims=0))
def holds_a_block(lease: Lease, folder: str) -> str:
    """Stay inside a transaction that has a row, a child, a report and the completion, until a file is there."""
    try:
        with lease.transaction() as connection:
            place = "?" if isinstance(connection, sqlite3.Connection) else "%s"
            connection.execute(f"insert into results values ({place})", (lease.job_id,))
            lease.progress(0.5, checkpoint={"rows": 1})
            lease.add("child")
            lease.complete("in the block")
            with told(folder):
                while not Path(folder, "go").exists():
                    time.sleep(0.01)
    except StaleEpoch as refusal:
        Path(folder, "refused").write_text(str(refusal))
        raise
    return "ignored"


@router.task(process=True)
def many_threads(lease: Lease) -> list[int]:
    """Use the lease on several threads at once."""
    moved: list[int] = []

    def move(n: int) -> None:
        for _ in range(20):
            lease.progress(n / 10)
        moved.append(n)

    threads = [threading.Thread(target=move, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(moved)


@router.task(process=True, retry=once)
def stale(lease: Lease) -> None:
    """Say what only a store can know."""
    raise StaleEpoch.of_job(lease.job_id, presented=lease.epoch, current=lease.epoch + 1)


@router.task(process=True)
def hangs_up() -> None:
    """Close every file, as programs do that go into the background."""
    os.closerange(3, 65_536)  # after many tests their pipe has a high number
