"""Who held which epoch when, and the table of how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

from ... import Event, Job, Ownership
from .trace import JOB_WIDTH, Trace

FILL, REFUSED, LEFT, RIGHT = "▓", "✗", "▐", "▌"
LEAST_FILL = 3
MOST_PER_SECOND = 60.0
MOST_WIDTH = 100


@dataclass(frozen=True)
class Record:
    """All that the store has recorded about one job."""

    job: Job
    ownerships: Sequence[Ownership]
    refused: Sequence[Event]


def timeline(records: Iterable[Record], trace: Trace, width: int) -> list[Text]:
    """Return a row for every job: a bar for every ownership, and a mark for every refused write."""
    records, width = list(records), min(width, MOST_WIDTH)
    per_second = MOST_PER_SECOND
    while per_second > 1 and any(_row(record, trace, per_second).cell_len > width for record in records):
        per_second -= 1
    legend = f"{LEFT}owner epoch {FILL * 3} how it ended{RIGHT}  {REFUSED} a write of an earlier owner, refused"
    return [Text(legend, "dim"), *(_row(record, trace, per_second) for record in records)]


def _row(record: Record, trace: Trace, per_second: float) -> Text:
    row = Text(f"{trace.name(record.job.id):{JOB_WIDTH}} ")
    for held in record.ownerships:
        ended = held.ended_us if held.ended_us is not None else held.deadline_us
        marks = [event.at_us for event in record.refused if held.granted_us <= event.at_us < ended]
        row.append_text(_bar(held, ended, marks, trace, per_second))
    return row


def _bar(held: Ownership, ended_us: int, marks: list[int], trace: Trace, per_second: float) -> Text:
    label, how = f"{held.owner} {trace.epoch(held.epoch)} ", f" {held.ended or 'held'}"
    lasted = max(ended_us - held.granted_us, 1)
    wide = round(per_second * lasted / 1e6) - len(label) - len(how) - 2
    fill = [FILL] * max(wide, LEAST_FILL)
    for at in marks:
        target = int(len(fill) * (at - held.granted_us) / lasted)
        # Two refusals may fall into one cell: the later one moves on to the next that is free.
        free = [cell for cell in (*range(target, len(fill)), *range(target)) if fill[cell] == FILL]
        fill[free[0] if free else target] = REFUSED
    colour = trace.colour(held.owner)
    bar = Text.assemble((LEFT + label, colour))
    for cell in fill:
        bar.append(cell, "bold red" if cell == REFUSED else colour)
    return bar.append(how, "" if held.ended == "done" else "dim").append(RIGHT, colour)


def table(records: Iterable[Record], trace: Trace) -> list[Text]:
    """Return the final table, one row for every job."""
    head = ("job", "status", "attempt", "epoch", "last owner", "refused writes")
    rows = [_cells(record, trace) for record in records]
    widths = [max(len(row[column]) for row in (head, *rows)) + 2 for column in range(len(head))]
    lines = [Text("".join(f"{cell:{wide}}" for cell, wide in zip(head, widths, strict=True)), "bold")]
    for row in rows:
        line = Text("".join(f"{cell:{wide}}" for cell, wide in zip(row, widths, strict=True)))
        start = sum(widths[:4])
        line.stylize(trace.colour(row[4]), start, start + len(row[4]))
        lines.append(line)
    return lines


def _cells(record: Record, trace: Trace) -> tuple[str, ...]:
    job = record.job
    last = record.ownerships[-1].owner if record.ownerships else "-"
    refused = str(len(record.refused)) if record.refused else "-"
    return trace.name(job.id), str(job.status), str(job.attempt), trace.epoch(job.epoch), last, refused
