"""
The file itself: its first start, its schema and plans, waiting for it, forking with it, lost replies and dead owners.

Broken on purpose, in a copy, each of these was found here:
- a fork with the file open: the parent's close removed the log under the child, whose jobs were lost;
- a migration that does not look again under the write lock: the second of twenty processes failed;
- a claim that does not ask for its leases after a lost reply: it raised, and the jobs waited for their deadline;
- a transfer that keeps the earlier owner's process: its death took the job from the later owner;
- no checkpoint: the log grew with every commit.

One file, though a long one: its parts share what opens, replaces and looks at the same file.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from importlib.resources import files
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS
from tests.sqlite.forker import CASES
from tests.sqlite.processes import end, hear, is_stopped, start, tell
from tests.support import claimed, until

from leasehold import Lease, Router, Settled, StoreUnavailable
from leasehold.core.ownership import Reason
from leasehold.liveness import this_process
from leasehold.stores.sqlite import SqliteStore
from leasehold.stores.sqlite.connection import Wal
from leasehold.stores.sqlite.database import Database
from leasehold.stores.sqlite.programs import migrations, split, statements

needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSTOP")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
needs_proof = pytest.mark.skipif(this_process() is None, reason="this system does not prove a process's death")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a file will be."""
    return tmp_path / "jobs.db"


@pytest.fixture
def router(path: Path) -> Iterator[Router]:
    """A Router on that file."""
    with Router(f"sqlite:///{path}") as router:
        yield router


def database(router: Router) -> Database:
    """The file of a Router."""
    assert isinstance(router.store, SqliteStore)
    return router.store.database


# The first start


@pytest.mark.parametrize("count", [8, pytest.param(20, marks=pytest.mark.soak)])
def test_many_processes_start_on_a_file_that_is_not_there(path: Path, router: Router, count: int) -> None:
    """One makes the schema, the others wait for it and find it; every job of theirs is kept."""
    starters = [start("starter.py", router.url, f"starter-{number}") for number in range(count)]
    try:
        assert [hear(process) for process in starters] == ["ready"] * count
        assert not path.exists()
        for process in starters:
            tell(process, "go")
        epochs = [int(hear(process)) for process in starters]
        assert [process.wait(PATIENCE_SECONDS) for process in starters] == [0] * count
    finally:
        for process in starters:
            end(process)

    assert len(set(epochs)) == count
    assert router.counts().done == count
    assert router.store.verify() == []


# The schema


