"""Every manual verb of the command line, by an operator who has seen an older state of the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest
from tests.postgres.fixtures import NEWEST, Place, url_of
from tests.support import until

from leasehold import InDoubt, Lease, Router
from leasehold.cli.app import run

JOB = "invoice-42"
VERBS = {
    "transfer": ("transfer", JOB, "--to", "worker-9"),
    "requeue": ("requeue", JOB),
    "cancel": ("cancel", JOB),
    "replay": ("replay", JOB),
    "complete": ("complete", JOB),
    "resolve": ("resolve", JOB, "charge", "--did-not-happen"),
}


def claimed(router: Router, owner: str, lease_seconds: float = 30) -> Lease:
    """The job, claimed, with an effect in doubt."""
    lease = router.claim(owner, lease_seconds=lease_seconds, process=None)
    assert lease is not None

    def lost() -> None:
        raise ConnectionResetError

    with pytest.raises((ConnectionResetError, InDoubt)):
        lease.once("charge", lambda key: lost())
    return lease


def before_the_claim(router: Router) -> int:
    """The operator saw it pending; then a worker claimed it."""
    seen = router.job(JOB).epoch
    claimed(router, "worker-1")
    return seen


def before_a_takeover(router: Router) -> int:
    """The operator saw it at one worker; then another operator gave it to a second one."""
    seen = claimed(router, "worker-1").epoch
    router.transfer(router.job(JOB), to="worker-2", by="ann", note="worker-1 hangs")
    return seen


def before_a_reclaim(router: Router) -> int:
    """The operator saw it at one worker; then its lease expired, and a second one claimed it."""
    seen = claimed(router, "worker-1", lease_seconds=0.001).epoch
    until(lambda: router.claim("worker-2", process=None))
    return seen


def before_the_owner_settled(router: Router) -> int:
    """The operator saw it running; then its owner completed it, under the same epoch."""
    lease = claimed(router, "worker-1")
    lease.complete()
    return lease.epoch


def before_a_settlement_by_hand(router: Router) -> int:
    """The operator saw it running; then another operator completed it."""
    seen = claimed(router, "worker-1").epoch
    router.complete(router.job(JOB), by="ann", note="paid in cash")
    return seen


def of_an_older_store(router: Router) -> int:
    """The epoch is of a store that was made long before."""
    claimed(router, "worker-1")
    return 1_500_000_000_000_007


def of_a_newer_store(router: Router) -> int:
    """The epoch is of a store that was made later, or of this one before it was restored."""
    claimed(router, "worker-1")
    return router.job(JOB).epoch + 1_000_000_000


class Case(NamedTuple):
    """What happened, words that the refusal has, and the exit codes that are not 3."""

    happened: Callable[[Router], int]
    words: tuple[str, ...]
    codes: Mapping[str, int] = MappingProxyType({})


# The settlement of an owner keeps its epoch: the state forbids what a finished job does not admit (4). It admits a
# replay, and an effect that is still in doubt can be resolved (0).
BY_STATE = {"transfer": 4, "requeue": 4, "cancel": 4, "complete": 4, "replay": 0, "resolve": 0}
CASES = {
    "seen before the claim": Case(before_the_claim, ("moved by claim", "'worker-1' got the job at ")),
    "seen before a takeover": Case(
        before_a_takeover,
        ("moved by 'ann': 'worker-1 hangs'", "The first change since that epoch: transferred at ", "by ann"),
    ),
    "seen before a reclaim": Case(
        before_a_reclaim, ("moved by timeout", "The first change since that epoch: reclaimed at ", "was worker-1")
    ),
    "seen before the owner settled": Case(before_the_owner_settled, ("is done and cannot be ",), BY_STATE),
    "seen before a settlement by hand": Case(
        before_a_settlement_by_hand,
        ("it was completed by 'ann' at ", "The first change since that epoch: finished at ", "note paid in cash"),
    ),
    "an older store's epoch": Case(of_an_older_store, ("moved by claim", "'worker-1' got the job at ")),
    "a newer store's epoch": Case(
        of_a_newer_store, ("the store has not issued that epoch for this job", "Check its digits")
    ),
}


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The URL and the schema of an empty store."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db", "leasehold"
        return
    place = Place(url_of(NEWEST))
    try:
        made = place.store()
        yield made.database.url, made.database.schema
    finally:
        place.clear()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("case", CASES)
def test_a_stale_operator_changes_nothing(
    store: tuple[str, str], capsys: pytest.CaptureFixture[str], case: str, verb: str
) -> None:
    """Exit code 3, or that of the table; the message says who moved the job, when and why, as far as it is known."""
    url, schema = store
    wanted = CASES[case].codes.get(verb, 3)
    with Router(url, schema=schema) as router:
        router.add(JOB)
        seen = CASES[case].happened(router)
        before = (router.job(JOB), router.ownerships(JOB), router.effects(JOB))

        code = run([*VERBS[verb], "--epoch", str(seen), "--as", "bob", "--store", url, "--schema", schema])

        after = (router.job(JOB), router.ownerships(JOB), router.effects(JOB))
        refused = router.events(JOB, kind="refused")
    out, err = capsys.readouterr()
    assert code == wanted, err
    if wanted == 0:
        return
    assert (out, after) == ("", before)
    assert [word for word in CASES[case].words if word not in err] == [], err
    assert len(set(err.splitlines())) == len(err.splitlines()), "a line is printed twice"
    assert [event.facts["presented"] for event in refused] == ([seen] if wanted == 3 else [])
