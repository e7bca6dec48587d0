"""
A small guard that keeps the whole contract, and ways to break it: the battery is proved with both.

Its resource is a folder in which each version of a key is a file of its own. A version is made by a link to its number,
which fails if that number is taken: compare and write are one step, over processes too.
"""

from __future__ import annotations

import base64
import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from leasehold.core import checks
from leasehold.core.marks import Mark, Writer
from leasehold.errors import GuardUnavailable, InDoubt, StaleEpoch, Unfenced
from leasehold.guard import Guard, Seal

NONCES = 16


class Lost(Exception):
    """The reply of a swap was lost."""


class Version(NamedTuple):
    """What a key has: its mark, what was written, and the last writes that it knows."""

    mark: str
    value: bytes | None
    nonces: tuple[str, ...] = ()


class Shelf:
    """The resource: versions of keys, of which the next is made only if it is the next."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lose: Callable[[], None] | None = None  # called after the next swap, whose reply is lost

    def _names(self, key: str) -> list[str]:
        name = base64.urlsafe_b64encode(key.encode()).decode()
        return sorted(path.name for path in self.folder.glob(f"{name}.*"))

    def newest(self, key: str) -> tuple[int, Version | None]:
        """Return the newest version of *key* and its number, which is 0 if there is none."""
        names = self._names(key)
        if not names:
            return 0, None
        text = (self.folder / names[-1]).read_text()
        number = int(names[-1].rpartition(".")[2])
        try:
            mark, value, nonces = json.loads(text)
            return number, Version(mark, None if value is None else base64.b64decode(value), tuple(nonces))
        except ValueError:
            return number, Version("?", None)

    def swap(self, key: str, number: int, version: Version) -> bool:
        """Make *version* the one after *number*; return whether no other was."""
        value = None if version.value is None else base64.b64encode(version.value).decode()
        draft = self.folder / f"draft-{uuid.uuid4().hex}"
        draft.write_text(json.dumps([version.mark, value, version.nonces]))
        name = base64.urlsafe_b64encode(key.encode()).decode()
        try:
            os.link(draft, self.folder / f"{name}.{number + 1:09}")
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        if (lose := self.lose) is not None:
            self.lose = None
            lose()
            raise Lost
        return True

    def put(self, key: str, version: Version) -> None:
        """Make *version* the newest, whatever the newest was."""
        while not self.swap(key, self.newest(key)[0], version):
            pass


class CarelessShelf(Shelf):
    """A resource that ignores the condition."""

    def swap(self, key: str, number: int, version: Version) -> bool:
        """Make *version* the newest one."""
        return super().swap(key, self.newest(key)[0], version)


class Reference(Guard):
    """Keeps every clause."""

    kind = "reference"
    STEPS: ClassVar[tuple[str, ...]] = ("begun", "compared", "written")

    def __init__(self, folder: Path, shelf: type[Shelf] = Shelf) -> None:
        super().__init__()
        self.shelf = shelf(folder)

    def canonical(self, key: str) -> str:
        """Return the key."""
        return checks.name(key, "key")

    def mark(self, key: str) -> Mark | None:
        """Return the mark."""
        key = self.canonical(key)
        return self.decoded(key, self.shelf.newest(key)[1])

    def decoded(self, key: str, version: Version | None) -> Mark | None:
        """Return the mark of a version."""
        return None if version is None else Mark.decode(version.mark, self.resource(key))

    def write(self, key: str, value: bytes, **presented: Any) -> None:
        """Replace what is at *key*."""
        self.change(self.canonical(key), "write", lambda _: value, presented)

    def delete(self, key: str, **presented: Any) -> None:
        """Remove what is at *key*, and keep its mark."""
        self.change(self.canonical(key), "delete", lambda _: None, presented)

    def read(self, key: str, **presented: Any) -> bytes | None:
        """Seal, check the lease, read."""
        self.seal(key, **presented)
        self._check_current(presented)
        return self.peek(key)

    def peek(self, key: str) -> bytes | None:
        """Return what is at *key*."""
        version = self.shelf.newest(self.canonical(key))[1]
        return None if version is None else version.value

    def change(
        self, key: str, verb: str, new: Callable[[bytes | None], bytes | None], presented: dict[str, Any]
    ) -> None:
        """Put what *new* makes of the value, if the writer is admitted."""
        with self._attempt(key, verb, presented) as writer:
            self.at("begun")
            self.swap(key, verb, new, writer)
            self.at("written")

    def swap(self, key: str, verb: str, new: Callable[[bytes | None], bytes | None], writer: Writer) -> Mark:
        """Compare and write, again while a sibling was faster."""
        nonce = uuid.uuid4().hex
        while True:
            number, before = self.shelf.newest(key)
            mark = self._admit(key, self.decoded(key, before), writer, verb)
            if verb != "seal":
                self.at("compared")
            value, nonces = (None, ()) if before is None else (before.value, before.nonces)
            try:
                if self.shelf.swap(key, number, Version(mark.encode(), new(value), (nonce, *nonces)[:NONCES])):
                    return mark
            except Lost:
                return self.read_back(key, nonce, mark)

    def read_back(self, key: str, nonce: str, mark: Mark) -> Mark:
        """Return *mark* if the write happened."""
        version = self.shelf.newest(key)[1]
        if version is None or nonce not in version.nonces:
            raise InDoubt.of_resource(self.resource(key), epoch=mark.epoch, why="later writes hide it")
        return mark

    def _seal(self, key: str, writer: Writer) -> Seal:
        return Seal(key, self.swap(key, "seal", lambda value: value, writer))

    def _prove(self) -> None:
        key = f"prove-{uuid.uuid4().hex}"
        version = Version(Mark(1, 1, "prove", "prove").encode(), None)
        if [self.shelf.swap(key, 0, version), self.shelf.swap(key, 0, version)] != [True, False]:
            raise Unfenced("the resource made the same version twice: it ignores the condition.")


# Each breaks one thing.


class ComparesThenWrites(Reference):
    """Compares, and writes later, whatever has happened in between."""

    def swap(self, key: str, verb: str, new: Callable[[bytes | None], bytes | None], writer: Writer) -> Mark:
        """Check, then act."""
        before = self.shelf.newest(key)[1]
        mark = self._admit(key, self.decoded(key, before), writer, verb)
        if verb != "seal":
            self.at("compared")
        self.shelf.put(key, Version(mark.encode(), new(None if before is None else before.value)))
        return mark


class DeletesTheMark(Reference):
    """Deletes the mark with the data."""

    def delete(self, key: str, **presented: Any) -> None:
        """Leave nothing behind."""
        super().delete(key, **presented)
        for name in self.shelf._names(key):
            (self.shelf.folder / name).unlink()


class AdmitsAll(Reference):
    """Lets the mark fall."""

    def _admit(self, key: str, mark: Mark | None, writer: Writer, verb: str = "write") -> Mark:
        return Mark(writer.epoch, mark.counter + 1 if mark else 1, writer.owner, writer.store)


class RefusesEqual(Reference):
    """Admits each epoch once."""

    def _admit(self, key: str, mark: Mark | None, writer: Writer, verb: str = "write") -> Mark:
        return super()._admit(key, mark, writer._replace(epoch=writer.epoch - 1), verb)._replace(epoch=writer.epoch)


class LeavesTheMark(Reference):
    """Changes the mark only with the epoch."""

    def _admit(self, key: str, mark: Mark | None, writer: Writer, verb: str = "write") -> Mark:
        after = super()._admit(key, mark, writer, verb)
        return mark if mark is not None and mark.epoch == after.epoch else after


class CallsSiblingsStale(Reference):
    """Takes a lost race under one epoch for a stale one."""

    def swap(self, key: str, verb: str, new: Callable[[bytes | None], bytes | None], writer: Writer) -> Mark:
        """Try once."""
        number, before = self.shelf.newest(key)
        mark = self._admit(key, self.decoded(key, before), writer, verb)
        if verb != "seal":
            self.at("compared")
        value = new(None if before is None else before.value)
        if self.shelf.swap(key, number, Version(mark.encode(), value)):
            return mark
        raise StaleEpoch(
            "stale", resource=self.resource(key), presented=writer.epoch, current=writer.epoch, owner=writer.owner
        )


class SealsInMemory(Reference):
    """Forgets its seals with the process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seals: dict[str, Mark] = {}

    def decoded(self, key: str, version: Version | None) -> Mark | None:
        """Return the newer of the two marks."""
        marks = [mark for mark in (self.seals.get(key), super().decoded(key, version)) if mark is not None]
        return max(marks, default=None)

    def _seal(self, key: str, writer: Writer) -> Seal:
        self.seals[key] = self._admit(key, self.mark(key), writer, "seal")
        return Seal(key, self.seals[key])


