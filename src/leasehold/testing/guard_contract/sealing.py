"""G3: `seal` raises the mark without writing; `read` seals first; `peek` never does."""

from __future__ import annotations

import pytest

from ...errors import StaleEpoch
from ...guard import Guard, seal_keys
from ..leases import lease, take_over
from .support import FIRST, NEW, NEWEST, NEWS, OLD, OLDS, OWNERS, STORE, Battery, under


class Sealing(Battery):
    """From the seal on, what is read stays as it is read."""

    def test_g3_a_late_write_after_a_seal_is_refused(self, guard: Guard) -> None:
        """Before the new owner has written anything."""
        key = self.key()
        self.write(guard, key, FIRST, **under(OLD))
        seal = guard.seal(key, **under(NEW))

        assert (seal.mark.epoch, seal.mark.owner, seal.mark.store) == (NEW, OWNERS[NEW], STORE)
        assert seal.key == guard.canonical(key)
        self.refused(self.write, guard, key, OLDS, **under(OLD))
        assert self.value(guard, key) == FIRST
        self.write(guard, key, NEWS, **under(NEW))
        assert self.value(guard, key) == NEWS

    def test_g3_a_seal_is_durable_and_seen_by_others(self, guard: Guard) -> None:
        """On a key that was never written, too: another guard object refuses the old owner."""
        key = self.key()
        guard.seal(key, **under(NEW))
        other = self.open()

        assert self.mark(other, key).epoch == NEW
        refusal = self.refused(self.write, other, key, OLDS, **under(OLD))
        assert refusal.owner == OWNERS[NEW]
        assert self.value(other, key) is None

    def test_g3_a_late_seal_is_refused(self, guard: Guard) -> None:
        """It would let the old owner read what it may no longer change."""
        key = self.key()
        guard.seal(key, **under(NEW))
        before = guard.refused

        refusal = self.refused(guard.seal, key, **under(OLD))

        assert (refusal.verb, refusal.presented, refusal.current) == ("seal", OLD, NEW)
        assert guard.refused == before + 1
        assert self.mark(guard, key).epoch == NEW

    def test_g3_a_seal_writes_nothing(self, guard: Guard) -> None:
        """What was there is there."""
        key = self.key()
        self.write(guard, key, FIRST, **under(OLD))
        for epoch in (OLD, NEW, NEW):
            guard.seal(key, **under(epoch))

        assert self.value(guard, key) == FIRST

    def test_g3_several_keys_can_be_sealed(self, guard: Guard) -> None:
        """In any order of the arguments; a key that occurs twice is sealed once."""
        keys = [guard.key(self.key(number)) for number in (1, 0, 1)]

        seals = seal_keys(keys, **under(NEW))

        assert sorted(seal.key for seal in seals) == sorted({key.key for key in keys})
        assert all(self.mark(guard, self.key(number)).epoch == NEW for number in (0, 1))

    def test_g3_read_seals_and_then_reads(self, guard: Guard) -> None:
        """So that no older owner can change what was read."""
        key = self.key()
        self.write(guard, key, FIRST, **under(OLD))

        assert self.read(guard, key, **under(NEW)) == FIRST
        self.refused(self.write, guard, key, OLDS, **under(OLD))
        self.refused(self.read, guard, key, **under(OLD))

    def test_g3_read_checks_that_the_lease_is_current(self, guard: Guard) -> None:
        """A seal by an owner that has lost its lease is harmless, and what it reads is worthless."""
        key, held = self.key(), lease()
        self.write(guard, key, FIRST, lease=held)
        assert self.read(guard, key, lease=held) == FIRST
        take_over(held)

        with pytest.raises(StaleEpoch) as refusal:
            self.read(guard, key, lease=held)
        assert refusal.value.job_id == held.job_id
        with held.active(), pytest.raises(StaleEpoch):
            self.read(guard, key)

    def test_g3_peek_needs_no_lease_and_never_seals(self, guard: Guard) -> None:
        """A dashboard does not fence the owner."""
        key = self.key()
        assert self.peek(guard, key) is None
        assert guard.mark(key) is None
        self.write(guard, key, FIRST, **under(OLD))
        before = self.mark(guard, key)

        assert self.peek(guard, key) == FIRST
        with lease().active():
            assert self.peek(guard, key) == FIRST
        assert self.mark(guard, key) == before

    def test_g3_the_newest_seal_counts(self, guard: Guard) -> None:
        """Also for the owner between the two."""
        key = self.key()
        guard.seal(key, **under(OLD))
        guard.seal(key, **under(NEWEST))

        self.refused(self.write, guard, key, NEWS, **under(NEW))
        assert self.mark(guard, key).epoch == NEWEST
