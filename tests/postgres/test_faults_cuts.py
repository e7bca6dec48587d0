"""
A connection that is cut in the middle of every verb, and a server that is never heard of again.

Long on purpose: every verb is cut by the same proxy, and a new verb is one more row.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql
from tests.support import until

import leasehold.stores.postgres.database as database
from leasehold import InDoubt, Lease, Router, StaleEpoch, StoreUnavailable
from leasehold.core.job import Outcome, Settlement
from leasehold.liveness import this_process
from leasehold.store import Renewal
from leasehold.stores.policy import Pass
from leasehold.stores.postgres.database import REPLY_SECONDS
from leasehold.stores.postgres.errors import sqlstate_of
from leasehold.stores.postgres.rights import KINDS
from leasehold.testing import elsewhere

from .fixtures import NEWEST, Place, path_of, url_of, with_path
from .proxy import Proxy, Where
from .staging import Call, entered_elsewhere, session, store_of
from .verbs import VERBS, Stage, Verb


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    """The way to the server."""
    with Proxy(url_of(NEWEST)) as made:
        yield made


@pytest.fixture(scope="module")
def shared(proxy: Proxy) -> Iterator[Stage]:
    """A store, through the proxy and past it."""
    place = Place(url_of(NEWEST))
    direct = place.store()
    with place.connect(direct, autocommit=True) as connection:
        connection.execute("create table results (name text)")
    schema, path = direct.database.schema, path_of(direct.database.url)
    try:
        with (
            Router(with_path(proxy.url, path), schema=schema) as router,
            Router(direct.database.url, schema=schema) as seen,
        ):
            made = Stage(router, seen)
            store_of(router).database.prepare_threshold = None  # the proxy knows a request by its text
            yield made
    finally:
        proxy.heal()
        place.clear()


@pytest.fixture
def stage(proxy: Proxy, shared: Stage) -> Iterator[Stage]:
    """The same, emptied after each test: to make one takes longer than most of them do."""
    shared.router.counts()  # which opens it
    yield shared
    proxy.heal()
    assert shared.seen.verify() == []
    shared.empty()


def attempt(verb: Verb, stage: Stage, made: object) -> StoreUnavailable | None:
    """Do it; return the error, which must be that of a store that did not answer, or None if it answered."""
    try:
        verb.act(stage, made)
    except StoreUnavailable as error:
        return error
    return None


def assert_well(stage: Stage) -> None:
    """Nothing is broken, and the next verb works."""
    assert stage.router.add("afterwards", queue="afterwards").created
    assert stage.router.claim("somebody", queues=["afterwards"]) is not None
    assert stage.seen.verify() == []


def cases() -> Iterator[object]:
    """Every verb and every cut; of those in the middle of a reply, one of each kind unless it may take longer."""
    some = {"add", "claim", "complete", "cancel", "once, its beginning", "commit", "commit with a completion", "job"}
    for where, verb in itertools.product((Where.BEFORE, Where.AFTER, Where.WITHIN), VERBS):
        longer = where is Where.WITHIN and verb.name not in some
        marks = [pytest.mark.soak] if longer else []
        yield pytest.param(where, verb, marks=marks, id=f"{where.name.lower()}-{verb.name}")


@pytest.mark.parametrize(("where", "verb"), list(cases()))
def test_a_cut_connection(proxy: Proxy, stage: Stage, where: Where, verb: Verb) -> None:
    """What was asked has happened at most once, and the answer is right, or says that it is not known."""
    made = verb.prepare(stage)
    proxy.cut(where, verb.asks)

    error = attempt(verb, stage, made)

    assert proxy.cuts == 1
    answers = verb.unheard if where is Where.BEFORE else verb.unanswered
    assert (error is None) is answers, error
    assert verb.times(stage, made) == int(answers or where is not Where.BEFORE)
    # It cannot know, so it must not say; but of a transaction that was rolled back the server does.
    known = where is Where.BEFORE and verb.name.startswith("commit")
    assert error is None or (error.outcome_unknown, "othing was" in str(error)) == (not known, known)
    assert_well(stage)


def test_every_function_that_a_verb_calls_is_cut_somewhere() -> None:
    """A verb that is added, or another way to do one, is also one that a connection may be lost in."""
    apart = {
        "await_jobs",  # below, with the claim that waits
        "end_fenced",  # below, with the takeover
        "settled_in",  # in a block, before a renewal or check
        "has_job",  # in a transaction, before a second child of one name
        "fence_children",  # in a caller's transaction, whose connection is the caller's
        "known_processes",  # below, with the sweep
        *("prune_due", "prune_events", "prune_ids", "forget_workers"),  # below, with upkeep
        "record_refusal",  # below
        "recover",  # below, with the sweep
        "has_settled",  # asked after the cut of "commit with a completion"
    }
    cut = {found[1] for verb in VERBS if (found := re.match(r"\.(\w+)\($", verb.asks))}

    assert cut | apart == {name for kind in KINDS.values() for name in kind.functions}


@pytest.mark.parametrize("where", [Where.BEFORE, Where.AFTER], ids=lambda where: where.name.lower())
@pytest.mark.parametrize("asks", [".recover(", ".known_processes("])
def test_a_sweep_that_is_cut_among_the_processes_that_are_gone(
    proxy: Proxy, stage: Stage, asks: str, where: Where
) -> None:
    """To look for them again is harmless, to take back from them again is for the next sweep."""
    mine = this_process()
    assert mine is not None
    stage.seen.add("a")
    [grant] = stage.seen.store.claim("gone", process=mine._replace(started=mine.started - 1))
    proxy.cut(where, asks)
    looks = asks == ".known_processes("

    if looks:
        assert [ended.epoch for ended in stage.router.reclaim()] == [grant.epoch]
    else:
        with pytest.raises(StoreUnavailable, match="may or may not have taken effect") as lost:
            stage.router.reclaim()
        assert lost.value.outcome_unknown

    assert proxy.cuts == 1
    assert stage.count("reclaimed", "a") == int(looks or where is Where.AFTER)
    stage.router.reclaim()
    assert stage.count("reclaimed", "a") == 1
    assert_well(stage)


@pytest.mark.parametrize("where", [Where.BEFORE, Where.AFTER], ids=lambda where: where.name.lower())
@pytest.mark.parametrize("asks", [".prune_due(", ".prune_events(", ".prune_ids(", ".forget_workers("])
def test_upkeep_that_is_cut_while_it_prunes_is_for_the_next_one(
    proxy: Proxy, stage: Stage, asks: str, where: Where
) -> None:
    """What a portion has removed stays removed, and nothing else is."""
    store = store_of(stage.router)
    store.upkeep.portions = Pass()  # as if a minute had passed
    stage.lease().complete()
    proxy.cut(where, asks)

    with pytest.raises(StoreUnavailable):
        store.tend()

    assert proxy.cuts == 1
    store.tend()
    assert stage.seen.job("a").status == "done"
    assert_well(stage)


@pytest.mark.parametrize("where", [Where.BEFORE, Where.AFTER], ids=lambda where: where.name.lower())
def test_a_takeover_is_done_whatever_becomes_of_ending_the_old_owners_session(
    proxy: Proxy, stage: Stage, where: Where
) -> None:
    """It has committed: the fence refuses the old owner all the same, and the next sweep ends its session."""
    lease = stage.lease()
    block = lease.transaction()
    connection = block.__enter__()
    proxy.cut(where, ".end_fenced(")

    moved = elsewhere(stage.router.transfer, stage.seen.job("a"), to="b", by="ann")

    assert proxy.cuts == 1
    assert stage.seen.job("a").epoch == moved.epoch
    elsewhere(stage.seen.reclaim)
    until(lambda: not connection.is_alive())
    with pytest.raises(StaleEpoch):
        block.__exit__(None, None, None)
    assert_well(stage)


@pytest.mark.parametrize("where", [Where.BEFORE, Where.AFTER], ids=lambda where: where.name.lower())
@pytest.mark.parametrize("name", ["complete", "add", "once, its end", "job", "begin a transaction"])
def test_a_connection_that_is_cut_again_and_again(
    proxy: Proxy, stage: Stage, monkeypatch: pytest.MonkeyPatch, name: str, where: Where
) -> None:
    """What may be repeated is repeated for a while, and then the outcome is not known."""
    monkeypatch.setattr(database, "AGAIN_SECONDS", 0.1)
    verb = next(verb for verb in VERBS if verb.name == name)
    made = verb.prepare(stage)
    proxy.cut(where, verb.asks, times=1_000)

    error = attempt(verb, stage, made)

    assert error is not None
    assert proxy.cuts > 1
    assert "othing was changed" not in str(error)
    proxy.heal()
    assert_well(stage)


def test_a_lost_reply_and_then_a_refusal(proxy: Proxy, stage: Stage) -> None:
    """What the second try says of itself is not said of the first."""
    lease = stage.lease()
    store = store_of(stage.router)

    def exhaust(what: str) -> None:
        if what == "settle" and proxy.cuts:
            raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")

    proxy.cut(Where.AFTER, ".complete(")
    store.database.point = exhaust
    try:
        with pytest.raises(
            StoreUnavailable, match=r"may not have taken effect.*The call was repeated, and the store answered"
        ) as raised:
            lease.complete()
    finally:
        store.database.point = None
    assert raised.value.outcome_unknown

    assert sqlstate_of(raised.value.__cause__) == "57014"
    assert stage.seen.job("a").status == "done"


@pytest.mark.parametrize(
    "name", ["add", "claim", "complete", "cancel", "job", "once, its beginning", "commit", "begin a transaction"]
)
def test_a_server_that_says_nothing_is_given_up(proxy: Proxy, stage: Stage, name: str) -> None:
    """Its connection is open, its machine answers pings, and it never replies: the verb ends all the same."""
    verb = next(verb for verb in VERBS if verb.name == name)
    made = verb.prepare(stage)
    store_of(stage.router).database.reply_seconds = 0.3
    proxy.cut(Where.NEVER, verb.asks)
    try:
        error = attempt(verb, stage, made)
    finally:
        store_of(stage.router).database.reply_seconds = REPLY_SECONDS

    assert proxy.cuts == 1
    assert (error is None) is verb.unheard, error
    assert error is None or "no reply within 0.3 s" in str(error)
    assert verb.times(stage, made) == int(verb.unheard)
    assert_well(stage)


def test_a_black_hole_that_swallows_new_connections_too(
    proxy: Proxy, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then there is nobody to ask again, and the verb ends once it has tried to connect."""
    monkeypatch.setattr(database, "AGAIN_SECONDS", 0.1)
    lease = stage.lease()
    store = store_of(stage.router)
    store.database.reply_seconds = 0.3
    store.database._settings["connect_timeout"] = 1
    proxy.cut(Where.NEVER, "", times=1_000)
    try:
        with pytest.raises(StoreUnavailable, match=r"no reply within 0\.3 s"):
            lease.complete()
    finally:
        store.database.reply_seconds = REPLY_SECONDS
        del store.database._settings["connect_timeout"]

    proxy.heal()
    lease.complete()
    assert stage.seen.job("a").status == "done"


