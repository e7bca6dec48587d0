"""
`leasehold store check`: every breakage that somebody could plant by hand is told.

The rows are changed behind the back of the functions, as a restored half of a backup or a careless UPDATE would.
"""

from __future__ import annotations

import re

import psycopg
import pytest
from psycopg import sql

from leasehold.cli.app import run
from leasehold.core.job import Outcome, Settlement, new_job
from leasehold.stores.postgres import PostgresStore

from .fixtures import SERVERS, Place, url_of

pytestmark = pytest.mark.usefixtures("kept_sessions")


@pytest.fixture(scope="module", params=SERVERS[-1:])
def server_url(request: pytest.FixtureRequest) -> str:
    """One server is enough: what is planted is the same on each."""
    return url_of(request.param)


def populated(place: Place) -> PostgresStore:
    """A store with a job in every place, and some that have been, for a test that breaks it."""
    place.broken = True
    store = place.store()
    store.add([new_job(name, queue="q") for name in ("ready", "ready-2")])
    store.add([new_job("later", queue="q", delay_seconds=3600)])
    store.add([new_job("leased", queue="r", lock="key", unique="u")])
    [leased] = store.claim("worker", queues=["r"])
    store.add([new_job("parked", queue="r", lock="key")])
    assert store.claim("worker", queues=["r"]) == []
    store.add([new_job("unknown", queue="u", task="new")])
    assert store.claim("worker", queues=["u"], tasks=["old"]) == []
    store.add([new_job("done", queue="d", unique="was")])
    [done] = store.claim("worker", queues=["d"])
    store.settle([Settlement("done", done.epoch, Outcome.COMPLETE, result="1")])
    store.add([new_job("tried", queue="t")])
    [tried] = store.claim("worker", queues=["t"])
    store.progress([])
    store.begin_effect("tried", tried.epoch, "charge")
    store.settle([Settlement("tried", tried.epoch, Outcome.RELEASE)])
    assert leased.epoch < tried.epoch
    assert store.verify() == []
    return store


WRONG = r"job 'ready' is listed under the wrong queue"
FREE = r"jobs of queue 'r' are parked behind lock 'key', which is free"

