"""Shows on the real server that a stale push is refused, with two refs of its own that are removed afterwards."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import tempfile

from ...core.marks import Mark
from ...errors import GuardUnavailable, Unfenced
from .command import Git
from .marks import next_mark
from .remote import Push, Remote


def no_atomic_push(url: str) -> Unfenced:
    """Return the error for a server that cannot change a branch and its mark in one step."""
    return Unfenced(
        f"{url} does not support atomic pushes, so a branch and its mark cannot change in one step, and a stale push "
        "might pass. Nothing was written. Use a server that supports them (git does since 2.4, unless "
        "receive.advertiseAtomic is false)."
    )


def prove(git: Git, remote: Remote, prefix: str) -> None:
    """Raise `Unfenced` if the server lets a push pass whose mark another push has raised in between."""
    # No mark of a branch has such a name: a % there stands before two digits.
    mark_ref = f"{prefix}%proof-{secrets.token_hex(8)}"
    data_ref = f"{mark_ref}-data"
    known = remote.refs("HEAD", resource=f"git:{mark_ref}").get("HEAD")
    folder, objects = remote.scratch(known)
    first, raised, stale = (
        objects.write_mark(next_mark(None, Mark(epoch, 1, "prove", "prove"), None)) for epoch in (1, 3, 2)
    )
    begin = Push(((data_ref, None, first), (mark_ref, None, first))).run(git, remote.url, cwd=folder)
    if begin.has_no_atomic_push:
        raise no_atomic_push(remote.url)
    if begin.code != 0:
        raise GuardUnavailable(
            f"{remote.url} does not accept the ref {mark_ref}: {begin.why}. The guard stores its marks under {prefix}: "
            "allow pushes to those refs on that server."
        )
    hooks = tempfile.mkdtemp(prefix="leasehold-git-")
    try:
        # git runs this hook between what the server shows and what it sends: the gap in which a stale push would pass.
        between = ["git", "push", "--quiet", "--no-verify", "--force", "--", remote.url, f"{raised}:{mark_ref}"]
        hook = os.path.join(hooks, "pre-push")
        with open(hook, "x") as file:
            file.write(f"#!/bin/sh\n{shlex.join(between)} && touch {shlex.quote(os.path.join(hooks, 'raised'))}\n")
        os.chmod(hook, 0o755)
        late = Push(((data_ref, first, stale), (mark_ref, first, stale)))
        ran = late.run(git, remote.url, cwd=folder, settings=(f"core.hooksPath={hooks}",))
        if not os.path.exists(os.path.join(hooks, "raised")):
            raise GuardUnavailable(f"prove() could not prepare its test on {remote.url}: {ran.why}. Try again.")
        found = remote.refs(data_ref, mark_ref, resource=f"git:{mark_ref}")
        if ran.code == 0 or found != {data_ref: first, mark_ref: raised}:
            raise Unfenced(
                f"prove() failed: {remote.url} accepted a test push although another push had raised its mark "
                "meanwhile, so a stale owner could overwrite branches there. Only refs of the test's own were "
                "written. Use a server that compares every ref of an atomic push."
            )
    finally:
        shutil.rmtree(hooks, ignore_errors=True)
        git("push", "--quiet", "--no-verify", "--", remote.url, f":{data_ref}", f":{mark_ref}", cwd=folder)
