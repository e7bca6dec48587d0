"""
Restores: a dump, a backup or a copy of the files is put back, or started beside the original.

The restored store has forgotten what the original issued since. Whatever way it was made, its epochs go on above them.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

from leasehold import Lease, Router, StaleEpoch
from leasehold.cli.app import run
from leasehold.testing import elsewhere

from .fixtures import NEWEST, VERSIONS, must_have, url_of
from .marks import MANY, Mark, claimed
from .server import client, recovered, room, server, snapshot, wait_until

TABLES = "select tablename from pg_tables where schemaname = 'leasehold'"
ARCHIVED = "select last_archived_wal from pg_stat_archiver"

on_newest = pytest.mark.parametrize("version", [NEWEST])


def ask(url: str, query: str) -> None:
    """Run a statement that no transaction may have around it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("set client_min_messages = warning")
        connection.execute(query)


@contextmanager
def database(server_url: str, template: str = "template1") -> Iterator[str]:
    """The URL of a new database on the server of *server_url*."""
    name = f"restores_{uuid.uuid4().hex[:8]}"
    ask(server_url, f'create database "{name}" template "{template}"')
    try:
        yield urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
    finally:
        ask(server_url, f'drop database "{name}" with (force)')


def filled(router: Router) -> None:
    """Add jobs enough for every claim of a test."""
    router.add_many([{"id": f"job-{number}"} for number in range(8 * MANY)])


def refusals(router: Router, leases: list[Lease]) -> list[bool]:
    """Whether the store of *router* refuses each of these owners."""
    said = router.store.check([(lease.job_id, lease.epoch) for lease in leases])
    return [isinstance(one, StaleEpoch) for one in said]


# Dumps


def dumped(version: str, url: str, folder: Path, *options: str) -> Path:
    """Dump the database at *url* into a file."""
    file = folder / f"{uuid.uuid4().hex}.sql"
    client(version, "pg_dump", "-d", url, "-f", file, *options)
    return file


def put_back(version: str, file: Path, url: str) -> None:
    """Run a dump."""
    client(version, "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-1", "-d", url, "-f", file)


COPIES = ["another database", "another cluster", "template"]


@contextmanager
def copy(kind: str, version: str, url: str, folder: Path) -> Iterator[Callable[[], str]]:
    """Begin a copy of the database at *url* as it is now; the result ends it, and returns the URL of the copy."""
    with ExitStack() as stack:
        if kind == "template":
            made = stack.enter_context(database(url_of(version), urlsplit(url).path[1:]))
            yield lambda: made
            return
        file = dumped(version, url, folder)

        def end() -> str:
            if kind == "another database":
                target = stack.enter_context(database(url_of(version)))
            elif version == NEWEST:
                # Its files began as a copy of the first server's, so they have the same system identifier.
                target = stack.enter_context(server(version)).url()
            else:
                target = stack.enter_context(database(url_of(NEWEST)))
            put_back(NEWEST if kind == "another cluster" else version, file, target)
            return target

        yield end