def test_a_long_reply_is_not_silence(proxy: Proxy, stage: Stage) -> None:
    """What counts is how long nothing is heard, and not how long it takes."""
    store = store_of(stage.router)
    store.database.reply_seconds = 1.2  # so that a machine that stands still for a second does not count either
    try:
        rows = store.database.read(
            "select number, pg_sleep(0.2), repeat('x', 20000) from generate_series(1, 8) as number"
        )
        with pytest.raises(StoreUnavailable, match=r"no reply within 1\.2 s"):
            store.database.read("select pg_sleep(600)")
        patient = store.database.read("select pg_sleep(1.4)", patient=True)
    finally:
        store.database.reply_seconds = REPLY_SECONDS
        # The server sleeps on, with a snapshot that keeps the dead rows of every later test.
        asleep = "select pg_terminate_backend(pid) from pg_stat_activity where query = 'select pg_sleep(600)'"
        with psycopg.connect(str(stage.seen.url), autocommit=True) as connection:
            connection.execute(asleep)

    assert (len(rows), len(patient)) == (8, 1)


def test_an_owner_is_told_that_it_lost_its_job_with_its_connection(stage: Stage) -> None:
    """Its transaction was ended because the job was taken over; the driver alone would only say that it was ended."""
    lease = stage.lease()

    def outlived() -> None:
        with lease.transaction() as connection:
            stage.seen.transfer(stage.seen.job("a"), to="b", by="ann")
            until(lambda: not connection.is_alive())
            connection.execute("select 1")

    with pytest.raises(StaleEpoch) as refused:
        outlived()

    assert refused.value.owner == "b"


