"""G2, G3 and G4 over processes: a writer that is killed, or stopped, at each step of its write."""

from __future__ import annotations

import signal
import sys

import pytest

from ...errors import GuardUnavailable
from ...guard import Guard
from .staging import Child
from .support import FIRST, NEW, NEWEST, NEWS, OLD, OLDS, Battery, under

_needs_signals = pytest.mark.skipif(
    not hasattr(signal, "SIGSTOP"), reason=f"{sys.platform} cannot stop a process at a step"
)


class Crashing(Battery):
    """What a dead or paused writer leaves behind."""

    @_needs_signals
    def test_g2_a_write_that_is_killed_leaves_the_old_or_the_new_value(self) -> None:
        """At each step, with SIGKILL: never half of it, and the next owner goes on."""
        for number, step in enumerate(self.open().STEPS):
            guard, key = self.open(), self.key(number)
            self.write(guard, key, FIRST, **under(OLD))
            before = self.mark(guard, key)
            with Child(self, key, OLDS, under(OLD), step) as child:
                child.arrive()
                child.kill()

            at = f"killed at {step!r}"
            found = self.value(self.open(), key)
            assert found in (FIRST, OLDS), f"{at}: {found!r:.80}"
            after = self.mark(guard, key)
            assert (after.epoch, after.counter) >= (before.epoch, before.counter), at
            self.sealed(guard, key, NEW)
            assert self.value(guard, key) == found, f"{at}: the value changed after its writer was dead"
            self.retried(self.write, guard, key, NEWS, **under(NEW))
            assert self.value(guard, key) == NEWS, at
            self.refused(self.write, guard, key, OLDS, **under(OLD))

    @_needs_signals
    def test_g2_a_first_write_that_is_killed_leaves_all_or_nothing(self) -> None:
        """At each step, on a key that has no mark yet."""
        for number, step in enumerate(self.open().STEPS):
            guard, key = self.open(), self.key(number)
            with Child(self, key, OLDS, under(OLD), step) as child:
                child.arrive()
                child.kill()

            assert self.value(guard, key) in (None, OLDS), f"killed at {step!r}"
            self.retried(self.write, guard, key, NEWS, **under(NEW))
            assert self.value(guard, key) == NEWS, f"killed at {step!r}"

    @_needs_signals
    def test_g3_a_stopped_writer_does_not_block_a_seal_silently(self) -> None:
        """A sample of the steps: the first, the one in the middle and the last."""
        steps = self.open().STEPS
        for step in sorted({steps[0], steps[len(steps) // 2], steps[-1]}, key=steps.index):
            self._seal_beside_a_stopped_writer(self.key(steps.index(step)), step, by_write=False)

    @_needs_signals
    @pytest.mark.soak
    @pytest.mark.parametrize("by_write", [False, True], ids=["seal", "write"])
    def test_g3_a_writer_stopped_at_any_step_blocks_nothing_silently(self, by_write: bool) -> None:
        """At each step, beside a successor that seals, and one that writes at once."""
        for number, step in enumerate(self.open().STEPS):
            self._seal_beside_a_stopped_writer(self.key(number), step, by_write=by_write)

    def _seal_beside_a_stopped_writer(self, key: str, step: str, *, by_write: bool) -> None:
        guard, at = self.open(), f"stopped at {step!r}"
        self.write(guard, key, FIRST, **under(OLD))
        with Child(self, key, OLDS, under(OLD), step) as child:
            child.arrive()
            child.freeze()
            doubts: bool | None = None
            unavailable = ""
            try:
                if by_write:
                    self.write(guard, key, NEWS, **under(NEW))
                    doubts = self.in_doubt(guard, key, OLD)
                else:
                    doubts = bool(guard.seal(key, **under(NEW)).doubts)
            except GuardUnavailable as error:
                unavailable = str(error)
            # Bounded and named: an operator knows which process to look at.
            assert not unavailable or not self.names_holder or str(child.pid) in unavailable, f"{at}: {unavailable}"
            then = self.value(guard, key) if doubts is not None else None
            outcome = child.thaw()
        if doubts is None:
            # The writer was inside its atomic step, as an owner that no seal has refused: it may finish.
            assert outcome.get("wrote") or outcome["error"] in ("StaleEpoch", "GuardUnavailable"), f"{at}: {outcome}"
            self.sealed(guard, key, NEW)
            assert self.value(guard, key) == (OLDS if outcome.get("wrote") else FIRST), at
        elif not doubts:
            assert self.value(guard, key) == then, f"{at}: it wrote after it was sealed out"
            if outcome.get("wrote"):
                assert by_write or then == OLDS, f"{at}: it returned, and its value is not there"
            else:
                assert outcome["error"] == "StaleEpoch", f"{at}: {outcome}"
        self.refused(self.write, guard, key, OLDS, **under(OLD))

    @_needs_signals
    def test_g4_the_mark_is_seen_by_another_process(self, guard: Guard) -> None:
        """Which opened its guard before the seal, and comes to its write after it."""
        key = self.key()
        step = guard.STEPS[0]
        self.write(guard, key, FIRST, **under(OLD))
        with Child(self, key, OLDS, under(OLD), step) as child:
            child.arrive()
            self.sealed(guard, key, NEWEST)
            outcome = child.finish()

        assert outcome.get("error") == "StaleEpoch", outcome
        assert str(NEWEST) in outcome["message"]
        assert self.value(guard, key) == FIRST
