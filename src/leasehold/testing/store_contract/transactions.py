"""C41 to C47 without C46: the owner's own rows, in the store's database, under the store's epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from ...core.children import new_child
from ...core.job import Grant, Progress, new_job
from ...errors import InvalidArgument, NotInTransaction, Settled, StaleEpoch
from ...store import Program, Store, Transactions
from .paths import ADDS, ASKED, SAYS, beside
from .support import AlarmClock, Contract, all_of, completed, expire, failed, ids, last_event, one, released, settle

# Every program, under the epoch of a lease on job "a".
PROGRAMS: dict[str, Callable[[Transactions, Grant], Program[Any]]] = {
    "fence": lambda verbs, grant: verbs.fence("a", grant.epoch),
    "add_children": lambda verbs, grant: verbs.add_children("a", grant.epoch, [new_child("a", new_job("child"), 1)]),
    "progress": lambda verbs, grant: verbs.progress(Progress("a", grant.epoch, 0.5, "half", '{"row":1}')),
    "complete": lambda verbs, grant: verbs.settle(completed(grant, "7", (new_child("a", new_job("then"), 1),))),
    "fail": lambda verbs, grant: verbs.settle(failed(grant)),
    "release": lambda verbs, grant: verbs.settle(released(grant)),
}


class WithRows(Contract):
    """Skipped where a store has no database that the caller's rows could share."""

    @pytest.fixture
    def verbs(self, store: Store) -> Transactions:
        """The verbs inside a transaction."""
        if store.transactions is None:
            pytest.skip("this store has no database that the caller's rows could share")
        return store.transactions

    @pytest.fixture
    def connection(self, store: Store, verbs: Transactions) -> Iterator[Any]:
        """The caller's own connection, with a table of the caller's own."""
        store.add([new_job("a")])
        connection = self.connect(store)
        try:
            connection.execute("create table results (what varchar(20))")
            connection.commit()
            yield connection
        finally:
            connection.rollback()
            connection.close()

    def rows(self, store: Store) -> list[str]:
        """What has been committed, as a newcomer sees it."""
        connection = self.connect(store)
        try:
            return [what for (what,) in connection.execute("select what from results order by what").fetchall()]
        finally:
            connection.rollback()
            connection.close()

    def attempt(self, verbs: Transactions, connection: Any, *programs: Program[Any]) -> BaseException | None:
        """Write a row, run *programs* and commit, in one transaction; return what refused it, then or at the commit."""
        connection.execute("begin")
        try:
            connection.execute("insert into results values ('mine')")
            for program in programs:
                verbs.run(connection, program)
            connection.commit()
        except Exception as error:
            connection.rollback()
            found = StaleEpoch.find(error)
            return error if found is None else found
        return None