def shape(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    """What a file consists of, but for the way it is written down."""
    rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name").fetchall()
    return [(*row[:3], " ".join(re.sub(r"--.*", "", row[3] or "").split())) for row in rows]


def test_the_schema_is_the_sum_of_its_migrations() -> None:
    folder = files("leasehold.stores.sqlite")
    with closing(sqlite3.connect(":memory:")) as read, closing(sqlite3.connect(":memory:")) as migrated:
        for statement in split((folder / "schema.sql").read_text()):
            read.execute(statement)
        for step in migrations("leasehold"):
            for statement in step.statements:
                migrated.execute(statement)

        assert shape(read) == shape(migrated)
        assert len(shape(read)) > 15


def test_migrations_are_numbered_without_a_gap() -> None:
    """The first that was released has number 3."""
    versions = [step.version for step in migrations("leasehold")]
    assert versions == list(range(3, len(versions) + 3))


def test_two_stores_and_the_users_tables_share_a_file(path: Path) -> None:
    """Each has a prefix of its own, and none sees the other's jobs."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
        connection.execute("INSERT INTO orders VALUES (7)")
    url = f"sqlite:///{path}"
    with Router(url, schema="mail") as mail, Router(url, schema="Images_2") as images:
        mail.add("a", "letter")
        images.add("a", "picture")
        letter, picture = claimed(mail), claimed(images)
        letter.complete()

        assert (letter.payload, picture.payload) == ("letter", "picture")
        assert (mail.job("a").status, images.job("a").status) == ("done", "running")
        assert mail.store.verify() == images.store.verify() == []
    with closing(sqlite3.connect(path)) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert connection.execute("SELECT id FROM orders").fetchall() == [(7,)]

    assert {"orders", "mail_jobs", "Images_2_jobs"} <= names
    assert not [name for name in names if name.startswith("leasehold")]


# The statements

STATEMENTS: dict[str, str] = dict(vars(statements("leasehold")))


def explain(connection: sqlite3.Connection, sql: str, how: str = "EXPLAIN") -> list[tuple[object, ...]]:
    """What SQLite would do; every parameter is a one."""
    names = set(re.findall(r":(\w+)", sql))
    values: object = (
        dict.fromkeys(names, 1)
        if names
        else [1] * (max(map(int, re.findall(r"\?(\d)", sql)), default=0) or sql.count("?"))
    )
    return connection.execute(f"{how} {sql}", values).fetchall()  # type: ignore[arg-type]  # one or the other


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_statement_is_used_and_prepares(path: Path, router: Router, name: str) -> None:
    """A column that was renamed in the schema alone would be found in production otherwise."""
    router.add("a")
    with closing(sqlite3.connect(path)) as connection:
        assert explain(connection, STATEMENTS[name])

    package = files("leasehold.stores.sqlite")
    source = "".join(file.read_text() for file in package.iterdir() if file.name.endswith(".py"))
    assert re.search(rf"\bsql\.{name}\b", source)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    """A file with twenty thousand jobs, of which some are done, running, parked and scheduled."""
    path = tmp_path_factory.mktemp("large") / "jobs.db"
    with Router(f"sqlite:///{path}?synchronous=normal") as router:
        for begin in range(0, 20_000, 5_000):
            router.add_many(
                {
                    "id": f"job-{number}",
                    "queue": f"queue-{number % 7}",
                    "lock": f"lock-{number % 50}" if number % 10 == 0 else None,
                    "stall_seconds": 60 if number % 3 == 0 else None,
                    "delay_seconds": 3_600 if number % 11 == 0 else None,
                }
                for number in range(begin, begin + 5_000)
            )
        for _ in range(2):
            for lease in router.claim_many("worker-0", limit=1_000):
                lease.complete() if lease.epoch % 2 else None
        assert router.store.verify() == []
    with closing(sqlite3.connect(path)) as connection:
        yield connection


OFTEN = [
    "look",
    "candidates",
    "queues",
    "held_locks",
    "lock_holder",
    "expired",
    "stalled",
    "prunable",
    "first_parked",
    "parked_lanes",
    "parked_heads",
    "heads",
    "chosen",
    "holders",
    "standing",
    "job",
    "known_ids",
    "known_unique",
    "insert_lease",
    "delete_lease",
    "renew",
    "progress",
    "complete",
    "complete_alike",
    "back",
    "delete_ready",
    "delete_first_ready",
    "delete_scheduled",
    "delete_parked",
    "last_seq",
    "last_epoch",
    "effect",
    "ownership",
    "holder",
    "promote",
    "promoted",
    "seq",
    "events_of",
    "transferred",
    "override",
]
ORDERED = [
    "candidates",
    "expired",
    "stalled",
    "look",
    "queues",
    "prunable",
    "first_parked",
    "parked_lanes",
    "parked_heads",
]


@pytest.mark.parametrize("name", OFTEN)
def test_no_frequent_statement_reads_a_whole_table(large: sqlite3.Connection, name: str) -> None:
    """With twenty thousand jobs each goes by an index; those that return an order do not sort for it."""
    plan = [str(row[3]) for row in explain(large, STATEMENTS[name], "EXPLAIN QUERY PLAN")]

    tables = r"leasehold_(jobs|leases|ready|scheduled|parked|ownerships|effects|events|checkpoints)|[jlrscpeo]"
    scanned = [step for step in plan if re.match(rf"SCAN ({tables})\b", step)]
    assert scanned == [], plan
    if name in ORDERED:
        assert [step for step in plan if "TEMP B-TREE" in step] == [], plan


# Waiting for the write lock


@needs_signals
def test_a_process_stopped_inside_a_write_makes_others_wait_and_then_say_so(path: Path) -> None:
    """They name the wait, its setting and a likely cause; once the process goes on, so do they."""
    with Router(f"sqlite:///{path}?busy_seconds=0.3") as router:
        router.add("a")
        lease = claimed(router)
        stopper = start("stopper.py", path)
        try:
            until(lambda: is_stopped(stopper), "it stops itself")
            message = (
                r"^another connection has held the only write lock of .*jobs\.db for 0\.3 s \(busy_seconds\): "
                r"either a process is stopped inside a write transaction, or .* transaction of your own .*\. "
                r"Nothing was changed\.$"
            )
            for call in (
                lambda: router.add("b"),
                lambda: router.claim("worker-1"),
                lambda: lease.complete(),
                lambda: lease.transaction().__enter__(),
            ):
                with pytest.raises(StoreUnavailable, match=message) as error:
                    call()
                assert not isinstance(error.value, sqlite3.Error)
            assert router.job("a").status == "running"  # readers wait for nobody

            os.kill(stopper.pid, signal.SIGCONT)
            assert hear(stopper) == "woken"
            lease.complete()
        finally:
            end(stopper)


@needs_signals
def test_a_first_start_waits_for_a_stopped_process_and_says_so(path: Path) -> None:
    """The file is there, and not yet ours."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE mine (a)")
    stopper = start("stopper.py", path)
    try:
        until(lambda: is_stopped(stopper), "it stops itself")
        with Router(f"sqlite:///{path}?busy_seconds=0.3") as router:
            with pytest.raises(StoreUnavailable, match=r"only write lock of .* for 0\.3 s \(busy_seconds\)"):
                router.add("a")
            os.kill(stopper.pid, signal.SIGCONT)
            assert hear(stopper) == "woken"
            assert router.add("a").created
    finally:
        end(stopper)


