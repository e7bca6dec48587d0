"""The battery of the guard contract on git: on a repository beside this one, and over git's own transport."""

from __future__ import annotations

import functools
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.guards.git_server import daemon, git, new_repository, put_commit, value_of

from leasehold.guard import Guard
from leasehold.guards import GitGuard
from leasehold.testing.guard_contract import GuardContract


class GitContract(GuardContract):
    """A repository per test; values are commits of one file."""

    merges = False
    names_holder = blocks = False  # nothing is locked while a writer stands still
    put = staticmethod(put_commit)

    @pytest.fixture(autouse=True)
    def _repository(self, tmp_path: Path, beginning: str) -> None:
        self.repository = new_repository(tmp_path / "server.git")
        self.url = f"{beginning}/server.git"
        self.waiting = tmp_path / "waiting"

    def open(self) -> GitGuard:
        """A guard that has seen nothing yet."""
        return self.factory()

    @property
    def factory(self) -> Callable[[], GitGuard]:
        """For child processes too."""
        return functools.partial(GitGuard, self.url)

    def value(self, guard: Guard, key: str) -> bytes | None:
        """What is at the tip."""
        return value_of(self.url, key)

    def peek(self, guard: Guard, key: str) -> bytes | None:
        """The tip that the guard names."""
        assert isinstance(guard, GitGuard)
        tip = guard.peek(key)
        found = self.value(guard, key)
        assert (tip is None) == (found is None)
        return found

    def read(self, guard: Guard, key: str, **presented: Any) -> bytes | None:
        """Fetch into a repository of its own."""
        assert isinstance(guard, GitGuard)
        clone = new_repository(self.repository.with_name("clone.git"))
        guard.fetch(clone, key, **presented)
        return self.value(guard, key)

    def spoil_mark(self, key: str) -> None:
        """Another commit, with another message."""
        tree = git("mktree", cwd=self.repository)
        other = git("commit-tree", "-m", "not a mark", tree, cwd=self.repository)
        git("update-ref", f"refs/leasehold/marks/{key}", other, cwd=self.repository)

    def unfenced(self) -> GitGuard:
        """A server that cannot change two refs in one step."""
        git("config", "receive.advertiseAtomic", "false", cwd=self.repository)
        return self.open()

    @contextmanager
    def lose_reply(self, guard: Guard, meanwhile: Callable[[], None]) -> Iterator[None]:
        """The server is killed when both refs have changed, before it answers."""
        os.mkfifo(self.waiting)
        hook = self.repository / "hooks/reference-transaction"
        # Once only: the hook removes itself. It waits until the test has done its part in between.
        hook.write_text(
            f'#!/bin/sh\n[ "$1" = committed ] || exit 0\ngrep -q refs/heads/ || exit 0\nrm -f {hook}\n'
            f"echo >{self.waiting}; read answer <{self.waiting}\nkill -9 $PPID\n"
        )
        hook.chmod(hook.stat().st_mode | stat.S_IXUSR)

        def between() -> None:
            self.waiting.read_bytes()
            try:
                meanwhile()
            finally:
                self.waiting.write_text("go on\n")

        thread = threading.Thread(target=between, daemon=True)
        thread.start()
        yield
        thread.join()
        assert not hook.exists(), "nothing was lost"


@pytest.mark.soak
class TestGitGuardOnAPath(GitContract):
    """A remote that is a folder; the server is the same program, so only the long run tries all of it twice."""

    @pytest.fixture
    def beginning(self, tmp_path: Path) -> str:
        """The folder."""
        return str(tmp_path)


class TestGitGuardOverTheNetwork(GitContract):
    """git daemon, on a socket."""

    @pytest.fixture
    def beginning(self, tmp_path: Path) -> Iterator[str]:
        """The URL."""
        with daemon(tmp_path) as url:
            yield url