class IgnoresWhatItCannotRead(Reference):
    """Takes an unreadable mark for none."""

    def decoded(self, key: str, version: Version | None) -> Mark | None:
        """Return the mark, or None."""
        try:
            return super().decoded(key, version)
        except GuardUnavailable:
            return None


class ProvesNothing(Reference):
    """Has a `prove` that looks at nothing."""

    def _prove(self) -> None:
        pass


class CountsItsProofs(Reference):
    """Counts the refusals of `prove` as those of owners."""

    def _prove(self) -> None:
        self.refused += 1


class OneMarkForAll(Reference):
    """Has one mark for every key."""

    def mark(self, key: str) -> Mark | None:
        """Return the mark of all."""
        return super().mark("all")

    def _admit(self, key: str, mark: Mark | None, writer: Writer, verb: str = "write") -> Mark:
        if key != "all":
            self.swap("all", "seal", lambda value: value, writer)
        return super()._admit(key, mark, writer, verb)


class GuessesStale(Reference):
    """Calls a write stale whose reply was lost."""

    def read_back(self, key: str, nonce: str, mark: Mark) -> Mark:
        """Guess."""
        raise StaleEpoch("?", resource=self.resource(key), presented=mark.epoch, current=mark.epoch)


class WritesTwice(Reference):
    """Repeats a write whose reply was lost."""

    def swap(self, key: str, verb: str, new: Callable[[bytes | None], bytes | None], writer: Writer) -> Mark:
        """Guess."""
        try:
            return super().swap(key, verb, new, writer)
        except StaleEpoch:
            raise
        except InDoubt:
            return super().swap(key, verb, new, writer)

    def read_back(self, key: str, nonce: str, mark: Mark) -> Mark:
        """Do not look."""
        raise InDoubt.of_resource(self.resource(key), epoch=mark.epoch, why="not looked")


