"""The verbs of a git guard."""

from __future__ import annotations

import os
from typing import Literal, NamedTuple, Unpack

from ...aio import Facade, threaded, warn_on_loops
from ...core import checks
from ...core.marks import Mark, Writer, unreadable
from ...errors import Conflict, GuardUnavailable, InDoubt, InvalidArgument
from ...guard import Guard, Presented, Seal, Verifier
from .command import Git, Ran
from .marks import RECENT, GitMark, Objects, next_mark
from .names import HEADS, canonical_branch, checked_commit, checked_prefix, checked_remote, mark_ref
from .prove import no_atomic_push, prove
from .remote import Push, Remote, Standing

MARKS = "refs/leasehold/marks/"
_ATTEMPTS = 10
_LOST = 3  # replies, until a write is in doubt


class GitGuard(Guard):
    """
    Refuses to push to a branch under an epoch below the highest that the branch has admitted.

    Branch and mark change in one atomic push, in which the server compares both with what the guard has read. It works
    with every server that has atomic pushes, without a hook or a program there; `prove` tells.

    A push past the guard is not refused; the next write through it sees that and raises `Conflict`. The marks are
    commits without files under `refs/leasehold/marks/`, or *marks*, and stay when a branch is deleted.

    *remote* is a URL or a path. git runs without prompts, so a password comes from a credential helper or an SSH agent.
    *timeout_seconds* is for each run of git.
    """

    kind = "git"
    STEPS = ("prepared", "pushed")

    def __init__(
        self,
        remote: str | os.PathLike[str],
        *,
        marks: str = MARKS,
        program: str = "git",
        timeout_seconds: float = 60,
        keys: Verifier | None = None,
        audience: str | None = None,
        strict_store: bool = False,
    ) -> None:
        super().__init__(keys=keys, audience=audience, strict_store=strict_store)
        text = checked_remote(os.fspath(remote))
        # As git tells a URL, or host:path, from a path, which is relative to this folder and not to that of a clone.
        self.remote = text if ":" in text.partition("/")[0] else os.path.abspath(text)
        self._prefix = checked_prefix(marks)
        seconds = checks.microseconds(timeout_seconds, "timeout_seconds") / 1_000_000
        self._git = Git(checks.name(program, "program"), seconds)
        self._at_remote = Remote(self.remote, self._git)
        self._known: dict[str, Standing] = {}  # of branches, as our last write left them

    @property
    def aio(self) -> AsyncGitGuard:
        """The same verbs for async callers."""
        return AsyncGitGuard(self)

    def canonical(self, key: str) -> str:
        """Return the short name of a branch; raise `InvalidArgument` if git would refuse it."""
        return canonical_branch(key)

    # Readers

    def mark(self, branch: str) -> Mark | None:
        """Return the mark of *branch* as it stands, without a lease; None if no owner has pushed or sealed it."""
        found = self._look(self.canonical(branch)).mark
        return None if found is None else found.mark

    def peek(self, branch: str) -> str | None:
        """Return the id of the commit at the tip of *branch*, without a lease; None if there is no such branch."""
        branch = self.canonical(branch)
        return self._at_remote.refs(HEADS + branch, resource=self.resource(branch)).get(HEADS + branch)

    def fetch(self, repo: str | os.PathLike[str], branch: str, **presented: Unpack[Presented]) -> str | None:
        """
        Seal the branch, check that the lease is current, and fetch the branch into the repository at *repo*.

        Returns the id of its tip, which no older owner can move any more; None if there is no such branch. No ref of
        *repo* changes but FETCH_HEAD. Raises what `seal` raises.
        """
        branch, folder = self.canonical(branch), os.fspath(repo)
        self.seal(branch, **presented)
        self._check_current(presented)
        tip = self.peek(branch)
        if tip is not None:
            ran = self._git("fetch", "--quiet", "--no-tags", "--", self.remote, HEADS + branch, cwd=folder)
            if ran.code != 0:
                raise GuardUnavailable(
                    f"{self.resource(branch)} cannot be fetched into {folder}: {ran.why}. Try again."
                )
        return tip

    # Writers

    def push(
        self,
        repo: str | os.PathLike[str],
        branch: str,
        commit: str = "HEAD",
        *,
        expected: str | None = None,
        force: bool = False,
        **presented: Unpack[Presented],
    ) -> str:
        """
        Push *commit* of the repository at *repo* to *branch*, and return its id.

        The branch must be where the last write through the guard left it; *expected* is the id of another tip that you
        have seen and accept. The commit must follow that tip, unless *force*.

        Raises `StaleEpoch` if a newer owner has been here. Raises `Conflict` if another write under the same epoch, or
        a push past the guard, has moved the branch: fetch, merge and push again. Raises `GuardUnavailable` if the
        remote cannot be read or refuses the push, and `InDoubt` if it is not known whether the push arrived.
        """
        branch = self.canonical(branch)
        source = self._source(os.fspath(repo), checked_commit(commit))
        wish = _Wish("push", source.commit, source, checks.optional_name(expected, "expected"), force)
        with self._attempt(branch, "push", presented) as writer:
            self._write(branch, writer, wish)
        return source.commit

    def delete(self, branch: str, *, expected: str | None = None, **presented: Unpack[Presented]) -> None:
        """Delete the branch, if there is one; its mark stays. Takes *expected* and raises as `push` does."""
        branch = self.canonical(branch)
        wish = _Wish("delete", expected=checks.optional_name(expected, "expected"))
        with self._attempt(branch, "delete", presented) as writer:
            self._write(branch, writer, wish)

    def _seal(self, key: str, writer: Writer) -> Seal:
        return Seal(key, self._write(key, writer, _Wish("seal")))

    # Inside

    def _write(self, branch: str, writer: Writer, wish: _Wish) -> Mark:
        """Change branch and mark in one push, again as long as other writes of the same epoch are in between."""
        resource = self.resource(branch)
        # What our own last write left there is often right, and the server compares anyway.
        before, is_fresh = self._known.get(branch), False
        unknown, lost, nonces = False, 0, set[str]()
        for _ in range(_ATTEMPTS):
            if before is None or (wish.expected is not None and not is_fresh):
                before, is_fresh = self._look(branch), True
            mark = self._admit(branch, before.mark and before.mark.mark, writer, wish.verb)
            try:
                tip = self._expected_tip(branch, before, wish)
            except Conflict:
                if is_fresh:
                    raise
                before = None
                continue
            after = next_mark(before.mark, mark, tip if wish.verb == "seal" else wish.commit)
            folder, objects = wish.place or self._at_remote.scratch(before.mark_id or tip)
            mark_id = _written(objects, after, resource)
            self.at("prepared")
            ran = self._push_both(branch, before, tip, (after.commit, mark_id), wish, folder)
            if ran.code == 0:
                self.at("pushed")
                self._at_remote.remember(mark_id, after)
                self._known[branch] = Standing(after.commit, mark_id, after)
                return mark
            nonces.add(after.nonces[0])
            unknown, lost = unknown or ran.is_lost, lost + ran.is_lost
            now = self._look_after(branch, writer, wish, ran, unknown=unknown)
            if now.mark is not None and nonces & set(now.mark.nonces):
                self.at("pushed")  # it arrived, and only the reply was lost
                self._known[branch] = now
                return mark
            if now.mark is None and before.mark is not None:
                raise unreadable(resource, "it existed earlier, and has been removed")
            if now.mark_id != before.mark_id:
                # None of our pushes expects this mark, so none of them can arrive any more.
                if unknown and now.mark is not None and now.mark.mark.counter - mark.counter >= RECENT:
                    raise _doubt(resource, writer, wish, f"{RECENT} or more later writes hide it")
                unknown = False
            elif now.tip == tip and not ran.is_lost:
                if unknown:
                    raise _doubt(resource, writer, wish, f"an earlier reply was lost, and then git reported: {ran.why}")
                raise GuardUnavailable(
                    f"{resource}: the {wish.verb} to {self.remote} was refused: {ran.why}. Nothing was written."
                )
            elif lost == _LOST:
                raise _doubt(resource, writer, wish, f"no reply arrived in {_LOST} attempts; the last one: {ran.why}")
            # Otherwise again: if a lost push is still under way, only one of the two finds the mark that both expect.
            before, is_fresh = now, True
        raise GuardUnavailable(
            f"{resource}: another write came first in each of {_ATTEMPTS} attempts. This one wrote nothing; try again."
        )

    def _expected_tip(self, branch: str, before: Standing, wish: _Wish) -> str | None:
        """Return where the branch must be for this write; raise `Conflict` if it is elsewhere, or if histories part."""
        guarded = before.tip if before.mark is None else before.mark.commit
        if wish.verb == "seal":
            return guarded  # as the last write left it, so that a push past the guard is still seen after a seal
        if wish.expected is not None and wish.expected != before.tip:
            raise Conflict(
                f"{self.resource(branch)} is at {before.tip}, not at the expected {wish.expected}. Fetch the branch, "
                "and push commits that build on it."
            )
        if wish.expected is None and before.is_bypassed:
            raise Conflict(
                f"{self.resource(branch)} is at {before.tip}, and the last write through the guard left it at "
                f"{guarded}: a push bypassed the guard. Check that push; to accept it, pass expected={before.tip!r}."
            )
        tip = before.tip
        if tip is not None and wish.source is not None and not wish.force and not self._follows(wish.source, tip):
            raise Conflict(
                f"{self.resource(branch)} is at {tip}, and commit {wish.source.commit} is not based on that commit: "
                "another write under this epoch came first, or the commit was made from an older state. Fetch, merge "
                "or rebase, and push again. To replace the branch, pass force=True."
            )
        return tip

    def _follows(self, source: _Source, tip: str) -> bool:
        if tip in (source.commit, *source.parents):
            return True
        # A tip that this repository does not have is an error of git's, and not an ancestor either.
        return self._git("merge-base", "--is-ancestor", tip, source.commit, cwd=source.folder).code == 0

    def _push_both(
        self, branch: str, before: Standing, tip: str | None, after: tuple[str | None, str], wish: _Wish, folder: str
    ) -> Ran:
        commit, mark_id = after
        changes: list[tuple[str, str | None, str | None]] = [(mark_ref(self._prefix, branch), before.mark_id, mark_id)]
        if wish.verb != "seal" and commit != tip:
            changes.insert(0, (HEADS + branch, tip, commit))
        ran = Push(tuple(changes)).run(self._git, self.remote, cwd=folder)
        if ran.has_no_atomic_push:
            raise no_atomic_push(self.remote)
        return ran

    def _look(self, branch: str) -> Standing:
        return self._at_remote.standing(branch, mark_ref(self._prefix, branch), resource=self.resource(branch))

    def _look_after(self, branch: str, writer: Writer, wish: _Wish, ran: Ran, *, unknown: bool) -> Standing:
        """Read back after a push that failed, or whose outcome is not known."""
        try:
            return self._look(branch)
        except GuardUnavailable as error:
            self._known.pop(branch, None)
            if not unknown:
                raise
            why = f"the push ended with: {ran.why}; and then the remote could not be read"
            raise _doubt(self.resource(branch), writer, wish, why) from error

    def _source(self, folder: str, commit: str) -> _Source:
        """Return what is to be pushed; raise `InvalidArgument` if there is no such repository or commit."""
        if not os.path.isdir(folder):
            raise InvalidArgument(f"{folder} is not a folder: pass the path of a repository.")
        facts = ("--show-object-format", "--git-path", "objects", f"{commit}^{{commit}}", f"{commit}^@")
        ran = self._git("rev-parse", *facts, cwd=folder)
        if ran.code != 0:
            raise InvalidArgument(f"{commit!r} is not a commit of the repository {folder}: {ran.why}.")
        algorithm, objects, found, *parents = ran.out.splitlines()
        return _Source(folder, Objects(os.path.join(folder, objects), algorithm), found, tuple(parents))

    def _prove(self) -> None:
        prove(self._git, self._at_remote, self._prefix)


