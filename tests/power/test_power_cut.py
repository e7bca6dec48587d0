"""
Power cuts: every write that was not synced is lost, and what was acknowledged is still there.

To kill a process, or a server, takes nothing back: its writes are in the kernel. So the writer is loaded with a small
library (`unsynced.c`) that keeps each file as it was at its last fsync; then it is killed, and its files are replaced
by those. That needs a C compiler. A real cut may also keep some of the later writes, in any order, and tear one: that
is not tried here.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.postgres.fixtures import must_have
from tests.postgres.server import INSTALLED, Server, server
from tests.sqlite.processes import end

from leasehold import Router

HERE = Path(__file__).parent
NEWEST = max(INSTALLED)
LINES = 200  # that are acknowledged before the cut


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that remembers what was synced."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("to know what a power cut would leave needs a C compiler, and Linux")
    made = tmp_path_factory.mktemp("power") / "unsynced.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", made, HERE / "unsynced.c", "-ldl"], check=True)
    return made


def loaded(library: Path, files: Path, kept: Path) -> dict[str, str]:
    """The environment of a process of which *kept* shall have what it syncs of *files*."""
    return {"LD_PRELOAD": str(library), "UNSYNCED_FROM": str(files), "UNSYNCED_TO": str(kept)}


def written(url: str, environment: dict[str, str] | None = None, *, lines: int = LINES) -> list[tuple[str, str]]:
    """Have a process write until it has said *lines* lines; kill it, and return what it was acknowledged."""
    top = HERE.parents[1]
    path = os.pathsep.join([str(top / "src"), str(top)])
    writer = subprocess.Popen(
        [sys.executable, str(HERE / "writer.py"), url],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, **(environment or {})},
    )
    try:
        assert writer.stdout is not None
        said = [writer.stdout.readline() for _ in range(lines)]
        writer.kill()
        said += writer.stdout.readlines()
    finally:
        end(writer)
    found = [line.decode().split() for line in said]
    assert all(len(line) == 2 for line in found), found
    return [(kind, what) for kind, what in found]


def lost(router: Router, said: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return what was acknowledged and is not there; no epoch may be issued again, whatever is."""
    jobs = {job.id: job.status for job in router.jobs()}
    highest = max(int(what) for kind, what in said if kind == "claimed")
    gone = [(kind, what) for kind, what in said if kind == "added" and what not in jobs]
    gone += [(kind, what) for kind, what in said if kind == "done" and jobs.get(what) != "done"]
    assert router.verify() == []
    router.add("afterwards", priority=1)
    lease = router.claim("afterwards")
    assert lease is not None
    assert lease.epoch > highest
    return gone


@pytest.mark.parametrize("synchronous", ["full", "normal"])
def test_a_power_cut_and_sqlite(tmp_path: Path, library: Path, synchronous: str) -> None:
    """With `full`, nothing that was acknowledged is lost; with `normal` the last is, and no epoch comes twice."""
    files, kept = tmp_path / "files", tmp_path / "kept"
    files.mkdir()
    with Router(f"sqlite:///{files}/jobs.db") as router:
        router.add("before")
    shutil.copytree(files, kept)  # closed, so all of it was written

    said = written(f"sqlite:///{files}/jobs.db?synchronous={synchronous}", loaded(library, files, kept))

    with Router(f"sqlite:///{kept}/jobs.db") as router:
        assert bool(lost(router, said)) is (synchronous == "normal")


@pytest.mark.parametrize("fsync", ["on", "off"])
def test_a_power_cut_and_postgresql(library: Path, fsync: str) -> None:
    """With `fsync`, nothing that was acknowledged is lost; without it something is, so the cut is one."""
    must_have(NEWEST)
    with server(NEWEST, {"fsync": fsync, "full_page_writes": "on"}) as running:
        with Router(running.url()) as router:
            router.add("before")
        with cut_off(running, library):
            said = written(running.url())
        with Router(running.url()) as router:
            assert bool(lost(router, said)) is (fsync == "off")


@contextmanager
def cut_off(running: Server, library: Path) -> Iterator[None]:
    """Start the server anew, cut its power at the end of the block, and start it with what is left."""
    data, kept = running.folder / "data", running.folder / "kept"
    running.stop(signal.SIGINT)
    subprocess.run(["cp", "-a", data, kept], check=True)
    # Beside the data, since a server may run as another user, who has to read it.
    environment = loaded(Path(shutil.copy(library, running.folder)), data, kept)
    os.environ.update(environment)
    try:
        running.start()
    finally:
        for name in environment:
            del os.environ[name]
    yield
    running.stop(signal.SIGKILL)
    shutil.rmtree(data)
    for part in kept.rglob("*.unsynced-*"):
        part.unlink()
    (kept / "postmaster.pid").unlink(missing_ok=True)
    kept.rename(data)
    running.start()
