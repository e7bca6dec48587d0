"""C46: progress that is reported in a transaction of the owner's own."""

from __future__ import annotations

from typing import Any

import pytest

from ...core.job import Progress, new_job
from ...store import Renewal, Store, Transactions
from .support import AlarmClock, completed, one, released, settle
from .transactions import PROGRAMS, WithRows


class ProgressInTransactions(WithRows):
    """A report commits or rolls back with the caller's rows."""

    def test_c46_progress_commits_with_the_rows(self, store: Store, verbs: Transactions, connection: Any) -> None:
        """Fraction, note and checkpoint; before the commit none of it is visible, and the next owner finds it all."""
        grant = one(store)
        connection.execute("begin")
        connection.execute("insert into results values ('mine')")
        verbs.run(connection, PROGRAMS["progress"](verbs, grant))
        before = store.job("a")
        connection.commit()

        job = store.job("a")
        assert (before.progress, before.note, before.checkpoint) == (None, None, None)
        assert (job.progress, job.note, job.checkpoint) == (0.5, "half", {"row": 1})
        assert self.rows(store) == ["mine"]
        settle(store, released(grant))
        assert one(store).checkpoint == '{"row":1}'

    def test_c46_progress_rolls_back_with_the_rows(self, store: Store, verbs: Transactions, connection: Any) -> None:
        """What was reported before, with or without a transaction, is as it was."""
        grant = one(store)
        store.progress([Progress("a", grant.epoch, 0.25, "quarter", '{"row":0}')])
        connection.execute("begin")
        verbs.run(connection, PROGRAMS["progress"](verbs, grant))
        connection.rollback()

        job = store.job("a")
        assert (job.progress, job.note, job.checkpoint) == (0.25, "quarter", {"row": 0})

    @pytest.mark.parametrize("joined", [True, False], ids=["in a transaction", "by itself"])
    @pytest.mark.parametrize("later", ["fraction", "note", "both"])
    def test_c46_the_later_report_counts(
        self, store: Store, verbs: Transactions, connection: Any, joined: bool, later: str
    ) -> None:
        """Wherever it was made; and what it leaves out stays as it was."""
        grant = one(store)
        first = Progress("a", grant.epoch, 0.25, "quarter", None)
        second = Progress(
            "a", grant.epoch, None if later == "note" else 0.75, None if later == "fraction" else "later", None
        )
        for report, inside in ((first, not joined), (second, joined)):
            if inside:
                assert self.attempt(verbs, connection, verbs.progress(report)) is None
            else:
                assert store.progress([report]) == [None]

        expected = (second.fraction or first.fraction, second.note or first.note)
        assert (store.job("a").progress, store.job("a").note) == expected
        settle(store, completed(grant))
        assert (store.job("a").progress, store.job("a").note) == expected

    def test_c46_progress_moves_the_stall_deadline_from_the_commit_on(
        self, store: Store, verbs: Transactions, connection: Any, clock: AlarmClock
    ) -> None:
        """A job that reports only inside transactions does not stall."""
        settle(store, completed(one(store)))
        store.add([new_job("s", stall_seconds=10)])
        grant = one(store, lease_us=10**9)
        clock.advance(8)
        report = Progress("s", grant.epoch, 0.5, None, None)
        assert self.attempt(verbs, connection, verbs.progress(report)) is None

        clock.advance(8)
        assert store.reclaim() == []
        clock.advance(3)
        assert [(ended.job_id, ended.ended) for ended in store.reclaim()] == [("s", "stall")]

    def test_c46_a_renewal_in_between_fails_nothing(self, store: Store, verbs: Transactions, connection: Any) -> None:
        """Where it can be made beside the transaction at all, and whatever the transaction's isolation."""
        grant = one(store)
        connection.execute("begin")
        if not verbs.exclusive:
            connection.execute("set transaction isolation level repeatable read")
        connection.execute("select * from results")
        if not verbs.exclusive:
            assert isinstance(store.renew([Renewal("a", grant.epoch, 10**9)])[0], int)
        verbs.run(connection, PROGRAMS["progress"](verbs, grant))
        if not verbs.exclusive:
            assert isinstance(store.renew([Renewal("a", grant.epoch, 2 * 10**9)])[0], int)
        connection.commit()

        assert store.job("a").progress == 0.5
