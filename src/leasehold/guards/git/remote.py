"""What stands at the remote: the tips of branches and their marks."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from typing import NamedTuple

from ...core.marks import unreadable
from ...errors import GuardUnavailable
from .command import Git, Ran
from .marks import GitMark, Objects
from .names import HEADS


class Standing(NamedTuple):
    """A branch as it was seen: its tip, and its mark with the id of the mark's commit; None where there is none."""

    tip: str | None
    mark_id: str | None
    mark: GitMark | None

    @property
    def is_bypassed(self) -> bool:
        """Whether the tip is not the one that the last write through the guard left."""
        return self.mark is not None and self.mark.commit != self.tip


class Remote:
    """Reads a repository by its URL or path, with a small repository of its own beside it for the marks."""

    def __init__(self, url: str, git: Git) -> None:
        self.url = url
        self._git = git
        self._lock = threading.Lock()
        self._scratch: Objects | None = None
        self._folder = ""
        self._process = 0  # whose folder it is
        self._marks: dict[str, GitMark] = {}  # by the ids of their commits, which say all of their content

    def refs(self, *names: str, resource: str) -> dict[str, str]:
        """Return the ids of those refs that exist."""
        ran = self._git("ls-remote", "--quiet", "--", self.url, *names, cwd=tempfile.gettempdir())
        if ran.code != 0:
            raise GuardUnavailable(
                f"{resource}: {self.url} cannot be read ({ran.why}). Nothing was written; try again."
            )
        found = (line.partition("\t") for line in ran.out.splitlines())
        return {name: number for number, _, name in found if name in names}

    def standing(self, branch: str, mark_ref: str, *, resource: str) -> Standing:
        """Return the branch and its mark as they stand; raise `GuardUnavailable` if they cannot be read."""
        seen: Standing | None = None
        while True:
            refs = self.refs(HEADS + branch, mark_ref, resource=resource)
            mark_id = refs.get(mark_ref)
            mark = None if mark_id is None else self._mark(mark_id, mark_ref, resource)
            found = Standing(refs.get(HEADS + branch), mark_id, mark)
            if mark_id is not None and mark is None:
                continue  # it was replaced while we fetched it
            # A server reads one ref after the other, so a push in between shows half of itself; it is whole next time.
            if not found.is_bypassed or found == seen:
                return found
            seen = found

    def _mark(self, mark_id: str, ref: str, resource: str) -> GitMark | None:
        """Return the mark with that id; None if the ref has another one by now."""
        if mark_id not in self._marks:
            folder, _ = self.scratch(mark_id)
            # Into no ref: an id is enough, and a fetch into a ref would race with those of other threads.
            options = ("--quiet", "--no-tags", "--depth=1", "--no-write-fetch-head", "--no-auto-maintenance")
            ran = self._git("fetch", *options, "--", self.url, ref, cwd=folder)
            if ran.code != 0:
                raise unreadable(resource, f"{ref} of {self.url} cannot be fetched: {ran.why}")
            ran = self._git("cat-file", "commit", mark_id, cwd=folder)
            if ran.code != 0:
                if self.refs(ref, resource=resource).get(ref) == mark_id:
                    raise unreadable(resource, f"{ref} of {self.url} is not a commit: {ran.why}")
                return None
            if len(self._marks) > 1000:
                self._marks.clear()
            self._marks[mark_id] = GitMark.decode(ran.out.partition("\n\n")[2], resource)
        return self._marks[mark_id]

    def remember(self, mark_id: str, mark: GitMark) -> None:
        """Keep a mark that was just written, so that it need not be fetched."""
        self._marks[mark_id] = mark

    def scratch(self, like: str | None) -> tuple[str, Objects]:
        """Return a bare repository of our own, with ids of the length of *like*, and its objects."""
        with self._lock:
            # Anew after a fork, since the parent removes its own; and after a cleaner of temporary folders.
            is_there = self._process == os.getpid() and os.path.exists(os.path.join(self._folder, "HEAD"))
            if self._scratch is None or not is_there:
                folder = tempfile.mkdtemp(prefix="leasehold-git-")
                weakref.finalize(self, _remove, folder, os.getpid())
                algorithm = "sha256" if like is not None and len(like) == 64 else "sha1"
                ran = self._git("init", "--quiet", "--bare", f"--object-format={algorithm}", "--", ".", cwd=folder)
                if ran.code != 0:
                    raise GuardUnavailable(f"git cannot make a repository in {folder}: {ran.why}. Nothing was written.")
                self._folder, self._process = folder, os.getpid()
                self._scratch = Objects(os.path.join(folder, "objects"), algorithm)
            return self._folder, self._scratch


def _remove(folder: str, process: int) -> None:
    """Remove a folder, in the process that has made it: its children come to their end, too."""
    if process == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


class Push(NamedTuple):
    """Refs to change in one step: for each, the id that it must have (None: none) and the one that it gets."""

    changes: tuple[tuple[str, str | None, str | None], ...]  # name, before, after

    def run(self, git: Git, url: str, *, cwd: str, settings: tuple[str, ...] = ()) -> Ran:
        """Push; all or nothing."""
        # Explicit expectations: without them git compares with its remote-tracking refs, which any fetch moves.
        leases = [f"--force-with-lease={name}:{before or ''}" for name, before, _ in self.changes]
        specs = [f"{after or ''}:{name}" for name, _, after in self.changes]
        options = ("--porcelain", "--atomic", "--no-follow-tags", "--recurse-submodules=no")
        return git("push", *options, *leases, "--", url, *specs, cwd=cwd, settings=settings)
