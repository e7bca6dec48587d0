"""A server whose disk is full: what does not fit has not happened, and once there is room the store goes on."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql

from leasehold import Router, StoreUnavailable
from leasehold.stores.postgres import PostgresStore

from .fixtures import NEWEST, url_of

MEBIBYTE = 1024 * 1024


def fill(router: Router, size: int) -> tuple[int, StoreUnavailable]:
    """Add jobs until one does not fit; return how many did, and what was said then."""
    lease = router.claim("worker")
    assert lease is not None
    for number in range(100):
        try:
            # Random, since the server compresses what it can.
            router.add(f"big-{number}", os.urandom(size // 2).hex(), queue="big")
        except StoreUnavailable as error:
            return number, error
    raise AssertionError("everything fitted")


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of a few mebibytes, which the server can write to."""
    folder = Path(tempfile.mkdtemp(prefix="lh-small-"))
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0777", "tmpfs", folder], capture_output=True, check=False
        )
        if mounted.returncode:
            pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", folder], check=True)
    finally:
        folder.rmdir()


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_full_disk(small_disk: Path) -> None:
    """Readers read on, owners are told that nothing was changed, and with room again all goes on as before."""
    url = url_of(NEWEST)
    with psycopg.connect(url, autocommit=True) as connection:
        [(data,)] = connection.execute("show data_directory").fetchall()
        space = small_disk / "space"
        space.mkdir()
        shutil.chown(space, os.stat(data).st_uid, os.stat(data).st_gid)
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(2 * MEBIBYTE))
        connection.execute(sql.SQL("create tablespace small location {}").format(str(space)))
        try:
            options = quote("-c default_tablespace=small")
            with Router(f"{url}&options={options}", schema="on a small disk") as router:
                router.add("first")
                count, error = fill(router, 200_000)

                assert "has run out of a resource: could not extend file" in str(error)
                assert "Nothing was changed. Try again" in str(error)
                assert len(router.jobs(queue="big")) == count
                assert router.verify() == []

                ballast.unlink()
                assert router.add(f"big-{count}", "x" * 100_000).created
                router.lease("first", owner="worker").complete()
                assert router.job("first").status == "done"
                assert router.verify() == []
        finally:
            connection.execute("set client_min_messages = warning")
            connection.execute('drop schema if exists "on a small disk" cascade')
            connection.execute("drop tablespace small")


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit")
def test_a_file_that_may_not_grow() -> None:
    """A limit on the size of files, for one session of the server: its error has no code of its own."""
    url = url_of(NEWEST)
    try:
        with Router(url, schema="of small files") as router:
            router.add("first")
            assert isinstance(router.store, PostgresStore)
            [connection] = router.store.database.pool.idle
            # Above the size of the files of the log, or the server would take it for the end of the world.
            limit = 17 * MEBIBYTE
            try:
                resource.prlimit(connection.info.backend_pid, resource.RLIMIT_FSIZE, (limit, limit))
            except PermissionError:
                pytest.skip("the server runs as another user; as root, a full disk is tried instead")
            count, error = fill(router, MEBIBYTE - 100)

            assert "could not extend file" in str(error)
            assert str(error).endswith("Nothing was changed.")
            assert len(router.jobs(queue="big")) == count
            connection.close()  # the next session has no such limit
            assert router.add(f"big-{count}", os.urandom(MEBIBYTE // 2 - 100).hex()).created
            assert router.verify() == []
    finally:
        with psycopg.connect(url, autocommit=True) as connection_:
            connection_.execute("set client_min_messages = warning")
            connection_.execute('drop schema if exists "of small files" cascade')
