"""Which guarded keys of jobs are open: recorded by an owner, and not sealed since."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ...core.job import Status
from ...core.ownership import Note
from ...store import OpenKey, OpenKeys
from .record import Record


class _Guarded(NamedTuple):
    job_id: str
    epochs: dict[tuple[str, str], int]  # by guard and key: under which it was recorded last


class GuardedKeys:
    """The keys of each job. The store's lock is held."""

    def __init__(self) -> None:
        self._jobs: dict[int, _Guarded] = {}  # by seq

    def note(self, record: Record, note: Note) -> None:
        """Keep the keys that the owner is about to write to."""
        if keys := note.facts["keys"]:
            guarded = self._jobs.setdefault(record.seq, _Guarded(record.id, {}))
            guarded.epochs.update(dict.fromkeys(((guard, key) for guard, key in keys), note.epoch))

    def forget(self, record: Record, note: Note) -> None:
        """Forget the keys that were sealed above the epoch under which they were recorded."""
        if (guarded := self._jobs.get(record.seq)) is not None:
            for guard, key in note.facts["keys"]:
                if guarded.epochs.get((guard, key), note.epoch) < note.epoch:
                    del guarded.epochs[guard, key]
            if not guarded.epochs:
                del self._jobs[record.seq]

    def drop(self, record: Record) -> None:
        """Forget every key of a job that is pruned."""
        self._jobs.pop(record.seq, None)

    def has(self, record: Record) -> bool:
        """Return whether the job has keys that may be open."""
        return record.seq in self._jobs

    def has_open(self, record: Record) -> bool:
        """Return whether a key of this finished job is not sealed yet: `open` returns it if asked for its guard."""
        own = record.epoch if record.status is Status.DONE else None
        return self.has(record) and any(epoch != own for epoch in self._jobs[record.seq].epochs.values())

    def open(self, jobs: Mapping[str, Record], guards: Collection[str], after: int, limit: int) -> OpenKeys:
        """Return the open keys of the next jobs behind *after*; forget what needs no seal."""
        found: list[OpenKey] = []
        seen = 0
        seqs = sorted(seq for seq in self._jobs if seq > after)
        for seq in seqs:
            job_id, epochs = self._jobs[seq]
            seen += len(epochs)
            record = jobs[job_id]
            if record.status is Status.DONE:
                for own in [key for key, epoch in epochs.items() if epoch == record.epoch]:
                    del epochs[own]
            if not epochs:
                del self._jobs[seq]
            elif record.finished_us is not None:
                ours = sorted(pair for pair in epochs if pair[0] in guards)
                found += [OpenKey(record.spec.id, record.epoch, guard, key) for guard, key in ours]
            if seen >= limit and seq != seqs[-1]:
                return OpenKeys(found, seq)
        return OpenKeys(found, None)
