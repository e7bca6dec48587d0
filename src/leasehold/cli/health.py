"""
Health probes: a file that is touched while a worker is healthy, and HTTP.

A worker is healthy if the store answers its claims, or if its slots are busy with live work.

A `Pulse` is what one process knows of itself, or the supervisor of all of them.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import socketserver
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import click

from ..core.clock import SystemClock
from ..worker.worker import Worker

log = logging.getLogger("leasehold.cli")

BEAT_SECONDS = 1.0
MAX_AGE_SECONDS = 10.0
STARTING = "it is starting"


class Pulse(NamedTuple):
    """Whether a worker is healthy, the reason if not, and its counts so far."""

    consuming: bool
    why: str
    claimed_seconds: float | None  # since the store last answered a claim
    running: int
    free: int
    tally: dict[str, int]

    def as_json(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(self._asdict())


def pulse_of(worker: Worker) -> Pulse:
    """Return the health and the tally of *worker*."""
    health = worker.health()
    if not worker.is_started:  # which this command is about to do
        health = health._replace(why=STARTING)
    return Pulse(*health, asdict(worker.tally))


class Beats:
    """Calls *beat* again and again, on a thread of its own, inside the block."""

    def __init__(self, beat: Callable[[], None], seconds: float = BEAT_SECONDS) -> None:
        self._beat = beat
        self._seconds = seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="leasehold-beats", daemon=True)

    def __enter__(self) -> Beats:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _go_on(self) -> None:
        while True:
            try:
                self._beat()
            except Exception:
                log.exception("could not report health; retrying in %.1f s", self._seconds)
            if self._over.wait(self._seconds):
                return


def check_folder(path: str) -> None:
    """Refuse a file whose folder is missing."""
    if not Path(path).absolute().parent.is_dir():
        raise click.BadParameter(f"the folder of {path!r} does not exist; create it first.", param_hint="--health-file")


class HealthFile:
    """A file that is touched while the worker is healthy, and removed at the end."""

    def __init__(self, path: str, ask: Callable[[], Pulse]) -> None:
        self._path = Path(path)
        self._ask = ask
        check_folder(path)
        try:
            self._path.touch()
            self._path.unlink()  # a killed worker may have left one, which says nothing about this one
        except OSError as error:
            raise click.BadParameter(f"cannot write {path!r}: {error.strerror}.", param_hint="--health-file") from None
        self._beats = Beats(self._touch)

    def _touch(self) -> None:
        if self._ask().consuming:
            self._path.touch()

    def __enter__(self) -> HealthFile:
        self._beats.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._beats.__exit__()
        with suppress(OSError):
            self._path.unlink()


class _Server(ThreadingHTTPServer):
    def server_bind(self) -> None:
        # Not HTTPServer's own, which looks up the host's name, and may wait for that a long time.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]


class _Server6(_Server):
    address_family = socket.AF_INET6


class HealthServer:
    """Answers `GET /` with the pulse: 200 if the worker is healthy, else 503."""

    def __init__(self, host: str, port: int, ask: Callable[[], Pulse]) -> None:
        try:
            self._server = (_Server6 if ":" in host else _Server)((host, port), _answering(ask))
        except (OSError, OverflowError) as error:
            raise click.ClickException(
                f"cannot listen on {host}:{port}: {error}. Choose another --health-port or --health-host."
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="leasehold-health", daemon=True)

    def __enter__(self) -> HealthServer:
        self._thread.start()
        host, port = self._server.server_address[:2]
        log.info("health is at http://%s:%s/", f"[{host!s}]" if ":" in str(host) else host, port)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _answering(ask: Callable[[], Pulse]) -> type[BaseHTTPRequestHandler]:
    class Answer(BaseHTTPRequestHandler):
        timeout = 10  # a silent client must not hold a thread for ever

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            if self.path.partition("?")[0] != "/":
                self.send_error(404, "Not found; GET / returns the health")
                return
            pulse = ask()
            content = (pulse.as_json() + "\n").encode()
            self.send_response(200 if pulse.consuming else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            log.debug(format, *args)

    return Answer


@click.command("worker-health")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option(
    "--max-age-seconds",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=MAX_AGE_SECONDS,
    show_default=True,
    help="The worker counts as healthy while the file is no older than this.",
)
def worker_health(file: str, max_age_seconds: float) -> int:
    """
    Check whether the worker with --health-file FILE is healthy, for probes.

    Exits with 0 if the file was touched lately, else with 1: the worker does not run, cannot reach its store, or
    all its slots hang.

    \b
    Example, in the same container or on the same machine:
      leasehold worker app:router --health-file /run/mail.alive
      leasehold worker-health /run/mail.alive
    """
    try:
        age = SystemClock().now() / 1_000_000 - os.stat(file).st_mtime
    except FileNotFoundError:
        click.echo(f"unhealthy: the file {file} does not exist, so no healthy worker has written it")
        return 1
    except OSError as error:
        click.echo(f"unknown: cannot read {file}: {error.strerror}")
        return 1
    if age > max_age_seconds:
        click.echo(f"unhealthy: {file} was last touched {age:.0f} s ago, more than {max_age_seconds:g} s")
        return 1
    click.echo("healthy")
    return 0
