"""
Marks as commits, and how one is written into a repository.

The mark of a branch is a commit without parents and files, under a ref of its own, with the facts in its message. A
commit, since some servers take nothing else under a ref; without parents, since a shallow clone could not push it
otherwise. No two marks are equal: each has a nonce.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import zlib
from contextlib import suppress
from typing import NamedTuple

from ...core.marks import Mark, unreadable

RECENT = 16  # how many writes back a mark remembers, for a writer whose reply was lost


class GitMark(NamedTuple):
    """A mark, the tip that the guard gave the branch with it, and the nonces of the last writes, newest first."""

    mark: Mark
    commit: str | None  # None: deleted, or never there
    nonces: tuple[str, ...]

    def encode(self) -> bytes:
        """Return the message of the commit: a line for people, and the facts."""
        facts = {**self.mark._asdict(), "commit": self.commit, "nonces": self.nonces}
        return f"leasehold: epoch {self.mark.epoch}, write {self.mark.counter}\n\n{json.dumps(facts)}\n".encode()

    @classmethod
    def decode(cls, message: str, resource: str) -> GitMark:
        """Return the mark of a commit's message; raise `GuardUnavailable` if it is not one."""
        text = message.strip().rpartition("\n")[2]
        mark = Mark.decode(text, resource)
        facts = json.loads(text)
        commit, nonces = facts.get("commit"), facts.get("nonces")
        if not (commit is None or isinstance(commit, str)) or not isinstance(nonces, list):
            raise unreadable(resource, f"its fields are {facts!r}")
        return cls(mark, commit, tuple(map(str, nonces)))


def next_mark(before: GitMark | None, mark: Mark, commit: str | None) -> GitMark:
    """Return what follows *before*, with a nonce of its own."""
    nonces = () if before is None else before.nonces
    return GitMark(mark, commit, (secrets.token_hex(8), *nonces)[:RECENT])


class Objects(NamedTuple):
    """The folder of a repository's objects, to which marks are written without starting git."""

    folder: str
    algorithm: str

    def write_mark(self, mark: GitMark) -> str:
        """Write the commit of a mark, and return its id."""
        tree = self._write(b"tree", b"")
        when = mark.mark.epoch // 1_000_000  # about when the epoch was issued
        person = b"leasehold <leasehold@localhost> %d +0000" % when
        head = b"tree %s\nauthor %s\ncommitter %s\n\n" % (tree.encode(), person, person)
        return self._write(b"commit", head + mark.encode())

    def _write(self, kind: bytes, content: bytes) -> str:
        # The loose format, as old as git: <kind> <length> NUL <content>, deflated, at the first two digits of its hash.
        whole = b"%s %d\0%s" % (kind, len(content), content)
        name = hashlib.new(self.algorithm, whole, usedforsecurity=False).hexdigest()
        folder = os.path.join(self.folder, name[:2])
        path = os.path.join(folder, name[2:])
        if not os.path.exists(path):
            with suppress(FileExistsError):
                os.mkdir(folder)
            new = os.path.join(folder, f"tmp_obj_{secrets.token_hex(8)}")  # which `git gc` removes if we do not
            with open(new, "xb") as file:
                file.write(zlib.compress(whole, 1))
            os.chmod(new, 0o444)
            os.rename(new, path)
        return name
