"""
The same program on SQLite and on PostgreSQL: the same outcomes, the same errors, the same tables afterwards.

Every verb and every ordered pair of verbs, of this lease, another one and the router, with and without `connection=`,
inside `lease.transaction()`, in a transaction of the caller's own and outside.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from contextlib import suppress

import pytest
from psycopg import IsolationLevel
from tests.postgres.fixtures import each_version

from leasehold import Settled
from leasehold.testing import take_over

from .libraries import LIBRARIES
from .programs import PLACES, STEPS, Came, Case, Scene, Step
from .stages import Stage

OWN = ("fenced", "joined")
ISOLATIONS = [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]


def _renewals_apart(case: Case, library: str, came: Came) -> Came:
    """
    A renewal takes effect at once on PostgreSQL.

    On SQLite it is part of the transaction of its own lease. Beside that of another lease, and on a connection of an
    event loop, it would wait for its own caller: `Conflict`.
    """
    if case.place == "outside" or all(step.verb != "renew" for step in case.steps):
        return came
    outcomes = list(came.outcomes)
    for number, step in enumerate(case.steps, 1 if case.place == "fenced" else 0):
        if step.verb == "renew" and outcomes[number] in ("done", "Conflict"):
            outcomes[number] = "renewed"
    return Came(tuple(outcomes), tuple(row[:-1] if len(row) > 2 else row for row in came.tables))


def _unwatched_apart(case: Case, library: str, came: Came) -> Came:
    """A plain sqlite3.Connection that only the router has joined is not watched: who writes beside it has to wait."""
    joined = {step.who for step in case.steps if step.joins}
    if case.place != "joined" or library != "driver" or joined != {"router"}:
        return came
    return came._replace(outcomes=tuple("Conflict" if one == "StoreUnavailable" else one for one in came.outcomes))


# Every difference that is permitted, and nothing else: each takes out of what came what may differ.
PERMITTED: tuple[Callable[[Case, str, Came], Came], ...] = (_unwatched_apart, _renewals_apart)


def _are_alike(case: Case, library: str, one: Came, other: Came) -> bool:
    for permitted in PERMITTED:
        one, other = permitted(case, library, one), permitted(case, library, other)
    return one == other


def compare(
    sqlite: Stage,
    postgres: Stage,
    library: str,
    cases: Iterable[Case],
    isolation: IsolationLevel = ISOLATIONS[0],
    *,
    beside: Callable[[Scene], None] | None = None,
) -> None:
    """Run *cases* on both stores, on PostgreSQL with *beside*; show every difference that is not permitted."""
    meant = [case for case in cases if case.is_meant]
    there = postgres.at(isolation).came_of(library, meant, beside)
    here = sqlite.came_of(library, meant)
    differ = [
        f"{case}\n    SQLite:     {_differing(one, other)}\n    PostgreSQL: {_differing(other, one)}"
        for case, one, other in zip(meant, here, there, strict=True)
        if not _are_alike(case, library, one, other)
    ]
    wrong = [f"{case}\n    {came.outcomes}" for case, came in zip(meant, there, strict=True) if _is_odd(came)]
    assert not differ + wrong, f"{len(differ) + len(wrong)} of {len(meant)}:\n" + "\n".join(differ + wrong)


def _differing(one: Came, other: Came) -> str:
    shown = [str(one.outcomes) if one.outcomes != other.outcomes else "the same outcomes"]
    shown += [str(row) for row in one.tables if row not in other.tables]
    return "; ".join(shown)


def _is_odd(came: Came) -> bool:
    """Whether an error came as the driver's own: nothing here goes wrong but what leasehold refuses."""
    return any("an error of the driver" in str(outcome) for outcome in came.outcomes)


def pairs(place: str, first: Step, end: str = "commit") -> Iterable[Case]:
    """Every program of two steps that begins with *first*."""
    return (Case(place, (first, second), end) for second in STEPS)


def singles(places: Iterable[str] = PLACES) -> Iterable[Case]:
    """Every program of one step."""
    return (Case(place, (step,), end) for place in places for step in STEPS for end in ("commit", "rollback"))


