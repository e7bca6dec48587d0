"""`--watch`: prints again and again, in place on a terminal, until Ctrl-C."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

from .. import StoreUnavailable
from ..core import instants
from ..core.clock import SystemClock

F = TypeVar("F", bound=Callable[..., Any])

WATCH_SECONDS = 2.0


class Watch(NamedTuple):
    """Whether to print again, and how often."""

    on: bool
    seconds: float

    def repeat(self, once: Callable[[], None], *, in_place: bool = True) -> None:
        """
        Print once, or again and again; with *in_place*, a terminal shows the newest only, under the time.

        A store that stops answering is reported, and asked again. If it does not answer the first time, that is an
        error as without --watch.
        """
        if not self.on:
            once()
            return
        in_place = in_place and sys.stdout.isatty()
        pause, first = threading.Event(), True
        while True:
            if in_place:
                click.clear()
                now = instants.aware(SystemClock().now()).astimezone().isoformat(sep=" ", timespec="seconds")
                click.echo(f"{now}, every {self.seconds:g} s; Ctrl-C to stop\n")
            try:
                once()
            except StoreUnavailable as error:
                if first:
                    raise
                click.echo(f"leasehold: {error} Trying again in {self.seconds:g} s.", err=True)
            first = False
            sys.stdout.flush()
            pause.wait(self.seconds)


def watch_options(what: str) -> Callable[[F], F]:
    """Give a command --watch, whose help is *what*, and --every; it gets a `Watch`."""

    def give(command: F) -> F:
        @click.option("--watch", is_flag=True, help=f"{what} until Ctrl-C.")
        @click.option(
            "--every",
            metavar="SECONDS",
            type=click.FloatRange(0.1, 3600),
            default=WATCH_SECONDS,
            show_default=True,
            help="With --watch: refresh after this many seconds.",
        )
        @functools.wraps(command)
        def wrapped(watch: bool, every: float, **options: Any) -> Any:
            return command(watch=Watch(watch, every), **options)

        return wrapped  # type: ignore[return-value]  # the same command with more options

    return give