@pytest.mark.parametrize(
    ("version", "kind"), [*((NEWEST, kind) for kind in COPIES), *((one, "another cluster") for one in VERSIONS[:-1])]
)
def test_trap_2_a_restored_dump_goes_on_above_the_original(
    version: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the original, if it goes on too, issues nothing that the copy has issued; with `advance`, above it."""
    mark = Mark()
    with database(url_of(version)) as url:
        with Router(url, lease_seconds=600) as original:
            filled(original)
            known = claimed(original)
            mark.seal(known)
        with copy(kind, version, url, tmp_path) as end, Router(url, lease_seconds=600) as original:
            forgotten = claimed(original)
            mark.seal(forgotten)

            with Router(end(), lease_seconds=600) as restored:
                assert refusals(restored, [*known, *forgotten]) == [False] * MANY + [True] * MANY
                mark.seal(claimed(restored))
                assert len(restored.events(kind="advanced")) == 1
                assert all(refusals(restored, forgotten))
                assert restored.verify() == []

            beside = claimed(original)
            assert not {lease.epoch for lease in beside} & set(mark.issued)
            assert original.events(kind="advanced") == []
            # Whoever goes back to an original that was running all the time must say so: it cannot know.
            assert not mark.admits(beside[-1])
            assert run(["store", "advance", url]) == 0
            mark.seal(claimed(original))
    assert "advanced to epoch" in capsys.readouterr().out


@on_newest
def test_the_fence_comes_with_the_dump(version: str, tmp_path: Path) -> None:
    """In the restored database, COMMIT itself refuses an epoch that is over."""
    with database(url_of(version)) as url, database(url_of(version)) as target:
        with Router(url, lease_seconds=600) as original:
            filled(original)
            [lease] = claimed(original, 1)
        put_back(version, dumped(version, url, tmp_path), target)
        with Router(target) as restored:
            lease = restored.lease(lease.job_id, owner="worker")
            restored.store.upkeep.end_fenced = lambda epochs: None  # type: ignore[attr-defined]  # so that COMMIT refuses

            def outlived() -> None:
                with lease.transaction() as connection:
                    connection.execute("create table written (what text)")
                    elsewhere(restored.transfer, lease.job_id, to="other", epoch=lease.epoch, by="ops")

            with pytest.raises(StaleEpoch):
                outlived()

            again = restored.lease(lease.job_id, owner="other")
            with again.transaction() as connection:
                connection.execute("create table written (what text)")
                again.complete(connection=connection)
            assert restored.job(lease.job_id).status == "done"


@on_newest
@pytest.mark.parametrize("how", ["schema", "rows"])
def test_trap_2_a_dump_put_back_in_place_goes_on_above_what_it_replaces(version: str, how: str, tmp_path: Path) -> None:
    """Under a Router that is open, on a server that was not restarted: the schema anew, or the rows alone."""
    mark = Mark()
    with database(url_of(version)) as url, Router(url, lease_seconds=600) as router:
        filled(router)
        mark.seal(claimed(router))
        file = dumped(version, url, tmp_path, *(["--data-only"] if how == "rows" else []))
        forgotten = claimed(router)
        mark.seal(forgotten)

        if how == "schema":
            ask(url, "drop schema leasehold cascade")
        else:
            # Not TRUNCATE, which gives the tables new files: nothing but the rows is other than before.
            with psycopg.connect(url) as connection:
                for (table,) in connection.execute(TABLES).fetchall():
                    connection.execute(sql.SQL("delete from leasehold.{}").format(sql.Identifier(table)))
        put_back(version, file, url)
        mark.seal(claimed(router))

        assert all(refusals(router, forgotten))
        [event] = router.events(kind="advanced")
        assert event.facts["found"] == ("other files, another table" if how == "schema" else "a row that was put back")
        assert router.verify() == []


# Files


@on_newest
def test_trap_2_a_disk_snapshot_that_is_started_goes_on_above_the_original(version: str) -> None:
    """Same system identifier, same timeline, same OIDs: only the start of the postmaster differs."""
    must_have(version)
    mark = Mark()
    with server(version, durable=True) as original, Router(original.url(), lease_seconds=600) as router:
        filled(router)
        mark.seal(claimed(router))
        with snapshot(original) as copied:
            forgotten = claimed(router)
            mark.seal(forgotten)
            original.stop(signal.SIGKILL)
            with Router(copied.url(), lease_seconds=600) as second:
                mark.seal(claimed(second))

                assert all(refusals(second, forgotten))
                assert copied.timeline == 1
                assert second.verify() == []


def test_trap_1_two_recoveries_to_one_point_in_time_issue_different_epochs() -> None:
    """Both go to timeline 2 from the same state, one after the other."""
    must_have(NEWEST)
    mark = Mark()
    with room() as kept:
        archive, base = kept, kept / "base"
        settings = {"archive_mode": "on", "archive_command": f"cp %p {archive}/%f"}
        with server(NEWEST, settings, durable=True) as original:
            with Router(original.url(), lease_seconds=600) as router:
                filled(router)
                original.back_up(base)
                known = claimed(router)
                mark.seal(known)
                original.ask("select pg_create_restore_point('here')")
                forgotten = claimed(router)
                mark.seal(forgotten)
            [(last,)] = original.ask("select pg_walfile_name(pg_switch_wal())")
            wait_until(lambda: (archive / last).exists() and original.ask(ARCHIVED) >= [(last,)])
            original.stop(signal.SIGKILL)

            for _ in range(2):
                with (
                    recovered(original, base, archive, "here") as again,
                    Router(again.url(), lease_seconds=600) as router,
                ):
                    assert refusals(router, [*known, *forgotten]) == [False] * MANY + [True] * MANY
                    mark.seal(claimed(router))

                    assert again.timeline == 2
                    assert all(refusals(router, forgotten))
                    assert router.verify() == []