class _Source(NamedTuple):
    """A commit of a repository, with the ids of its parents."""

    folder: str
    objects: Objects
    commit: str
    parents: tuple[str, ...]


class _Wish(NamedTuple):
    """What a write wants of the branch: to stand at *commit* (None: to be gone); a seal wants nothing."""

    verb: Literal["push", "delete", "seal"]
    commit: str | None = None
    source: _Source | None = None
    expected: str | None = None
    force: bool = False

    @property
    def place(self) -> tuple[str, Objects] | None:
        """From which repository to push, if it matters."""
        return None if self.source is None else (self.source.folder, self.source.objects)


def _written(objects: Objects, mark: GitMark, resource: str) -> str:
    try:
        return objects.write_mark(mark)
    except OSError as error:
        raise GuardUnavailable(
            f"{resource}: its mark cannot be written to {objects.folder}: {error.strerror}. Nothing was pushed."
        ) from error


def _doubt(resource: str, writer: Writer, wish: _Wish, why: str) -> InDoubt:
    return InDoubt.of_resource(resource, epoch=writer.epoch, verb=wish.verb, why=why)


class AsyncGitGuard(Facade):
    """The verbs of a `GitGuard`, to be awaited; they run on threads, and go on there if the caller is cancelled."""

    mark = threaded(GitGuard.mark)
    peek = threaded(GitGuard.peek)
    fetch = threaded(GitGuard.fetch)
    push = threaded(GitGuard.push)
    delete = threaded(GitGuard.delete)
    seal = threaded(GitGuard.seal)
    prove = threaded(GitGuard.prove)


warn_on_loops(GitGuard, lambda: AsyncGitGuard, "guard")
