"""The status line at the bottom of a terminal; logs and prints scroll above it."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..core.clock import SteadyClock
from .health import Pulse
from .logs import Lines

_PER_SECOND = 4
_WINDOW_US = 5_000_000  # over which the rate is taken
_STYLES = {logging.WARNING: "yellow", logging.ERROR: "red", logging.CRITICAL: "bold red"}
_COUNTED = ("done", "retried", "failed", "refused")


class Status:
    """Shows the pulse that *ask* returns, and *where* the jobs are, below everything that is written meanwhile."""

    def __init__(self, lines: Lines, ask: Callable[[], Pulse], where: str) -> None:
        self._lines = lines
        self._ask = ask
        self._where = where
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)  # NO_COLOR is rich's own affair
        self._clock = SteadyClock()
        self._seen: deque[tuple[int, int]] = deque()
        self._live = Live(
            console=self._console,
            get_renderable=self._now,
            refresh_per_second=_PER_SECOND,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # a pipe or file gets what handlers print unchanged
        )

    def __enter__(self) -> Status:
        self._lines.write = self.write
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def write(self, line: str, level: int) -> None:
        """Write *line* above."""
        self._console.print(Text.from_ansi(line, style=_STYLES.get(level, "")))

    def _now(self) -> Text:
        pulse = self._ask()
        slots = pulse.running + max(pulse.free, 0)
        figures = [f"{pulse.tally.get(name, 0)} {name}" for name in _COUNTED]
        figures += [f"{self._rate(pulse):.1f}/s", self._where]
        colour = "green" if pulse.consuming else "yellow"
        return Text.assemble(
            (f"{pulse.running}/{slots} running", colour),
            ("  " + "  ".join(figures), "dim"),
            ("" if pulse.consuming else f"  {pulse.why}", colour),
            no_wrap=True,
            overflow="ellipsis",
        )

    def _rate(self, pulse: Pulse) -> float:
        now, total = self._clock.now(), sum(pulse.tally.values())
        self._seen.append((now, total))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW_US:
            self._seen.popleft()
        then, before = self._seen[0]
        return (total - before) * 1_000_000 / (now - then) if now > then else 0.0
