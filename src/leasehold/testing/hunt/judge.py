"""
Judges the reports of the hunters: pure bookkeeping, without a store and without waiting.

Hunters draw *ticks* from one counter that all their processes share: one before they ask for something, one after the
reply. If one tick is smaller than another, it was drawn earlier. So if a reply that says "everything up to epoch 7 is
over" was there before a write under epoch 7 was sent, and that write was accepted, then the store has let a stale owner
write: no clock and no guess is part of the argument. Reports may arrive in any order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

KEPT = 100  # reports of each job, for the evidence


class Issued(NamedTuple):
    """An epoch was issued for a job, between two ticks; with it, everything below is over."""

    job_id: str
    lock: str | None  # None also if the epoch does not take the key, as a cancellation's does not
    epoch: int
    sent: int
    replied: int
    verb: str
    owner: str | None = None
    checkpoint: int = 0  # the epoch of the checkpoint that came with it
    queue: str | None = None  # that a claim took the job from


class Ended(NamedTuple):
    """Since a tick at the latest, no epoch of the job up to *upto* may write."""

    job_id: str
    lock: str | None
    upto: int
    replied: int
    verb: str


class Accepted(NamedTuple):
    """A write was accepted that was sent after the tick *sent*."""

    job_id: str
    lock: str | None
    epoch: int
    sent: int
    replied: int
    verb: str
    owner: str


class Refused(NamedTuple):
    """A write was refused."""

    job_id: str
    epoch: int
    current: int
    sent: int
    verb: str
    owner: str


class Paused(NamedTuple):
    """A queue was paused, or resumed, between two ticks."""

    queue: str
    sent: int
    replied: int
    verb: str
    job_id: None = None


class PickedUp(NamedTuple):
    """A transfer was picked up: under a claim id by a worker, or, without one, by an owner with `lease`."""

    job_id: str
    epoch: int
    claim_id: str | None


class Token(NamedTuple):
    """Something with a name of its own was to be written: it is there, it must not be, or that is not known (None)."""

    token: str
    kind: str  # "row" or "job"
    job_id: str
    epoch: int
    there: bool | None


class Finding(NamedTuple):
    """Something that must not be."""

    what: str
    job_id: str | None = None
    traceback: str | None = None


class Counted(NamedTuple):
    """Some of something that is counted."""

    name: str
    many: int


Report = Issued | Ended | Accepted | Refused | Paused | PickedUp | Token | Finding | Counted


class EffectRow(NamedTuple):
    """A row that a fenced transaction has committed, as it is in the hunt's own table."""

    token: str
    job_id: str
    epoch: int
    place: int
    before: int
    settles: bool
    how: str


class Front:
    """Points of rising epoch and rising tick: of those added, the ones that no other makes superfluous."""

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._ticks: list[int] = []
        self._reports: list[Report] = []

    def add(self, epoch: int, tick: int, report: Report) -> None:
        """Keep the point, unless one of a greater epoch has an earlier tick."""
        at = bisect_left(self._epochs, epoch)
        if at < len(self._epochs) and self._ticks[at] <= tick:
            return
        end = at + (at < len(self._epochs) and self._epochs[at] == epoch)
        while at > 0 and self._ticks[at - 1] >= tick:
            at -= 1
        self._epochs[at:end] = [epoch]
        self._ticks[at:end] = [tick]
        self._reports[at:end] = [report]

    def earliest(self, epoch: int) -> tuple[int, Report] | None:
        """Return the earliest tick of all points at *epoch* or above, and its report."""
        at = bisect_left(self._epochs, epoch)
        return (self._ticks[at], self._reports[at]) if at < len(self._epochs) else None


class _Subject:
    """A job, or a lock key: one owner at a time, and never again an earlier one."""

    def __init__(self) -> None:
        self.endings = Front()
        self.writes = Front()  # by minus the epoch and minus the tick: then the latest write up to an epoch is found


@dataclass
class _Checkpoint:
    epoch: int
    replied: int


