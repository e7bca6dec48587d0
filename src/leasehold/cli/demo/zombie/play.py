"""Plays both acts, tells what was seen, and returns the exit code."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import click

from .... import Router
from .objects import MISSING, Object, object_server, tell
from .resources import Resource, resources
from .service import Service

JOB = "quarterly-report"
OLD, NEW = "alice", "bob"
LEASE_SECONDS = 0.5


class Stopped(Exception):
    """A process did not do its part."""


class Seen(NamedTuple):
    """What one act has shown: each process's account, and what is in every resource afterwards."""

    old_epoch: int
    new_epoch: int
    new: dict[str, dict[str, Any]]
    old: dict[str, dict[str, Any]]
    left: dict[str, str]


class Process:
    """One of the two processes, seen from the play."""

    def __init__(self, folder: Path, owner: str, lease_seconds: float, form: str) -> None:
        home = str(Path(__file__).parents[4])  # where this very package was imported from
        paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
        program = __name__.rpartition(".")[0] + ".worker"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", program, str(folder), owner, str(lease_seconds), form],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self.owner = owner

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # a stopped process too
        self._process.communicate()

    def claimed(self) -> int:
        """Wait until it holds the job, and return its epoch."""
        facts = self._line()
        if not facts or facts.get("claimed") is None:
            raise Stopped(f"{self.owner} (process {self._process.pid}) got no lease")
        return int(facts["claimed"])

    def freeze(self) -> None:
        """Stop it where it is, as a pause, a debugger or a suspended machine does."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self._process.pid, signal.SIGCONT)

    def write(self) -> dict[str, dict[str, Any]]:
        """Have it write to everything, and return its account by resource."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        account: dict[str, dict[str, Any]] = {}
        while facts := self._line():
            account[str(facts["resource"])] = facts
        return account

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line.strip() else {}
        return found


def play(*, plain: bool) -> int:
    """Play the demo and return the exit code: 0 only if every refusal and all the damage was seen."""
    log = logging.getLogger("leasehold")
    before = log.level
    log.setLevel(logging.CRITICAL)  # the service's own refusals are on the screen already
    try:
        return _play(Screen(plain=plain))
    finally:
        log.setLevel(before)


def _play(screen: Screen) -> int:
    screen.heading("A process is frozen, is presumed dead, is replaced, and wakes up.")
    try:
        with object_server() as endpoint:
            guarded = _act(screen, "With guards", endpoint, guarded=True)
            bare = _act(screen, "Without guards", endpoint, guarded=False)
    except Stopped as stopped:
        screen.line(f"The demo could not continue: {stopped}.", fg="red")
        return 1
    held = _judge(screen, guarded, bare)
    return 0 if held else 1


def _act(screen: Screen, title: str, endpoint: str | None, *, guarded: bool) -> Seen:
    screen.heading(title)
    with tempfile.TemporaryDirectory(prefix="leasehold-demo-") as name:
        folder = Path(name)
        if endpoint is not None:
            tell(folder, endpoint)
        things = resources(folder)
        for thing in things:
            thing.prepare()
        with Router(f"sqlite:///{folder / 'jobs.db'}") as router, Service(folder, guarded=guarded):
            router.add(JOB)
            return _played(screen, router, folder, things, "guarded" if guarded else "bare")


def _played(screen: Screen, router: Router, folder: Path, things: list[Resource], form: str) -> Seen:
    with Process(folder, OLD, LEASE_SECONDS, form) as old:
        old_epoch = old.claimed()
        screen.line(f"{OLD} claims {JOB}: epoch {old_epoch}, for {LEASE_SECONDS:g} s. Then it is frozen (SIGSTOP).")
        old.freeze()
        with Process(folder, NEW, 60, form) as new:
            new_epoch = new.claimed()
            screen.line(f"The lease expires. {NEW} takes over: epoch {new_epoch}.")
            wrote = new.write()
        screen.line(
            f"{NEW} writes its report everywhere, and completes the job. {OLD} is thawed (SIGCONT), and writes too:"
        )
        old.thaw()
        late = old.write()
    left = {thing.name: thing.read() for thing in things if thing.name != "job"}
    left["job"] = str(router.result(JOB))
    for thing in things:
        screen.outcome(thing.name, late.get(thing.name, {}), left[thing.name])
    if Object.name not in left:
        screen.line(f"  {Object.name:<6} skipped   {MISSING}")
    return Seen(old_epoch, new_epoch, wrote, late, left)


def _judge(screen: Screen, guarded: Seen, bare: Seen) -> bool:
    """Print what was seen, and return whether it is what the guards promise, and what happens without them."""
    names = [name for name in guarded.left if name != "job"]
    broken = []
    for name in guarded.left:
        facts = guarded.old.get(name, {})
        if guarded.new.get(name, {}).get("outcome") != "written":
            broken.append(f"{name}: the current owner could not write: {guarded.new.get(name)}")
        if facts.get("outcome") != "refused" or facts.get("presented") != guarded.old_epoch:
            broken.append(f"{name}: the stale write was not refused: {facts}")
        elif facts.get("current", 0) < guarded.new_epoch:
            broken.append(f"{name}: refused, but not by the new owner's epoch: {facts}")
        if guarded.left[name] != f"report by {NEW}":
            broken.append(f"{name}: has {guarded.left[name]!r}, although it was guarded")
    for name in names:
        if bare.left[name] != f"report by {OLD}":
            broken.append(f"{name}: without its guard it has {bare.left[name]!r}, so the demo shows no damage")
    if bare.left["job"] != f"report by {NEW}":
        broken.append(f"job: the store let a stale owner complete it: {bare.left['job']!r}")
    screen.heading("What was seen")
    screen.line(
        f"With guards: {len(guarded.left)} stale writes, all refused; {NEW}'s report is everywhere.",
        fg="green" if not broken else None,
    )
    screen.line(
        f"Without guards: {OLD}'s old report has overwritten the new one in {', '.join(names)}. The job itself is "
        "still protected: the store fences it."
    )
    for sentence in broken:
        screen.line(f"FAILED  {sentence}", fg="red")
    return not broken


class Screen:
    """Prints lines; in colour on a terminal, unless *plain* or NO_COLOR is set."""

    def __init__(self, *, plain: bool) -> None:
        self._plain = plain or not sys.stdout.isatty() or "NO_COLOR" in os.environ

    def heading(self, text: str) -> None:
        """Print a title."""
        click.echo()
        self._echo(text, bold=True)

    def line(self, text: str, fg: str | None = None) -> None:
        """Print a sentence."""
        self._echo(text, fg=fg)

    def outcome(self, name: str, facts: dict[str, Any], left: str) -> None:
        """Print what became of a late write, and what is there now."""
        if facts.get("outcome") == "refused":
            reason = f", moved by {facts['reason']}" if facts.get("reason") else ""
            by = "" if facts.get("owner") is None else f" of {facts['owner']}"
            verdict = (
                f"refused   epoch {facts['presented']} is stale; the current one is {facts['current']}{by}{reason}"
            )
            self._echo(f"  {name:<6} {verdict}", fg="green")
        elif facts.get("outcome") == "written":
            self._echo(f"  {name:<6} ACCEPTED  it now has: {left}", fg="red")
        else:
            self._echo(f"  {name:<6} {facts.get('error', 'no outcome was reported')}", fg="red")

    def _echo(self, text: str, **style: Any) -> None:
        click.echo(text if self._plain else click.style(text, **style))
