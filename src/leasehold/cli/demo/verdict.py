"""What must be true afterwards, and what was seen. Everything is read back from the store's records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ... import Event, Router
from .stage import Stage
from .story import Plot, Script
from .timeline import Record

ACCEPTED = "stale writes that were accepted"

_WRITES = ("completed", "progressed", "renewed", "failed", "released", "retried")


@dataclass(frozen=True)
class Expectation:
    """One thing that must hold, about one job or the whole story."""

    about: str
    what: str
    expected: object
    seen: object

    @property
    def held(self) -> bool:
        """Whether what was seen is what was expected."""
        return self.expected == self.seen


def read(router: Router, jobs: Iterable[str]) -> list[Record]:
    """Return all that the store has recorded about *jobs*."""
    return [
        Record(router.job(job), router.ownerships(job), router.events(job, kind="refused", limit=None)) for job in jobs
    ]


def judge(stage: Stage, script: Script, records: Sequence[Record], events: Sequence[Event]) -> list[Expectation]:
    """Return every expectation with what was seen."""
    by_id = {record.job.id: record for record in records}
    found = [one for plot in script.plots for one in _scene(plot, by_id[plot.job])]
    left = _left_behind(stage, script, by_id)
    found += left
    stale = accepted(records, events) + [f"{one.about}: {one.what}: {one.seen}" for one in left if not one.held]
    found.append(Expectation("story", ACCEPTED, [], stale))
    broken = [sentence for sentence in stage.router.store.verify() if stage.suffix in sentence]
    found.append(Expectation("store", "broken invariants", [], broken))
    return found


def _scene(plot: Plot, record: Record) -> list[Expectation]:
    job, held = record.job, record.ownerships
    epochs = [one.epoch for one in held]
    result = {"owner": held[-1].owner, "epoch": held[-1].epoch} if held else None
    facts: list[tuple[str, object, object]] = [
        ("status", "done", str(job.status)),
        ("owners, in order", plot.owners, tuple(one.owner for one in held)),
        ("how each ownership ended", plot.ends, tuple(str(one.ended) for one in held)),
        ("every ownership has a greater epoch", sorted(set(epochs)), epochs),
        ("attempt", len(plot.owners) - 1, job.attempt),
        (
            "epochs presented by refused writes",
            epochs[:1] * plot.refused,
            [e.facts["presented"] for e in record.refused],
        ),
        ("the result is the last owner's", result, job.result),
    ]
    if "recovery" in plot.ends:
        early = bool(held) and held[0].ended_us is not None and held[0].ended_us < held[0].deadline_us
        facts.append(("taken back before its lease expired", True, early))
    if "manual" in plot.ends:
        facts.append(("who moved it", "supervisor", held[0].by if held else None))
    return [Expectation(job.id, *fact) for fact in facts]


def _left_behind(stage: Stage, script: Script, by_id: Mapping[str, Record]) -> list[Expectation]:
    """Return what would be different if a stale owner's row, checkpoint or follow-up job had been accepted."""
    found = []
    for job in (plot.job for plot in script.plots):
        children = [child.id for child in stage.router.jobs(parent=job)]
        found.append(Expectation(job, "follow-up jobs of a stale owner", [], children))
        if job == "job-E" + stage.suffix:
            found.append(Expectation(job, "the totals that were kept", script.expected, script.totals))
        else:
            found.append(Expectation(job, "checkpoint of a stale owner", None, by_id[job].job.checkpoint))
    return found


def accepted(records: Sequence[Record], events: Sequence[Event]) -> list[str]:
    """
    Return a sentence for every stale write that was accepted.

    Such a write shows in the events, with an epoch below one that its job had reached by then, or in what it
    left behind: a result that another ownership than the last one wrote.
    """
    newest: dict[str | None, int] = {}
    found = []
    for event in events:
        epoch = event.epoch or 0
        if event.kind in _WRITES and epoch < newest.get(event.job_id, 0):
            found.append(f"{event.job_id}: {event.kind} with epoch {epoch}, below {newest[event.job_id]}")
        newest[event.job_id] = max(epoch, newest.get(event.job_id, 0))
    for record in records:
        wrote = record.job.result["epoch"] if isinstance(record.job.result, dict) else None
        if wrote is not None and record.ownerships and wrote != record.ownerships[-1].epoch:
            found.append(f"{record.job.id}: its result was written under epoch {wrote}")
    return found