class SilentRefusals(Reference):
    """Neither counts nor logs."""

    def _note_refusal(self, key: str, writer: Writer, verb: str, refusal: StaleEpoch) -> None:
        pass


class SilentTakeovers(Reference):
    """Does not log that a key passes to another store."""

    def _admit(self, key: str, mark: Mark | None, writer: Writer, verb: str = "write") -> Mark:
        same = mark._replace(store=writer.store) if mark is not None and writer.epoch >= mark.epoch else mark
        return super()._admit(key, same, writer, verb)


class AnyStore(SilentTakeovers):
    """Ignores `strict_store`."""


class NoForeigners(Reference):
    """Refuses every other store, unasked."""

    def _admit(self, key: str, mark: Mark | None, writer: Writer, verb: str = "write") -> Mark:
        self.strict_store = True
        return super()._admit(key, mark, writer, verb)


class ReadsWithoutSeal(Reference):
    """Reads as `peek` does."""

    def read(self, key: str, **presented: Any) -> bytes | None:
        """Read."""
        return self.peek(key)


class ReadsWithoutCheck(Reference):
    """Does not ask whether the lease is current."""

    def _check_current(self, presented: Any) -> None:
        pass


class PeeksAndSeals(Reference):
    """Raises the mark for a reader."""

    def peek(self, key: str) -> bytes | None:
        """Read, and disturb."""
        mark = self.mark(key)
        epoch = mark.epoch if mark is not None else 1
        self.seal(key, epoch=epoch, owner="peek", store="peek")
        return super().peek(key)


class TakesAnyKey(Reference):
    """Checks no key."""

    def canonical(self, key: str) -> str:
        """Return anything."""
        return str(key)


class AnonymousWrites(Reference):
    """Lets a caller without a lease write."""

    def writer(self, key: str, presented: Any) -> Writer:
        """Return a writer that nothing refuses."""
        return super().writer(key, presented) if presented else Writer(2**53 - 1, "?", "?")


class HalfWritten(Reference):
    """Writes in two steps."""

    def swap(self, key: str, verb: str, new: Callable[[bytes | None], bytes | None], writer: Writer) -> Mark:
        """Write half of it first."""
        before = self.shelf.newest(key)[1]
        value = new(None if before is None else before.value)
        if verb == "write" and value is not None:
            mark = self._admit(key, self.decoded(key, before), writer, verb)
            self.shelf.put(key, Version(mark.encode(), value[: len(value) // 2]))
        return super().swap(key, verb, new, writer)


class SecretiveLock(Reference):
    """Has a lock that is held over its steps, and does not say by which process."""

    def swap(self, key: str, verb: str, new: Callable[[bytes | None], bytes | None], writer: Writer) -> Mark:
        """Take the lock, or give up at once."""
        lock = self.shelf.folder / "lock"
        try:
            lock.touch(exist_ok=False)
        except FileExistsError:
            raise GuardUnavailable("another process has the lock.") from None
        try:
            return super().swap(key, verb, new, writer)
        finally:
            lock.unlink()


class SkipsAStep(Reference):
    """Does not go through all of its steps."""

    STEPS = (*Reference.STEPS, "synced")