class Judge:
    """Takes reports, in whatever order they come, and keeps what is wrong with them."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self.tokens: dict[str, Token] = {}
        self._jobs: defaultdict[str, _Subject] = defaultdict(_Subject)
        self._locks: defaultdict[str, _Subject] = defaultdict(_Subject)
        self._history: defaultdict[str, deque[Report]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._issued: dict[int, Issued] = {}
        self._issues: list[Issued] = []
        self._checkpoints: dict[str, _Checkpoint] = {}
        self._pauses: defaultdict[str, list[Paused]] = defaultdict(list)
        self.accepted: dict[int, PickedUp] = {}  # by epoch: the transfers that a worker has accepted
        self._known: set[str] = set()

    def find(self, what: str, job_id: str | None = None, traceback: str | None = None) -> None:
        """Keep a finding, once."""
        if what not in self._known:
            self._known.add(what)
            self.findings.append(Finding(what, job_id, traceback))

    def history(self, job_id: str) -> list[Report]:
        """Return the last reports about a job."""
        return list(self._history[job_id])

    def hear(self, reports: Iterable[Report]) -> None:
        """Take some reports."""
        for report in reports:
            if isinstance(report, Counted):
                self.counts[report.name] += report.many
                continue
            if report.job_id is not None:
                self._history[report.job_id].append(report)
            match report:
                case Issued():
                    self._hear_issue(report)
                case Ended():
                    self._hear_end(report.job_id, report.lock, report.upto, report.replied, report)
                case Accepted():
                    self._hear_write(report)
                case Refused():
                    self._hear_refusal(report)
                case Paused():
                    self._pauses[report.queue].append(report)
                case PickedUp():
                    self._hear_pick_up(report)
                case Token():
                    self.tokens[report.token] = report
                case Finding():
                    self.find(*report)

    # One report after another

    def _hear_issue(self, new: Issued) -> None:
        before = self._issued.setdefault(new.epoch, new)
        if before is not new:
            self.find(f"epoch {new.epoch} was issued twice: {_shown(before)}; {_shown(new)}.", new.job_id)
        self._issues.append(new)
        self._hear_end(new.job_id, new.lock, new.epoch - 1, new.replied, new)
        kept = self._checkpoints.get(new.job_id)
        if kept is not None and kept.replied < new.sent and new.checkpoint < kept.epoch <= new.epoch:
            self.find(
                f"job {new.job_id}: the checkpoint of epoch {kept.epoch} was durable, but {_shown(new)} got the "
                f"older one of epoch {new.checkpoint}.",
                new.job_id,
            )

    def _hear_end(self, job_id: str, lock: str | None, upto: int, replied: int, report: Report) -> None:
        for subject in self._subjects(job_id, lock):
            subject.endings.add(upto, replied, report)
            latest = subject.writes.earliest(-upto)
            if latest is not None and -latest[0] > replied:
                self._stale(latest[1], report, job_id)

    def _hear_write(self, write: Accepted) -> None:
        for subject in self._subjects(write.job_id, write.lock):
            subject.writes.add(-write.epoch, -write.sent, write)
            over = subject.endings.earliest(write.epoch)
            if over is not None and over[0] < write.sent:
                self._stale(write, over[1], write.job_id)
        if write.verb == "checkpoint":
            kept = self._checkpoints.get(write.job_id)
            if kept is None or write.epoch > kept.epoch:
                self._checkpoints[write.job_id] = _Checkpoint(write.epoch, write.replied)

    def _stale(self, write: Report, over: Report, job_id: str) -> None:
        self.find(f"a stale write was accepted: {_shown(write)}, sent after the reply to {_shown(over)}.", job_id)

    def _hear_refusal(self, refused: Refused) -> None:
        if refused.current < refused.epoch:
            self.find(f"{_shown(refused)}: the store has forgotten an epoch that it issued.", refused.job_id)

    def _hear_pick_up(self, new: PickedUp) -> None:
        if new.claim_id is None:
            return  # an owner may ask for its lease as often as it likes
        before = self.accepted.setdefault(new.epoch, new)
        if before.claim_id != new.claim_id:
            self.find(f"a transfer was accepted twice: {_shown(before)}; {_shown(new)}.", new.job_id)

    def _subjects(self, job_id: str, lock: str | None) -> list[_Subject]:
        return [self._jobs[job_id]] if lock is None else [self._jobs[job_id], self._locks[lock]]

    # At the end

    def judge_issues(self) -> None:
        """Every epoch is above all whose reply had come before its request was sent."""
        by_reply = sorted(self._issues, key=lambda issue: issue.replied)
        highest: Issued | None = None
        position = 0
        for issue in sorted(self._issues, key=lambda issue: issue.sent):
            while position < len(by_reply) and by_reply[position].replied < issue.sent:
                if highest is None or by_reply[position].epoch > highest.epoch:
                    highest = by_reply[position]
                position += 1
            if highest is not None and highest.epoch >= issue.epoch:
                self.find(
                    f"an epoch is not above one that was issued before: {_shown(issue)}, after {_shown(highest)}.",
                    issue.job_id,
                )

    def judge_pauses(self) -> None:
        """No claim that began after a pause had returned took from that queue, unless a resume may have come first."""
        for queue, reports in self._pauses.items():
            pauses = sorted((one for one in reports if one.verb == "pause"), key=lambda one: one.replied)
            resumes = sorted((one for one in reports if one.verb == "resume"), key=lambda one: one.sent)
            paused_at, resumed_at = [one.replied for one in pauses], [one.sent for one in resumes]
            began = list(accumulate((one.sent for one in pauses), max))
            ended = list(accumulate((one.replied for one in resumes), max))
            for issue in self._issues:
                before = bisect_left(paused_at, issue.sent)
                if issue.queue != queue or not before:
                    continue
                maybe = bisect_left(resumed_at, issue.replied)
                # The pause that was sent last, of those that had a reply; and every resume that could be behind it.
                if not maybe or ended[maybe - 1] < began[before - 1]:
                    self.find(
                        f"a claim took from a paused queue: {_shown(issue)}, after {_shown(pauses[before - 1])}.",
                        issue.job_id,
                    )

    def judge_rows(self, rows: Iterable[EffectRow]) -> None:
        """In the hunt's own table is what was accepted, in the order of epochs, and each completion has one row."""
        settled: Counter[tuple[str, int]] = Counter()
        last: dict[str, EffectRow] = {}
        seen: set[str] = set()
        for row in sorted(rows, key=lambda row: (row.job_id, row.place)):
            self._present(row.token, seen, f"row {row.place} of job {row.job_id}", row.job_id)
            before = last.get(row.job_id)
            if row.before > row.epoch or (before is not None and before.epoch > row.epoch):
                self.find(f"a stale row: {row}; the row before it: {before}.", row.job_id)
            if row.place != (before.place if before else 0) + 1:
                self.find(f"rows of job {row.job_id} are missing before place {row.place}: {before}.", row.job_id)
            last[row.job_id] = row
            settled[row.job_id, row.epoch] += row.settles
        for (job_id, epoch), count in settled.items():
            if count > 1:
                self.find(f"job {job_id} was completed {count} times under epoch {epoch}.", job_id)
        self._absent("row", seen)

    def judge_jobs(self, tokens: Iterable[tuple[str, str]]) -> None:
        """Of the jobs that were to be added with a write, exactly those of accepted writes are there."""
        seen: set[str] = set()
        for token, job_id in tokens:
            self._present(token, seen, f"job {job_id}", job_id)
        self._absent("job", seen)

    def _present(self, token: str, seen: set[str], what: str, job_id: str) -> None:
        seen.add(token)
        expected = self.tokens.get(token)
        if expected is None:
            self.find(f"{what} has the token {token}, which no hunter wrote.", job_id)
        elif expected.there is False:
            self.find(f"{what} exists, although its write was refused or rolled back: {expected}.", job_id)

    def _absent(self, kind: str, seen: set[str]) -> None:
        for token in self.tokens.values():
            if token.kind == kind and token.there and token.token not in seen:
                self.find(f"an accepted {kind} is missing: {token}.", token.job_id)


def _shown(report: Report) -> str:
    facts = report._asdict()
    verb = facts.pop("verb", type(report).__name__.lower())
    return f"{verb} ({', '.join(f'{name} {value}' for name, value in facts.items() if value is not None)})"