def test_a_refused_transactions_connection_is_lent_to_one_at_a_time(stage: Stage) -> None:
    """It goes back to the others once, though both the commit and the end of the block give it back."""
    lost, kept = stage.lease("a"), stage.lease("b")
    store_of(stage.router).upkeep.end_fenced = lambda epochs: None  # type: ignore[method-assign]  # so that COMMIT refuses
    stage.seen.store.upkeep.end_fenced = lambda epochs: None  # type: ignore[attr-defined]  # the same

    def outlived() -> None:
        with lost.transaction() as connection:
            connection.execute("insert into results values ('lost')")
            stage.seen.transfer(stage.seen.job("a"), to="c", by="ann")

    try:
        with pytest.raises(StaleEpoch):
            outlived()
    finally:
        del store_of(stage.router).upkeep.end_fenced
        del stage.seen.store.upkeep.end_fenced  # type: ignore[attr-defined]  # the same

    with kept.transaction() as first, entered_elsewhere(kept.transaction()) as second:
        assert first is not second


def test_a_claim_that_waits_survives_the_cut_of_its_listener(proxy: Proxy, stage: Stage) -> None:
    """It polls, and listens anew."""
    proxy.cut(Where.BEFORE, ".await_jobs(", times=3)
    waiter = Call(lambda: stage.router.claim("worker", wait_seconds=20))
    until(lambda: proxy.cuts > 0)

    stage.seen.add("a")

    lease = waiter.result()
    assert lease is not None
    lease.complete()


