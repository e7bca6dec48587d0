"""What the topics of the battery share: the hooks of a guard, and what its tests present and expect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import pytest

from ...core.marks import Mark
from ...errors import Conflict, GuardUnavailable, StaleEpoch
from ...guard import Guard, Seal

OLD, NEW, NEWEST = 1_794_776_400_000_007, 1_794_776_400_000_011, 1_794_776_400_000_019
STORE, OTHER_STORE = "store-a", "store-b"
OWNERS = {OLD: "old-owner", NEW: "new-owner", NEWEST: "newest-owner"}

# Large enough that half of a value would show.
FIRST, OLDS, NEWS, SIBLINGS = (text * 4096 for text in (b"first ", b"old ", b"new ", b"sibling "))


def under(epoch: int, *, store: str = STORE, owner: str | None = None) -> dict[str, Any]:
    """Return what an owner presents that has an epoch, and no lease object."""
    return {"epoch": epoch, "owner": owner or OWNERS[epoch], "store": store}


class Hooks:
    """The hooks that say how to reach a guarded resource. A guard needs `open`; the others have defaults, or skip."""

    merges: ClassVar[bool] = True  # False: of two writes at once under one epoch, one may get `Conflict`
    names_holder: ClassVar[bool] = True  # False: the resource cannot tell which process blocks a seal
    blocks: ClassVar[bool] = True  # False: a writer that stands still at a step keeps no other owner waiting

    def open(self) -> Guard:
        """Return a new guard on the resource of this test: each call is a restart. Every guard needs this hook."""
        raise NotImplementedError("a GuardContract needs open(self), which returns a guard on the resource.")

    @property
    def factory(self) -> Callable[[], Guard]:
        """A picklable function that opens the guard, in a child process: of a module, or a partial of one."""
        pytest.skip("this guard has no second process: it has no factory hook")

    def key(self, number: int = 0) -> str:
        """Return one of many keys of the resource, none of which has been written."""
        return f"key-{number}"

    @staticmethod
    def put(guard: Any, key: str, value: bytes, presented: dict[str, Any]) -> None:
        """Write *value*; a static method, since child processes call it too."""
        guard.write(key, value, **presented)

    def write(self, guard: Guard, key: str, value: bytes, **presented: Any) -> None:
        """Write *value*, by `put`."""
        self.put(guard, key, value, presented)

    def value(self, guard: Guard, key: str) -> bytes | None:
        """Return what is really there, without a lease and without sealing; None if nothing is."""
        return self.peek(guard, key)

    def delete(self, guard: Guard, key: str, **presented: Any) -> None:
        """Delete what is at *key*."""
        if not hasattr(guard, "delete"):
            pytest.skip("this guard deletes nothing")
        guard.delete(key, **presented)

    def read(self, guard: Guard, key: str, **presented: Any) -> bytes | None:
        """Read as an owner: seal, check the lease, read."""
        if not hasattr(guard, "read"):
            pytest.skip("this guard does not read: its caller seals and reads")
        found: bytes | None = guard.read(key, **presented)
        return found

    def peek(self, guard: Guard, key: str) -> bytes | None:
        """Read without a lease."""
        if not hasattr(guard, "peek"):
            pytest.skip("this guard does not read")
        found: bytes | None = guard.peek(key)
        return found

    def strict(self) -> Guard:
        """Return a guard that takes no epoch of another store."""
        guard = self.open()
        guard.strict_store = True
        return guard

    def spoil_mark(self, key: str) -> None:
        """Make the mark of *key* unreadable, out of band."""
        pytest.skip("the mark of this guard cannot be spoiled: it has no spoil_mark() hook")

    def unfenced(self) -> Guard:
        """Return a guard on a resource of this kind that ignores the condition."""
        pytest.skip("this kind of resource has no variant that ignores the condition: there is no unfenced() hook")

    def lose_reply(self, guard: Guard, meanwhile: Callable[[], None]) -> AbstractContextManager[None]:
        """
        Return a context in which the next write of *guard* takes effect, and its reply is lost.

        *meanwhile* is called in between: after the write has taken effect, and before the guard learns of the loss.
        """
        pytest.skip("no reply can be lost here: there is no lose_reply() hook")

    def in_doubt(self, guard: Guard, key: str, epoch: int) -> bool:
        """Return whether the guard has recorded that a use of *key* under *epoch* may still write (a `Gate`)."""
        return False


class Battery(Hooks):
    """What the tests are written with."""

    @pytest.fixture
    def guard(self) -> Guard:
        """The guard under test."""
        return self.open()

    def mark(self, guard: Guard, key: str) -> Mark:
        """Return the mark of a key that has one."""
        mark = guard.mark(key)
        assert mark is not None, f"{key!r} has no mark"
        return mark

    def refused(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> StaleEpoch:
        """Return the refusal of a call."""
        with pytest.raises(StaleEpoch) as refusal:
            call(*args, **kwargs)
        return refusal.value

    def retried(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return what a call of the newest owner returns, which may have to be repeated while an older one leaves."""
        for _ in range(100):
            try:
                return call(*args, **kwargs)
            except (GuardUnavailable, Conflict) as error:
                if isinstance(error, Conflict) and self.merges:
                    raise
                last = error
        raise AssertionError("it did not succeed in 100 attempts") from last

    def sealed(self, guard: Guard, key: str, epoch: int) -> Seal:
        """Seal a key for the newest owner, repeating it while an older one is in the way."""
        seal: Seal = self.retried(guard.seal, key, **under(epoch))
        return seal


@contextmanager
def recorded(guard: Guard) -> Iterator[list[str]]:
    """Yield the list of the steps through which writes of *guard* go, while the block runs."""
    steps: list[str] = []
    guard.at = steps.append
    try:
        yield steps
    finally:
        guard.at = _nothing


def _nothing(step: str) -> None:
    """Do nothing at a step."""