def test_a_thread_that_waits_for_another_ones_transaction_says_so(path: Path) -> None:
    """Inside one process it is a lock of ours that it waits for."""
    with Router(f"sqlite:///{path}?busy_seconds=0.2") as router:
        router.add("a")
        lease = claimed(router)
        said: list[Exception] = []

        def add() -> None:
            try:
                router.add("b")
            except StoreUnavailable as error:
                said.append(error)

        with lease.transaction():
            thread = threading.Thread(target=add)
            thread.start()
            thread.join()

        assert "another thread of this process has held the only write lock" in str(said[0])
        assert router.add("b").created


# Forking


@needs_fork
@pytest.mark.parametrize("case", CASES)
def test_a_fork_shares_no_connection(path: Path, case: str) -> None:
    """The cases are told in forker.py."""
    process = start("forker.py", case, f"sqlite:///{path}")
    try:
        assert hear(process) == "ok"
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        end(process)


# Waiting for a job


@pytest.fixture
def waiter(router: Router) -> Iterator[subprocess.Popen[bytes]]:
    """Another process, whose claim waits."""
    router.add("in another queue", queue="other")
    process = start("waiter.py", router.url, PATIENCE_SECONDS, "default")
    try:
        assert hear(process) == "waiting"
        yield process
    finally:
        end(process)


def test_a_claim_is_woken_by_an_add_of_another_process(router: Router, waiter: subprocess.Popen[bytes]) -> None:
    router.add("a")

    assert hear(waiter).startswith("a claim ")


def test_a_claim_is_woken_by_a_job_that_becomes_due(router: Router, waiter: subprocess.Popen[bytes]) -> None:
    router.add("a", delay_seconds=0.2)

    assert hear(waiter).startswith("a claim ")


def test_a_claim_is_woken_by_the_end_of_another_ones_lease(path: Path) -> None:
    """Nobody writes at that moment: the waiting claim itself knows when to look."""
    with Router(f"sqlite:///{path}") as router:
        router.add("a")
        lease = router.claim("worker-0", lease_seconds=60)
        assert lease is not None
        process = start("waiter.py", router.url, PATIENCE_SECONDS)
        try:
            assert hear(process) == "waiting"
            lease.renew(0.3)
            name, reason, epoch = hear(process).split()
        finally:
            end(process)

    assert (name, reason) == ("a", "timeout")
    assert int(epoch) > lease.epoch


