"""An event of the store as one line: when, which job, who, under which epoch, what."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from ... import Event

COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "bright_red")
NO_OWNER = "no owner"
JOB_WIDTH, OWNER_WIDTH, EPOCH_WIDTH = 6, 10, 6
MARGIN = 10 + JOB_WIDTH + 1  # up to the owner


class Trace:
    """
    Turns events into lines, and remembers who had which epoch, and its rank in the order of issue.

    An epoch is a number of sixteen digits. Shown is its rank among those of this run: `e+1`, `e+2`, …
    """

    def __init__(self, suffix: str = "") -> None:
        self._suffix = suffix
        self._ranks: dict[int, int] = {}
        self._owners: dict[int, str] = {}
        self._colours: dict[str, str] = {}
        self.began_us: int | None = None

    def name(self, job_id: str | None) -> str:
        """Return the job's name without the suffix of this run."""
        return (job_id or "").removesuffix(self._suffix)

    def epoch(self, epoch: int | None) -> str:
        """Return the short form of an epoch."""
        return f"e+{self._ranks.setdefault(epoch, len(self._ranks) + 1)}" if epoch else ""

    def first_epoch(self) -> int | None:
        """Return the epoch that is shown as `e+1`, in full."""
        return next(iter(self._ranks), None)

    def owner(self, epoch: int) -> str:
        """Return who was given *epoch*."""
        return self._owners.get(epoch, "?")

    def colour(self, owner: str) -> str:
        """Return the colour of *owner*, the same on every line."""
        if owner == NO_OWNER:
            return "dim"
        return self._colours.setdefault(owner, COLOURS[len(self._colours) % len(COLOURS)])

    def lines(self, events: Iterable[Event]) -> list[Text]:
        """Return the lines of *events*, which come in the order of their numbers."""
        return [line for event in events if (line := self._line(event)) is not None]

    def _line(self, event: Event) -> Text | None:
        if self.began_us is None:
            self.began_us = event.at_us
        facts = event.facts
        if event.kind in ("claimed", "transferred") and event.epoch and event.owner:
            self._owners[event.epoch] = event.owner
        if event.kind == "claimed" and facts.get("reason") == "manual":
            return None  # a transfer, which has an event of its own and says more
        if event.kind == "refused":
            presented = facts["presented"]
            return self._row(event, self.owner(presented), presented, self._refusal(event), "bold red")
        # A reclaimed job has an epoch already, and no owner yet.
        owner = event.owner or (NO_OWNER if event.epoch else "")
        return self._row(event, owner, event.epoch, self._sentence(event), "green" if event.kind == "completed" else "")

    def _row(self, event: Event, owner: str, epoch: int | None, text: str, style: str) -> Text:
        assert self.began_us is not None
        return Text.assemble(
            (f"{(event.at_us - self.began_us) / 1e6:7.2f} s ", "dim"),
            f"{self.name(event.job_id):{JOB_WIDTH}} ",
            (f"{owner:{OWNER_WIDTH}}", self.colour(owner) if owner else ""),
            (f"{self.epoch(epoch):{EPOCH_WIDTH}}", "bold"),
            (text, style),
        )

    def _sentence(self, event: Event) -> str:
        facts = event.facts
        if event.kind == "claimed":
            why, attempt = facts.get("reason", "claim"), facts.get("attempt", 0)
            return "claims it" if why == "claim" else f"claims it (attempt {attempt}, after a {why})"
        if event.kind == "reclaimed":
            reason = str(facts.get("reason"))
            return f"taken from {facts.get('was')}: {_REASONS.get(reason, reason)}"
        if event.kind == "transferred":
            return f'gets it, transferred by {facts.get("by")}: "{facts.get("note")}"'
        if event.kind == "progressed":
            return f"writes: {facts['note']}" if facts.get("note") else "reports progress"
        return {"added": "is added", "completed": "completes it"}.get(event.kind, event.kind)

    def _refusal(self, event: Event) -> str:
        current, presented = event.facts["current"], event.facts["presented"]
        if current == presented:
            return f"REFUSED {_verb(event)}: settled already under this epoch"
        holder = self._owners.get(current, NO_OWNER)
        held = "same name" if holder == self.owner(presented) else holder
        return f"REFUSED {_verb(event)}: current is {self.epoch(current)} ({held})"

    def refusal(self, event: Event) -> str:
        """Return a sentence about a refused write that can stand alone."""
        facts = event.facts
        moved = f"the job had moved to {self.epoch(facts['current'])}"
        if facts["current"] == facts["presented"]:
            moved = "the job was settled already"
        elif facts.get("reason"):
            moved += f" ({facts['reason']})"
        return (
            f"{self.name(event.job_id)}  {_verb(event)} by {self.owner(facts['presented'])} with "
            f"{self.epoch(facts['presented'])}: {moved}"
        )


def _verb(event: Event) -> str:
    verb = str(event.facts["verb"])
    return "transaction" if verb == "fence" else verb  # what the owner wrote, not what stopped it


_REASONS = {
    "timeout": "lease expired (timeout)",
    "recovery": "process gone (recovery)",
    "stall": "no progress (stall)",
}
