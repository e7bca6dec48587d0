"""
Files are restored, copied and replaced under running processes: no epoch is issued twice, and every write notices.

Two files that issue at the same moment are two stores, and no promise is made for those; here they take turns.

Broken on purpose, in a copy, each of these was found here:
- epochs without the clock: issued twice after every kind of restore but one (there each process knew better);
- a batch that ends at the clock instead of beginning there: its first epochs had been issued before;
- a replaced file that is not opened anew: every verb went on in the file that was gone;
- connections of `lease.transaction()` kept over a replacement: rows committed to the file that was gone;
- a waiting claim that compares the change counters of two connections: it slept on over a file with a job for it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.sqlite.processes import end, hear, logged, start, tell
from tests.support import claimed

from leasehold import Conflict, Lease, Router, StaleEpoch, StoreIncompatible, StoreUnavailable, UnknownJob
from leasehold.testing import ManualClock

PROCESSES, ROUNDS, DRAWS = 4, 3, 30


class Drawers:
    """Four processes that draw epochs, and stay alive over whatever happens to the files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started = 0
        self.start()

    def start(self) -> None:
        """Start all of them."""
        first, self.started = self.started, self.started + PROCESSES
        self.members = [start("drawer.py", self.folder / f"{n}.log", n) for n in range(first, self.started)]

    def begin(self, path: Path) -> None:
        """Let all of them draw at once, and do not wait."""
        for process in self.members:
            tell(process, f"sqlite:///{path}?synchronous=normal {DRAWS}")

    def finish(self) -> None:
        """Wait until they have drawn."""
        assert [hear(process) for process in self.members] == ["drawn"] * PROCESSES

    def draw(self, path: Path) -> None:
        """Let all of them draw, and wait for it."""
        self.begin(path)
        self.finish()

    def close(self) -> None:
        """Let all of them close their files, and stay alive."""
        for process in self.members:
            tell(process, "close")
        assert [hear(process) for process in self.members] == ["closed"] * PROCESSES

    def kill(self) -> None:
        """End all of them at once, as a power cut would."""
        for process in self.members:
            end(process)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with some jobs."""
    path = tmp_path / "jobs.db"
    with Router(f"sqlite:///{path}") as router:
        router.add_many({"id": f"job-{number}"} for number in range(40))
    return path


@pytest.fixture
def drawers(tmp_path: Path) -> Iterator[Drawers]:
    """The processes; at the end every epoch that they logged must have been issued once."""
    drawers = Drawers(tmp_path)
    try:
        yield drawers
    finally:
        drawers.kill()
    epochs = Counter(line.epoch for line in logged(tmp_path) if line.kind == "granted")
    assert epochs.total() >= 2 * PROCESSES * DRAWS
    assert [epoch for epoch, count in epochs.items() if count > 1] == []


def backup(path: Path) -> Path:
    """Return a copy that SQLite itself made of a live file."""
    copy = path.with_name("backup.db")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


def without_log(path: Path) -> None:
    """Remove what belongs to the file that lay at *path* before."""
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def test_a_backup_is_restored_into_the_open_file(path: Path, drawers: Drawers) -> None:
    """SQLite's own way: through a connection, while everybody goes on; nothing about the file tells."""
    drawers.draw(path)
    copy = backup(path)
    for _ in range(ROUNDS):
        drawers.begin(path)
        with closing(sqlite3.connect(copy)) as source, closing(sqlite3.connect(path, timeout=20)) as target:
            source.backup(target)
        drawers.finish()


def test_a_copy_is_written_over_the_file(path: Path, drawers: Drawers) -> None:
    """`cp`, after everybody has closed the file: device and inode stay what they were."""
    drawers.draw(path)
    drawers.close()
    copy = shutil.copyfile(path, path.with_name("copy.db"))
    before = os.stat(path).st_ino
    for _ in range(ROUNDS):
        drawers.draw(path)
        drawers.close()
        with closing(sqlite3.connect(path)) as operator:  # of two that close at once, neither may have seen to the log
            operator.execute("pragma wal_checkpoint(truncate)")
        assert not Path(f"{path}-wal").exists()
        shutil.copyfile(copy, path)
    drawers.draw(path)

    assert os.stat(path).st_ino == before


def test_the_file_is_removed_and_a_copy_put_in_its_place(path: Path, drawers: Drawers) -> None:
    """`rm` and `cp` while nobody writes; the connections to the removed file stay open until each notices."""
    drawers.draw(path)
    copy = backup(path)
    for _ in range(ROUNDS):
        path.unlink()
        without_log(path)
        shutil.copyfile(copy, path)
        drawers.draw(path)