def test_a_claim_is_woken_by_a_release(router: Router, waiter: subprocess.Popen[bytes]) -> None:
    router.add("a", lock="key", priority=1, queue="other")
    router.add("b", lock="key", priority=1, queue="other")
    holder = router.claim("worker-0", queues=["other"])
    assert holder is not None
    router.add("c", lock="key")
    holder.complete()

    assert hear(waiter).startswith("c claim ")


# Lost replies


def lose_the_next_reply(router: Router) -> None:
    """The next write commits, and its caller does not get to know."""

    def point(where: str) -> None:
        if where == "after commit":
            database(router).point = None
            raise sqlite3.OperationalError("disk I/O error")

    database(router).point = point


def test_a_claim_whose_reply_is_lost_still_returns_its_leases(router: Router) -> None:
    """It asks for the leases of its own claim id, and not for those of a namesake."""
    router.add_many({"id": name} for name in "abc")
    namesake = claimed(router)
    lose_the_next_reply(router)

    leases = router.claim_many("worker-0", limit=10)

    assert [lease.job_id for lease in leases] == ["b", "c"]
    for lease in (*leases, namesake):
        lease.complete()
    assert router.counts().done == 3


def test_a_claim_that_certainly_failed_raises(router: Router) -> None:
    """Before the commit nothing was granted: there is nothing to find, and the error is told."""
    router.add("a")

    def point(where: str) -> None:
        database(router).point = None
        raise sqlite3.OperationalError("disk I/O error")

    database(router).point = point
    with pytest.raises(StoreUnavailable, match="disk I/O error"):
        router.claim("worker-0")

    assert router.job("a").status == "pending"
    router.add("b")  # what commits next does not make certain what was drawn before
    assert claimed(router).job_id == "a"
    assert router.events(kind="alarm") == []


@pytest.mark.parametrize(
    ("settle", "status"),
    [
        (lambda lease: lease.complete({"n": 1}, then=[{"id": "next"}]), "done"),
        (lambda lease: lease.fail("why", retry=False), "failed"),
        (lambda lease: lease.fail("why", delay_seconds=60), "pending"),
        (lambda lease: lease.release(delay_seconds=60), "pending"),
    ],
    ids=["complete", "fail", "retry", "release"],
)
def test_a_settlement_whose_reply_is_lost_can_be_repeated(
    router: Router, settle: Callable[[Lease], None], status: str
) -> None:
    """The same words under the same epoch are heard once; other words are refused."""
    router.add("a")
    lease = claimed(router)
    lose_the_next_reply(router)
    with pytest.raises(StoreUnavailable, match="may or may not have taken effect") as lost:
        settle(lease)
    assert lost.value.outcome_unknown

    settle(lease)

    job = router.job("a")
    assert (job.status, job.errors <= 1, job.epoch) == (status, True, lease.epoch)
    with pytest.raises(Settled):
        lease.complete("something else")
    assert router.store.verify() == []


def test_an_add_whose_reply_is_lost_can_be_repeated(router: Router) -> None:
    lose_the_next_reply(router)
    with pytest.raises(StoreUnavailable, match="may or may not have taken effect") as lost:
        router.add("a", {"n": 1})
    assert lost.value.outcome_unknown

    assert not router.add("a", {"n": 1}).created


# Dead owners


@needs_proof
def test_the_job_of_a_killed_process_is_taken_back_at_once(router: Router, waiter: subprocess.Popen[bytes]) -> None:
    """Its lease has thirty seconds left; its death is proof enough."""
    router.add("a")
    dead = int(hear(waiter).split()[2])
    end(waiter)

    assert router.claim("worker-0", queues=["default"]) is None  # upkeep is not a claim's
    router.reclaim()
    lease = router.claim("worker-0", queues=["default"])

    assert lease is not None
    assert lease.job_id == "a"
    assert lease.reason is Reason.RECOVERY
    assert lease.epoch > dead


