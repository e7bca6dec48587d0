"""The git guard: the gap inside a push, histories that part, pushes past the guard, and lost replies."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.guards.git_server import commit, daemon, fetched, git, new_repository, value_of

from leasehold import Conflict, GuardUnavailable, InDoubt, InvalidArgument, StaleEpoch, Unfenced
from leasehold.core.marks import Mark
from leasehold.guards import GitGuard
from leasehold.guards.git.marks import RECENT

OLD, NEW, NEWEST = 1_794_776_400_000_007, 1_794_776_400_000_011, 1_794_776_400_000_019


def under(epoch: int, owner: str = "a") -> dict[str, Any]:
    """What an owner without a lease presents."""
    return {"epoch": epoch, "owner": owner, "store": "store-1"}


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """A bare repository."""
    return new_repository(tmp_path / "server.git")


@pytest.fixture
def guard(server: Path) -> GitGuard:
    """A guard of it."""
    return GitGuard(server)


@pytest.fixture
def clone(server: Path, tmp_path: Path) -> Path:
    """A clone with a work tree."""
    git("clone", "--quiet", "--", str(server), str(tmp_path / "clone"), cwd=tmp_path)
    git("checkout", "--quiet", "--orphan", "work", cwd=tmp_path / "clone")
    return tmp_path / "clone"


def tip(server: Path, branch: str = "main") -> str | None:
    """Where a branch is."""
    return git("for-each-ref", "--format=%(objectname)", f"refs/heads/{branch}", cwd=server) or None


def push_past(server: Path, clone: Path, number: str | None, branch: str = "main") -> None:
    """Push without the guard."""
    git("push", "--quiet", "--force", "--", str(server), f"{number or ''}:refs/heads/{branch}", cwd=clone)


# Writes


def test_a_branch_is_pushed_sealed_fetched_and_deleted(server: Path, guard: GitGuard, clone: Path) -> None:
    """The mark goes up with each, and stays when the branch is gone."""
    first = commit(clone, b"1", None)
    assert guard.push(clone, "main", first, **under(OLD)) == first == tip(server) == guard.peek("main")
    git("update-ref", "refs/heads/work", commit(clone, b"2", first), cwd=clone)
    assert guard.push(clone, "refs/heads/main", **under(OLD)) == git("rev-parse", "HEAD", cwd=clone)
    assert value_of(str(server), "main") == b"2"
    assert guard.fetch(clone, "main", **under(NEW)) == guard.peek("main")
    guard.delete("main", **under(NEW))

    assert tip(server) is None
    assert guard.peek("main") is None
    assert GitGuard(server).mark("main") == Mark(NEW, 4, "a", "store-1")
    with pytest.raises(StaleEpoch, match="git:main: push with epoch"):
        GitGuard(server).push(clone, "main", first, **under(OLD))
    assert guard.fetch(clone, "main", **under(NEW)) is None
    guard.push(clone, "main", first, **under(NEW))
    assert tip(server) == first


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_a_seal_in_the_gap_between_advertisement_and_push_refuses_it(
    server: Path, guard: GitGuard, clone: Path, warm: bool
) -> None:
    """git has read the refs, and a hook runs before it sends: there the successor seals. Under an equal epoch too."""
    first = commit(clone, b"1", None)
    guard.push(clone, "main", first, **under(OLD))
    late = commit(clone, b"late", first)
    hook = clone / ".git/hooks/pre-push"
    seal = (
        "from leasehold.guards import GitGuard; "
        f"GitGuard({str(server)!r}).seal('main', epoch={NEW}, owner='b', store='store-1')"
    )
    hook.write_text(f'#!/bin/sh\nrm "$0"\nexec "{sys.executable}" -P -c "{seal}"\n')
    hook.chmod(0o755)

    with pytest.raises(StaleEpoch) as refusal:
        (guard if warm else GitGuard(server)).push(clone, "main", late, **under(OLD))

    assert not hook.exists(), "the gap was staged"
    assert (refusal.value.presented, refusal.value.current, refusal.value.owner) == (OLD, NEW, "b")
    assert tip(server) == first


def test_commits_that_part_under_one_epoch_are_a_conflict(server: Path, guard: GitGuard, clone: Path) -> None:
    """Never stale; what follows the other write is pushed, by itself, as one that was first."""
    base = commit(clone, b"base", None)
    sibling = GitGuard(server)
    sibling.push(clone, "main", base, **under(OLD))
    guard.push(clone, "main", mine := commit(clone, b"mine", base), **under(OLD))

    with pytest.raises(Conflict, match="is not based on that commit"):
        sibling.push(clone, "main", commit(clone, b"other", base), **under(OLD))
    assert (tip(server), sibling.refused) == (mine, 0)
    sibling.push(clone, "main", merged := commit(clone, b"merged", mine), **under(OLD))
    assert tip(server) == merged
    guard.push(clone, "main", base, force=True, **under(OLD))
    assert tip(server) == base


def test_a_newer_owner_does_not_push_over_what_it_has_not_seen(server: Path, guard: GitGuard, clone: Path) -> None:
    """A higher epoch is no reason to lose commits."""
    base = commit(clone, b"base", None)
    guard.push(clone, "main", base, **under(OLD))
    guard.push(clone, "main", commit(clone, b"old", base), **under(OLD))
    with pytest.raises(Conflict, match="Fetch, merge or rebase"):
        GitGuard(server).push(clone, "main", commit(clone, b"new", base), **under(NEW))


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_a_push_past_the_guard_is_seen_at_the_next_write(
    server: Path, guard: GitGuard, clone: Path, warm: bool
) -> None:
    """It cannot be refused. The next write says so, a seal in between does not hide it, and it can be accepted."""
    base = commit(clone, b"base", None)
    guard.push(clone, "main", base, **under(OLD))
    push_past(server, clone, past := commit(clone, b"past", base))
    guard = guard if warm else GitGuard(server)
    next_one = commit(clone, b"next", past)
    for _ in range(2):
        with pytest.raises(Conflict, match="bypassed the guard"):
            guard.push(clone, "main", next_one, **under(OLD))
        with pytest.raises(Conflict, match="bypassed the guard"):
            guard.delete("main", **under(OLD))
        guard.seal("main", **under(OLD))
    with pytest.raises(Conflict, match=f"not at the expected {base}"):
        guard.push(clone, "main", next_one, expected=base, **under(OLD))

    guard.push(clone, "main", next_one, expected=past, **under(OLD))
    assert tip(server) == next_one


def test_a_branch_that_was_deleted_past_the_guard_is_seen(server: Path, guard: GitGuard, clone: Path) -> None:
    """And its mark stays."""
    base = commit(clone, b"base", None)
    guard.push(clone, "main", base, **under(NEW))
    push_past(server, clone, None)
    with pytest.raises(StaleEpoch):
        guard.push(clone, "main", base, **under(OLD))
    with pytest.raises(Conflict, match="is at None"):
        GitGuard(server).push(clone, "main", base, **under(NEW))


def test_a_branch_from_before_the_guard_is_taken_as_it_is(server: Path, guard: GitGuard, clone: Path) -> None:
    """Its first write follows its tip."""
    push_past(server, clone, base := commit(clone, b"base", None))
    with pytest.raises(Conflict, match="is not based on that commit"):
        guard.push(clone, "main", commit(clone, b"other", None), **under(OLD))
    guard.seal("main", **under(OLD))
    guard.push(clone, "main", after := commit(clone, b"after", base), **under(OLD))
    assert tip(server) == after


def test_the_same_commit_can_be_pushed_again(server: Path, guard: GitGuard, clone: Path) -> None:
    """A repeated run does no harm; the mark is compared and raised."""
    base = commit(clone, b"base", None)
    for _ in range(2):
        guard.push(clone, "main", base, **under(OLD))
    assert guard.mark("main") == Mark(OLD, 2, "a", "store-1")
    GitGuard(server).seal("main", **under(NEW))
    with pytest.raises(StaleEpoch):
        guard.push(clone, "main", base, **under(OLD))


def test_a_shallow_clone_can_push(server: Path, guard: GitGuard, clone: Path, tmp_path: Path) -> None:
    """The marks have no history that it would lack."""
    number = None
    for text in (b"1", b"2", b"3"):
        guard.push(clone, "main", number := commit(clone, text, number), **under(OLD))
    git("clone", "--quiet", "--depth=1", "--branch=main", f"file://{server}", "shallow", cwd=tmp_path)
    shallow = tmp_path / "shallow"
    assert git("rev-parse", "--is-shallow-repository", cwd=shallow) == "true"

    GitGuard(server).push(shallow, "main", commit(shallow, b"4", number), **under(OLD))
    assert value_of(str(server), "main") == b"4"


def test_the_mark_of_a_deleted_branch_is_not_in_the_way_of_others(server: Path, guard: GitGuard, clone: Path) -> None:
    """git cannot have both `a` and `a/b`; the marks can."""
    base = commit(clone, b"base", None)
    guard.push(clone, "a", base, **under(OLD))
    guard.delete("a", **under(OLD))
    guard.push(clone, "a/b", base, **under(OLD))
    assert tip(server, "a/b") == base
    assert "refs/leasehold/marks/a%2Fb" in git("for-each-ref", "--format=%(refname)", cwd=server).split()


def test_marks_live_where_they_are_told_to(server: Path, clone: Path) -> None:
    """For servers that admit certain refs only."""
    guard = GitGuard(server, marks="refs/notes/fence")
    guard.push(clone, "main", commit(clone, b"1", None), **under(OLD))
    assert "refs/notes/fence/main" in git("for-each-ref", "--format=%(refname)", cwd=server).split()


def test_repositories_with_long_ids_work_too(tmp_path: Path) -> None:
    """SHA-256: the marks have ids of the same kind, even before the first commit through a clone."""
    git("init", "--quiet", "--bare", "--object-format=sha256", "server.git", cwd=tmp_path)
    git("init", "--quiet", "--object-format=sha256", "clone", cwd=tmp_path)
    guard = GitGuard(tmp_path / "server.git")
    first = commit(tmp_path / "clone", b"1", None)
    guard.push(tmp_path / "clone", "main", first, **under(OLD))
    assert len(first) == 64
    other = GitGuard(tmp_path / "server.git")
    other.seal("main", **under(NEW))
    assert other.mark("main") == Mark(NEW, 2, "a", "store-1")


def test_async_handlers_have_the_same_verbs(server: Path, guard: GitGuard, clone: Path) -> None:
    """They run on threads."""

    async def work() -> None:
        base = commit(clone, b"base", None)
        await guard.aio.push(clone, "main", base, **under(OLD))
        assert await guard.aio.peek("main") == base == await guard.aio.fetch(clone, "main", **under(OLD))
        await guard.aio.delete("main", **under(OLD))
        assert await guard.aio.mark("main") == Mark(OLD, 3, "a", "store-1")
        await guard.aio.seal("main", **under(NEW))
        await guard.aio.prove()

    asyncio.run(work())


# Names and arguments


@pytest.mark.parametrize(
    "branch",
    [
        *("", "-f", "--delete", "a b", "a..b", "a.lock", "a.lock/b", ".a", "a/.b", "a/", "/a", "a//b", "a."),
        *(
            "a:b",
            "a~1",
            "a^",
            "a?",
            "a*",
            "a[",
            "a\\b",
            "@",
            "a@{1}",
            "a\nb",
            "a\0b",
            "refs/heads/",
            None,
            7,
            "x" * 300,
        ),
    ],
)
def test_what_git_refuses_as_a_branch_is_refused_here(guard: GitGuard, clone: Path, branch: Any) -> None:
    """Before git sees it: a name never becomes an option, and never names two refs."""
    for call in (
        lambda: guard.push(clone, branch, **under(OLD)),
        lambda: guard.seal(branch, **under(OLD)),
        lambda: guard.delete(branch, **under(OLD)),
        lambda: guard.peek(branch),
        lambda: guard.mark(branch),
        lambda: guard.fetch(clone, branch, **under(OLD)),
    ):
        with pytest.raises(InvalidArgument):
            call()


@pytest.mark.parametrize("name", ["main", "a/b-c", "feature/ü", "v1.0", "a@b", "x%y", "HEAD2"])
def test_other_names_of_branches_are_taken(server: Path, guard: GitGuard, clone: Path, name: str) -> None:
    """git agrees, and finds the branch again."""
    git("check-ref-format", f"refs/heads/{name}", cwd=clone)
    guard.push(clone, name, base := commit(clone, b"1", None), **under(OLD))
    assert guard.peek(name) == base == tip(server, name)


@pytest.mark.parametrize("remote", ["", "origin", "--upload-pack=x", "a\nb/", "-/x"])
def test_a_remote_is_a_url_or_a_path(remote: str) -> None:
    """And never an option, nor a name that means something in one clone only."""
    with pytest.raises(InvalidArgument, match="URL or path"):
        GitGuard(remote)


@pytest.mark.parametrize("marks", ["", "marks", "refs/heads/marks", "refs/heads", "refs/", "refs/a b", "-refs/x", None])
def test_marks_are_outside_of_the_branches(server: Path, marks: Any) -> None:
    """A mark among the branches would be one."""
    with pytest.raises(InvalidArgument):
        GitGuard(server, marks=marks)


def test_what_is_not_a_commit_or_a_repository_is_named(guard: GitGuard, clone: Path, tmp_path: Path) -> None:
    """Nothing was pushed."""
    for wrong in ("-h", "^HEAD", "a..b", "HEAD:x", "nonsense", "", git("hash-object", "-w", "--stdin", cwd=clone)):
        with pytest.raises(InvalidArgument):
            guard.push(clone, "main", wrong, **under(OLD))
    for folder in (tmp_path / "gone", tmp_path):
        with pytest.raises(InvalidArgument, match=r"folder|repository"):
            guard.push(folder, "main", **under(OLD))
    assert guard.mark("main") is None


def test_the_variables_of_a_git_around_us_do_not_lead_us_astray(
    guard: GitGuard, clone: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a hook, git sets GIT_DIR and more; a relative remote is relative to this process."""
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere")
    monkeypatch.chdir(tmp_path)
    GitGuard("./server.git").push(clone, "main", base := commit(clone, b"1", None), **under(OLD))
    assert guard.peek("main") == base


