"""G2: compare and write are one step. An old and a new owner are inside the write at once, at every pair of steps."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

import pytest

from ...errors import Conflict, GuardUnavailable, StaleEpoch
from ...guard import Guard, Seal
from .staging import Staged
from .support import FIRST, NEW, NEWS, OLD, OLDS, Battery, recorded, under

FIRST_TO_GO = ("old", "new")


class Race(NamedTuple):
    """Where the two owners stop, which of them goes on first, and whether the key was written before."""

    old_at: str
    new_at: str
    first: str
    written_before: bool

    def __str__(self) -> str:
        fresh = "" if self.written_before else ", on a new key"
        return f"old owner at {self.old_at!r}, new owner at {self.new_at!r}, {self.first} first{fresh}"


def races(steps: Iterable[str]) -> list[Race]:
    """Return every race over the *steps* of a guard."""
    steps = tuple(steps)
    return [Race(*each) for each in itertools.product(steps, steps, FIRST_TO_GO, (True, False))]


def sample(steps: tuple[str, ...]) -> list[Race]:
    """Return a few races: at each pair each owner goes first once, once on a written key and once on a new one."""
    pairs = [*((step, step) for step in steps), (steps[0], steps[-1]), (steps[-1], steps[0])]
    return [
        Race(*pair, first, written_before=(number + FIRST_TO_GO.index(first)) % 2 == 0)
        for number, pair in enumerate(dict.fromkeys(pairs))
        for first in FIRST_TO_GO
    ]


class Racing(Battery):
    """Nothing that a stale owner writes lands on top."""

    def test_g2_a_write_goes_through_its_steps(self, guard: Guard) -> None:
        """In their order, so that the tests of this clause can stop at each of them."""
        assert guard.STEPS, "a guard names the steps of its write in STEPS"
        for epoch in (OLD, NEW):
            with recorded(guard) as steps:
                self.write(guard, self.key(), FIRST, **under(epoch))

            assert tuple(steps) == guard.STEPS

    def test_g2_no_old_value_lands_on_top(self) -> None:
        """A sample of the pairs of steps: both at the same one, and the last of each beside the other's first."""
        for number, race in enumerate(sample(self.open().STEPS)):
            self.race(self.key(number), race)

    @pytest.mark.soak
    def test_g2_no_old_value_lands_on_top_at_any_pair_of_steps(self) -> None:
        """Each owner at each step, each going on first, on a key that was written before and on a new one."""
        for number, race in enumerate(races(self.open().STEPS)):
            self.race(self.key(number), race)

    @pytest.mark.soak
    def test_g2_no_old_value_lands_on_top_in_a_thousand_races(
        self, record_property: Callable[[str, object], None]
    ) -> None:
        """Over all pairs of steps, again and again; LEASEHOLD_GUARD_RACES sets how often, and counts are recorded."""
        count = int(os.environ.get("LEASEHOLD_GUARD_RACES", "1000"))
        every = itertools.cycle(races(self.open().STEPS))
        refused = sum(self.race(self.key(number), next(every)) for number in range(count))
        # In each race one stale write meets the new owner inside its write, and one comes after it and is refused.
        counts = {"races": count, "attempted": 2 * count, "refused": refused + count, "overwritten": count - refused}
        for name, value in {**counts, "accepted": 0}.items():
            record_property(f"guard_{name}", value)

    def race(self, key: str, race: Race) -> bool:
        """Run one race, and return whether the stale write was refused. Raises `AssertionError` if it landed on top."""
        olds, news = self.open(), self.open()
        if race.written_before:
            self.write(olds, key, FIRST, **under(OLD))
        old = Staged(olds, race.old_at, lambda: self.write(olds, key, OLDS, **under(OLD)), blocks=self.blocks)
        old.arrive()
        new = Staged(news, race.new_at, lambda: self.write(news, key, NEWS, **under(NEW)), blocks=self.blocks)
        new.arrive()
        for each in (old, new) if race.first == "old" else (new, old):
            each.release()
        old_error, new_error = old.finish(), new.finish()
        self._check_error(old_error, race, may_be_stale=True)
        self._check_error(new_error, race, may_be_stale=False)
        if new_error is not None:
            self.retried(self.write, news, key, NEWS, **under(NEW))
        if not self.in_doubt(news, key, OLD):
            assert self.value(news, key) == NEWS, f"{race}: the old value is on top"
        assert self.mark(news, key).epoch == NEW, str(race)
        self.refused(self.write, olds, key, OLDS, **under(OLD))
        return isinstance(old_error, StaleEpoch)

    def _check_error(self, error: BaseException | None, race: Race, *, may_be_stale: bool) -> None:
        allowed: list[type[BaseException]] = [GuardUnavailable]
        allowed += [] if self.merges else [Conflict]
        allowed += [StaleEpoch] if may_be_stale else []
        if error is not None and not isinstance(error, tuple(allowed)):
            raise AssertionError(f"{race}: {error!r}") from error

    def test_g2_after_a_seal_nothing_changes(self) -> None:
        """An old owner is inside its write, at each step, while the new one seals: what is there then stays."""
        for number, step in enumerate(self.open().STEPS):
            self._seal_beside_a_write(self.key(number), step)

    def _seal_beside_a_write(self, key: str, step: str) -> None:
        at = f"the old owner stopped at {step!r}"
        olds, news = self.open(), self.open()
        self.write(olds, key, FIRST, **under(OLD))
        old = Staged(olds, step, lambda: self.write(olds, key, OLDS, **under(OLD)), blocks=self.blocks)
        old.arrive()
        seals: list[Seal] = []
        new = Staged(news, None, lambda: seals.append(news.seal(key, **under(NEW))), blocks=self.blocks)
        new.arrive()
        then = self.value(news, key) if seals else None
        old_error = old.finish()
        if new.finish() is not None:
            assert isinstance(new.error, GuardUnavailable), f"{at}: {new.error!r}"
            seals.append(self.sealed(news, key, NEW))
        now = self.value(news, key)

        assert now == (FIRST if old_error else OLDS) or self.in_doubt(news, key, OLD), at
        if then is not None and not seals[0].doubts:
            assert now == then, f"{at}: it wrote after the seal"
        if old_error is not None and not isinstance(old_error, StaleEpoch | GuardUnavailable):
            raise AssertionError(f"{at}: {old_error!r}") from old_error
        self.refused(self.write, olds, key, OLDS, **under(OLD))
        assert self.value(news, key) == now, at