def test_a_claim_that_waits_and_is_cut_says_so_or_has_its_job(proxy: Proxy, stage: Stage) -> None:
    """Between two polls, the first of which found nothing."""
    stage.seen.add("later", delay_seconds=3600)
    assert stage.router.claim("worker") is None
    proxy.cut(Where.AFTER, ".claim")

    with pytest.raises(StoreUnavailable, match=r"may or may not have taken effect") as lost:
        stage.router.claim("worker", wait_seconds=20)
    assert lost.value.outcome_unknown

    assert_well(stage)


@pytest.mark.parametrize("where", [Where.BEFORE, Where.AFTER], ids=lambda where: where.name.lower())
def test_an_effect_whose_beginning_was_not_answered_is_not_brought_about(
    proxy: Proxy, stage: Stage, where: Where
) -> None:
    """If its intent was recorded, it is in doubt, and somebody has to look; else it can be tried anew."""
    lease = stage.lease()
    calls: list[str] = []
    proxy.cut(where, ".begin_effect(")

    with pytest.raises(StoreUnavailable):
        lease.once("charge", calls.append)

    assert calls == []
    if where is Where.AFTER:
        with pytest.raises(InDoubt):
            lease.once("charge", calls.append)
    lease.once("charge", calls.append, in_doubt="retry")
    assert len(calls) == 1


