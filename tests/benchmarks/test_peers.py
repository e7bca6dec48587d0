"""The raw peer of the SQLite benchmark writes to the tables that the store makes, so it must know their columns."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from benchmarks.peers import RawSqlite

from leasehold import Router


def test_the_raw_peer_adds_claims_and_completes_jobs_that_the_store_can_read(tmp_path: Path) -> None:
    """A column that the store's schema gained and the peer does not fill would end the benchmark."""
    path = tmp_path / "jobs.db"
    with Router(f"sqlite:///{path}") as router:
        assert router.counts().done == 0  # the first call makes the tables
        with closing(RawSqlite(str(path))) as raw:
            raw.add_many([("a", {"n": 1}), ("b", {"n": 2})])
            claims = raw.claim("worker", 2)
            assert [claim.id for claim in claims] == ["a", "b"]
            assert raw.complete(claims) == 2
        assert [router.job(name).status for name in ("a", "b")] == ["done", "done"]
        assert router.store.verify() == []
