"""A git server of the tests' own, clones of it, and how a value becomes a commit."""

from __future__ import annotations

import atexit
import functools
import hashlib
import itertools
import os
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leasehold.guards import GitGuard

_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
    "LC_ALL": "C",
    **{f"GIT_{who}_{what}": "test@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}
_commits = itertools.count()


def git(*arguments: str, cwd: Path | str, stdin: bytes = b"") -> str:
    """Run git, and return what it prints."""
    return raw(*arguments, cwd=cwd, stdin=stdin).decode().strip()


def raw(*arguments: str, cwd: Path | str, stdin: bytes = b"") -> bytes:
    """Run git, and return the bytes that it prints."""
    ran = subprocess.run(["git", *arguments], cwd=cwd, input=stdin, capture_output=True, env=_ENVIRONMENT, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout


def new_repository(folder: Path) -> Path:
    """Make a bare repository that a daemon may serve."""
    git("init", "--quiet", "--bare", "--initial-branch=unused", "--", str(folder), cwd="/")
    return folder


@functools.cache
def programs() -> str:
    """Where git has its programs."""
    return git("--exec-path", cwd="/")


@contextmanager
def daemon(folder: Path) -> Iterator[str]:
    """Serve the repositories below *folder* on this machine, and yield the beginning of their URLs."""
    # What it logs, and an end that is not its own, is shown by pytest with a test that fails.
    options = ("--inetd", "--export-all", "--enable=receive-pack", "--log-destination=stderr", f"--base-path={folder}")

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:  # as inetd starts it, so no port has to be guessed
            command = [f"{programs()}/git-daemon", *options]  # not by `git daemon`, a process more that waits for it
            ran = subprocess.run(command, stdin=self.request, stdout=self.request, env=_ENVIRONMENT, check=False)
            if ran.returncode:
                sys.stderr.write(f"git daemon ended with {ran.returncode}\n")

    class Server(socketserver.ThreadingTCPServer):
        # Of five, the default, the kernel resets one of many connections that come at once on a busy machine.
        request_queue_size = 128
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Connection) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"git://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def commit(repo: Path | str, value: bytes, parent: str | None) -> str:
    """Make a commit whose one file has *value*, and return its id."""
    blob = git("hash-object", "-w", "--stdin", cwd=repo, stdin=value)
    tree = git("mktree", cwd=repo, stdin=f"100644 blob {blob}\tvalue\n".encode())
    return git("commit-tree", "-m", "value", *(("-p", parent) if parent else ()), tree, cwd=repo)


def commit_here(value: bytes, parent: str | None) -> str:
    """Make such a commit in the workshop, without starting git three times."""
    tree = b"100644 value\0" + bytes.fromhex(_object(b"blob", value))
    lines = [f"tree {_object(b'tree', tree)}", *([f"parent {parent}"] if parent else [])]
    lines += [f"{who} test <test@localhost> {1_700_000_000 + next(_commits)} +0000" for who in ("author", "committer")]
    return _object(b"commit", "\n".join([*lines, "", "value\n"]).encode())


def _object(kind: bytes, content: bytes) -> str:
    """Write a loose object, and return its id."""
    whole = b"%s %d\0%s" % (kind, len(content), content)
    name = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
    path = Path(workshop(), "objects", name[:2], name[2:])
    path.parent.mkdir(exist_ok=True)
    new = path.with_name(f"tmp_obj_{threading.get_ident()}_{next(_commits)}")
    new.write_bytes(zlib.compress(whole, 1))
    new.rename(path)
    return name


def fetched(repo: Path | str, remote: str, branch: str) -> str | None:
    """Fetch the tip of a branch without its history, and return its id; None if there is no such branch."""
    found = git("ls-remote", "--", remote, f"refs/heads/{branch}", cwd=repo).partition("\t")[0]
    if found and not _has(repo, found):
        git("fetch", "--quiet", "--depth=1", "--", remote, found, cwd=repo)
    return found or None


def _has(repo: Path | str, number: str) -> bool:
    return Path(repo, "objects", number[:2], number[2:]).exists()


@functools.cache
def workshop() -> str:
    """A bare repository of this process, in which its values become commits."""
    folder = tempfile.mkdtemp(prefix="leasehold-workshop-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    git("init", "--quiet", "--bare", cwd=folder)
    return folder


def put_commit(guard: Any, key: str, value: bytes, presented: dict[str, Any]) -> None:
    """Push a commit with *value* that follows the tip of the branch."""
    assert isinstance(guard, GitGuard)
    guard.canonical(key)
    repo = workshop()
    guard.push(repo, key, commit_here(value, fetched(repo, guard.remote, key)), **presented)


def value_of(remote: str, branch: str) -> bytes | None:
    """Return the value of the commit at the tip of a branch."""
    tip = fetched(workshop(), remote, branch)
    return None if tip is None else raw("cat-file", "blob", f"{tip}:value", cwd=workshop())
