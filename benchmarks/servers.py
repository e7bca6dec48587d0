"""
A PostgreSQL server for one benchmark: new, empty, as durable as PostgreSQL is by itself, and gone afterwards.

    with postgres("18") as url:
        router = Router(url)

The binaries, the user to run as and the waiting are those of the tests' servers (`tests/postgres/server.py`), which
differ in one thing: they do without fsync. Here every setting is PostgreSQL's own unless the benchmark says otherwise,
so a commit is on the disk that holds the temporary folder (TMPDIR) before it is acknowledged.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `tests` is this checkout's

from tests.postgres.server import INSTALLED, NoServer, Server, server

__all__ = ["INSTALLED", "NoServer", "Server", "postgres", "postgres_server"]

NEWEST = "18"


@contextmanager
def postgres(version: str = NEWEST, **settings: str) -> Iterator[str]:
    """Run a server of *version* with *settings* (`shared_buffers="1GB"`) for the block, and give the URL of it."""
    with postgres_server(version, **settings) as running:
        yield running.url()


@contextmanager
def postgres_server(version: str = NEWEST, **settings: str) -> Iterator[Server]:
    """The same, for who needs more than a URL: where the server is, to stop and start it."""
    if version not in INSTALLED:
        raise NoServer(f"there is PostgreSQL {' and '.join(INSTALLED)}, not {version!r}.")
    if _in_memory(tempfile.gettempdir()) and settings.get("fsync") != "off":
        print(f"{tempfile.gettempdir()} is in memory, so fsync costs nothing: set TMPDIR.", file=sys.stderr)
    with _ended_by_sigterm(), server(version, settings, durable=True) as running:
        yield running


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Leave the block in order when told to end: the server would stay behind, being in a session of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _in_memory(folder: str) -> bool:
    """Whether *folder* is on a file system without a disk, as far as Linux tells."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return False
    here = Path(folder).resolve()
    holding = [(place, kind) for place, kind in mounts if here.is_relative_to(place)]
    return bool(holding) and max(holding, key=lambda mount: len(mount[0]))[1] in ("tmpfs", "ramfs")
