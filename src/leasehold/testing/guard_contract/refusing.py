"""G1: what is refused, what is admitted, who writes, and to which keys."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Any

import pytest

from ...core.marks import Writer
from ...errors import Conflict, InvalidArgument, NoLease, StaleEpoch
from ...guard import Guard
from ..leases import lease, take_over
from .staging import Staged
from .support import FIRST, NEW, NEWS, OLD, OLDS, OWNERS, SIBLINGS, STORE, Battery, under

_BAD_KEYS: tuple[Any, ...] = ("", "a\0b", "x" * 70_000, "half \ud800 a character", 7, None, b"bytes")


class Refusing(Battery):
    """A stale write is refused, and says by whom."""

    def test_g1_a_late_write_is_refused_and_names_both_epochs_and_the_owner(self, guard: Guard) -> None:
        """The old owner finds the new one's mark, and what the new one wrote stays."""
        key = self.key()
        self.write(guard, key, OLDS, **under(OLD))
        self.write(guard, key, NEWS, **under(NEW))

        refusal = self.refused(self.write, guard, key, OLDS, **under(OLD))

        assert (refusal.presented, refusal.current, refusal.owner) == (OLD, NEW, OWNERS[NEW])
        assert refusal.resource == guard.resource(guard.canonical(key))
        assert refusal.job_id is None
        assert str(OLD) in str(refusal)
        assert str(NEW) in str(refusal)
        assert self.value(guard, key) == NEWS

    def test_g1_a_refusal_is_counted_logged_and_reported(self, guard: Guard, caplog: pytest.LogCaptureFixture) -> None:
        """`refused` goes up, the log has a warning, and `on_refusal` gets the facts."""
        key, reports = self.key(), list[tuple[str, Writer, StaleEpoch]]()
        self.write(guard, key, NEWS, **under(NEW))
        guard.on_refusal = lambda guard, key, writer, refusal: reports.append((key, writer, refusal))
        before = guard.refused

        with caplog.at_level(logging.WARNING, "leasehold"):
            refusal = self.refused(self.write, guard, key, OLDS, **under(OLD))

        assert guard.refused == before + 1
        assert [(key, writer.epoch, writer.owner) for key, writer, _ in reports] == [
            (guard.canonical(key), OLD, OWNERS[OLD])
        ]
        assert reports[0][2].current == refusal.current
        assert any(guard.resource(guard.canonical(key)) in record.getMessage() for record in caplog.records)

    def test_g1_what_is_not_refused_is_not_counted(self, guard: Guard) -> None:
        """Counters of refusals are alarms."""
        self.write(guard, self.key(), OLDS, **under(OLD))
        self.write(guard, self.key(), NEWS, **under(NEW))

        assert guard.refused == 0

    def test_g1_an_equal_epoch_is_admitted_again_and_again(self, guard: Guard) -> None:
        """An owner writes as often as it likes."""
        key = self.key()
        for value in (FIRST, OLDS, SIBLINGS):
            self.write(guard, key, value, **under(OLD))
            assert self.value(guard, key) == value

    def test_g1_writes_of_one_epoch_from_two_threads_both_succeed(self) -> None:
        """At every pair of steps: one of the values is there, and neither is called stale."""
        steps = self.open().STEPS
        for number, (one, other) in enumerate((one, other) for one in steps for other in steps):
            self._two_of_one_epoch(self.key(number), one, other)

    def _two_of_one_epoch(self, key: str, one: str, other: str) -> None:
        at = f"one at {one!r}, the other at {other!r}"
        guards = self.open(), self.open()
        self.write(guards[0], key, FIRST, **under(OLD))
        before = self.mark(guards[0], key)
        first = Staged(guards[0], one, lambda: self.write(guards[0], key, OLDS, **under(OLD)), blocks=self.blocks)
        first.arrive()
        sibling = partial(self.write, guards[1], key, SIBLINGS, **under(OLD))
        second = Staged(guards[1], other, sibling, blocks=self.blocks)
        second.arrive()
        first.release()
        second.release()

        errors = [error for error in (first.finish(), second.finish()) if error is not None]

        for error in errors:
            if not isinstance(error, Conflict) or self.merges:
                raise AssertionError(f"{at}: {error!r}") from error
        assert len(errors) < 2, at
        assert self.value(guards[0], key) in (OLDS, SIBLINGS), at
        after = self.mark(guards[0], key)
        assert after.epoch == OLD
        assert after.counter >= before.counter + 2 - len(errors), at

    def test_g1_one_guard_object_serves_several_threads(self, guard: Guard) -> None:
        """Their writes under one epoch are all admitted, in some order."""
        key, errors = self.key(), list[BaseException]()
        self.write(guard, key, FIRST, **under(OLD))
        start = threading.Barrier(4)

        def write(value: bytes) -> None:
            start.wait()
            try:
                self.write(guard, key, value, **under(OLD))
            except Exception as error:
                errors.append(error)

        values = [bytes([ord("a") + number]) * 1024 for number in range(4)]
        threads = [threading.Thread(target=write, args=(value,)) for value in values]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert [error for error in errors if self.merges or not isinstance(error, Conflict)] == []
        assert self.value(guard, key) in values
        assert self.mark(guard, key).epoch == OLD

    def test_g1_another_key_is_not_affected(self, guard: Guard) -> None:
        """A mark is of one key."""
        mine, other = self.key(0), self.key(1)
        self.write(guard, other, FIRST, **under(OLD))
        before = self.mark(guard, other)
        self.write(guard, mine, NEWS, **under(NEW))

        assert self.mark(guard, other) == before
        self.write(guard, other, OLDS, **under(OLD))
        assert (self.value(guard, mine), self.value(guard, other)) == (NEWS, OLDS)

    # Who writes

    def test_g1_the_current_lease_writes(self, guard: Guard) -> None:
        """Inside a handler, nothing has to be named."""
        key, held = self.key(), lease(owner="worker-0")
        with held.active():
            self.write(guard, key, FIRST)

        mark = self.mark(guard, key)
        assert (mark.epoch, mark.owner, mark.store) == (held.epoch, "worker-0", held.store.identity())

    def test_g1_a_lease_can_be_passed(self, guard: Guard) -> None:
        """It goes before the current one, and an older one of the same job is refused."""
        key, held = self.key(), lease(owner="worker-0")
        successor = take_over(held)
        with held.active():
            self.write(guard, key, NEWS, lease=successor)

            refusal = self.refused(self.write, guard, key, OLDS)

        assert (refusal.presented, refusal.current, refusal.owner) == (held.epoch, successor.epoch, "successor")

    def test_g1_an_epoch_can_be_passed_with_owner_and_store(self, guard: Guard) -> None:
        """A caller without leasehold's worker needs no lease object; one that names only a part is refused."""
        key = self.key()
        self.write(guard, key, FIRST, **under(OLD))

        mark = self.mark(guard, key)
        assert (mark.epoch, mark.owner, mark.store) == (OLD, OWNERS[OLD], STORE)
        with pytest.raises(InvalidArgument, match="owner"):
            self.write(guard, key, NEWS, epoch=NEW, store=STORE)
        with pytest.raises(InvalidArgument, match="store"):
            self.write(guard, key, NEWS, epoch=NEW, owner="x")
        assert self.mark(guard, key) == mark

    @pytest.mark.parametrize("epoch", [0, -1, 2**53, 1.5, "7", True])
    def test_g1_what_is_not_an_epoch_is_an_invalid_argument(self, guard: Guard, epoch: Any) -> None:
        """A mark above every epoch would lock the key for ever."""
        with pytest.raises(InvalidArgument, match="epoch"):
            self.write(guard, self.key(), FIRST, epoch=epoch, owner="x", store=STORE)

        assert guard.mark(self.key()) is None

    def test_g1_without_a_lease_nothing_is_written(self, guard: Guard) -> None:
        """`NoLease`, and the key stays as it was."""
        key = self.key()
        self.write(guard, key, FIRST, **under(OLD))
        before = self.mark(guard, key)

        with pytest.raises(NoLease):
            self.write(guard, key, NEWS)
        with pytest.raises(NoLease):
            guard.seal(key)

        assert (self.value(guard, key), self.mark(guard, key)) == (FIRST, before)

    # Keys

    @pytest.mark.parametrize("key", _BAD_KEYS, ids=lambda key: repr(key)[:20])
    def test_g1_what_cannot_be_a_key_is_an_invalid_argument(self, guard: Guard, key: Any) -> None:
        """Everywhere: before anything is read or written."""
        with pytest.raises(InvalidArgument):
            guard.canonical(key)
        with pytest.raises(InvalidArgument):
            guard.mark(key)
        with pytest.raises(InvalidArgument):
            guard.seal(key, **under(OLD))
        with pytest.raises(InvalidArgument):
            self.write(guard, key, FIRST, **under(OLD))

    def test_g1_a_key_has_one_name(self, guard: Guard) -> None:
        """The canonical name is its own canonical name, and means the same key."""
        for key in (self.key(), f"{self.key()}-ünï"):
            try:
                name = guard.canonical(key)
            except InvalidArgument:
                continue  # a guard may admit fewer characters
            assert guard.canonical(name) == name
            guard.seal(key, **under(NEW))
            assert self.mark(guard, name).epoch == NEW
            assert guard.key(key).key == name
            self.refused(guard.seal, name, **under(OLD))