@needs_proof
def test_the_death_of_whoever_moved_a_job_proves_nothing_about_its_owner(router: Router) -> None:
    """The command that transfers ends at once, and the job stays with the owner it was given to."""
    router.add("a")
    before = router.claim("worker-0", lease_seconds=60)
    assert before is not None
    mover = start("mover.py", router.url, "a", before.epoch, "agent-b")
    try:
        epoch = int(hear(mover))
        assert mover.wait(PATIENCE_SECONDS) == 0
    finally:
        end(mover)

    assert router.reclaim() == []
    assert router.claim("worker-1") is None
    lease = router.lease("a", owner="agent-b")
    assert lease.epoch == epoch > before.epoch
    lease.complete()


@needs_proof
def test_the_death_of_an_earlier_owner_proves_nothing_about_a_later_one(
    router: Router, waiter: subprocess.Popen[bytes]
) -> None:
    """The process that claimed it is gone, and the job has moved on before that."""
    router.add("a")
    epoch = int(hear(waiter).split()[2])
    moved = router.transfer("a", to="agent-b", by="ops", epoch=epoch)
    end(waiter)

    assert router.reclaim() == []
    assert router.lease("a", owner="agent-b").epoch == moved.epoch


@needs_proof
def test_a_claim_for_somebody_else_records_no_process(path: Path, router: Router) -> None:
    """With process=None only time frees the job."""
    router.add("a")
    script = (
        "import sys; from leasehold import Router; r = Router(sys.argv[1]);"
        "lease = r.claim('agent-b', process=None); print(lease.epoch)"
    )
    shown = subprocess.run([sys.executable, "-c", script, router.url or ""], capture_output=True, check=True)

    assert router.reclaim() == []
    assert router.lease("a", owner="agent-b").epoch == int(shown.stdout)


@needs_proof
def test_a_process_that_was_pruned_is_recorded_again(path: Path, router: Router) -> None:
    """Its row goes when it holds nothing, and comes back with its next claim: once, however many there are."""
    router.add("a")
    claimed(router).complete()
    router.prune(keep_seconds=0)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM leasehold_processes").fetchall() == [(0,)]
    router.add_many([{"id": "b"}, {"id": "c"}])
    for _ in range(2):
        claimed(router)

    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT host, boot, namespace, pid, started FROM leasehold_processes").fetchall() == [
            this_process()
        ]


# The write-ahead log

MEBIBYTE = 1024 * 1024


def log_size(path: Path) -> int:
    """How long the write-ahead log is, in bytes."""
    return os.path.getsize(f"{path}-wal")


@pytest.fixture(params=["by its link", "by its path"])
def wal(request: pytest.FixtureRequest, path: Path, router: Router) -> Iterator[Wal]:
    """The log of an open file, as Linux and as other systems let us look at it."""
    router.add("a")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "by its path":
            patch.setattr(os, "readlink", no_links)
        log = Wal(str(path))
    yield log
    log.close()


def no_links(path: str) -> str:
    """What there is where there is no /proc."""
    raise FileNotFoundError(path)


def test_a_log_is_there_as_long_as_its_path_names_it(path: Path, wal: Wal) -> None:
    """Neither a removed one nor another in its place is the same."""
    log, moved = Path(f"{path}-wal"), path.with_name("moved")
    assert wal.is_there()
    log.rename(moved)
    assert not wal.is_there()
    log.write_bytes(moved.read_bytes())
    assert not wal.is_there()
    moved.rename(log)
    assert wal.is_there()
    os.link(log, moved)
    log.unlink()
    assert not wal.is_there()
    wal.close()
    assert not wal.is_there()


def test_a_log_that_was_not_there_at_first_is_none(path: Path) -> None:
    """Whatever comes to be at its path."""
    wal = Wal(str(path))
    assert not wal.is_there()
    assert not wal.is_long(1)
    Path(f"{path}-wal").touch()
    assert not wal.is_there()