class InTransactions(WithRows):
    """A transaction of the caller's commits only under the current epoch, and with all that its programs wrote."""

    def test_c41_what_begin_opened_commits_under_the_current_epoch(
        self, store: Store, verbs: Transactions, connection: Any
    ) -> None:
        """The owner's rows are there, and its lease is as it was."""
        grant = one(store)

        fenced = verbs.begin("a", grant.epoch)
        fenced.execute("insert into results values ('mine')")
        verbs.commit(fenced)

        assert self.rows(store) == ["mine"]
        assert store.check([("a", grant.epoch)]) == [None]

    def test_c41_what_begin_opened_can_be_undone(self, store: Store, verbs: Transactions, connection: Any) -> None:
        """Nothing of it stays, and the owner may try again."""
        grant = one(store)
        fenced = verbs.begin("a", grant.epoch)
        fenced.execute("insert into results values ('undone')")

        verbs.rollback(fenced)

        assert self.rows(store) == []
        again = verbs.begin("a", grant.epoch)
        again.execute("insert into results values ('mine')")
        verbs.commit(again)
        assert self.rows(store) == ["mine"]

    def test_c41_a_stale_owner_commits_nothing_through_begin(
        self, store: Store, verbs: Transactions, connection: Any, clock: AlarmClock
    ) -> None:
        """It is refused with the facts, at the beginning or at the commit."""
        old = one(store)
        expire(store, clock)
        new = one(store, "b")

        with pytest.raises(StaleEpoch) as refused:
            self._through_begin(verbs, old)

        assert (refused.value.presented, refused.value.current) == (old.epoch, new.epoch)
        assert (refused.value.owner, refused.value.reason) == ("b", "timeout")
        assert self.rows(store) == []

    def _through_begin(self, verbs: Transactions, grant: Grant) -> None:
        fenced = verbs.begin("a", grant.epoch)
        try:
            fenced.execute("insert into results values ('stale')")
        except BaseException:
            verbs.rollback(fenced)
            raise
        verbs.commit(fenced)

    @pytest.mark.parametrize("program", PROGRAMS)
    def test_c41_a_current_owners_transaction_commits(
        self, store: Store, verbs: Transactions, connection: Any, clock: AlarmClock, program: str
    ) -> None:
        """Even past its deadline, if the job was not taken over: time refuses nothing here either."""
        grant = one(store)
        clock.advance(3600)

        assert self.attempt(verbs, connection, PROGRAMS[program](verbs, grant)) is None

        assert self.rows(store) == ["mine"]

    @pytest.mark.parametrize("program", PROGRAMS)
    def test_c41_a_stale_owners_transaction_does_not(
        self, store: Store, verbs: Transactions, connection: Any, clock: AlarmClock, program: str
    ) -> None:
        """Its rows are gone with it, although its successor has the same name."""
        old = one(store, "worker-0")
        expire(store, clock)
        new = one(store, "worker-0")
        before = all_of(store)

        refused = self.attempt(verbs, connection, PROGRAMS[program](verbs, old))

        assert isinstance(refused, StaleEpoch)
        assert (refused.presented, refused.current, refused.owner) == (old.epoch, new.epoch, "worker-0")
        assert self.rows(store) == []
        assert all_of(store) == before

    @pytest.mark.parametrize("epoch", [0, 2**52])
    def test_c41_an_epoch_that_nobody_holds_commits_nothing(
        self, store: Store, verbs: Transactions, connection: Any, epoch: int
    ) -> None:
        """Neither "never claimed" nor one from the future."""
        assert isinstance(self.attempt(verbs, connection, verbs.fence("a", epoch)), StaleEpoch)

        assert self.rows(store) == []

    def test_c42_rows_and_completion_are_one_commit(self, store: Store, verbs: Transactions, connection: Any) -> None:
        """So the effect happens exactly once: with the completion, its result and its follow-ups."""
        grant = one(store)

        assert self.attempt(verbs, connection, PROGRAMS["complete"](verbs, grant)) is None

        assert self.rows(store) == ["mine"]
        assert (store.job("a").status, store.job("a").result) == ("done", 7)
        assert ids(store.claim("b", limit=10)) == ["a/then"]
        assert store.settle([completed(grant, "7", (new_child("a", new_job("then"), 1),))]) == [None]
        assert isinstance(store.settle([completed(grant)])[0], Settled)

    @pytest.mark.parametrize("program", PROGRAMS)
    def test_c42_what_a_program_wrote_is_rolled_back_with_the_rest(
        self, store: Store, verbs: Transactions, connection: Any, program: str
    ) -> None:
        """Nothing is settled or added until the caller commits."""
        grant = one(store)
        before = all_of(store)

        connection.execute("begin")
        verbs.run(connection, PROGRAMS[program](verbs, grant))
        connection.rollback()

        assert all_of(store) == before
        assert store.check([("a", grant.epoch)]) == [None]

    @pytest.mark.parametrize("how", SAYS)
    def test_c42_a_settlement_does_what_it_does_outside(
        self, store: Store, verbs: Transactions, connection: Any, clock: AlarmClock, how: str
    ) -> None:
        """The same verb, in the caller's transaction: of two jobs that are alike, one is settled in each way."""
        settle(store, completed(one(store)))
        names = ("inside", "outside")
        store.add([new_job(name, {}, lock=f"key of {name}", unique=f"mail of {name}") for name in names])
        inside, outside = store.claim("worker", limit=2)
        clock.advance(3)

        assert self.attempt(verbs, connection, verbs.settle(SAYS[how](inside))) is None
        settle(store, SAYS[how](outside))

        jobs, ends = [store.job(name) for name in names], [store.ownerships(name)[-1] for name in names]
        assert replace(jobs[0], spec=jobs[1].spec, epoch=jobs[1].epoch) == jobs[1]
        assert replace(ends[0], job_id="outside", epoch=ends[1].epoch) == ends[1]
        assert (jobs[0].epoch, ends[0].epoch) == (inside.epoch, inside.epoch)
        kinds = [[event.kind for event in store.events(job_id=name)] for name in names]
        assert kinds[0] == kinds[1]
        again = store.add([new_job(f"again {name}", unique=f"mail of {name}") for name in names])
        assert again[0].created == again[1].created
        clock.advance(5)
        assert len(store.claim("later", limit=10)) == 2  # each again, or what has its unique key now

    @pytest.mark.parametrize("path", ADDS)
    @pytest.mark.parametrize("who", ["a producer", "an owner"])
    def test_c42_an_add_keeps_all_that_is_asked_for(
        self, store: Store, verbs: Transactions, connection: Any, clock: AlarmClock, path: str, who: str
    ) -> None:
        """As it does outside, whatever else is added in the same call."""
        grant = one(store)
        wish = new_job("new", {"total": 10}, delay_seconds=7, **ASKED)._replace(
            parent="a" if who == "an owner" else None
        )
        wishes = [wish, *beside(path, wish), wish]
        program = verbs.add(wishes) if who == "a producer" else verbs.add_children("a", grant.epoch, wishes)
        connection.execute("begin")
        added = verbs.run(connection, program)
        connection.commit()

        assert [created for _, created in added] == [*(True for _ in wishes[1:]), False]
        job = store.job("new")
        assert job == added[0].job == added[-1].job
        assert (job.spec, job.run_us) == (wish._replace(delay_us=0), clock.now() + 7_000_000)

    def test_c42_a_settlement_frees_the_lock_key(self, store: Store, verbs: Transactions, connection: Any) -> None:
        """Who waits behind it can be claimed once the caller has committed."""
        store.add([new_job("holder", lock="k", queue="k"), new_job("next", lock="k", queue="k")])
        [grant] = store.claim("w", limit=10, queues=["k"])

        assert self.attempt(verbs, connection, verbs.settle(completed(grant))) is None

        assert ids(store.claim("w", limit=10, queues=["k"])) == ["next"]

    def test_c42_jobs_are_added_with_the_callers_rows(self, store: Store, verbs: Transactions, connection: Any) -> None:
        """Both or neither; an add of what exists, by id or by unique key, is answered as outside."""
        store.add([new_job("u", unique="k")])
        connection.execute("begin")
        connection.execute("insert into results values ('undone')")
        verbs.run(connection, verbs.add([new_job("undone")]))
        connection.rollback()

        connection.execute("begin")
        connection.execute("insert into results values ('mine')")
        added = verbs.run(
            connection, verbs.add([new_job("new"), new_job("a"), new_job("v", unique="k"), new_job("new")])
        )
        connection.commit()

        assert self.rows(store) == ["mine"]
        assert [(job.id, created) for job, created in added] == [
            ("new", True),
            ("a", False),
            ("u", False),
            ("new", False),
        ]
        assert [job.id for job in store.jobs()] == ["a", "u", "new"]

    def test_c42_several_programs_share_a_transaction(self, store: Store, verbs: Transactions, connection: Any) -> None:
        """A fence, a child and a completion are one commit."""
        grant = one(store)
        programs = [PROGRAMS[name](verbs, grant) for name in ("fence", "add_children", "complete")]

        assert self.attempt(verbs, connection, *programs) is None

        assert [job.id for job in store.jobs()] == ["a", "a/child", "a/then"]
        assert store.job("a").status == "done"

    @pytest.mark.parametrize("result", ["7", "8"])
    def test_c42_a_repeated_settlement_is_refused(
        self, store: Store, verbs: Transactions, connection: Any, result: str
    ) -> None:
        """A caller that did not hear the answer to its commit and runs it again would write its own rows twice."""
        grant = one(store)
        settle(store, completed(grant, "7"))

        assert isinstance(self.attempt(verbs, connection, verbs.settle(completed(grant, result))), Settled)

    @pytest.mark.parametrize("program", PROGRAMS)
    def test_c43_a_connection_that_commits_by_itself_is_refused(
        self, store: Store, verbs: Transactions, connection: Any, program: str
    ) -> None:
        """A fence that protects nothing would be worse than none."""
        grant = one(store)
        before = all_of(store)
        careless = self.connect_autocommit(store)

        try:
            with pytest.raises(NotInTransaction):
                verbs.run(careless, PROGRAMS[program](verbs, grant))
        finally:
            careless.close()

        assert all_of(store) == before

    @pytest.mark.parametrize("program", PROGRAMS)
    def test_c43_nothing_is_written_outside_a_transaction(
        self, store: Store, verbs: Transactions, connection: Any, program: str
    ) -> None:
        """Without an open transaction a program is refused, unless the driver opens one for the caller to end."""
        grant = one(store)
        before = all_of(store)

        with suppress(NotInTransaction):
            verbs.run(connection, PROGRAMS[program](verbs, grant))
        connection.rollback()

        assert all_of(store) == before

    @pytest.mark.parametrize("program", PROGRAMS)
    def test_c43_a_connection_to_another_database_is_refused(
        self, store: Store, verbs: Transactions, connection: Any, clock: AlarmClock, program: str
    ) -> None:
        """The epoch of this store says nothing about the rows of another."""
        grant = one(store)
        other = self.open(clock)
        try:
            other.add([new_job("a")])
            foreign = self.connect(other)
            foreign.execute("begin")

            with pytest.raises(InvalidArgument):
                verbs.run(foreign, PROGRAMS[program](verbs, grant))

            foreign.rollback()
            foreign.close()
            assert other.job("a").epoch == 0
        finally:
            other.close()

    @pytest.mark.parametrize("program", PROGRAMS)
    def test_c44_a_refusal_is_recorded_afterwards_and_apart(
        self, store: Store, verbs: Transactions, connection: Any, clock: AlarmClock, program: str
    ) -> None:
        """The caller's transaction is gone, with all that it wrote; the record of its refusal is not."""
        old = one(store)
        store.transfer("a", old.epoch, to="b", by="ops")

        refused = self.attempt(verbs, connection, PROGRAMS[program](verbs, old))

        assert isinstance(refused, StaleEpoch)
        event = last_event(store, "refused")
        assert (event.job_id, event.owner) == ("a", "b")
        assert (event.facts["presented"], event.facts["current"]) == (old.epoch, refused.current)
        assert event.facts["reason"] == "manual"

    def test_c44_a_refusal_by_begin_is_recorded(
        self, store: Store, verbs: Transactions, connection: Any, clock: AlarmClock
    ) -> None:
        """Once."""
        old = one(store)
        store.cancel("a", old.epoch, by="ops")

        with pytest.raises(StaleEpoch):
            self._through_begin(verbs, old)

        [event] = store.events(kind="refused")
        assert (event.facts["presented"], event.facts["reason"]) == (old.epoch, "cancellation")

    @pytest.mark.parametrize("first", ["complete", "fail", "release"])
    @pytest.mark.parametrize("second", PROGRAMS)
    def test_c47_after_a_settlement_every_later_verb_of_the_transaction_is_settled(
        self, store: Store, verbs: Transactions, connection: Any, first: str, second: str
    ) -> None:
        """The same one too. Caught, it spoils nothing: the settlement and the rows commit."""
        grant = one(store)
        connection.execute("begin")
        connection.execute("insert into results values ('mine')")
        verbs.run(connection, PROGRAMS[first](verbs, grant))
        with pytest.raises(Settled) as refused:
            verbs.run(connection, PROGRAMS[second](verbs, grant))
        with pytest.raises(Settled):
            verbs.run(connection, verbs.check("a", grant.epoch))
        connection.commit()

        assert (refused.value.presented, refused.value.current) == (grant.epoch, grant.epoch)
        assert self.rows(store) == ["mine"]
        assert store.job("a").status == {"complete": "done"}.get(first, "pending")
        assert "a/child" not in {job.id for job in store.jobs()}

    @pytest.mark.parametrize("second", ["fence", "progress", "complete"])
    def test_c47_a_savepoint_that_is_rolled_back_takes_the_settlement_with_it(
        self, store: Store, verbs: Transactions, connection: Any, second: str
    ) -> None:
        """The lease is as it was, and may be settled after all."""
        grant = one(store)
        connection.execute("begin")
        verbs.run(connection, verbs.fence("a", grant.epoch))
        connection.execute("savepoint undone")
        verbs.run(connection, PROGRAMS["release"](verbs, grant), savepoint=True)
        connection.execute("rollback to savepoint undone")
        connection.execute("release savepoint undone")
        verbs.run(connection, verbs.check("a", grant.epoch))
        verbs.run(connection, PROGRAMS[second](verbs, grant))
        connection.commit()

        assert store.job("a").status == ("done" if second == "complete" else "running")