# Servers


def test_a_server_without_atomic_pushes_is_unfenced(server: Path, guard: GitGuard, clone: Path) -> None:
    """`prove` says so, and so does the first write; nothing was written."""
    guard.prove()
    git("config", "receive.advertiseAtomic", "false", cwd=server)
    for attempt in (guard.prove, lambda: guard.push(clone, "main", commit(clone, b"1", None), **under(OLD))):
        with pytest.raises(Unfenced, match="atomic"):
            attempt()
    assert git("for-each-ref", cwd=server) == ""


def test_what_the_server_refuses_for_its_own_reasons_is_not_stale(server: Path, guard: GitGuard, clone: Path) -> None:
    """A hook there, or here: nothing was written, and its words are in the message."""
    hook = server / "hooks/pre-receive"
    hook.write_text("#!/bin/sh\necho the branch is frozen >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(GuardUnavailable, match="the branch is frozen"):
        guard.push(clone, "main", commit(clone, b"1", None), **under(OLD))
    hook.unlink()
    own = clone / ".git/hooks/pre-push"
    own.write_text("#!/bin/sh\necho lint failed >&2\nexit 1\n")
    own.chmod(0o755)
    with pytest.raises(GuardUnavailable, match="lint failed"):
        guard.push(clone, "main", commit(clone, b"1", None), **under(OLD))
    assert guard.mark("main") is None


def test_a_remote_that_is_not_there_is_unavailable(tmp_path: Path, clone: Path, guard: GitGuard) -> None:
    """Before the first write, and after one: nothing was sent."""
    with pytest.raises(GuardUnavailable, match="cannot be read"):
        GitGuard(tmp_path / "gone.git").push(clone, "main", commit(clone, b"1", None), **under(OLD))
    with pytest.raises(GuardUnavailable, match="onnect"):
        GitGuard("git://127.0.0.1:1/x.git").seal("main", **under(OLD))
    base = commit(clone, b"1", None)
    guard.push(clone, "main", base, **under(OLD))
    (tmp_path / "server.git").rename(tmp_path / "moved.git")
    with pytest.raises(GuardUnavailable, match=r"server\.git"):
        guard.push(clone, "main", commit(clone, b"2", base), **under(OLD))
    with pytest.raises(GuardUnavailable, match="no-such-git could not be started"):
        GitGuard(tmp_path / "moved.git", program="no-such-git").peek("main")


def test_a_push_without_any_reply_is_in_doubt(server: Path, guard: GitGuard, clone: Path) -> None:
    """The server dies after it has written, each time, and then it is gone: it may have happened."""
    base = commit(clone, b"1", None)
    guard.push(clone, "main", base, **under(OLD))
    hook = server / "hooks/reference-transaction"
    hook.write_text(f'#!/bin/sh\n[ "$1" = committed ] || exit 0\nmv {server} {server}.gone\nkill -9 $PPID\n')
    hook.chmod(0o755)
    with pytest.raises(InDoubt, match="could not be read") as doubt:
        guard.push(clone, "main", commit(clone, b"2", base), **under(OLD))
    assert doubt.value.resource == "git:main"
    assert not server.exists()


@pytest.mark.parametrize(("writes", "is_known"), [(RECENT - 1, True), (RECENT, False)])
def test_a_lost_reply_is_recognised_as_long_as_the_mark_remembers_it(
    server: Path, clone: Path, writes: int, is_known: bool
) -> None:
    """A mark has the nonces of the last 16 writes; further back, the outcome is in doubt and never guessed."""
    guard, sibling = GitGuard(server), GitGuard(server)
    base = commit(clone, b"1", None)
    guard.push(clone, "main", base, **under(OLD))
    hook = server / "hooks/reference-transaction"
    hook.write_text(f'#!/bin/sh\n[ "$1" = committed ] || exit 0\nrm {hook}\nkill -9 $PPID\n')
    hook.chmod(0o755)
    real = guard._look

    def late(branch: str) -> Any:
        for _ in range(writes):
            sibling.seal("main", **under(OLD))
        return real(branch)

    guard._look = late  # type: ignore[method-assign]
    if is_known:
        guard.push(clone, "main", commit(clone, b"2", base), **under(OLD))
    else:
        with pytest.raises(InDoubt, match="16 or more later writes"):
            guard.push(clone, "main", commit(clone, b"2", base), **under(OLD))
    assert value_of(str(server), "main") == b"2"


def test_a_git_that_does_not_end_is_ended(server: Path, clone: Path, tmp_path: Path) -> None:
    """With all that it has started."""
    slow = tmp_path / "slow-git"
    slow.write_text(f"#!/bin/sh\necho $$ >>{tmp_path}/started\nsleep 1000 &\necho $! >>{tmp_path}/started\nwait\n")
    slow.chmod(0o755)
    with pytest.raises(GuardUnavailable, match="did not end in time"):
        GitGuard(server, program=str(slow), timeout_seconds=0.5).peek("main")
    for pid in (tmp_path / "started").read_text().split():
        alive = subprocess.run(["kill", "-0", pid], capture_output=True).returncode == 0
        assert not alive or "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("what", ["a commit without facts", "a blob"])
def test_a_mark_that_is_none_refuses_every_write(server: Path, guard: GitGuard, clone: Path, what: str) -> None:
    """Whatever the ref points to."""
    other = commit(server, b"x", None) if what != "a blob" else git("hash-object", "-w", "--stdin", cwd=server)
    git("update-ref", "refs/leasehold/marks/main", other, cwd=server)
    with pytest.raises(GuardUnavailable, match="its mark cannot be read"):
        guard.push(clone, "main", commit(clone, b"1", None), **under(NEWEST))
    assert tip(server) is None


def test_marks_travel_over_the_network(tmp_path: Path, server: Path, clone: Path) -> None:
    """git's own protocol, with a guard on each side of a restart."""
    with daemon(tmp_path) as url:
        guard = GitGuard(f"{url}/server.git")
        guard.prove()
        guard.push(clone, "main", base := commit(clone, b"1", None), **under(OLD))
        GitGuard(server).seal("main", **under(NEW))
        with pytest.raises(StaleEpoch):
            guard.push(clone, "main", commit(clone, b"2", base), **under(OLD))
        assert fetched(clone, f"{url}/server.git", "main") == base


def test_a_mark_that_has_vanished_is_not_taken_for_none(server: Path, guard: GitGuard, clone: Path) -> None:
    """By a guard that knew it: without it, an older owner might pass."""
    guard.push(clone, "main", base := commit(clone, b"1", None), **under(OLD))
    git("update-ref", "-d", "refs/leasehold/marks/main", cwd=server)
    with pytest.raises(GuardUnavailable, match="has been removed"):
        guard.push(clone, "main", commit(clone, b"2", base), **under(OLD))
    assert tip(server) == base


def test_a_child_that_ends_leaves_the_guard_of_its_parent_usable(server: Path, guard: GitGuard) -> None:
    """The folder for marks belongs to the process that made it: a server that forks would lose it with each child."""
    guard.seal("main", **under(OLD))
    text = (
        "import os, sys\n"
        "from leasehold.guards import GitGuard\n"
        "guard = GitGuard(sys.argv[1])\n"
        f"guard.seal('main', epoch={OLD}, owner='a', store='store-1')\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    sys.exit(0)\n"  # with what runs at an interpreter's end
        "assert os.waitpid(child, 0)[1] == 0\n"
        f"guard.seal('main', epoch={NEW}, owner='a', store='store-1')\n"
    )
    ran = subprocess.run([sys.executable, "-P", "-c", text, str(server)], capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert guard.mark("main") == Mark(NEW, 3, "a", "store-1")


def test_a_folder_for_marks_that_was_cleaned_away_is_made_again(server: Path, guard: GitGuard, clone: Path) -> None:
    """Systems remove what lies in the temporary folder for some days, and a worker may live longer."""
    guard.seal("main", **under(OLD))
    folder, _ = guard._at_remote.scratch(None)
    shutil.rmtree(folder)
    guard.seal("main", **under(NEW))
    assert GitGuard(server).mark("main") == Mark(NEW, 2, "a", "store-1")
    (Path(guard._at_remote.scratch(None)[0]) / "HEAD").unlink()
    GitGuard(server).seal("main", **under(NEWEST))  # which this guard has to fetch
    assert guard.mark("main") == Mark(NEWEST, 3, "a", "store-1")
