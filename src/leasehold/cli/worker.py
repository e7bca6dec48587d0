"""`leasehold worker`: runs the handlers of a router's tasks, in one process or in several."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType

import click

from .. import LeaseholdError, Router
from ..core.redaction import shown_url
from ..worker.claiming import MOST
from ..worker.worker import Worker
from . import logs
from .health import Beats, HealthFile, HealthServer, Pulse, check_folder, pulse_of
from .loading import load, others, shortened
from .supervising import FAILED, FLAG, PULSE_SECONDS, SETTLED, UNSETTLED, Supervised, Supervisor
from .target import redaction_of_file

log = logging.getLogger("leasehold.cli")

_LINGER_SECONDS = 1.0  # for threads that handlers have left behind, at the very end
_TASKS_SHOWN = 20


def _split(_: click.Context, __: click.Parameter, value: str | None) -> list[str] | None:
    if value is None:
        return None
    queues = [queue.strip() for queue in value.split(",")]
    if not all(queues):
        raise click.BadParameter(f"{value!r} contains an empty queue name: write, for instance, images,mail.")
    return queues


@click.command()
@click.argument("path", metavar="APP")
@click.option("--queues", callback=_split, metavar="A,B", help="Claim only from these queues; default: all.")
@click.option(
    "--concurrency",
    metavar="N",
    type=click.IntRange(1, MOST),
    default=16,
    show_default=True,
    help="How many jobs to run at once.",
)
@click.option(
    "--processes",
    metavar="N",
    type=click.IntRange(1, 1_000),
    default=1,
    show_default=True,
    help="How many worker processes to run, each with --concurrency slots.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="The worker's name for `leasehold transfer --to`; its full name begins with it. Default: the host's name.",
)
@click.option(
    "--grace-seconds",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=25.0,
    show_default=True,
    help="At SIGTERM or Ctrl-C, how long to wait for running handlers.",
)
@click.option("--until-empty", is_flag=True, help="Exit once no job that this worker could take is pending or running.")
@click.option("--app-dir", default=".", metavar="FOLDER", help="The folder to search first for modules.")
@click.option(
    "--log-level",
    type=click.Choice(logs.LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    help="The lowest level to log.",
)
@click.option(
    "--log-format",
    type=click.Choice(logs.FORMATS),
    default="text",
    show_default=True,
    help="Plain text, or one JSON object per line; both on stderr.",
)
@click.option("--health-file", metavar="FILE", help="Touch this file each second while the worker is healthy.")
@click.option(
    "--health-port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    help="Answer GET /: 200 while the worker is healthy, else 503.",
)
@click.option(
    "--health-host", metavar="HOST", default="127.0.0.1", show_default=True, help="The address for --health-port."
)
@click.option(FLAG, "supervised_by", type=int, hidden=True)
def worker(
    path: str,
    queues: list[str] | None,
    concurrency: int,
    processes: int,
    name: str | None,
    grace_seconds: float,
    until_empty: bool,
    app_dir: str,
    log_level: str,
    log_format: str,
    health_file: str | None,
    health_port: int | None,
    health_host: str,
    supervised_by: int | None,
) -> int:
    """
    Run the handlers of a router's tasks.

    APP names the Router as module:attribute; without an attribute it is "router". The current folder is importable.
    Modules that Router(imports=[…]) names are imported too.

    At SIGTERM or Ctrl-C it claims no more jobs, waits up to --grace-seconds for its handlers, and releases the jobs
    that are not done. A second signal releases them at once. No job is lost either way, and later writes of a handler
    that did not end in time are refused.

    \b
    Example, with this as app.py:
      from leasehold import Router
      router = Router("sqlite:///jobs.db")

    \b
      @router.task
      def greet(name: str) -> None:
          print("Hello", name)

    \b
    Run:
      python -c "from app import greet; greet.add('Ann')"
      leasehold worker app:router
      leasehold worker app:router --queues images,mail --concurrency 16 \\
          --processes 2

    \b
    Exit codes:
      0  stopped by a signal or --until-empty; every job is settled or handed back
      1  the worker failed: for instance a store of another version, or a lifespan
         that raised
      2  called wrongly: for instance APP cannot be imported
      3  stopped, and some jobs are not settled, since the store did not answer:
         they are reclaimed later
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what handlers print is seen when they print it
    lines = logs.set_up(log_level, log_format)
    serving = _Serving(lines, health_file, health_port, health_host)
    if processes > 1 and supervised_by is None:
        return _supervise(serving, processes, until_empty)
    try:
        early = _Early()
        supervised = None if supervised_by is None else Supervised(supervised_by)
        router = load(path, app_dir)
        router.redaction |= redaction_of_file()
        logs.revive()
        made = early.worker = router.worker(
            concurrency=concurrency, queues=queues, name=name, grace_seconds=grace_seconds
        )
    except _Stopped:
        return SETTLED
    _introduce(made, router)
    with ExitStack() as around:
        if supervised is not None:
            supervised.direct(made)
            around.enter_context(Beats(lambda: supervised.send(pulse_of(made)), PULSE_SECONDS))
        else:
            serving.enter(around, lambda: pulse_of(made), shown_url(router.url or "memory:"))
        code = _run(made, until_empty)
    _leave(code)
    router.close()
    return code


