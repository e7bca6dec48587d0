"""
Roles: each may do exactly what its kind does, and its errors say what it lacks.

Real logins: a role that the server does not know as the owner's, on a schema whose owner is no superuser.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

import leasehold.stores.postgres.schema as files
from leasehold import Router, StaleEpoch, StoreIncompatible
from leasehold.cli import store as command
from leasehold.cli.app import run
from leasehold.core.job import Outcome, Progress, Settlement, Status, new_job
from leasehold.core.ownership import Note, NoteKind
from leasehold.core.search import Search
from leasehold.core.workers import WorkerReport
from leasehold.liveness import this_process
from leasehold.store import Renewal, Store, Transactions
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.rights import KINDS, grantees
from leasehold.testing import ManualClock
from leasehold.testing.hunt.command import main
from leasehold.worker.until_empty import UntilEmpty

from .fixtures import database

ME = f"{os.getpid()}"
OWNER = f'owner "{ME}%s'  # nothing that a role's name may contain needs care


def name_of(kind: str) -> str:
    """The role of that kind."""
    return f"{kind} {ME}'s"


def login(url: str, role: str) -> str:
    """Return *url* for *role*."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(role)}:secret@{place}"))


@dataclass
class World:
    """A database with a store that a plain role owns, and a role of each kind."""

    admin: str
    url: str
    schema: str = "roles"
    owner: PostgresStore = field(init=False)
    stores: dict[str, PostgresStore] = field(default_factory=dict)

    def store(self, kind: str) -> PostgresStore:
        """The store, as a role of that kind has it."""
        if kind not in self.stores:
            self.stores[kind] = PostgresStore(login(self.url, name_of(kind)), schema=self.schema)
        return self.stores[kind]

    def execute(self, statement: str, *names: str) -> list[Any]:
        """Run a statement as the server's administrator."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="module")
def world(server_url: str) -> Iterator[World]:
    """Roles, their rights, and what a test finds."""
    made = World(server_url, database(server_url, "roles"))
    roles = [OWNER, *(name_of(kind) for kind in [*KINDS, "nobody"])]
    for role in roles:
        made.execute("create role {} login password 'secret'", role)
    made.execute("grant create on database {} to {}", urlsplit(made.url).path[1:], OWNER)
    made.owner = PostgresStore(login(made.url, OWNER), schema=made.schema)
    made.owner.add([new_job("first")])
    for kind in KINDS:
        made.owner.grant(name_of(kind), [kind])
    try:
        yield made
    finally:
        for store in [made.owner, *made.stores.values()]:
            store.close()
        for role in roles:
            made.execute("drop owned by {} cascade", role)
            made.execute("drop role {}", role)


@dataclass
class Case:
    """A job that the owner has added, claimed under an epoch, and what a verb may need."""

    owner: PostgresStore
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    epoch: int = 0

    def claimed(self) -> Case:
        """The job, leased."""
        self.owner.add([new_job(self.id, queue=self.id)])
        [grant] = self.owner.claim("worker", queues=[self.id], claim_id=self.id)
        self.epoch = grant.epoch
        return self

    def handed(self) -> Case:
        """The job, transferred to an owner with its name, and not picked up."""
        self.owner.add([new_job(self.id, queue=self.id)])
        self.epoch = self.owner.transfer(self.id, 0, to=self.id, by="ann").epoch
        return self

    def report(self) -> WorkerReport:
        """A worker with its name."""
        return WorkerReport(self.id, self.id, None, None, (), 1, 0, 0)

    def reported(self) -> None:
        """Have such a worker report."""
        self.owner.report(self.report())

    def begun(self) -> Case:
        """The job, leased, with an effect in doubt."""
        self.claimed()
        self.owner.begin_effect(self.id, self.epoch, "charge")
        return self

    def finished(self) -> Case:
        """The job, done."""
        self.claimed()
        self.owner.settle([self.completion()])
        return self

    def completion(self) -> Settlement:
        """Its completion."""
        return Settlement(self.id, self.epoch, Outcome.COMPLETE)

    def joined(self, store: PostgresStore, program: Callable[[Transactions], Any]) -> Any:
        """Run a program in a transaction of the role's own, and commit."""
        with psycopg.connect(store.database.url) as connection:
            return store.transactions.run(connection, program(store.transactions))

    def block(self, store: PostgresStore) -> None:
        """A whole `lease.transaction()`."""
        verbs = store.transactions
        connection = verbs.begin(self.id, self.epoch)
        verbs.run(connection, verbs.settle(self.completion()))
        verbs.commit(connection)