@pytest.mark.parametrize("where", [Where.BEFORE, Where.AFTER], ids=lambda where: where.name.lower())
def test_an_effect_whose_outcome_was_not_answered_is_known_all_the_same(
    proxy: Proxy, stage: Stage, where: Where
) -> None:
    """It has happened, so its outcome is said again until it is heard."""
    lease = stage.lease()
    calls: list[str] = []
    proxy.cut(where, ".end_effect(")

    lease.once("charge", calls.append)
    lease.once("charge", calls.append)

    assert len(calls) == 1


def test_an_add_that_is_repeated_says_only_what_it_knows(proxy: Proxy, stage: Stage) -> None:
    """If both jobs are there, which call made them cannot be told any more; if one is new, the first made neither."""
    stage.seen.add("x")
    proxy.cut(Where.BEFORE, ".add_alike(")

    assert [added.created for added in stage.router.add_many([{"id": "x"}, {"id": "y"}])] == [False, True]

    assert proxy.cuts == 1
    proxy.cut(Where.BEFORE, ".add_alike(")
    with pytest.raises(
        StoreUnavailable,
        match=r"has 2 of its 2 jobs \(the first is 'x'\), each once; they may have been added by this call",
    ) as lost:
        stage.router.add_many([{"id": "x"}, {"id": "y"}])
    assert lost.value.outcome_unknown


@pytest.mark.parametrize("where", [Where.BEFORE, Where.AFTER], ids=lambda where: where.name.lower())
def test_an_add_whose_unique_key_another_job_has_is_not_said_to_be_kept(
    proxy: Proxy, stage: Stage, where: Where
) -> None:
    """Neither call has added it, so the answer is known; beside one that is there, only that one is said to be."""
    stage.seen.add("holder", unique="k")
    proxy.cut(where, ".add(")

    added = stage.router.add("asked", unique="k")

    assert proxy.cuts == 1
    assert (added.job.id, added.created) == ("holder", False)
    stage.seen.add("there")
    proxy.cut(where, ".add(")
    with pytest.raises(
        StoreUnavailable, match=r"has 1 of its 2 jobs \(the first is 'there'\).* other 1 were not added"
    ) as lost:
        stage.router.add_many([{"id": "asked", "unique": "k"}, {"id": "there"}])
    assert lost.value.outcome_unknown
    assert "asked" not in {job.id for job in stage.seen.jobs()}


def test_an_add_that_was_heard_and_not_answered_says_that_it_is_there(proxy: Proxy, stage: Stage) -> None:
    """Beside a key that another job has."""
    stage.seen.add("holder", unique="k")
    proxy.cut(Where.AFTER, ".add(")

    with pytest.raises(StoreUnavailable, match=r"has 1 of its 2 jobs \(the first is 'new'\)"):
        stage.router.add_many([{"id": "asked", "unique": "k"}, {"id": "new"}])

    assert {job.id for job in stage.seen.jobs()} == {"holder", "new"}


class Declined(Exception):
    """Nothing was charged."""


def _declined(key: str) -> None:
    raise Declined(key)


def _once(lease: Lease) -> object:
    return lease.once("charge", lambda key: "receipt")


def _undone(lease: Lease) -> object:
    try:
        return lease.once("charge", _declined, undone=(Declined,))
    except Declined:
        return None


# A verb that leasehold asks again by itself, what its request contains, and what the record then has.
ASKED_AGAIN: dict[str, tuple[str, Callable[[Lease], object], Callable[[Stage], object], object]] = {
    "add": (".add_children(", lambda lease: lease.add("child"), lambda stage: len(stage.seen.jobs(parent="a")), 1),
    "progress": (
        ".progress(",
        lambda lease: lease.progress(0.5, note="half", checkpoint={"page": 4}),
        lambda stage: stage.seen.job("a").checkpoint,
        {"page": 4},
    ),
    "progress without a checkpoint": (
        ".progress(",
        lambda lease: lease.progress(0.5),
        lambda stage: stage.seen.job("a").progress,
        0.5,
    ),
    "once": (".end_effect(", _once, lambda stage: [it.outcome for it in stage.seen.effects("a")], ['"receipt"']),
    "once, undone": (".end_effect(", _undone, lambda stage: len(stage.seen.effects("a")), 0),
    "release": (".settle(", lambda lease: lease.release(), lambda stage: stage.count("released", "a"), 1),
}


