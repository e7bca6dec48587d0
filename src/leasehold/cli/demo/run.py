"""Plays the story from beginning to end, and returns the exit code."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from ... import Event, LeaseholdError, StaleEpoch
from ...core.clock import SystemClock
from .screen import Screen, wants_plain
from .stage import SHORT_SECONDS, Stage, Stuck
from .story import Script, tell
from .timeline import Record, table, timeline
from .trace import Trace
from .venue import TABLE, Venue
from .verdict import ACCEPTED, Expectation, judge, read

FILE = "sqlite:///demo.db"
CANCEL_TRIES = 5


def perform(url: str | None, *, plain: bool) -> int:
    """Play the demo in the store at *url*, or in memory, and return the exit code."""
    clock, venue = SystemClock(), Venue.at(url)
    with venue.router(clock, SHORT_SECONDS) as router:
        screen = Screen(router, clock, Trace(venue.suffix), plain=plain or wants_plain(), remote=venue.own)
        stage = Stage(router, screen, venue, unhurried=not screen.plain)
        script = Script([])
        _begin(screen, stage)
        stuck = _play(stage, screen, script)
        records = read(router, stage.jobs)
        expectations = judge(stage, script, records, screen.events)
        if stuck is not None:
            expectations.append(Expectation("story", "how it ended", "every scene played", stuck))
            _leave_nothing_behind(stage)
        _end(screen, records, expectations)
        _what_next(screen, stage)
        held = all(one.held for one in expectations)
    return 0 if held else 1


def _play(stage: Stage, screen: Screen, script: Script) -> str | None:
    """Play every scene, and return why the story could not go on, or None."""
    try:
        with screen:
            tell(stage, script)
    except Stuck as stuck:
        return str(stuck)
    except BaseException:
        _leave_nothing_behind(stage)
        raise
    return None


def _leave_nothing_behind(stage: Stage) -> None:
    # Workers that share the store must not find half a demo in it.
    for job_id in stage.jobs:
        _cancel(stage, job_id)


def _cancel(stage: Stage, job_id: str) -> None:
    for _ in range(CANCEL_TRIES):
        try:
            stage.router.cancel(stage.router.job(job_id), by="demo", note="the demo did not finish")
            return
        except StaleEpoch:
            continue  # a thread of the story has moved the job since the look at it, which it does not do often
        except LeaseholdError:
            return  # finished already, or never added


def _begin(screen: Screen, stage: Stage) -> None:
    venue = stage.venue
    screen.print(Text.assemble(("leasehold demo", "bold"), ": six jobs, and one question: whose writes still count?"))
    screen.print(Text("A lease says who may try, and expires. An epoch says whose writes count."))
    screen.print(Text("e+1, e+2 … are epochs, in the order in which they were issued; they only go up.", "dim"))
    if venue.own:
        screen.print(
            Text(f"Played in {venue.shown}, in the schema {venue.schema}, which is dropped afterwards.", "dim")
        )
    elif venue.shared:
        screen.print(
            Text(f"Played in {venue.shown}, queue {stage.queue}; every id there ends in {venue.suffix}.", "dim")
        )


def _end(screen: Screen, records: Sequence[Record], expectations: Sequence[Expectation]) -> None:
    trace = screen.trace
    _heading(screen, "Who held which epoch")
    for line in timeline(records, trace, screen.width):
        screen.print(line)
    _heading(screen, "How it ended")
    for line in table(records, trace):
        screen.print(line)
    if first := trace.first_epoch():
        screen.print(
            Text(
                f"e+1 is epoch {first}. Epochs start at the time in microseconds since 1970, and count up.",
                "dim",
            )
        )
    _heading(screen, "What was refused, and why")
    _sum_up(screen, [event for record in records for event in record.refused], expectations)


def _sum_up(screen: Screen, refused: Sequence[Event], expectations: Sequence[Expectation]) -> None:
    for event in sorted(refused, key=lambda event: event.number):
        screen.print(Text(screen.trace.refusal(event), "red"))
    accepted = next(one.seen for one in expectations if one.what == ACCEPTED)
    count = len(accepted) if isinstance(accepted, list) else 0
    style = "bold red" if count else "bold green"
    stale = [event for event in refused if event.facts["presented"] != event.facts["current"]]
    screen.print(Text(f"{_writes(len(stale))} refused; {_taken(count)} accepted.", style))
    failed = [one for one in expectations if not one.held]
    for one in failed:
        about = screen.trace.name(one.about)
        screen.print(Text(f"FAILED  {about}: {one.what}: expected {one.expected!r}, saw {one.seen!r}", "bold red"))
    held = len(expectations) - len(failed)
    screen.print(Text(f"{held} of {len(expectations)} expectations held, read back from the store's own records."))


def _what_next(screen: Screen, stage: Stage) -> None:
    venue = stage.venue
    if venue.own:
        return  # nothing is left to look at
    screen.print(Text())
    if not venue.shared:
        screen.print(Text(f"In a file, with a killed process: leasehold demo --store {FILE}"))
        return
    screen.print(Text(f"The jobs and {TABLE} are still there: leasehold store check {venue.shown}"))


def _heading(screen: Screen, text: str) -> None:
    screen.print(Text())
    screen.print(Text(text, "bold"))


def _writes(count: int) -> str:
    return f"{count or 'No'} stale {'write was' if count == 1 else 'writes were'}"


def _taken(count: int) -> str:
    return "none was" if count == 0 else f"{count} {'was' if count == 1 else 'were'}"
