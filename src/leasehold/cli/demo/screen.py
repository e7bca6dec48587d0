"""Prints the trace while the story plays. On a terminal, a line below it shows the lease that is held now."""

from __future__ import annotations

import os
import sys
import textwrap
import threading

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ... import Clock, Event, Job, LeaseholdError, Router
from .trace import MARGIN, Trace

TICK_SECONDS = 0.08
BAR_WIDTH = 24
TEXT_WIDTH = 88
_ASCII = str.maketrans({"…": "...", "–": "-", "▓": "=", "✗": "X", "▐": "[", "▌": "]"})


class Screen:
    """
    Tells the story. As a context manager it follows the store's events on a thread of its own.

    Every line first prints the events that have happened by then, so that lines keep the order of things. On a
    server, which is *remote*, an event may appear after one with a greater number.
    """

    def __init__(self, router: Router, clock: Clock, trace: Trace, *, plain: bool, remote: bool = False) -> None:
        self.trace = trace
        self.events: list[Event] = []
        self.plain = plain
        self._remote = remote
        self._router, self._clock = router, clock
        self._console = Console(highlight=False, no_color=plain or None)
        self._live = None if plain else Live(console=self._console, auto_refresh=False, transient=True)
        self._lock = threading.RLock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="demo-screen", daemon=True)
        self._job_id: str | None = None
        self._after: int | None = None
        self._ahead_us = 0  # of our clock, the server's
        self._jobs: set[str] = set()
        self._error: OSError | None = None

    @property
    def width(self) -> int:
        """How many characters a line has."""
        return 100 if self.plain else self._console.width

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._job_id = None
        if self._live is not None:
            self._live.stop()
        if kind is None:
            self._flush()

    # Lines

    def scene(self, job_id: str, title: str, text: str) -> None:
        """Announce a scene, which is about *job_id*."""
        with self._lock:
            self._flush()
            self._job_id = job_id
            self._jobs.add(job_id)
            self.print(Text())
            self.print(Text(f"{self.trace.name(job_id)}  {title}", "bold"))
            for line in textwrap.wrap(text, min(self.width, TEXT_WIDTH)):
                self.print(Text(line))

    def say(self, text: str) -> None:
        """Tell what no event of the store tells."""
        with self._lock:
            self._flush()
            self.print(Text(" " * MARGIN + text, "italic"))

    def print(self, line: Text) -> None:
        """Print one line, in whatever way the output can show it."""
        with self._lock:
            if self.plain:
                # Neither wrapped nor buffered: the reader of a pipe gets whole lines, at once.
                print(line.plain.translate(_ASCII).rstrip(), flush=True)
            else:
                self._console.print(line)
        if self._error is not None:
            raise self._error

    # The store's events

    def _follow(self) -> None:
        try:
            while not self._done.wait(TICK_SECONDS):
                with self._lock:
                    self._flush()
                    if self._live is not None:
                        self._live.update(self._now(), refresh=True)
        except OSError as error:  # the reader of the pipe has gone; the next line tells the main thread
            self._error = error
        except LeaseholdError:
            pass  # the store is closed or broken: the story meets the same error and reports it

    def _flush(self) -> None:
        with self._lock:
            if self._after is None:
                # The file may hold a long history of others; ours begins with the first job that we added.
                first = next((found[0] for job in self._jobs if (found := self._router.events(job, limit=1))), None)
                if first is None:
                    return
                self._after = first.number - 1
                self._ahead_us = first.at_us - self._clock.now() if self._remote else 0
            fresh = self._router.events(after=self._after, limit=None)
            if self._remote:  # and has no events but ours, which are few: look at all of them again
                shown = {event.number for event in self.events}
                fresh = [event for event in fresh if event.number not in shown]
            elif fresh:
                self._after = fresh[-1].number
            ours = [event for event in fresh if event.job_id in self._jobs]
            self.events += ours
            for line in self.trace.lines(ours):
                self.print(line)

    # The line below

    def _now(self) -> Text:
        if self._job_id is None or self._after is None:
            return Text()
        try:
            return self._shown(self._router.job(self._job_id))
        except LookupError:  # announced, and not added yet
            return Text()

    def _shown(self, job: Job) -> Text:
        if job.owner is None or job.expires_us is None or job.granted_us is None:
            return Text(f"          {self.trace.name(job.id)} is {job.status}", "dim")
        left, whole = job.expires_us - self._clock.now() - self._ahead_us, job.expires_us - job.granted_us
        filled = max(0, min(BAR_WIDTH, round(BAR_WIDTH * left / whole)))
        colour = self.trace.colour(job.owner)
        remaining = f"lease: {left / 1e6:.1f} s left" if left > 0 else "lease expired: others may take the job"
        return Text.assemble(
            f"          {self.trace.name(job.id)} ",
            (f"{job.owner} {self.trace.epoch(job.epoch)}  ", colour),
            ("━" * filled, colour),
            ("━" * (BAR_WIDTH - filled), "dim"),
            f"  {remaining}",
        )


def wants_plain() -> bool:
    """Return whether the output can show nothing but plain lines: no terminal, a dumb one, or no Unicode."""
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return not sys.stdout.isatty() or os.environ.get("TERM") in ("dumb", "unknown") or encoding != "utf8"