@contextmanager
def taken_over(proxy: Proxy, stage: Stage, then: Callable[[Lease], object] = lambda lease: None) -> Iterator[None]:
    """Have the job taken over after the cut, before leasehold asks again by itself; the new owner does *then*."""
    store = store_of(stage.router)
    left = [1]

    def take(what: str) -> None:
        if proxy.cuts and left:
            left.clear()
            then(stage.seen.transfer(stage.seen.job("a"), to="b", by="ann"))

    store.database.point = take
    try:
        yield
    finally:
        store.database.point = None
    assert not left


@pytest.mark.parametrize("verb", [verb for verb in ASKED_AGAIN if not verb.startswith("progress")])
def test_a_write_that_was_accepted_is_not_refused_when_it_is_asked_again(proxy: Proxy, stage: Stage, verb: str) -> None:
    """Its reply was lost, and then the job was taken over: the record shows that it had happened."""
    asks, act, record, there = ASKED_AGAIN[verb]
    lease = stage.lease()
    proxy.cut(Where.AFTER, asks)

    with taken_over(proxy, stage):
        act(lease)

    assert proxy.cuts == 1
    assert record(stage) == there
    with pytest.raises(StaleEpoch):
        lease.check()


@pytest.mark.parametrize("verb", ASKED_AGAIN)
def test_a_write_that_was_not_heard_before_a_takeover_is_refused_or_unknown(
    proxy: Proxy, stage: Stage, verb: str
) -> None:
    """Refused if the record shows that it did not happen; a checkpoint that is not there may have been replaced."""
    asks, act, record, there = ASKED_AGAIN[verb]
    lease = stage.lease()
    proxy.cut(Where.BEFORE, asks)

    with taken_over(proxy, stage), pytest.raises((StaleEpoch, StoreUnavailable)) as raised:
        act(lease)

    assert record(stage) != there
    if verb.startswith("progress"):
        assert isinstance(raised.value, StoreUnavailable)
        assert raised.value.outcome_unknown
        assert StaleEpoch.find(raised.value) is None
    else:
        assert isinstance(raised.value, StaleEpoch)
    assert lease.lost


@pytest.mark.parametrize("where", [Where.BEFORE, Where.AFTER], ids=lambda where: where.name.lower())
@pytest.mark.parametrize(
    "report",
    [Lease.progress, lambda lease: lease.progress(0.5), lambda lease: lease.progress(0.5, checkpoint={"page": 4})],
    ids=["bare", "fraction", "checkpoint"],
)
def test_a_report_before_a_takeover_is_unknown_even_if_the_record_has_its_values(
    proxy: Proxy, stage: Stage, report: Callable[[Lease], None], where: Where
) -> None:
    """They may have been there before; and a report without values has none to look for."""
    lease = stage.lease()
    report(lease)
    proxy.cut(where, ".progress(")

    with taken_over(proxy, stage), pytest.raises(StoreUnavailable) as raised:
        report(lease)

    assert raised.value.outcome_unknown
    assert raised.value.is_stale
    assert lease.lost


def test_a_checkpoint_that_a_successor_has_replaced_may_have_been_written(proxy: Proxy, stage: Stage) -> None:
    """The record does not show it any more, so the outcome is not known; it is not said to be refused."""
    lease = stage.lease()
    proxy.cut(Where.AFTER, ".progress(")

    with (
        taken_over(proxy, stage, lambda successor: successor.progress(checkpoint="its own")),
        pytest.raises(
            StoreUnavailable, match=r"may or may not have taken effect.*taken over|taken over.*may or may not"
        ) as lost,
    ):
        lease.progress(checkpoint="mine")

    assert lost.value.outcome_unknown