# What is planted, and what is said about it: a pattern for each line, and no other line.
BREAKAGES: dict[str, tuple[str, list[str]]] = {
    "in no place": ("delete from ready where seq = (ready)", [r"job 'ready' is unfinished but is listed 0 times"]),
    "scheduled, and nowhere": ("delete from scheduled", [r"job 'later' is unfinished but is listed 0 times"]),
    "parked, and nowhere": (
        "delete from parked where kind = 'lock'",
        [r"job 'parked' is unfinished but is listed 0 times"],
    ),
    "behind a task, and nowhere": (
        "delete from parked where kind = 'task'",
        [r"job 'unknown' is unfinished but is listed 0 times"],
    ),
    "behind another task": (
        "update parked set behind = 'x' where kind = 'task'",
        [r"job 'unknown' is listed under the wrong queue"],
    ),
    "behind nothing that there is": (
        "update parked set kind = 'x', behind = 'x' where kind = 'task'",
        [r"job 'unknown' is listed under the wrong queue"],
    ),
    "leased, and nowhere": (
        "delete from leases",
        [
            r"job 'leased' is unfinished but is listed 0 times",
            FREE,
        ],
    ),
    "ready and scheduled": (
        "insert into scheduled select run_at, seq, queue, rank, lock from ready where seq = (ready)",
        [r"job 'ready' is unfinished but is listed 2 times"],
    ),
    "ready and parked": (
        "insert into parked select 'lock', 'key', queue, rank, run_at, seq, 'key', 'w' from ready where seq = (ready)",
        [r"job 'ready' is unfinished but is listed 2 times", WRONG],
    ),
    "leased and ready": (
        "insert into ready select queue, -priority, run_at, seq, lock from jobs where id = 'leased'",
        [r"job 'leased' is unfinished but is listed 2 times"],
    ),
    "parked and leased": (
        "insert into leases select (parked), nextval('epochs'), 0, 1, 1, 0, true, 'w', 'claim', null, null, 'k'",
        [r"job 'parked' is unfinished but is listed 2 times", r"job 'parked' runs without its lock"],
    ),
    "done, and ready": (
        "insert into ready select queue, -priority, run_at, seq, lock from jobs where id = 'done'",
        [r"job 'done' is done but is listed 1 times"],
    ),
    "a place without a job": (
        "insert into ready values ('q', 0, 0, 999)",
        [r"row 999 is listed as ready, scheduled, parked or running, but its job"],
    ),
    "a lease without a job": (
        "insert into leases select 999, nextval('epochs'), 0, 1, 1, 0, true, 'w', 'claim'",
        [r"the lease of row 999 has ended, but is not marked for removal"],
    ),
    "a lease that has ended, for ever": (
        "update jobs set epoch = (select epoch from leases) where id = 'leased'; "
        "insert into ready select queue, -priority, run_at, seq, lock from jobs where id = 'leased'",
        [r"the lease of row \d+ has ended, but is not marked for removal"],
    ),
    "parked behind a free key": (
        "update parked set lock = 'free', behind = 'free' where seq = (parked); "
        "update jobs set lock = 'free' where id = 'parked'",
        [r"jobs of queue 'r' are parked behind lock 'free', which is free"],
    ),
    "a lease without its lock": (
        "update leases set lock = null",
        [r"job 'leased' runs without its lock", FREE],
    ),
    "in the wrong queue": (
        "update ready set queue = 'x' where seq = (ready)",
        [WRONG],
    ),
    "with the wrong rank": ("update ready set rank = 7 where seq = (ready)", [WRONG]),
    "at the wrong time": ("update scheduled set run_at = 7", [r"job 'later' is listed under the wrong queue"]),
    "behind the wrong key": (
        "update jobs set lock = 'x' where id = 'ready'",
        [WRONG],
    ),
    "an epoch that was never issued": (
        "update leases set epoch = 9007199254740991",
        [r"job 'leased' has epoch 9007199254740991, above the last one issued"],
    ),
    "a job's epoch that was never issued": (
        "update jobs set epoch = 9007199254740991 where id = 'ready'",
        [r"job 'ready' has epoch 9007199254740991, above the last one issued"],
    ),
    "a lease below an earlier one": (
        "insert into ownerships select seq, epoch + 1, 'w', 'claim', 0, 1, 'timeout', 0, 'leasehold' from leases; "
        "select setval('epochs', nextval('epochs') + 10)",
        [
            r"job 'leased' is leased under epoch \d+, which is not above its earlier ones",
            r"epoch \d+ was issued 2 times",
        ],
    ),
    "an epoch that was issued twice": (
        "update jobs set epoch = (select epoch from leases) where id = 'done'",
        [r"epoch \d+ was issued 2 times"],
    ),
    "done, and not among the finished": (
        "delete from finished",
        [r"job 'done' is done, but its entry among the finished jobs differs"],
    ),
    "finished in another way": (
        "update finished set status = 'failed'",
        [r"job 'done' is done, but its entry among the finished jobs differs"],
    ),
    "a finished job that is none": (
        "insert into finished values (1, 'done', array[999])",
        [r"row 999 of finished belongs to no job"],
    ),
    "unfinished, and among the finished": (
        "insert into finished values (1, 'done', array[(ready)])",
        [r"job 'ready' is unfinished, but its entry among the finished jobs differs"],
    ),
    "finished twice": (
        "insert into finished select * from finished where status = 'done'",
        [r"row \d+ is listed 2 times among the finished jobs"],
    ),
    "an owner without a settlement": (
        "update jobs set settlement = null where id = 'done'",
        [r"job 'done' contradicts itself"],
    ),
    "a lease of no length": ("update leases set lease_us = 0", [r"the lease of row \d+ contradicts itself"]),
    "a lease that may stall, and never does": (
        "update leases set stall_us = 1",
        [r"the lease of row \d+ contradicts itself"],
    ),
    "a unique key that is free": ("delete from uniques", [r"job 'leased' and the table of unique keys differ"]),
    "a unique key that is kept": (
        "insert into uniques select 'was', seq from jobs where id = 'done'",
        [r"job 'done' and the table of unique keys differ"],
    ),
    "a unique key of nobody": ("insert into uniques values ('x', 999)", [r"row 999 of uniques belongs to no job"]),
    "an effect of nobody": ("update effects set seq = 999", [r"row 999 of effects belongs to no job"]),
    "an ownership of nobody": ("update ownerships set seq = 999", [r"row 999 of ownerships belongs to no job"]),
    "a checkpoint of nobody": (
        "insert into checkpoints values (999, '1')",
        [r"row 999 of checkpoints belongs to no job"],
    ),
    "a job that was removed": (
        "delete from jobs where id = 'tried'",
        [
            r"row \d+ is listed as ready, scheduled, parked or running, but its job",
            r"row \d+ of ownerships belongs to no job",
            r"row \d+ of effects belongs to no job",
        ],
    ),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_a_breakage_is_told(place: Place, name: str) -> None:
    """Each by its own sentence, and by no other."""
    store = populated(place)
    statement, said = BREAKAGES[name]
    for job in ("ready", "parked"):
        statement = statement.replace(f"({job})", f"(select seq from jobs where id = '{job}')")
    with psycopg.connect(store.database.url) as connection:
        connection.execute(sql.SQL("set search_path = {}").format(sql.Identifier(store.database.schema)))
        connection.execute(statement.encode())

    broken = store.verify()

    assert len(broken) == len(said), broken
    for pattern in said:
        assert [sentence for sentence in broken if re.match(pattern, sentence)], broken


@pytest.mark.parametrize(
    "statement",
    [
        "update jobs set finished_at = null where id = 'done'",
        "update jobs set status = 'failed' where id = 'ready'",
        "update jobs set finished_at = 1 where id = 'ready'",
        "update leases set epoch = 0",
    ],
)
def test_what_no_row_can_be_is_refused_by_the_server(place: Place, statement: str) -> None:
    """A job is unfinished iff no instant says when it finished, and a lease has an epoch: a CHECK each."""
    store = populated(place)
    with psycopg.connect(store.database.url) as connection:
        connection.execute(sql.SQL("set search_path = {}").format(sql.Identifier(store.database.schema)))
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute(statement.encode())

    assert store.verify() == []


def test_the_command_tells_it(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each, and exit code 1."""
    store = populated(place)
    command = ["store", "check", store.database.url, "--schema", store.database.schema]
    sound = run(command)
    capsys.readouterr()
    with psycopg.connect(store.database.url) as connection:
        connection.execute(sql.SQL("delete from {}").format(sql.Identifier(store.database.schema, "scheduled")))

    code = run(command)

    assert (sound, code) == (0, 1)
    assert (
        "broken: job 'later' is unfinished but is listed 0 times as ready, scheduled, parked or running.\n"
        in capsys.readouterr().out
    )


def test_every_test_ends_with_it(place: Place) -> None:
    """One that leaves its store broken fails, whatever else it has looked at."""
    store = populated(place)
    own = Place(place.url, [store])
    with psycopg.connect(store.database.url) as connection:
        connection.execute(sql.SQL("delete from {}").format(sql.Identifier(store.database.schema, "scheduled")))
    place.stores.remove(store)

    with pytest.raises(AssertionError, match="job 'later' is unfinished but is listed 0 times"):
        own.clear()
