"""Shows that an object store compares: on a canary key, with the requests that a guard makes."""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress

from ...core.marks import Mark
from ...errors import GuardUnavailable, Unfenced
from .bucket import Bucket, Refused, Unknown, Version
from .pointer import FOLDER, Content, Pointer, follow

_AT_ONCE = 4
_RESOURCE = "the canary of prove()"


def prove(bucket: Bucket) -> None:
    """
    Create a pointer twice, replace it under a state that has passed and one that never was, and do so at once.

    Raises `Unfenced` if the store accepts what it must refuse, and `GuardUnavailable` if it does not answer.
    """
    canary = _Canary(bucket)
    try:
        canary.prove()
    finally:
        with suppress(GuardUnavailable):  # a policy may forbid it; a canary is some hundred bytes
            bucket.remove([canary.key])


class _Canary:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.key = f"{FOLDER}/prove/{secrets.token_hex(8)}"

    def prove(self) -> None:
        never = self._replaces(_pointer(1), {"e_tag": '"00000000000000000000000000000000"', "version": "1"})
        if never is not None:
            raise self._unfenced("replaced an object that does not exist (If-Match)")
        first, second, third = _pointer(1), _pointer(2), _pointer(3)
        created = self._must(first, None)
        if self._replaces(second, None) is not None:
            raise self._unfenced("created an object that exists (If-None-Match: *)")
        # A seal: another counter, and the same epoch, owner and data.
        sealed = self._must(second, created)
        if sealed == created:
            raise self._unfenced("gave two contents of an object the same ETag")
        if self._replaces(third, created) is not None:
            raise self._unfenced("replaced an object by its previous ETag (If-Match)")
        if self._at_once(sealed) != 1:
            raise self._unfenced(
                f"accepted more than one of {_AT_ONCE} concurrent replacements that named the same ETag"
            )

    def _must(self, pointer: Pointer, seen: Version | None) -> Version:
        """Make a change that nothing forbids; return the state that a reader sees after it."""
        accepted = self._replaces(pointer, seen)
        found = self._bucket.pointer(self.key, _RESOURCE)
        if accepted is None:
            raise self._unfenced("refused a request whose condition held", "a guard could not write there")
        if found is None or found.pointer != pointer:
            raise self._unfenced(
                "accepted a change that a read did not show afterwards", "a guard could miss a seal there"
            )
        if not found.version:
            raise self._unfenced("has neither ETags nor generations")
        return found.version

    def _replaces(self, pointer: Pointer, seen: Version | None) -> Version | None:
        try:
            return self._bucket.replace(self.key, pointer.encode(), seen)
        except Refused:
            return None
        except Unknown as error:
            raise GuardUnavailable(
                f"prove() could not test {self._bucket!r}, which did not answer: {error}. Try again."
            ) from error

    def _at_once(self, seen: Version) -> int:
        """Send several changes under one state at once; return how many of them were accepted."""
        outcomes: list[Version | GuardUnavailable | None] = []
        barrier = threading.Barrier(_AT_ONCE)

        def change(number: int) -> None:
            barrier.wait()
            try:
                outcomes.append(self._replaces(_pointer(10 + number), seen))
            except GuardUnavailable as error:
                outcomes.append(error)

        threads = [threading.Thread(target=change, args=(number,)) for number in range(_AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for outcome in outcomes:
            if isinstance(outcome, GuardUnavailable):
                raise outcome
        return sum(outcome is not None for outcome in outcomes)

    def _unfenced(self, what: str, so: str = "it ignores conditions, so a stale owner can write there") -> Unfenced:
        return Unfenced(
            f"prove() failed: in its test, {self._bucket!r} {what}: {so}. Only an object of the test's own was "
            "written. Use a store with consistent reads and conditional writes, or switch them on."
        )


def _pointer(counter: int) -> Pointer:
    return follow(None, Mark(1, counter, "prove", "prove"), Content(), secrets.token_hex(8))
