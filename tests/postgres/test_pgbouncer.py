"""Behind pgbouncer in transaction mode, where each transaction may run in another session of the server."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from tests.patience import PATIENCE_SECONDS
from tests.support import until

from leasehold import Router, StaleEpoch
from leasehold.core.job import new_job
from leasehold.lease import Lease
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.connection import Connection

from .fixtures import NEWEST, Place, url_of, without_path
from .server import unprivileged
from .staging import Call

SESSIONS = 2  # of the server, for everybody


@pytest.fixture(scope="module")
def pooler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A pgbouncer before the first server; the URL of the same database through it."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("there is no pgbouncer here: it is not on PyPI; apt install pgbouncer")
    direct = conninfo_to_dict(url_of(NEWEST))
    folder = Path(str(direct["host"]))  # the server's own, which its user may write to
    settings = {
        "listen_addr": "",
        "listen_port": 6432,
        "unix_socket_dir": folder,
        "auth_type": "any",
        "pool_mode": "transaction",
        "default_pool_size": SESSIONS,
        "server_reset_query_always": 0,
        "logfile": folder / "pgbouncer.log",
        "syslog": 0,
    }
    config = folder / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n* = host={folder} user={direct['user']}\n[pgbouncer]\n"
        + "".join(f"{name} = {value}\n" for name, value in settings.items())
    )
    config.chmod(0o644)
    running = subprocess.Popen(
        [program, "-q", str(config)], user=unprivileged(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"postgresql://{direct['user']}@/{direct['dbname']}?host={quote(str(folder))}&port=6432"
    try:
        until(lambda: (folder / ".s.PGSQL.6432").exists() or running.poll() is not None)
        assert running.poll() is None, (folder / "pgbouncer.log").read_text()
        yield url
    finally:
        running.terminate()
        running.wait(PATIENCE_SECONDS)


@pytest.fixture
def stores(pooler: str) -> Iterator[list[PostgresStore]]:
    """Several processes' worth of stores on one schema, and more of them than there are sessions."""
    place = Place(url_of(NEWEST))
    direct = place.store()
    made = [PostgresStore(pooler, schema=direct.database.schema) for _ in range(4)]
    with psycopg.connect(without_path(direct.database.url), autocommit=True) as connection:
        connection.execute("create table pooled (n int)")
    try:
        yield made
        assert direct.verify() == []
    finally:
        for store in made:
            store.close()
        with psycopg.connect(without_path(direct.database.url), autocommit=True) as connection:
            connection.execute("drop table pooled")
        place.clear()


def rows(store: PostgresStore) -> int:
    """How many rows were committed."""
    [(count,)] = store.database.read("select count(*) from pooled")
    return int(count)


def test_verbs_and_blocks_share_a_few_sessions(stores: list[PostgresStore]) -> None:
    """No verb relies on what an earlier one left in its session."""
    stores[0].add([new_job(f"job {number}") for number in range(40)])

    def work(store: PostgresStore) -> int:
        done = 0
        while grants := store.claim("worker", limit=3):
            for grant in grants:
                lease = Lease(store, grant)
                lease.renew()
                lease.progress(0.5, checkpoint={"half": True})
                with lease.transaction() as connection:
                    connection.execute("insert into pooled values (1)")
                    lease.complete(connection=connection)
                done += 1
        return done

    with ThreadPoolExecutor(len(stores)) as pool:
        done = list(pool.map(work, stores))

    assert sum(done) == 40
    assert rows(stores[0]) == 40
    assert stores[1].counts().done == 40


def test_a_pooler_that_is_put_before_the_server_later(stores: list[PostgresStore], pooler: str) -> None:
    """Whoever has to connect again finds it at the same address, and prepares nothing from then on."""
    for store in stores:
        store.database._settings = conninfo_to_dict(url_of(NEWEST))
        store.add([new_job(f"{id(store)} before")])
        assert store.database.prepare_threshold is not None

        store.database._settings = conninfo_to_dict(pooler)
        with store.database.connection() as connection:
            connection.close()

    for number in range(10):
        for store in stores:
            store.add([new_job(f"{id(store)} {number}")])
            [grant] = store.claim("worker")
            Lease(store, grant).complete()

    assert stores[0].counts().done == 10 * len(stores)


