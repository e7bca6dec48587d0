"""G6: `prove` shows on the real resource that the fence bites."""

from __future__ import annotations

import pytest

from ...errors import Unfenced
from ...guard import Guard
from .support import FIRST, OLD, Battery, under


class Proving(Battery):
    """A resource may accept the request and ignore its condition."""

    def test_g6_prove_passes_on_a_resource_that_compares(self, guard: Guard) -> None:
        """Again and again, and in a second guard on the same resource: it is run at each start."""
        for each in (guard, guard, self.open()):
            each.prove()

    def test_g6_prove_disturbs_nothing(self, guard: Guard) -> None:
        """It has a key of its own, and its refusals are not counted."""
        key = self.key()
        self.write(guard, key, FIRST, **under(OLD))
        before = self.mark(guard, key)

        guard.prove()

        assert (self.mark(guard, key), self.value(guard, key), guard.refused) == (before, FIRST, 0)

    def test_g6_prove_fails_on_a_resource_that_ignores_the_condition(self) -> None:
        """With an error that is caught by its own name."""
        with pytest.raises(Unfenced):
            self.unfenced().prove()
