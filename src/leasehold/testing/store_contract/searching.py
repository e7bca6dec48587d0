"""What a search promises: the same jobs, whatever the store, page after page."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from ...core import search as searches
from ...core.job import Job, Status, new_job
from ...core.search import Search, checked
from ...errors import InvalidArgument
from ...store import Store
from .support import AlarmClock, Contract, completed, failed, one, settle


def pages(store: Store, limit: int = 2, **criteria: Any) -> list[list[Job]]:
    """Every page of a search."""
    found, cursor = [], None
    for number in count():
        page = store.search(checked(**criteria), limit=limit, cursor=cursor)
        found.append(page.jobs)
        cursor = page.cursor
        if cursor is None:
            return found
        assert number < 100, "the pages have no end"
    raise AssertionError


def listed(store: Store, limit: int = 2, **criteria: Any) -> list[str]:
    """The ids of every job that a search finds, page after page."""
    return [job.id for page in pages(store, limit, **criteria) for job in page]


class Searching(Contract):
    """Operators look for jobs by any combination of what is known of them."""

    def ended(self, store: Store, clock: AlarmClock) -> None:
        """Five jobs: a done, b and d failed, c cancelled, e pending; b failed after d."""
        store.add([new_job(name, {"n": number}) for number, name in enumerate("abcde")])
        grants = {grant.spec.id: grant for grant in store.claim("me", limit=5)}
        settle(store, completed(grants["a"]))
        settle(store, failed(grants["d"], "ValueError: no\nTraceback (most recent call last):\n  f", retry=False))
        clock.advance(5)
        settle(store, failed(grants["b"], "KeyError: 'x'\nTraceback (most recent call last):\n  f", retry=False))
        store.cancel("c", grants["c"].epoch, by="ops")
        store.requeue("e", grants["e"].epoch, by="ops")

    @pytest.mark.parametrize("newest", [True, False])
    @pytest.mark.parametrize("limit", [1, 2, 3, 10])
    def test_c65_pages_list_every_job_once(self, store: Store, newest: bool, limit: int) -> None:
        """In the order of insertion or against it, however they are cut."""
        store.add([new_job(name) for name in "dbcae"])

        assert listed(store, limit, newest=newest) == list("eacbd" if newest else "dbcae")

    def test_c65_finished_jobs_come_by_their_end(self, store: Store, clock: AlarmClock) -> None:
        """The one that failed last is the first that an operator wants to see."""
        self.ended(store, clock)

        assert listed(store, status="failed") == ["b", "d"]
        assert listed(store, status="failed", newest=False, limit=1) == ["d", "b"]
        assert listed(store, status="cancelled") == ["c"]
        assert listed(store, status="done") == ["a"]
        assert listed(store, status="pending") == ["e"]

    def test_c65_jobs_that_end_together_are_all_listed(self, store: Store) -> None:
        """The order of insertion decides between equal ends, so none is lost between two pages."""
        store.add([new_job(f"job-{number}") for number in range(7)])
        store.settle([failed(grant, retry=False) for grant in store.claim("me", limit=7)])

        assert listed(store, status="failed", limit=3) == [f"job-{number}" for number in range(6, -1, -1)]
        assert listed(store, status="failed", limit=3, newest=False) == [f"job-{number}" for number in range(7)]

    def test_c65_ids_that_begin_alike_come_by_id(self, store: Store) -> None:
        """By the bytes of their names, in any script."""
        store.add(
            [new_job(name) for name in ("mail-2", "mail-10", "mail", "mailbox", "Mail-1", "mäil", "mail-\U0010ffff")]
        )

        assert listed(store, id_prefix="mail-", newest=False) == ["mail-10", "mail-2", "mail-\U0010ffff"]
        assert listed(store, id_prefix="mail", newest=False)[:2] == ["mail", "mail-10"]
        assert listed(store, id_prefix="mä") == ["mäil"]
        assert listed(store, id_prefix="mail-\U0010ffff") == ["mail-\U0010ffff"]
        assert listed(store, id_prefix="nothing") == []

    def test_c65_what_comes_and_goes_between_pages_hides_nothing(self, store: Store) -> None:
        """What fits all the while is listed once."""
        store.add([new_job(name) for name in "abcd"])
        first = store.search(checked(), limit=2)
        store.add([new_job("new")])
        store.cancel("c", 0, by="ops")
        second = store.search(checked(), limit=2, cursor=first.cursor)

        assert [job.id for job in (*first.jobs, *second.jobs)] == ["d", "c", "b", "a"]

    @pytest.mark.parametrize(
        ("criteria", "ids"),
        [
            ({"queue": "x"}, "ca"),
            ({"task": "send"}, "ba"),
            ({"queue": "x", "task": "send"}, "a"),
            ({"lock": "k", "status": "running"}, "b"),
            ({"lock": "k"}, "db"),
            ({"status": "running"}, "ba"),
            ({"owner": "me"}, "a"),
            ({"owner": "me", "status": "running", "queue": "x"}, "a"),
            ({"owner": "me", "status": "pending"}, ""),
            ({"owner": "unknown"}, ""),
            ({"status": "pending", "queue": "x"}, "c"),
            ({"id_prefix": "a", "status": "running"}, "a"),
            ({"id_prefix": "c", "status": "running"}, ""),
            ({"id_prefix": "c", "status": "pending"}, "c"),
            ({"meta": {"tenant": "ä"}}, "ca"),
            ({"meta": {"tenant": "ä", "n": 1}}, "a"),
            ({"meta": {"n": 1.0}}, "a"),
            ({"meta": {"n": True}}, "c"),
            ({"meta": {"n": None}}, "b"),
            ({"meta": {"n": "1"}}, ""),
            ({"meta": {"gone": None}}, ""),
            ({"payload": {"order.lines.0.sku": "k-1"}}, "a"),
            ({"payload": {"order.total": 10}}, "ba"),
            ({"payload": {"order.total": 10}, "queue": "x"}, "a"),
            ({"payload": {"order.total": "10"}}, ""),
            ({"payload": {"order": None}}, ""),
        ],
    )
    def test_c65_a_job_must_be_all_that_is_asked_for(self, store: Store, criteria: Any, ids: str) -> None:
        """Any combination; a payload of another shape just does not fit."""
        store.add(
            [
                new_job(
                    "a",
                    {"order": {"total": 10, "lines": [{"sku": "k-1"}]}},
                    queue="x",
                    task="send",
                    meta={"tenant": "ä", "n": 1},
                ),
                new_job(
                    "b", {"order": {"total": 10.0}}, queue="y", task="send", lock="k", meta={"tenant": "b", "n": None}
                ),
                new_job("c", ["order"], queue="x", meta={"tenant": "ä", "n": True}),
                new_job("d", "order", queue="z", lock="k"),
            ]
        )
        one(store, "me", queues=["x"])
        one(store, "you", queues=["y"])

        assert listed(store, **criteria) == list(ids)

    def test_c65_errors_are_found_by_their_type(self, store: Store, clock: AlarmClock) -> None:
        """Exactly: a type that another one contains is another type."""
        self.ended(store, clock)

        assert listed(store, status="failed", error_type="ValueError") == ["d"]
        assert listed(store, error_type="KeyError") == ["b"]
        assert listed(store, error_type="Error") == []
        assert listed(store, error_type="'x'") == []

    def test_c65_time_bounds_the_end_of_finished_jobs_and_the_creation_of_others(
        self, store: Store, clock: AlarmClock
    ) -> None:
        """From an instant on, and up to one."""
        began = clock.now()
        self.ended(store, clock)
        later = clock.now()

        assert listed(store, status="failed", since_us=later) == ["b"]
        assert listed(store, status="failed", until_us=later) == ["d"]
        assert listed(store, since_us=began) == list("edcba")
        assert listed(store, until_us=began) == []

    def test_c65_a_finished_job_has_no_owner_to_be_found_by(self, store: Store) -> None:
        """Its record of ownerships names who completed it. Times bound its end."""
        store.add([new_job("a")])
        settle(store, completed(one(store, "worker")))
        done = store.job("a").finished_us
        assert done is not None

        assert store.search(Search(Status.DONE, owner="worker"), limit=5).jobs == []
        assert store.search(Search(Status.DONE, since_us=done, until_us=done + 1), limit=5).jobs == [store.job("a")]
        assert store.search(Search(Status.DONE, until_us=done), limit=5).jobs == []
        assert store.search(Search(Status.DONE, since_us=done + 1), limit=5).jobs == []

    def test_c66_a_search_looks_at_so_many_jobs_and_says_so(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Then the page is not complete, and has the cursor to go on."""
        monkeypatch.setattr(searches, "LOOKS_AT", 10)
        monkeypatch.setattr(searches, "_AT_ONCE", 4)
        store.add(
            [new_job(f"job-{number:02}", {"n": number}, queue="x" if number == 3 else "y") for number in range(25)]
        )

        for criteria in ({"queue": "x"}, {"payload": {"n": 3}}):
            page = store.search(checked(**criteria), limit=5)
            assert (page.jobs, page.complete) == ([], False)
            page = store.search(checked(**criteria), limit=5, cursor=page.cursor)
            assert (page.jobs, page.complete) == ([], False)
            page = store.search(checked(**criteria), limit=5, cursor=page.cursor)
            assert [job.id for job in page.jobs] == ["job-03"]
            assert (page.cursor, page.complete) == (None, True)
            assert listed(store, **criteria) == ["job-03"]

    def test_c66_what_an_index_has_is_listed_completely(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """Running jobs and failed ones, among however many others."""
        store.add([new_job(f"job-{number:02}") for number in range(30)])
        grants = store.claim("me", limit=6)
        store.settle([failed(grant, retry=False) for grant in grants[:3]])
        monkeypatch.setattr(searches, "LOOKS_AT", 3)

        assert listed(store, status="running") == ["job-05", "job-04", "job-03"]
        assert listed(store, status="failed") == ["job-02", "job-01", "job-00"]

    @pytest.mark.parametrize(
        ("search", "cursor"),
        [
            ({}, "seq:" + "9" * 19),
            ({}, "seq:" + "9" * 5_000),
            ({"status": "failed"}, "end:1:" + "9" * 30),
            ({"id_prefix": "a"}, "id:\0"),
            ({"id_prefix": "a"}, "id:\ud800"),
            ({"id_prefix": "a"}, "id:" + "a" * 300),
        ],
        ids=["number", "digits", "instant", "nul", "surrogate", "length"],
    )
    def test_c65_a_cursor_that_no_database_takes_is_refused(
        self, store: Store, search: dict[str, Any], cursor: str
    ) -> None:
        """It comes back from a client, who may have changed it: not as an error of the driver."""
        with pytest.raises(InvalidArgument, match="is not a cursor of this search"):
            store.search(checked(**search), limit=1, cursor=cursor)

    @pytest.mark.parametrize("cursor", ["", "x", "seq:", "seq:x", "end:1:2", "id:a", "seq:1:2", "seq:-1", 7])
    def test_c65_a_cursor_of_another_search_is_refused(self, store: Store, cursor: Any) -> None:
        """It would begin anywhere."""
        with pytest.raises(InvalidArgument, match="is not a cursor of this search"):
            store.search(checked(), limit=1, cursor=cursor)

    def test_c66_a_replayed_job_is_no_longer_finished(self, store: Store, clock: AlarmClock) -> None:
        """It is listed where it is now."""
        self.ended(store, clock)
        store.replay("b", store.job("b").epoch, by="ops")

        assert listed(store, status="failed") == ["d"]
        assert listed(store, status="pending") == ["e", "b"]
        assert store.job("b").status is Status.PENDING
