"""What a scene needs: jobs with names of their own, threads, cues, claims and writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ... import Lease, LeaseholdError, Router, StaleEpoch
from .venue import Venue

PATIENCE_SECONDS = 60.0  # for what happens at once unless something is broken
SHORT_SECONDS = 1.0  # the leases that are meant to expire
LONG_SECONDS = 30.0  # the leases that are not, however slow the machine


class Stuck(Exception):
    """The story cannot go on."""


class Voice(Protocol):
    """Who tells the story."""

    def scene(self, job_id: str, title: str, text: str) -> None:
        """Announce a scene, which is about *job_id*."""
        ...

    def say(self, text: str) -> None:
        """Tell what no event of the store tells."""
        ...


class Cue:
    """Something that one thread waits for and another brings about."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._event = threading.Event()

    def give(self) -> None:
        """Let the waiting threads go on."""
        self._event.set()

    def wait(self) -> None:
        """Wait for it; `Stuck` if it does not come."""
        # Longer than a claim waits, so that what is reported is the cause and not its consequence.
        if not self._event.wait(2 * PATIENCE_SECONDS):
            raise Stuck(f"waited {2 * PATIENCE_SECONDS:.0f} s without success for this: {self._what}")


class Player(threading.Thread):
    """A thread that plays one part. What it raises is kept in `error`."""

    def __init__(self, part: Callable[[], object]) -> None:
        super().__init__(name=f"demo-{part.__name__}", daemon=True)
        self._part = part
        self.error: BaseException | None = None

    def run(self) -> None:
        """Play the part."""
        try:
            self._part()
        except BaseException as error:
            self.error = error


class Stage:
    """
    The store, the names of this run in it, and the verbs that scenes share.

    In a file that other jobs may live in, every id ends in the suffix of its venue, and the queue has it too.
    """

    def __init__(self, router: Router, voice: Voice, venue: Venue, *, unhurried: bool = False) -> None:
        self.router = router
        self.venue = venue
        self.suffix = venue.suffix
        self.queue = f"demo{venue.suffix}"
        self.jobs: list[str] = []
        self._voice = voice
        self._unhurried = unhurried

    def scene(self, name: str, title: str, text: str) -> str:
        """Announce a scene, add its job and return the job's id."""
        job_id = name + self.suffix
        self._voice.scene(job_id, title, text)
        self.pause(0.5)
        self.jobs.append(job_id)  # first, so that an interrupted add is cleaned up too
        self.router.add(job_id, queue=self.queue)
        return job_id

    def say(self, text: str) -> None:
        """Tell what no event of the store tells."""
        self._voice.say(text)

    def pause(self, seconds: float) -> None:
        """Give a reader at a terminal time; does nothing in a pipe."""
        if self._unhurried:
            time.sleep(seconds)

    def work(self, seconds: float) -> None:
        """Pretend to work, half as long in a pipe."""
        time.sleep(seconds if self._unhurried else seconds / 2)

    def claim(self, owner: str, lease_seconds: float = LONG_SECONDS) -> Lease:
        """Claim the scene's job for *owner*, waiting until it is free."""
        lease = self.router.claim(
            owner, queues=[self.queue], lease_seconds=lease_seconds, wait_seconds=PATIENCE_SECONDS
        )
        if lease is None:
            raise Stuck(f"{owner} found nothing to claim in {PATIENCE_SECONDS:.0f} s")
        return lease

    def write(self, verb: Callable[[], object]) -> None:
        """Try to write. A refusal is recorded by the store, and the verdict reads it there."""
        try:
            verb()
        except StaleEpoch:
            return

    def complete(self, lease: Lease) -> None:
        """Try to complete the job with a result that tells whose it is."""
        self.write(lambda: lease.complete(signature(lease)))

    def play(self, *parts: Callable[[], object]) -> None:
        """Play *parts* at the same time, each on a thread, until all have ended or one has failed."""
        players = [Player(part) for part in parts]
        for player in players:
            player.start()
        while any(player.is_alive() for player in players):
            for player in players:
                player.join(0.02)
                _raise_error(players)
        _raise_error(players)


def signature(lease: Lease) -> dict[str, object]:
    """Return a result that tells which ownership wrote it."""
    return {"owner": lease.owner, "epoch": lease.epoch}


def _raise_error(players: Sequence[Player]) -> None:
    for player in players:
        if isinstance(player.error, Stuck):
            raise player.error
        if isinstance(player.error, LeaseholdError):
            raise Stuck(f"{type(player.error).__name__}: {player.error}") from player.error
        if player.error is not None:
            raise player.error