def test_a_copy_is_moved_over_the_file_while_everybody_writes(path: Path, drawers: Drawers) -> None:
    """Whoever was inside a write then still commits to the removed file; what it was granted is forgotten."""
    drawers.draw(path)
    copy = backup(path)
    for _ in range(ROUNDS):
        drawers.begin(path)
        shutil.copyfile(copy, moved := path.with_name("moved.db"))
        without_log(path)
        os.replace(moved, path)
        drawers.finish()


@pytest.mark.parametrize("log", ["removed", "left"])
def test_a_log_that_is_left_behind_is_played_into_the_file_that_takes_the_name(path: Path, log: str) -> None:
    """Why the old file's -wal and -shm are removed before a restore, also if all processes were stopped."""
    copy, restored = backup(path), path.with_name("restored.db")
    with Router(f"sqlite:///{path}") as router:
        router.add("since the backup")
        for suffix in ("", "-wal", "-shm"):  # as a process leaves them that was killed
            shutil.copyfile(f"{path}{suffix}", f"{restored}{suffix}")

    if log == "removed":
        without_log(restored)
    os.replace(copy, restored)

    with Router(f"sqlite:///{restored}") as router:
        assert len(router.jobs()) == (40 if log == "removed" else 41)


def test_a_copy_is_used_as_a_second_store(path: Path, drawers: Drawers) -> None:
    """By the same processes, in turns; each file knows nothing of what the other one issues."""
    drawers.draw(path)
    second = backup(path)
    for _ in range(ROUNDS):
        drawers.draw(second)
        drawers.draw(path)


def test_a_power_cut_takes_back_what_was_committed_last(path: Path, drawers: Drawers) -> None:
    """As a disk that lies about its writes would: file and log are older ones, and every process is new."""
    drawers.draw(path)
    for _ in range(ROUNDS):
        kept = _copy_with_log(path)
        drawers.draw(path)
        drawers.kill()
        without_log(path)
        for name in kept:
            os.replace(name, str(name).removesuffix(".kept"))
        drawers.start()
        drawers.draw(path)


