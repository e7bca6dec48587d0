"""G4 and G5: the mark is kept for ever, goes up with every write, and without it nothing is written."""

from __future__ import annotations

import pytest

from ...core.marks import Mark
from ...errors import GuardUnavailable
from ...guard import Guard
from .support import FIRST, NEW, NEWEST, NEWS, OLD, OLDS, Battery, under


class Marking(Battery):
    """A mark that falls lets a stale owner in."""

    def test_g4_a_key_that_was_never_written_has_no_mark(self, guard: Guard) -> None:
        """And to ask for it makes none."""
        assert guard.mark(self.key()) is None
        assert guard.mark(self.key()) is None

    def test_g4_the_mark_survives_a_restart(self, guard: Guard) -> None:
        """It is beside the data, not in the process."""
        key = self.key()
        self.write(guard, key, NEWS, **under(NEW))
        before = self.mark(guard, key)
        restarted = self.open()

        assert self.mark(restarted, key) == before
        self.refused(self.write, restarted, key, OLDS, **under(OLD))
        assert self.value(restarted, key) == NEWS

    def test_g4_the_mark_survives_the_deletion_of_the_data(self, guard: Guard) -> None:
        """Or delete and create again would be a way around it. A deletion is a write: a late one is refused."""
        key = self.key()
        self.write(guard, key, OLDS, **under(OLD))
        self.write(guard, key, NEWS, **under(NEW))
        self.refused(self.delete, guard, key, **under(OLD))
        assert self.value(guard, key) == NEWS
        before = self.mark(guard, key)

        self.delete(guard, key, **under(NEW))

        assert self.value(guard, key) is None
        for each in (guard, self.open()):
            after = self.mark(each, key)
            assert (after.epoch, after.counter) > (before.epoch, before.counter)
            self.refused(self.write, each, key, OLDS, **under(OLD))
            self.refused(each.seal, key, **under(OLD))
            assert self.value(each, key) is None
        self.write(guard, key, NEWS, **under(NEW))
        assert self.value(guard, key) == NEWS

    def test_g4_a_deletion_of_nothing_raises_the_mark(self, guard: Guard) -> None:
        """The old owner may not create afterwards what the new one has deleted."""
        key = self.key()
        self.delete(guard, key, **under(NEW))

        assert self.mark(guard, key).epoch == NEW
        self.refused(self.write, guard, key, OLDS, **under(OLD))
        assert self.value(guard, key) is None

    def test_g4_every_write_and_every_seal_changes_the_mark(self, guard: Guard) -> None:
        """Also under the same epoch, and with the same bytes: a mark that stays equal can be left out of a compare."""
        key, marks = self.key(), list[Mark]()
        for epoch in (OLD, OLD, NEW, NEW):
            for change in ("write", "write", "seal", "seal"):
                if change == "write":
                    self.write(guard, key, FIRST, **under(epoch))
                else:
                    assert guard.seal(key, **under(epoch)).mark == guard.mark(key)
                marks.append(self.mark(guard, key))

        order = [(mark.epoch, mark.counter) for mark in marks]
        assert order == sorted(set(order)), "the mark did not go up with each write and seal"

    def test_g4_the_mark_never_falls(self, guard: Guard) -> None:
        """What is refused leaves it as it was, by every way of writing."""
        key = self.key()
        self.write(guard, key, FIRST, **under(OLD))
        guard.seal(key, **under(NEWEST))
        before = self.mark(guard, key)

        for late in (OLD, NEW):
            self.refused(self.write, guard, key, NEWS, **under(late))
            self.refused(guard.seal, key, **under(late))

        assert self.mark(self.open(), key) == before
        assert self.value(guard, key) == FIRST

    def test_g5_an_unreadable_mark_refuses_every_write(self, guard: Guard) -> None:
        """Also of a newer owner, and by a guard that was opened afterwards; and nothing changes."""
        key = self.key()
        self.write(guard, key, FIRST, **under(OLD))
        self.spoil_mark(key)

        for each in (guard, self.open()):
            for epoch in (OLD, NEW):
                with pytest.raises(GuardUnavailable):
                    self.write(each, key, NEWS, **under(epoch))
                with pytest.raises(GuardUnavailable):
                    each.seal(key, **under(epoch))
            with pytest.raises(GuardUnavailable, match=r"\S"):
                each.mark(key)
            assert self.value(each, key) == FIRST
        self.write(guard, self.key(1), NEWS, **under(NEW))
        assert self.value(guard, self.key(1)) == NEWS, "another key goes on"