@pytest.mark.parametrize("where", [Where.BEFORE, Where.AFTER], ids=lambda where: where.name.lower())
@pytest.mark.parametrize(("asks", "verb"), [(".renew(", Lease.renew), (".check_holders(", Lease.check)])
def test_a_renewal_or_check_that_is_refused_when_it_is_asked_again_is_refused(
    proxy: Proxy, stage: Stage, asks: str, verb: Callable[[Lease], object], where: Where
) -> None:
    """The lease is lost, whatever became of the first call: a worker that took it for unknown would go on working."""
    lease = stage.lease()
    proxy.cut(where, asks)

    with taken_over(proxy, stage), pytest.raises(StaleEpoch):
        verb(lease)


def test_a_transaction_that_has_committed_is_not_failed_by_what_is_left_to_record(proxy: Proxy, stage: Stage) -> None:
    """A refusal of an earlier one is recorded with the next verb that gets through, and its absence is not hidden."""
    lost, kept = stage.lease("a"), stage.lease("b")
    stage.seen.transfer(stage.seen.job("a"), to="c", by="ann")
    proxy.cut(Where.BEFORE, ".record_refusal(", times=3)

    with pytest.raises(StaleEpoch), lost.transaction():
        pass
    with kept.transaction() as connection:
        connection.execute("insert into results values ('b')")
        kept.complete(connection=connection)
    assert proxy.cuts == 2
    with pytest.raises(StoreUnavailable):
        stage.router.events()

    assert stage.seen.job("b").status == "done"
    assert [event.job_id for event in stage.router.events(kind="refused")] == ["a"]


def test_a_batch_of_which_a_part_failed_does_not_say_that_nothing_was_changed(stage: Stage) -> None:
    """The others are done."""
    stage.lease("a")
    stage.lease("b")
    store = store_of(stage.router)
    said = [Settlement(job.id, job.epoch, Outcome.RELEASE) for job in stage.seen.jobs(status="running")]

    def fail(what: str) -> None:
        if what == "settle" and next(count) == 2:
            raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")

    count = itertools.count()
    with session(store) as other:
        other.connection.execute(
            sql.SQL("select from {} where epoch = {} for update").format(
                sql.Identifier(store.database.schema, "leases"), said[1].epoch
            )
        )
        store.database.point = fail
        try:
            of_a_part = r"^1 of 2 items are done; the outcome of the others is not known: .* repeat the whole call\.$"
            with pytest.raises(StoreUnavailable, match=of_a_part) as failed:
                store.settle(said)
            assert failed.value.outcome_unknown
            assert "Nothing was changed" not in str(failed.value)
        finally:
            store.database.point = None

    assert store.settle(said) == [None, None]


def test_a_sweep_that_fails_on_the_way_does_not_say_that_nothing_was_changed(stage: Stage) -> None:
    """What it has taken back before stays so."""
    lease, store = stage.lease("a"), store_of(stage.router)
    store.renew([Renewal(lease.job_id, lease.epoch, 1)])

    def fail(what: str) -> None:
        if what == "reclaim" and next(count) == 1:
            raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")

    count = itertools.count()
    store.database.point = fail
    try:
        with pytest.raises(
            StoreUnavailable, match=r"^1 job has been reclaimed before this call failed: the statement"
        ) as failed:
            store.reclaim()
    finally:
        store.database.point = None

    assert failed.value.outcome_unknown
    assert stage.count("reclaimed", "a") == 1


def test_short_waits_for_notifications_are_not_silence(stage: Stage) -> None:
    """The driver may come by many times in an instant, and each time nothing was to be read."""
    with store_of(stage.router).database.connection() as connection:
        for _ in range(20):
            assert list(connection.notifies(timeout=0.005)) == []
        assert connection.is_alive()