def children(case: Case) -> list[Any]:
    """What a parent adds."""
    return [new_job(f"{case.id}/child")._replace(parent=case.id)]


P, W, OP, R = {"producer"}, {"worker"}, {"operator"}, {"operator", "reader"}

# Each verb, who may do it, what there must be, and how it is called.
VERBS: dict[str, tuple[set[str], Callable[[Case], object], Callable[[PostgresStore, Case], Any]]] = {
    "add": (P, lambda it: it, lambda store, it: store.add([new_job(it.id, unique=it.id)])),
    "claim": (W, lambda it: it.owner.add([new_job(it.id, queue=it.id)]), lambda s, it: s.claim("w", queues=[it.id])),
    "claimed": (W, Case.claimed, lambda store, it: store.claimed(it.id)),
    "lease": (W, Case.claimed, lambda store, it: store.lease(it.id, "worker")),
    "transfers": (W, Case.handed, lambda store, it: store.transfers(it.id)),
    "accept": (
        W,
        Case.handed,
        lambda s, it: s.accept(it.id, [(it.id, it.epoch)], claim_id=it.id, process=this_process()),
    ),
    "lease: of a transfer": (W, Case.handed, lambda store, it: store.lease(it.id, it.id)),
    "check": (W, Case.claimed, lambda store, it: store.check([(it.id, it.epoch)])),
    "renew": (W, Case.claimed, lambda store, it: store.renew([Renewal(it.id, it.epoch, None)])),
    "progress": (W, Case.claimed, lambda s, it: s.progress([Progress(it.id, it.epoch, 0.5, "n", "{}")])),
    "add_children": (W, Case.claimed, lambda s, it: s.add_children(it.id, it.epoch, children(it))),
    "settle": (W, Case.claimed, lambda store, it: store.settle([it.completion()])),
    "begin_effect": (W, Case.claimed, lambda s, it: s.begin_effect(it.id, it.epoch, "charge")),
    "record": (
        W | OP,
        Case.claimed,
        lambda s, it: s.record(Note(NoteKind.GUARDED, it.id, it.epoch, "me", {"keys": []})),
    ),
    "end_effect": (W, Case.begun, lambda s, it: s.end_effect(it.id, it.epoch, "charge", "1")),
    "transfer": (OP, Case.claimed, lambda s, it: s.transfer(it.id, it.epoch, to="b", by="ann")),
    "cancel": (OP, Case.claimed, lambda s, it: s.cancel(it.id, it.epoch, by="ann")),
    "replay": (OP, Case.finished, lambda s, it: s.replay(it.id, it.epoch, by="ann")),
    "requeue": (OP, Case.claimed, lambda s, it: s.requeue(it.id, it.epoch, by="ann")),
    "finish": (OP, Case.claimed, lambda s, it: s.finish(it.id, it.epoch, by="ann", result="1")),
    "pause": (OP, lambda it: it, lambda s, it: s.pause(it.id, by="ann", note="why")),
    "resume": (OP, lambda it: it.owner.pause(it.id, by="ann"), lambda s, it: s.resume(it.id, by="ann")),
    "report": (W, lambda it: it, lambda store, it: store.report(it.report())),
    "retire": (W, Case.reported, lambda store, it: store.retire(it.id)),
    "search": (R, lambda it: it, lambda store, it: store.search(Search(), limit=1)),
    "search: running": (R, lambda it: it, lambda store, it: store.search(Search(Status.RUNNING), limit=1)),
    "search: failed": (R, lambda it: it, lambda store, it: store.search(Search(Status.FAILED), limit=1)),
    "identity": (P | W | R, lambda it: it, lambda store, it: store.identity()),
    "oldest": (W | R, lambda it: it, lambda store, it: store.oldest()),
    "lately": (R, Case.finished, lambda store, it: store.lately()),
    "leases": (W | R, Case.claimed, lambda store, it: store.leases()),
    "observed": (W | R, lambda it: it, lambda store, it: store.observed()),
    "observe": (W | OP, lambda it: it, lambda store, it: store.observe(-1, [])),
    "workers": (W | R, Case.reported, lambda store, it: store.workers()),
    "transfer: to a worker": (
        OP,
        lambda it: it.claimed().reported(),
        lambda s, it: s.transfer(it.id, it.epoch, to=it.id, by="ann"),
    ),
    "queues": (W | R, lambda it: it.owner.pause(it.id, by="ann"), lambda store, it: store.queues()),
    "resolve": (OP, Case.begun, lambda s, it: s.resolve(it.id, it.epoch, "charge", by="ann", outcome="1")),
    "reclaim": (W | OP, lambda it: it, lambda store, it: store.reclaim()),
    "open_keys": (W | OP, Case.finished, lambda store, it: store.open_keys(["shelf"])),
    "prune_job": (OP, Case.finished, lambda store, it: store.prune_job(it.id, it.epoch, by="ann")),
    "prune": (OP, Case.finished, lambda store, it: store.prune(10**15)),
    "tend": (W | OP, Case.finished, lambda store, it: store.tend()),
    "advance": (OP, lambda it: it, lambda store, it: store.advance()),
    "verify": (R, Case.claimed, lambda store, it: store.verify()),
    "job": (R, Case.claimed, lambda store, it: store.job(it.id)),
    "jobs": (R, Case.claimed, lambda s, it: (s.jobs(queue=it.id), s.jobs(owner="worker", queue=it.id, after=it.id))),
    "ownerships": (R, Case.claimed, lambda store, it: store.ownerships(it.id)),
    "effects": (R, Case.begun, lambda store, it: store.effects(it.id)),
    "events": (R, Case.claimed, lambda store, it: store.events(job_id=it.id)),
    "counts": (W | R, Case.claimed, lambda store, it: store.counts()),
    "in a transaction: add": (P, lambda it: it, lambda s, it: it.joined(s, lambda v: v.add([new_job(it.id)]))),
    "in a transaction: fence": (W, Case.claimed, lambda s, it: it.joined(s, lambda v: v.fence(it.id, it.epoch))),
    "in a transaction: add_children": (
        W,
        Case.claimed,
        lambda s, it: it.joined(s, lambda v: v.add_children(it.id, it.epoch, children(it))),
    ),
    "in a transaction: settle": (W, Case.claimed, lambda s, it: it.joined(s, lambda v: v.settle(it.completion()))),
    "in a transaction: a block": (W, Case.claimed, lambda s, it: it.block(s)),
}


