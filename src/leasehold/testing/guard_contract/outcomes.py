"""G8: after an unknown outcome the guard reads back, and never guesses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ...errors import InDoubt
from ...guard import Guard
from .support import FIRST, NEW, OLD, OLDS, SIBLINGS, Battery, under


class Outcomes(Battery):
    """The write took effect and its reply was lost: to call it refused would be a lie, to repeat it a second write."""

    def _write_and_lose(self, guard: Guard, key: str, meanwhile: Callable[[], None]) -> None:
        with self.lose_reply(guard, meanwhile):
            self.write(guard, key, OLDS, **under(OLD))

    def test_g8_a_write_whose_reply_was_lost_is_recognised(self, guard: Guard) -> None:
        """It returns as if the reply had come, and has written once."""
        key = self.key()
        self.write(guard, key, FIRST, **under(OLD))
        before = self.mark(guard, key)

        self._write_and_lose(guard, key, lambda: None)

        assert self.value(guard, key) == OLDS
        after = self.mark(guard, key)
        assert (after.epoch, after.counter) == (OLD, before.counter + 1)

    def test_g8_the_first_write_of_a_key_is_recognised_too(self, guard: Guard) -> None:
        """There is no earlier mark to compare with."""
        key = self.key()
        self._write_and_lose(guard, key, lambda: None)

        assert (self.value(guard, key), self.mark(guard, key).epoch) == (OLDS, OLD)

    def test_g8_it_is_recognised_after_a_later_write_of_a_sibling(self, guard: Guard) -> None:
        """Or is in doubt. It is not repeated over the sibling's write, and not called stale."""
        key, sibling = self.key(), self.open()
        self.write(guard, key, FIRST, **under(OLD))

        with suppress(InDoubt):
            self._write_and_lose(guard, key, lambda: self.write(sibling, key, SIBLINGS, **under(OLD)))

        assert self.value(guard, key) == SIBLINGS
        assert guard.refused == 0

    def test_g8_it_is_recognised_after_the_seal_of_a_new_owner(self, guard: Guard) -> None:
        """Or is in doubt. It happened, so it is not called refused."""
        key, successor = self.key(), self.open()
        self.write(guard, key, FIRST, **under(OLD))

        with suppress(InDoubt):
            self._write_and_lose(guard, key, lambda: [successor.seal(key, **under(NEW))].clear())

        assert self.value(guard, key) == OLDS
        assert self.mark(guard, key).epoch == NEW
        assert guard.refused == 0