def _copy_with_log(path: Path) -> list[Path]:
    """Copy a live file with its log, as a snapshot of the disk would; nobody writes meanwhile."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        assert os.path.getsize(f"{path}-wal") > 0
        return [Path(shutil.copyfile(name, f"{name}.kept")) for name in (str(path), f"{path}-wal")]


# One process, step by step


def test_a_batch_that_follows_a_restore_begins_at_the_clock(tmp_path: Path) -> None:
    """All of its epochs are above what was forgotten a moment ago, and not only the last."""
    clock = ManualClock()
    path = tmp_path / "jobs.db"
    with Router(f"sqlite:///{path}", clock=clock) as router:
        router.add_many({"id": f"job-{number}"} for number in range(3_000))
        copy = backup(path)
        forgotten = claimed(router)
    path.unlink()
    shutil.copyfile(copy, path)
    clock.advance(0.001)

    with Router(f"sqlite:///{path}", clock=clock) as router:
        epochs = [lease.epoch for lease in router.claim_many("worker-1", limit=3_000)]

    assert forgotten.epoch < min(epochs)


def test_a_process_that_saw_more_than_the_file_says_raises_the_alarm(path: Path) -> None:
    """Even if its clock stands still, so that only its own memory is above what the file has forgotten."""
    clock = ManualClock()
    with Router(f"sqlite:///{path}", clock=clock) as router:
        copy = backup(path)
        seen = [lease.epoch for lease in router.claim_many("worker-0", limit=10)]
        with closing(sqlite3.connect(copy)) as source, closing(sqlite3.connect(path)) as target:
            source.backup(target)

        again = [lease.epoch for lease in router.claim_many("worker-0", limit=10)]

        assert min(again) > max(seen)
        [alarm] = router.events(kind="alarm")
        assert alarm.facts["seen"] == max(seen)
        assert alarm.facts["last"] < min(seen)


def test_an_epoch_from_a_forgotten_time_is_refused_and_alarmed(path: Path) -> None:
    """The owner is told that the store was restored, and what to do."""
    clock = ManualClock()
    with Router(f"sqlite:///{path}", clock=clock) as router:
        copy = backup(path)
        lease = claimed(router)
    with closing(sqlite3.connect(copy)) as source, closing(sqlite3.connect(path)) as target:
        source.backup(target)

    with Router(f"sqlite:///{path}", clock=clock) as router:
        late = Lease(router.store, lease._grant)
        with pytest.raises(StaleEpoch, match=rf"restored to an earlier state.*store advance URL --above {lease.epoch}"):
            late.complete()

        assert router.job(lease.job_id).status == "pending"
        assert len(router.events(kind="alarm")) == 1


def test_a_lease_that_is_in_the_backup_is_current_again(path: Path) -> None:
    """Its owner is accepted, although the job had been taken over since; who had taken it over is refused."""
    with Router(f"sqlite:///{path}", clock=ManualClock()) as router:
        before = claimed(router)
        copy = backup(path)
        after = router.transfer(router.job(before.job_id), to="b", by="ops")
    with closing(sqlite3.connect(copy)) as source, closing(sqlite3.connect(path)) as target:
        source.backup(target)

    with Router(f"sqlite:///{path}", clock=ManualClock()) as router:
        with pytest.raises(StaleEpoch, match="restored to an earlier state"):
            Lease(router.store, after._grant).complete()
        Lease(router.store, before._grant).complete()

        assert router.job(before.job_id).status == "done"


def test_advance_goes_above_everything(path: Path) -> None:
    """What the file knows, the clock, and what somebody else has seen."""
    clock = ManualClock()
    with Router(f"sqlite:///{path}", clock=clock) as router:
        first = claimed(router).epoch
        advanced = router.store.advance()
        far = advanced + 5_000_000
        above = router.store.advance(above=far)
        clock.advance(60)
        later = router.store.advance(above=1)

        assert first < advanced < far < above < later
        assert later >= clock.now()
        assert claimed(router).epoch > later
        assert [event.facts["above"] for event in router.events(kind="advanced")] == [0, far, 1]
    with Router(f"sqlite:///{path}", clock=clock) as router:
        assert claimed(router).epoch > later


# Every verb notices


def _in_transaction(router: Router, lease: Lease) -> None:
    with lease.transaction() as connection:
        connection.execute("CREATE TABLE mine (a)")


VERBS: dict[str, Callable[[Router, Lease], object]] = {
    "add": lambda router, lease: router.add("new"),
    "claim": lambda router, lease: router.claim("worker-1"),
    "check": lambda router, lease: lease.check(),
    "renew": lambda router, lease: lease.renew(),
    "progress": lambda router, lease: lease.progress(0.5),
    "child": lambda router, lease: lease.add("child"),
    "once": lambda router, lease: lease.once("effect", lambda key: 1),
    "complete": lambda router, lease: lease.complete(),
    "fail": lambda router, lease: lease.fail("why"),
    "release": lambda router, lease: lease.release(),
    "transaction": _in_transaction,
    "transfer": lambda router, lease: router.transfer(lease.job_id, to="b", by="ops", epoch=lease.epoch),
    "cancel": lambda router, lease: router.cancel(lease.job_id, by="ops", epoch=lease.epoch),
    "finish": lambda router, lease: router.complete(lease.job_id, by="ops", epoch=lease.epoch),
    "reclaim": lambda router, lease: router.reclaim(),
    "prune": lambda router, lease: router.prune(keep_seconds=0),
    "advance": lambda router, lease: router.store.advance(),
    "job": lambda router, lease: router.job(lease.job_id),
    "jobs": lambda router, lease: router.jobs(),
    "counts": lambda router, lease: router.counts(),
    "verify": lambda router, lease: router.store.verify(),
}


@pytest.fixture
def used(path: Path) -> Iterator[tuple[Router, Lease]]:
    """A Router that has all of its connections open, and a lease."""
    with Router(f"sqlite:///{path}") as router:
        lease = claimed(router)
        router.job(lease.job_id)
        with lease.transaction() as connection:
            connection.execute("CREATE TABLE theirs (a)")
        yield router, lease


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_notices_a_replaced_file(path: Path, used: tuple[Router, Lease], verb: str) -> None:
    """Here the new file has no such job: whatever the verb does, it does there, and nothing to the old file."""
    router, lease = used
    before = _everything(path)
    with Router(f"sqlite:///{path.with_name('new.db')}") as other:
        other.add("the only one")
    os.rename(path, path.with_name("old.db"))
    for suffix in ("-wal", "-shm"):
        if Path(f"{path}{suffix}").exists():
            os.rename(f"{path}{suffix}", path.with_name(f"old.db{suffix}"))
    os.replace(path.with_name("new.db"), path)

    with suppress(UnknownJob):
        VERBS[verb](router, lease)

    assert "the only one" in router.snapshot()
    assert _everything(path.with_name("old.db")) == before


def _everything(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_that_the_file_is_gone_and_makes_none(
    path: Path, used: tuple[Router, Lease], verb: str
) -> None:
    """A new, empty file in its place would be a store that has lost everything, silently."""
    router, lease = used
    for name in path.parent.glob("jobs.db*"):
        name.unlink()

    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"the file .*jobs\.db is gone \(No such file or directory\)"):
            VERBS[verb](router, lease)

    assert list(path.parent.iterdir()) == []


def _moved_over(path: Path) -> None:
    copy = backup(path)
    without_log(path)
    os.replace(copy, path)


def _removed(path: Path) -> None:
    path.unlink()


def _copied_over(path: Path) -> None:
    copy = backup(path)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink()
    shutil.copyfile(copy, path)


@pytest.mark.parametrize("verb", [None, Lease.complete, Lease.fence], ids=["commit", "complete", "fence"])
@pytest.mark.parametrize("replace", [_moved_over, _removed, _copied_over])
def test_a_file_that_is_replaced_inside_a_transaction(
    path: Path, used: tuple[Router, Lease], replace: Callable[[Path], None], verb: Callable[..., object] | None
) -> None:
    """The call was right, and nothing was committed; that is known, and said."""
    _, lease = used

    def overtaken() -> None:
        with lease.transaction() as connection:
            connection.execute("INSERT INTO theirs VALUES (1)")
            replace(path)
            if verb is not None:
                verb(lease, connection=connection)

    with pytest.raises(StoreUnavailable, match=r"othing was (changed|committed)") as refused:
        overtaken()

    assert not refused.value.outcome_unknown
    if replace is _moved_over:
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT count(*) FROM theirs").fetchall() == [(0,)]


@pytest.mark.parametrize("replace", [_removed, _copied_over])
def test_a_file_that_is_replaced_while_an_effect_is_brought_about(
    path: Path, used: tuple[Router, Lease], replace: Callable[[Path], None]
) -> None:
    """Its outcome is not recorded, and that is known."""
    _, lease = used

    with pytest.raises(StoreUnavailable, match="Nothing was changed") as refused:
        lease.once("charge", lambda key: replace(path))

    assert not refused.value.outcome_unknown


def test_an_effect_whose_intent_a_restored_file_does_not_have(path: Path, used: tuple[Router, Lease]) -> None:
    """A state of the store, and no wrong argument."""
    _, lease = used
    copy = backup(path)

    def restore(key: str) -> None:
        without_log(path)
        os.replace(copy, path)

    with pytest.raises(Conflict, match=r"no record of an effect named 'charge'.* a restored backup has lost it"):
        lease.once("charge", restore)


def test_a_file_is_gone_also_if_its_log_is_still_there(path: Path, used: tuple[Router, Lease]) -> None:
    """What is written to the log alone would be lost."""
    _, lease = used
    path.unlink()

    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="is gone"):
            lease.complete()


def test_a_file_that_cannot_be_opened_after_it_was_replaced_is_looked_for_again(
    path: Path, used: tuple[Router, Lease]
) -> None:
    """Also if it is then removed: that Router has had a file, and makes no new one."""
    router, _ = used
    copy = backup(path)
    path.unlink()
    without_log(path)
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(StoreIncompatible, match="is not an SQLite database"):
        router.add("a")
    path.unlink()
    with pytest.raises(StoreUnavailable, match="is gone"):
        router.add("a")
    shutil.copyfile(copy, path)

    assert router.add("a").created


def test_the_path_may_be_a_link_and_what_it_links_to_may_be_replaced(path: Path, tmp_path: Path) -> None:
    """SQLite keeps the log beside the file itself."""
    elsewhere, link = tmp_path / "elsewhere", tmp_path / "link.db"
    elsewhere.mkdir()
    link.symlink_to(path)
    with Router(f"sqlite:///{elsewhere / 'new.db'}") as other:
        other.add("the only one")
    with Router(f"sqlite:///{link}") as router:
        claimed(router).complete()
        assert router.counts().done == 1
        before = _everything(path)
        link.unlink()
        link.symlink_to(elsewhere / "new.db")

        assert claimed(router).job_id == "the only one"
        assert router.counts().running == 1
        Path(f"{elsewhere / 'new.db'}-wal").unlink()
        with pytest.raises(StoreUnavailable, match="was restored in place"):
            router.counts()
    assert _everything(path) == before


def test_a_waiting_claim_finds_the_jobs_of_a_file_that_replaced_its_own(tmp_path: Path) -> None:
    """It looks at the path while it waits; the numbers by which SQLite tells of changes are each connection's own."""
    path, new = tmp_path / "jobs.db", tmp_path / "new.db"
    with Router(f"sqlite:///{new}") as other:
        other.add("the only one")
    waiter = start("waiter.py", f"sqlite:///{path}", 20)
    try:
        assert hear(waiter) == "waiting"
        without_log(path)
        os.replace(new, path)
        assert hear(waiter).startswith("the only one claim ")
    finally:
        end(waiter)