def test_every_verb_is_among_them() -> None:
    """A verb that is added to the contract is also given to somebody."""
    verbs = {name for name in vars(Store) if not name.startswith("_")} - {
        "transactions",
        "close",
        "take_reclaimed",
        "wake",
    }

    assert verbs == {name for name in VERBS if ":" not in name}


@pytest.mark.parametrize("kind", [*KINDS, "nobody"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_role_does_its_verbs_and_no_other(world: World, verb: str, kind: str) -> None:
    """Whoever may not is told who may, in leasehold's words, and nothing has happened."""
    allowed, prepare, call = VERBS[verb]
    case = Case(world.owner)
    prepare(case)
    store = world.store(kind)

    if kind in allowed:
        call(store, case)
    else:
        with pytest.raises(
            StoreIncompatible, match=r"lacks a right.*leasehold store grant URL --role.*Nothing"
        ) as refused:
            call(store, case)
        assert not isinstance(refused.value, psycopg.Error)
        if kind != "nobody":
            assert {name for name in KINDS if f"--kind {name}" in str(refused.value)} == allowed
            if "transaction" not in verb:
                assert repr(name_of(kind)) in str(refused.value)
    assert world.owner.verify() == []


# What the server itself says


def rights(world: World, role: str) -> tuple[set[str], set[str], set[str]]:
    """What *role* may call, read (in any column) and change, by the server's own account."""
    with psycopg.connect(world.url) as connection:
        functions = connection.execute(
            "select proname from pg_proc where pronamespace = %s::regnamespace "
            "and has_function_privilege(%s, oid, 'EXECUTE')",
            [world.schema, role],
        ).fetchall()
        relations = connection.execute(
            "select relname, case when relkind = 'S' then has_sequence_privilege(%(role)s, oid, 'SELECT,USAGE') "
            "else has_any_column_privilege(%(role)s, oid, 'SELECT') end, "
            "case when relkind = 'S' then has_sequence_privilege(%(role)s, oid, 'UPDATE') else "
            "has_any_column_privilege(%(role)s, oid, 'INSERT,UPDATE,REFERENCES') "
            "or has_table_privilege(%(role)s, oid, 'DELETE,TRUNCATE,TRIGGER') end "
            "from pg_class where relnamespace = %(schema)s::regnamespace and relkind in ('r', 'v', 'S')",
            {"schema": world.schema, "role": role},
        ).fetchall()
    return (
        {name for (name,) in functions},
        {name for name, read, _ in relations if read},
        {name for name, _, changed in relations if changed},
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_role_has_no_right_beside_those_of_its_verbs(world: World, kind: str) -> None:
    """No table can be written to except through a verb, and nothing that a verb is made of can be called by itself."""
    functions, read, changed = rights(world, name_of(kind))

    assert functions == set(KINDS[kind].functions)
    assert read == {*KINDS[kind].relations, "store"}
    assert changed == set()


_CALLING = ("store.py", "claiming.py", "owning.py", "transactions.py", "commits.py", "reading.py")


def test_what_is_granted_is_what_the_code_asks_for() -> None:
    """No table that no reader reads, and no function that nobody calls."""
    folder = Path(files.__file__).parent
    asked = (folder / "statements.sql").read_text() + (folder / "reading.py").read_text()
    code = "".join((folder / name).read_text() for name in _CALLING)
    called = set(re.findall(r"leasehold\.(\w+)\(", asked))
    called |= set(re.findall(r"(?:_call|\b[cC]all|call_again|\.statement)\(?\s*\"(\w+)\"", code))
    for either in re.findall(r"function = \"(\w+)\" if .* else \"(\w+)\"", code):
        called |= set(either)

    assert set(re.findall(r"leasehold\.(\w+)\b(?!\()", asked)) == {*KINDS["reader"].relations}
    assert called == {name for kind in KINDS.values() for name in kind.functions}


def test_whoever_was_granted_nothing_has_nothing(world: World) -> None:
    """PUBLIC has no right, not even on a function that is new."""
    assert rights(world, name_of("nobody")) == (set(), set(), set())


def test_the_catalogue_remembers_who_was_granted_what(world: World) -> None:
    """So a migration can give them what it makes. An operator is a reader too."""
    with psycopg.connect(world.url) as connection:
        found = set(grantees(connection, world.schema))

    assert found == {*((name_of(kind), kind) for kind in KINDS), (name_of("operator"), "reader")}


# Transactions of a role that has no right on a table of ours


def test_a_worker_commits_rows_of_its_own_under_the_fence(world: World) -> None:
    """The check inside COMMIT runs with the owner's rights: 42501 there would refuse a current owner."""
    case = Case(world.owner).claimed()
    role = name_of("worker")
    world.execute("create table if not exists rows_of_its_own (id text)")
    world.execute("grant insert, select on rows_of_its_own to {}", role)
    store = world.store("worker")

    case.joined(store, lambda verbs: verbs.fence(case.id, case.epoch))
    with psycopg.connect(store.database.url) as connection:
        connection.execute("insert into rows_of_its_own values (%s)", [case.id])
        store.transactions.run(connection, store.transactions.settle(case.completion()))

    assert world.owner.job(case.id).status == "done"
    assert (case.id,) in world.execute("select id from rows_of_its_own")


def test_a_worker_works_until_nothing_is_left(world: World) -> None:
    """It needs to know whether something is, and nothing more."""
    case = Case(world.owner)
    world.owner.add([new_job(case.id, {"n": 1}, queue=case.id, task="double")])
    with Router(login(world.url, name_of("worker")), schema=world.schema) as router:

        @router.task
        def double(n: int) -> int:
            return 2 * n

        tally = router.work(until_empty=True, queues=[case.id])

    assert (tally.done, world.owner.job(case.id).status) == (1, "done")


def test_a_worker_says_what_it_waits_for_as_far_as_it_may_know(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """When the first job is due, and whose task nobody knows, is what readers read."""
    case = Case(world.owner).claimed()
    steady = ManualClock()
    with caplog.at_level("INFO", "leasehold"):
        for kind in ("worker", "reader"):
            waiting = UntilEmpty(world.store(kind), [case.id], steady, lambda task: False)
            assert not waiting.nothing_left()
            steady.advance(3)
            assert not waiting.nothing_left()

    said = "waiting for 1 job: 1 running elsewhere"
    assert caplog.messages == [said, f"{said}; tasks that this worker does not know: no task"]


@pytest.mark.parametrize("kind", ["worker", "reader"])
def test_observations_leave_out_what_a_role_may_not_read(world: World, kind: str) -> None:
    """A worker's role reads no jobs, so poison jobs are not looked for."""
    with Router(login(world.url, name_of(kind)), schema=world.schema) as router:
        assert "silent" not in [one.kind.value for one in router.observations()]


def test_a_worker_fences_in_a_pipeline(world: World) -> None:
    """Where nobody waits for the fence's answer."""
    case = Case(world.owner).claimed()
    store = world.store("worker")
    with psycopg.connect(store.database.url, autocommit=True) as connection:
        with connection.pipeline(), connection.transaction():
            store.transactions.run(connection, store.transactions.settle(case.completion()))

        with pytest.raises(psycopg.Error) as refused, connection.pipeline(), connection.transaction():
            store.transactions.run(connection, store.transactions.fence(case.id, case.epoch))

    assert world.owner.job(case.id).status == "done"
    assert isinstance(StaleEpoch.find(refused.value), StaleEpoch)


def test_a_stale_worker_is_refused_inside_its_commit_with_the_facts(world: World) -> None:
    """And not for a missing right."""
    case = Case(world.owner).claimed()
    store = world.store("worker")
    with psycopg.connect(store.database.url) as connection:
        store.transactions.run(connection, store.transactions.fence(case.id, case.epoch))
        world.owner.cancel(case.id, case.epoch, by="ann")

        with pytest.raises(psycopg.Error) as refused:
            connection.commit()

    refusal = StaleEpoch.find(refused.value)
    assert refusal is not None
    assert (refusal.presented, refusal.reason) == (case.epoch, "cancellation")


# Who may not make a schema


def test_a_role_that_may_not_create_is_told_who_should(world: World) -> None:
    """On the first use of an empty database; nothing is made."""
    url = login(world.url, name_of("nobody"))
    with (
        Router(url, schema="not there") as router,
        pytest.raises(
            StoreIncompatible, match=r"may not make.*leasehold store migrate URL.*store grant URL.*Nothing was"
        ),
    ):
        router.add("a")

    assert world.execute("select from pg_namespace where nspname = 'not there'") == []


def test_a_schema_that_was_made_for_a_role_is_enough(world: World) -> None:
    """The right to create in the database is not needed if the schema is there and its own."""
    role = name_of("nobody")
    world.execute("create schema {} authorization {}", "made for it", role)

    with Router(login(world.url, role), schema="made for it") as router:
        router.add("a")
        lease = router.claim("worker")
        assert lease is not None
        lease.complete()
        assert router.verify() == []

    world.execute("drop schema {} cascade", "made for it")


# The commands


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run a command; return its exit code and what it printed."""
    code = run(["store", *arguments])
    shown = capsys.readouterr()
    return code, shown.out + shown.err


def test_grant_and_revoke(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run changes nothing and prints the statements; a grant adds up; revoking leaves nothing."""
    role, owner = name_of("nobody"), login(world.url, OWNER)
    options = ("--role", role, "--schema", world.schema)

    code, text = said(capsys, "grant", owner, *options, "--kind", "producer", "--dry-run")
    assert code == 0
    assert 'GRANT EXECUTE ON FUNCTION "roles"."add"' in text
    assert rights(world, role) == (set(), set(), set())
    try:
        code, text = said(capsys, "grant", owner, *options, "--kind", "producer", "--kind", "reader")
        assert (code, text) == (0, f"{role} has the rights of: producer, reader.\n")
        assert rights(world, role)[0] == {"add", "add_alike", *KINDS["reader"].functions}
        assert said(capsys, "grant", owner, *options, "--kind", "worker", "--json")[0] == 0
        assert rights(world, role)[0] == {*KINDS["worker"].functions, "add", "add_alike", "broken", "lately"}
    finally:
        code, text = said(capsys, "revoke", owner, *options)
    assert (code, text) == (0, f"{role} has no rights in the store any more.\n")
    assert rights(world, role) == (set(), set(), set())


@pytest.mark.parametrize(
    ("who", "role", "kind", "code", "answer"),
    [
        ("worker", "nobody", "worker", 1, "does not own"),
        ("owner", "missing", "worker", 2, "does not exist on the server"),
        ("owner", "nobody", "king", 2, "'king' is not one of 'producer', 'worker', 'operator', 'reader'"),
    ],
)
def test_a_grant_that_cannot_be_is_refused(
    world: World, capsys: pytest.CaptureFixture[str], who: str, role: str, kind: str, code: int, answer: str
) -> None:
    """PostgreSQL itself would pass over some of these with a warning."""
    url = login(world.url, OWNER if who == "owner" else name_of(who))

    found, text = said(capsys, "grant", url, "--role", name_of(role), "--kind", kind, "--schema", world.schema)

    assert (found, answer in text) == (code, True), text
    assert "secret" not in text
    assert rights(world, name_of("nobody")) == (set(), set(), set())


def test_an_owner_that_may_not_end_a_workers_session_is_told_what_helps(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The takeover is done, and the fence refuses all the same."""
    case = Case(world.owner).claimed()
    store = PostgresStore(login(world.url, name_of("operator")), schema=world.schema)
    verbs = world.store("worker").transactions
    with psycopg.connect(login(world.url, name_of("worker"))) as connection:
        verbs.run(connection, verbs.fence(case.id, case.epoch))

        store.transfer(case.id, case.epoch, to="other", by="ann")

        with pytest.raises(psycopg.Error) as refused:
            connection.commit()
    store.close()
    assert refused.value.sqlstate == "LH001"
    [warning] = [record.getMessage() for record in caplog.records if "could not end" in record.getMessage()]
    assert "the role that owns the schema may not end that session" in warning
    assert "GRANT pg_signal_backend TO that role; only a superuser" in warning
    assert "lacks a right" not in warning


def test_a_role_that_may_make_no_schema_is_told_what_a_hunt_needs(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """A right in the database, and none in a schema."""
    assert main([login(world.url, name_of("nobody")), "--minutes", "1"]) == 2

    said = capsys.readouterr().err
    assert "GRANT CREATE ON DATABASE" in said
    assert "store grant" not in said
    assert "secret" not in said


def test_the_command_knows_every_kind() -> None:
    """Its list is its own, since the driver is an extra."""
    assert tuple(KINDS) == command.KINDS


def test_only_postgres_has_roles(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """For a file, its permissions are the answer."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Router(url) as router:
        router.add("a")

    code, text = said(capsys, "grant", url, "--role", "web", "--kind", "producer")

    assert (code, "the permissions of its file" in text) == (2, True)