class _Serving:
    """Reports the health of one worker or of several while they run: file, HTTP and status line."""

    def __init__(self, lines: logs.Lines, file: str | None, port: int | None, host: str) -> None:
        self.lines, self._file, self._port, self._host = lines, file, port, host
        if file is not None:
            check_folder(file)  # now, and not when much has been imported

    def enter(self, around: ExitStack, ask: Callable[[], Pulse], where: str) -> None:
        """Report until *around* ends."""
        if self._file is not None:
            around.enter_context(HealthFile(self._file, ask))
        if self._port is not None:
            around.enter_context(HealthServer(self._host, self._port, ask))
        if _has_terminal():
            from .status import Status  # on use: elsewhere rich is not needed

            around.enter_context(Status(self.lines, ask, where))


def _has_terminal() -> bool:
    """Return whether stderr is a terminal on which a line can be written over."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def _supervise(serving: _Serving, processes: int, until_empty: bool) -> int:
    with ExitStack() as around:
        # Their lines must not run into the status line; without one, they write to stderr themselves.
        write = (lambda line, level: serving.lines.write(line, level)) if _has_terminal() else None
        supervisor = Supervisor(processes, until_empty=until_empty, write=write)
        serving.enter(around, supervisor.pulse, f"{processes} processes")
        return supervisor.run()


def _introduce(made: Worker, router: Router) -> None:
    names = sorted(router.tasks)
    shown = ", ".join(names[:_TASKS_SHOWN]) + (f" and {len(names) - _TASKS_SHOWN} more" if len(names) > 20 else "")
    tasks = "1 task" if len(names) == 1 else f"{len(names)} tasks"
    log.info("%s: store %s, %s: %s", made.owner, _located(router), tasks, shown or "none")
    if not names:
        log.warning(
            "this router has no tasks, so the worker will not run any job. Does its module import the modules with "
            "@router.task? Name them in Router(imports=[…]).%s",
            others(router),
        )
    if router.url is None or router.url.startswith("memory:"):
        log.warning(
            "the store is in the memory of this process, so other processes cannot add jobs to it. "
            'For several processes, give the Router a URL such as "sqlite:///jobs.db".'
        )


def _located(router: Router) -> str:
    """Return the URL of the store, and of a SQLite file where it is: the current folder may not be what it seems."""
    database = getattr(router.store, "database", None)
    path = getattr(database, "path", None)
    return shown_url(router.url or "memory:") + (f" ({path})" if path else "")


def _run(made: Worker, until_empty: bool) -> int:
    try:
        made.run(until_empty=until_empty)
    except Exception as error:
        log.critical("the worker failed: %s", error if isinstance(error, LeaseholdError) else shortened(error))
        return FAILED
    return UNSETTLED if made.unsettled else SETTLED


class _Stopped(BaseException):
    """A signal came before there was anything to finish."""


class _Early:
    """Handles the signals that come before the worker installs its own handlers, and after it removed them."""

    def __init__(self) -> None:
        self.worker: Worker | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take)

    def _take(self, _: int, __: FrameType | None) -> None:
        if self.worker is None:
            raise _Stopped
        self.worker.end()


def _leave(code: int) -> None:
    """End the process soon, even if a handler has left threads behind or a call to the store hangs."""

    def end() -> None:
        threading.Event().wait(_LINGER_SECONDS)
        log.warning("a thread of a handler, or a call to the store, is still running; exiting without waiting for it")
        sys.stdout.flush()
        os._exit(code)

    threading.Thread(target=end, name="leasehold-end", daemon=True).start()
