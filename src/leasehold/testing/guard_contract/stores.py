"""G9: a mark carries the id of the store that issued its epoch."""

from __future__ import annotations

import logging

import pytest

from ...errors import StaleEpoch
from ...guard import Guard
from .support import FIRST, NEW, NEWEST, NEWS, OLD, OLDS, OTHER_STORE, STORE, Battery, under


class Stores(Battery):
    """A later store begins above an earlier one, so epochs of two stores are ordered all the same."""

    def test_g9_the_mark_names_the_store(self, guard: Guard) -> None:
        """Whose epoch it is."""
        self.write(guard, self.key(0), FIRST, **under(OLD))
        guard.seal(self.key(1), **under(OLD, store=OTHER_STORE))

        assert (self.mark(guard, self.key(0)).store, self.mark(guard, self.key(1)).store) == (STORE, OTHER_STORE)

    def test_g9_a_higher_epoch_of_another_store_takes_the_key_over_and_is_logged(
        self, guard: Guard, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A move from SQLite to PostgreSQL must not stop the work."""
        for key, change in ((self.key(0), self.write), (self.key(1), None)):
            self.write(guard, key, FIRST, **under(OLD))
            caplog.clear()
            with caplog.at_level(logging.WARNING, "leasehold"):
                if change is None:
                    guard.seal(key, **under(NEW, store=OTHER_STORE))
                else:
                    change(guard, key, NEWS, **under(NEW, store=OTHER_STORE))

            assert self.mark(guard, key).store == OTHER_STORE
            [message] = [record.getMessage() for record in caplog.records if OTHER_STORE in record.getMessage()]
            assert STORE in message
            self.refused(self.write, guard, key, OLDS, **under(OLD))

    def test_g9_a_lower_epoch_of_another_store_is_refused_and_both_are_named(self, guard: Guard) -> None:
        """So that an operator sees that two stores write to one resource."""
        key = self.key()
        self.write(guard, key, NEWS, **under(NEW))

        refusal = self.refused(self.write, guard, key, OLDS, **under(OLD, store=OTHER_STORE))

        assert STORE in str(refusal)
        assert OTHER_STORE in str(refusal)
        assert self.value(guard, key) == NEWS

    def test_g9_an_equal_epoch_of_another_store_is_refused(self, guard: Guard) -> None:
        """It is another owner's: if both were admitted, each could overwrite the other for ever."""
        key = self.key()
        self.write(guard, key, NEWS, **under(NEW))
        before = self.mark(guard, key)

        for verb in ((self.write, guard, key, OLDS), (guard.seal, key)):
            self.refused(*verb, **under(NEW, store=OTHER_STORE))
        assert (self.value(guard, key), self.mark(guard, key)) == (NEWS, before)
        self.write(guard, key, FIRST, **under(NEW))
        assert self.value(guard, key) == FIRST

    def test_g9_a_strict_guard_refuses_every_other_store(self) -> None:
        """Above the mark too, for a write and for a seal; its own store goes on."""
        key, guard = self.key(), self.strict()
        self.write(guard, key, FIRST, **under(OLD))
        before = self.mark(guard, key)

        for epoch in (OLD, NEW):
            with pytest.raises(StaleEpoch, match="strict_store") as refusal:
                self.write(guard, key, NEWS, **under(epoch, store=OTHER_STORE))
            assert (refusal.value.presented, refusal.value.current) == (epoch, OLD)
            self.refused(guard.seal, key, **under(epoch, store=OTHER_STORE))
        assert (self.value(guard, key), self.mark(guard, key)) == (FIRST, before)
        self.write(guard, key, NEWS, **under(NEWEST))
        assert self.value(guard, key) == NEWS