def test_a_statement_of_somebody_else_is_never_run(stores: list[PostgresStore], pooler: str) -> None:
    """If nobody had noticed the pooler, the session that has the same name would have another statement under it."""
    stores[0].database.open()
    first, second = (Connection.connect(pooler, autocommit=True) for _ in range(2))
    held = psycopg.connect(pooler, prepare_threshold=None)
    with first, second, held:
        held.execute("select 1")  # so that all others share a session
        for _ in range(6):
            first.ask("select 'first', $1::text", ["asked"])
        with psycopg.connect(pooler, prepare_threshold=None) as other:
            other.execute("select 1")
            held.rollback()  # and now the other one
            for _ in range(6):
                second.ask("select 'second', $1::text", ["asked"])

            with pytest.raises(psycopg.Error, match="does not exist"):
                first.ask("select 'first', $1::text", ["asked"])


def test_sessions_that_begin_in_another_isolation_are_left_as_they_are(
    stores: list[PostgresStore], pooler: str
) -> None:
    """They are somebody else's next: each verb says for itself in which isolation it runs."""
    with ExitStack() as stack:
        others = [stack.enter_context(psycopg.connect(pooler, prepare_threshold=None)) for _ in range(SESSIONS)]
        for other in others:
            other.execute("set default_transaction_isolation = 'repeatable read'")
        for other in others:
            other.commit()

        for number, store in enumerate(stores):
            store.add([new_job(f"job {number}")])
            [grant] = store.claim("worker")
            Lease(store, grant).complete()

        for other in others:
            assert other.execute("show transaction_isolation").fetchall() == [("repeatable read",)]
            other.execute("reset default_transaction_isolation")
    assert stores[0].counts().done == len(stores)


def test_a_claim_that_waits_polls_and_listens_to_nobody(stores: list[PostgresStore]) -> None:
    """What it would hear goes to whoever has that session by then; so nobody is asked to notify it either."""
    waiting = Call(lambda: stores[0].claim("worker", wait_us=20_000_000))
    until(lambda: stores[0].claiming.listening._pooled)

    stores[1].add([new_job("a")])

    assert [grant.spec.id for grant in waiting.result()] == ["a"]
    query = sql.SQL("select count(*) from {}").format(sql.Identifier(stores[0].database.schema, "waiters"))
    with psycopg.connect(stores[0].database.url, prepare_threshold=None) as connection:
        assert connection.execute(query).fetchall() == [(0,)]
        assert connection.execute("select pg_listening_channels()").fetchall() == []


def test_the_fence_bites_and_a_paused_owners_rows_are_free(stores: list[PostgresStore]) -> None:
    """The session that is ended is the pooler's; the client behind it is hung up on, and told why."""
    store, other = stores[:2]
    store.add([new_job("a")])
    store.database.read("insert into pooled values (0) returning n")
    [grant] = store.claim("worker", lease_us=1)
    lease = Lease(store, grant)

    def overtaken() -> None:
        with lease.transaction() as connection:
            connection.execute("update pooled set n = n + 1")
            [new] = other.claim("successor")
            with Lease(other, new).transaction() as own:
                own.execute("update pooled set n = n + 10")
                Lease(other, new).complete(connection=own)

    with pytest.raises(StaleEpoch):
        overtaken()

    assert store.database.read("select n from pooled") == [(10,)]
    assert store.job("a").status == "done"


def test_a_callers_own_connection_is_fenced_through_the_pooler(stores: list[PostgresStore], pooler: str) -> None:
    """psycopg's, which prepares statements unless it is told not to."""
    store, other = stores[:2]
    store.add([new_job("a")])
    with Router(pooler, schema=store.database.schema) as router, ExitStack() as stack:
        lease = router.claim("worker")
        assert lease is not None
        other.upkeep.end_fenced = lambda epochs: None  # type: ignore[method-assign]  # so that the fence is all there is
        connection = stack.enter_context(psycopg.connect(pooler, prepare_threshold=None))
        for _ in range(8):
            lease.fence(connection)
            connection.execute("insert into pooled values (1)")
            connection.commit()
        lease.fence(connection)
        connection.execute("insert into pooled values (1)")
        other.transfer("a", lease.epoch, to="b", by="ops")

        with pytest.raises(psycopg.Error) as refused:
            connection.commit()

        assert StaleEpoch.find(refused.value) is not None
    assert rows(store) == 8
