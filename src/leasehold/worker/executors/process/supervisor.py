"""A thread of the worker, and the process of handlers that it looks after."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ....core.clock import patience
from ....errors import InvalidArgument, LeaseholdError, StaleEpoch, StoreUnavailable, UnknownJob
from ....lease import Lease, worker_side
from ....store import Store
from ....tasks.hooks import Hooks
from ....tasks.main_guard import GUARD, UNGUARDED
from ....tasks.task import Unready
from ...calling import Crashed, End
from ...log import log
from ...run import Run
from .messages import VERBS, Began, Call, Ended, Reply, Start

if TYPE_CHECKING:
    from .pool import Processes
    from .spawned import Spawned  # which costs an import that many a worker does without

IDLE_SECONDS = 60.0  # then a process that has nothing to do ends
END_SECONDS = 2.0
_BEGIN_SECONDS = 60.0  # for a process to begin and import what it needs


class Killed(Exception):
    """The worker has killed the process of the handler."""


class Unguarded(Unready):
    """The main module cannot be imported without running the program again, so no process can begin."""


class Supervisor:
    """A thread, and the process that it looks after, if it has one at the moment."""

    def __init__(self, processes: Processes) -> None:
        self._all = processes
        self._process: Spawned | None = None
        self._store: Store | None = None
        self._woken, self._wake = os.pipe()
        self.run: Run | None = None
        self.is_killed = False
        self.is_over = False
        self.thread = threading.Thread(target=self._live, name="leasehold-process", daemon=True)
        self.thread.start()

    # From other threads, which hold the lock and know that it is not over

    @property
    def has_process(self) -> bool:
        """Whether there is a process, which may have a run or not."""
        return self._process is not None

    def wake(self) -> None:
        """Look whether there is something to do."""
        os.write(self._wake, b"!")

    def kill(self) -> None:
        """Kill the process; if it is only about to begin, then."""
        self.is_killed = True
        process = self._process  # which its thread may just be reaping
        if process is not None:
            process.kill()

    # On its thread

    def _live(self) -> None:
        try:
            patient = True
            while not self.is_over:
                run = self._all.next(self, patient=patient)
                if run is not None:
                    self._all.over(self, run, self._ended(run))
                elif not self.is_over:
                    patient = self._rest()
            self._end()
        except Exception:
            log.exception("the thread that supervises a handler process failed; another one takes over")
            if self._process is not None:
                self._process.kill()
                with suppress(Exception):
                    self._reap()
        finally:
            self._all.leave(self)
            os.close(self._woken)
            os.close(self._wake)

    def _rest(self) -> bool:
        """Wait for something to do; return False if nothing came for long."""
        from .spawned import wait

        process = self._process
        if process is None:
            woken = bool(wait([self._woken], IDLE_SECONDS))
            has_message = dead = False
        else:
            has_message, dead, woken = process.ready([self._woken], seconds=IDLE_SECONDS)
        if woken:
            os.read(self._woken, 4096)
        if process is not None and (has_message or dead) and not self._receive(process, None, has_message=has_message):
            log.warning("an idle handler process %s", _how(self._reap()))
        return has_message or dead or woken

    def _ended(self, run: Run) -> End:
        """Return how *run* ended, in every case."""
        try:
            return self._handled(run)
        except Exception as error:
            log.exception(
                "could not supervise the handler process of job %r; killing the process, and recording this as an "
                "error of the handler",
                run.lease.job_id,
            )
            if self._process is not None:
                self._process.kill()
                self._reap()
            return End(None, error)

    def _handled(self, run: Run) -> End:
        """Have *run* handled by the process, or by a new one; return how it ended."""
        if self._process is not None:
            end = self._begun(run, self._process)
            if end is not None or self._all.killing(self):
                return end or End(None, Killed("the worker has killed the process of the handler"))
            job = run.lease.job_id
            log.warning("an idle handler process ended before it could start job %r; starting another one", job)
        if (unguarded := self._all.unguarded()) is not None:
            return End(None, unguarded)
        try:
            from .spawned import Spawned

            self._process = Spawned()
        except Exception as error:
            log.error("could not start a process for job %r", run.lease.job_id, exc_info=error)
            return End(None, Unready(f"a process for task {run.task.name!r} cannot be started: {error}"))
        if self._all.killing(self):
            self._process.kill()
        end = self._begun(run, self._process)
        return end or End(None, self._unready)

    _unready = Unready()

    def _begun(self, run: Run, process: Spawned) -> End | None:
        """Have *run* handled; return how it ended, or None if the process ended before the handler began."""
        lease, task = run.lease, run.task
        self._store = lease.store
        url, modules = task.registry.adder.url, _modules(task.registry.hooks)
        process.send(Start(task.name, task.module, task.qualname, run.grant, url, modules))
        while True:
            has_message, dead, _ = process.ready(seconds=_BEGIN_SECONDS if run.began_us is None else None)
            if not (has_message or dead):
                process.kill()
                continue
            message = self._receive(process, run, has_message=has_message)
            if isinstance(message, Ended):
                worker_side.note_settled(lease, message.settled)
                return End(message.document, message.error)
            if message is None:
                return self._died(run)

    def _died(self, run: Run) -> End | None:
        code = self._reap()
        if self._all.killing(self):
            return End(None, Killed("the worker has killed the process of the handler"))
        if run.began_us is None:
            self._unready = self._why(run, code)
            return None
        return End(None, Crashed(f"the process of the handler {_how(code)}"))

    def _why(self, run: Run, code: int | None) -> Unready:
        """Return why no handler has begun in a process."""
        if code == UNGUARDED:
            why = f"no process can start for task {run.task.name!r}: it imports the main module, which runs the program"
            return self._all.unguarded(Unguarded(f"{why} again. In the main module, {GUARD}.")) or Unready()
        return Unready(
            f"the process for task {run.task.name!r} {_how(code)} before the handler began; see stderr. "
            f"If the error there is about the main module, {GUARD}."
        )

    def _receive(self, process: Spawned, run: Run | None, *, has_message: bool) -> Any:
        """Receive a message of the process and act on it; return it, or None if the process is dead."""
        if not has_message:
            return None
        try:
            message = process.receive()
        except EOFError as error:
            if str(error):
                log.error("unreadable message from a handler process; killing the process: %s", error, exc_info=error)
            process.kill()  # in case that it has only closed everything
            return None
        if isinstance(message, Began) and run is not None:
            self._all.began(run)
        elif isinstance(message, Call):
            process.send(self._answer(message, run))
        return message

    def _answer(self, call: Call, run: Run | None) -> Reply:
        """Execute a verb of the store for the process."""
        try:
            if call.verb not in VERBS or self._store is None:
                raise InvalidArgument(f"a store has no verb {call.verb!r}.")
            value = self._executed(call, run)
        except Exception as error:
            if run is not None:
                _refused(run.lease, call, error)
            return Reply(call.number, None, _sendable(error))
        if run is not None and call.verb in ("check", "renew", "progress", "settle"):
            _noted(run.lease, call.verb, [*call.args, *call.kwargs.values()][0], value)
        return Reply(call.number, value)

    def _executed(self, call: Call, run: Run | None) -> Any:
        if run is not None and call.verb == "progress":
            [reports] = call.args
            if not reports:  # the process is about to open a transaction of its own
                worker_side.flush(run.lease)
            elif [(report.job_id, report.epoch) for report in reports] == [(run.lease.job_id, run.lease.epoch)]:
                return [worker_side.report(run.lease, reports[0])]
        return getattr(self._store, call.verb)(*call.args, **call.kwargs)

    def _reap(self) -> int | None:
        process, self._process = self._process, None
        return process.reap() if process is not None else None

    def _end(self) -> None:
        """Have the process end, and kill it if it does not."""
        process = self._process
        if process is None:
            return
        process.end()
        left: Callable[[], float] | None = patience(END_SECONDS)
        while True:
            has_message, dead, _ = process.ready(seconds=None if left is None else max(left(), 0))
            if not (has_message or dead):
                process.kill()
                left = None
            elif not self._receive(process, None, has_message=has_message):
                break
        self._reap()


def _how(code: int | None) -> str:
    from .spawned import how

    return "has ended" if code is None else how(code)


def _modules(hooks: Hooks) -> tuple[str, ...]:
    """Return the modules whose import gives a router its hooks."""
    return tuple(dict.fromkeys(hook.__module__ for hook in (*hooks.around, *hooks.lifespans)))


def _noted(lease: Lease, verb: str, items: Sequence[Any], replies: Sequence[Any]) -> None:
    """Let the worker's lease know what it would know if the verb had been its own."""
    for item, reply in zip(items, replies, strict=True):
        if tuple(item[:2] if verb == "check" else (item.job_id, item.epoch)) != (lease.job_id, lease.epoch):
            continue
        if isinstance(reply, StaleEpoch | UnknownJob):
            worker_side.note_lost(lease)
        elif verb == "progress":
            worker_side.note_move(lease)
        elif verb == "settle" and reply is None:
            worker_side.note_settled(lease, True)
        elif verb == "renew":
            worker_side.note_renewal(lease, reply, item.lease_us or 0)


def _refused(lease: Lease, call: Call, error: Exception) -> None:
    if isinstance(error, StaleEpoch | UnknownJob) and call.args[:2] == (lease.job_id, lease.epoch):
        worker_side.note_lost(lease)


def _sendable(error: Exception) -> Exception:
    """Return the error, or one that says the same and can be read in another process."""
    if isinstance(error, LeaseholdError) or type(error).__module__ == "builtins":
        return error
    return StoreUnavailable(f"{type(error).__name__}: {error}", outcome_unknown=True)
