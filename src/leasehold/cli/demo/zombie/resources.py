"""What the two processes write to: a table, a file, a git branch, an HTTP service and the job. See `objects` too."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from .... import Lease, StaleEpoch
from ....guards import FileGuard, GitGuard, SqlGuard

KEY = "q3"


class Resource(ABC):
    """One thing that is written to: through its guard, or past it."""

    name: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:  # noqa: B027  # most have something to make, and not all
        """Make it, before the processes start."""

    @abstractmethod
    def write(self, lease: Lease, text: str, *, guarded: bool) -> None:
        """Replace what is there by *text*; raise `StaleEpoch` if that is refused."""

    @abstractmethod
    def read(self) -> str:
        """Return what is there, as a reader that knows nothing of guards sees it."""


class Table(Resource):
    """A row in a database that is not leasehold's own."""

    name = "table"

    @property
    def _path(self) -> Path:
        return self.folder / "reports.db"

    def prepare(self) -> None:
        """Make the table."""
        connection = sqlite3.connect(self._path)
        with connection:
            connection.execute("CREATE TABLE reports (name TEXT PRIMARY KEY, body TEXT)")
        connection.close()

    def write(self, lease: Lease, text: str, *, guarded: bool) -> None:
        """Replace the row."""
        put = "INSERT INTO reports VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET body = excluded.body"
        if guarded:
            guard = SqlGuard(f"sqlite:///{self._path}")
            with guard.transaction(KEY, lease=lease) as connection:
                connection.execute(put, (KEY, text))
            guard.close()
            return
        connection = sqlite3.connect(self._path)
        with connection:
            connection.execute(put, (KEY, text))
        connection.close()

    def read(self) -> str:
        """Return the row."""
        connection = sqlite3.connect(self._path)
        [(body,)] = connection.execute("SELECT body FROM reports WHERE name = ?", (KEY,)).fetchall()
        connection.close()
        return str(body)


class File(Resource):
    """A file."""

    name = "file"

    @property
    def _folder(self) -> Path:
        return self.folder / "out"

    def prepare(self) -> None:
        """Make its folder."""
        self._folder.mkdir()

    def write(self, lease: Lease, text: str, *, guarded: bool) -> None:
        """Replace the file."""
        if guarded:
            FileGuard(self._folder).write(f"{KEY}.txt", text, lease=lease)
        else:
            (self._folder / f"{KEY}.txt").write_text(text)

    def read(self) -> str:
        """Return the file."""
        return (self._folder / f"{KEY}.txt").read_text()


class Git(Resource):
    """A branch of a git repository."""

    name = "git"

    @property
    def _remote(self) -> Path:
        return self.folder / "remote.git"

    def prepare(self) -> None:
        """Make the repository that both push to."""
        _git("init", "-q", "--bare", str(self._remote), cwd=self.folder)

    def write(self, lease: Lease, text: str, *, guarded: bool) -> None:
        """Commit the report in a clone of one's own, and push it."""
        clone = self.folder / f"clone-{lease.owner}"
        if not clone.exists():
            _git("init", "-q", str(clone), cwd=self.folder)
        (clone / "report.txt").write_text(text)
        _git("add", "report.txt", cwd=clone)
        name = ["-c", "user.name=demo", "-c", "user.email=demo@example.org"]
        _git(*name, "commit", "-q", "-m", text, cwd=clone)
        if guarded:
            GitGuard(self._remote).push(clone, "main", force=True, lease=lease)
        else:
            _git("push", "-q", "--force", str(self._remote), "HEAD:refs/heads/main", cwd=clone)

    def read(self) -> str:
        """Return the report on the branch."""
        return _git("show", "main:report.txt", cwd=self._remote).strip()


def _git(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(["git", *arguments], cwd=cwd, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


class Http(Resource):
    """A service that keeps the last report that it was sent."""

    name = "http"

    @property
    def _url(self) -> str:
        return (self.folder / "service.url").read_text()

    def write(self, lease: Lease, text: str, *, guarded: bool) -> None:
        """Send the report, with the lease in headers if it is *guarded*."""
        presented = {"X-Epoch": str(lease.epoch), "X-Owner": lease.owner, "X-Store": lease.store.identity()}
        request = urllib.request.Request(
            f"{self._url}/{KEY}", data=text.encode(), method="PUT", headers=presented if guarded else {}
        )
        try:
            urllib.request.urlopen(request, timeout=60).close()
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise
            current, _, owner = error.read().decode().partition(" ")
            raise StaleEpoch(
                f"http:{KEY}: 409 Conflict: epoch {lease.epoch} is refused, since the service has seen epoch {current}",
                resource=f"http:{KEY}",
                presented=lease.epoch,
                current=int(current),
                owner=owner,
            ) from None

    def read(self) -> str:
        """Ask for the report."""
        with urllib.request.urlopen(f"{self._url}/{KEY}", timeout=60) as reply:
            return str(reply.read().decode())


class TheJob(Resource):
    """The job's own result: fenced by the store itself, whatever guards there are."""

    name = "job"

    def write(self, lease: Lease, text: str, *, guarded: bool) -> None:
        """Complete the job."""
        lease.complete(text)

    def read(self) -> str:
        """Return nothing: the play reads the job from the store."""
        return ""


def resources(folder: Path) -> list[Resource]:
    """Return what is written to, in this order; git and objects only where they are installed."""
    from .objects import PLACE, Object  # which stands on this module

    kinds: list[type[Resource]] = [Table, File, *([Git] if shutil.which("git") else []), Http]
    kinds += [*([Object] if (folder / PLACE).exists() else []), TheJob]
    return [kind(folder) for kind in kinds]