# A session hands its connection on: what differs is only how it is asked for.
SESSIONS = [pytest.param(name, marks=pytest.mark.soak) for name in ("session", "async session")]


@pytest.mark.parametrize("library", [*(name for name in LIBRARIES if not name.endswith("session")), *SESSIONS])
def test_every_verb_in_every_library(sqlite: Stage, postgres: Stage, library: str) -> None:
    """By itself, in every place, committed and rolled back."""
    compare(sqlite, postgres, library, singles())


@each_version
def test_every_verb_on_each_version(sqlite: Stage, postgres: Stage) -> None:
    """The oldest PostgreSQL does what the newest does."""
    compare(sqlite, postgres, "driver", singles())


# In a transaction of the caller's own, a first step that neither joins nor is exempt is refused whatever follows it.
FIRST = [
    *(("inside", step) for step in STEPS),
    *(("fenced", step) for step in STEPS if step.joins or step.verb in ("renew", "check")),
]


@pytest.mark.parametrize(("where", "first"), FIRST, ids=str)
def test_every_pair_of_verbs(sqlite: Stage, postgres: Stage, where: str, first: Step) -> None:
    """In a block, and after `lease.fence(connection)`, with sqlite3 and psycopg."""
    compare(sqlite, postgres, "driver", pairs(where, first))


@pytest.mark.parametrize("isolation", ISOLATIONS[1:], ids=lambda level: str(level.name))
def test_every_verb_at_every_isolation(sqlite: Stage, postgres: Stage, isolation: IsolationLevel) -> None:
    """On the caller's own connection; a block is READ COMMITTED."""
    compare(sqlite, postgres, "driver", singles(OWN), isolation)


@pytest.mark.soak
@pytest.mark.parametrize("first", STEPS, ids=str)
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_pair_of_verbs_in_every_library(
    sqlite: Stage, postgres: Stage, library: str, where: str, first: Step
) -> None:
    """The full product."""
    for isolation, end in itertools.product(ISOLATIONS if where in OWN else ISOLATIONS[:1], ("commit", "rollback")):
        compare(sqlite, postgres, library, pairs(where, first, end), isolation)


BESIDE = [step for step in STEPS if step.who == "mine" and step.verb not in ("once", "transaction", "renew")]


@pytest.mark.parametrize("isolation", ISOLATIONS, ids=lambda level: str(level.name))
def test_renewals_beside_the_transaction_change_nothing(
    sqlite: Stage, postgres: Stage, isolation: IsolationLevel
) -> None:
    """On PostgreSQL, where there can be some: after each verb, however isolated the transaction is."""

    def renew(scene: Scene) -> None:
        with suppress(Settled):
            scene.mine.renew()

    cases = [Case(place, (step,)) for place in ("inside", *OWN) for step in BESIDE]
    compare(sqlite, postgres, "driver", cases, isolation, beside=renew)


@pytest.mark.parametrize("isolation", ISOLATIONS, ids=lambda level: str(level.name))
@pytest.mark.parametrize("where", ["inside", *OWN])
def test_after_a_takeover_beside_the_transaction_nothing_of_it_commits(
    postgres: Stage, where: str, isolation: IsolationLevel
) -> None:
    """On PostgreSQL, where there can be one. The owner is told, by its next verb or by its COMMIT."""

    def move(scene: Scene) -> None:
        take_over(scene.mine)
        scene.asks = True  # the server may have hung up, which says nothing by itself

    for step in BESIDE:
        case = Case(where, (step,))
        if not case.is_meant:
            continue
        [came] = postgres.at(isolation).came_of("driver", [case], move)
        assert came.outcomes[-1] == "StaleEpoch", case
        assert ("rows", []) in came.tables, case
        [(_, status, _, result, progress, _, _, owner, _)] = [row for row in came.tables if row[0].startswith("mine")]
        assert (status, result, progress) == ("running", None, (None, None, None)), case
        assert owner == ("successor", "a later one"), case
