"""Removes data that no pointer names: what a guard's own writes have replaced, and what other processes have left."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ...core import instants
from ...core.clock import Clock
from ...errors import GuardUnavailable
from ...logs import log
from .bucket import Bucket, Found
from .pointer import data_folder, epoch_of

BATCH = 100  # objects whose removal is worth a request of its own; fewer wait for another grace time


class Replaced:
    """
    Data that writes of this process have replaced, to be removed once its readers have had time to end.

    It cannot be named again: a pointer takes its data from the pointer before it, and that has other data now.
    """

    def __init__(self, bucket: Bucket, clock: Clock, grace_us: int) -> None:
        self._bucket = bucket
        self._clock = clock
        self._grace = grace_us
        self._waiting: deque[tuple[int, str]] = deque()  # when it was replaced, and its path
        self._lock = threading.Lock()

    def add(self, path: str) -> None:
        """Note that *path* was replaced now, and remove what is due: many at once, or a few after some time."""
        now = self._clock.now()
        with self._lock:
            self._waiting.append((now, path))
            many = len(self._waiting) >= BATCH and now - self._waiting[BATCH - 1][0] > self._grace
            if not many and now - self._waiting[0][0] <= 2 * self._grace:
                return
            paths = []
            while self._waiting and now - self._waiting[0][0] > self._grace:
                paths.append(self._waiting.popleft()[1])
        if paths:
            self._remove(paths)

    def discard(self, path: str) -> None:
        """Remove data that no pointer has ever named."""
        self._remove([path])

    def _remove(self, paths: list[str]) -> None:
        try:
            self._bucket.remove(paths)
        except GuardUnavailable as error:
            # The write has succeeded, or was refused, whatever happens here. `collect` removes what is left.
            log.info(
                "could not remove data that was replaced; it stays in the bucket until guard.collect() removes it: %s",
                error,
            )


def collect(bucket: Bucket, key: str, fetch: Callable[[], Found | None], *, before: int) -> int:
    """
    Remove the data of *key* that was stored *before* an instant and that no pointer can name again; return how much.

    Data of the pointer's own epoch may belong to a write that has not ended. Data of an older epoch that the pointer
    does not name is dead: its writer would be refused.
    """
    first = fetch()
    if first is None:
        return 0
    old = [
        one.path
        for one in bucket.stored(data_folder(key))
        if _is_dead(one.path, key, first) and instants.instant(one.modified, "modified") <= before
    ]
    # The second look is at what may have been restored, or rewritten by hand, in the meantime.
    second = fetch() if old else None
    dead = [] if second is None else [path for path in old if _is_dead(path, key, second)]
    if dead:
        bucket.remove(dead)
    return len(dead)


def _is_dead(path: str, key: str, found: Found) -> bool:
    epoch = epoch_of(path, key)
    return epoch is not None and epoch < found.pointer.mark.epoch and path != found.pointer.data