def test_a_log_that_is_removed_as_it_is_opened_is_not_there(
    path: Path, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Linux says of it then stays the same, too."""
    router.add("a")
    readlink = os.readlink

    def removed(link: str) -> str:
        os.rename(f"{path}-wal", path.with_name("moved"))
        return readlink(link)

    monkeypatch.setattr(os, "readlink", removed)
    wal = Wal(str(path))
    monkeypatch.undo()

    assert not wal.is_there()
    os.rename(path.with_name("moved"), f"{path}-wal")
    wal.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_a_closed_store_holds_no_file_open(path: Path) -> None:
    """Nor does one that has opened its file anew."""
    with Router(f"sqlite:///{path}") as router:
        for _ in range(3):
            router.add(None)
            os.replace(shutil.copyfile(path, path.with_name("copy")), path)
            for suffix in ("-wal", "-shm"):
                Path(f"{path}{suffix}").unlink()
        router.counts()
        assert len(open_files(path)) <= 6  # the file, its log and its index, of two connections, and the log once more
    assert open_files(path) == []


def open_files(path: Path) -> list[str]:
    """Where the files are that this process has open, of those whose names begin like *path*."""
    found = []
    for link in os.scandir("/proc/self/fd"):
        with suppress(OSError):
            found.append(os.readlink(link.path))
    return [name for name in found if name.startswith(str(path))]


@pytest.mark.parametrize("page_bytes", [1_024, 4_096, 65_536])
def test_the_length_of_a_log_is_what_sqlite_says_it_is(path: Path, page_bytes: int) -> None:
    """However long its file is, and how often it began anew."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {page_bytes}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("CREATE TABLE kept (text)")
        with closing(Wal(str(path))) as log:
            for rows in (90, 30, 60, 7):
                for number in range(rows):
                    connection.execute("INSERT INTO kept VALUES (?)", ["x" * (number * 37 % 3_000)])
                [(_, pages, copied)] = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                assert pages == copied
                assert log.is_long(pages)
                assert not log.is_long(pages + 1)


def test_a_log_that_begins_anew_is_written_over_and_not_cut(path: Path) -> None:
    """To make a file longer takes another write to the disk with every commit."""
    sizes = []
    with Router(f"sqlite:///{path}?synchronous=normal") as router:
        for number in range(2_000):
            router.add(f"job-{number}")
            sizes.append(log_size(path))

    assert sizes == sorted(sizes)
    assert sizes.count(sizes[-1]) > 100


def test_the_log_stays_small_over_thousands_of_commits(path: Path) -> None:
    """It is copied into the file now and then, and begins anew."""
    longest = 0
    with Router(f"sqlite:///{path}?synchronous=normal") as router:
        for number in range(3_000):
            router.add(f"job-{number}")
            longest = max(longest, log_size(path))
        assert router.counts().pending == 3_000

    assert longest < 16 * MEBIBYTE


def test_the_log_stays_small_when_commits_are_large(path: Path) -> None:
    """A count of commits would not tell."""
    longest = 0
    with Router(f"sqlite:///{path}?synchronous=normal") as router:
        for number in range(150):
            router.add(f"job-{number}", "x" * 900_000)
            longest = max(longest, log_size(path))

    assert longest < 64 * MEBIBYTE


def test_the_log_stays_small_when_nobody_writes_much(path: Path) -> None:
    """Many short processes each add a few jobs, while one that only reads keeps the file open."""
    longest = 0
    with Router(f"sqlite:///{path}") as reader:
        reader.add("first")
        for number in range(150):
            with Router(f"sqlite:///{path}?synchronous=normal") as router:
                router.add(f"job-{number}", "x" * 300_000)
            assert reader.job(f"job-{number}").status == "pending"
            longest = max(longest, log_size(path))

    assert longest < 32 * MEBIBYTE


def test_a_file_that_is_removed_while_it_is_opened_leaves_no_connection_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, migrate, opened = tmp_path / "jobs.db", Database._migrate, list[sqlite3.Connection]()

    def migrate_and_remove(database: Database, connection: sqlite3.Connection) -> None:
        migrate(database, connection)
        opened.append(connection)
        path.unlink()

    monkeypatch.setattr(Database, "_migrate", migrate_and_remove)
    with Router(f"sqlite:///{path}") as router, pytest.raises(StoreUnavailable, match="is gone"):
        router.add("a")
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")
