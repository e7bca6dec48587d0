"""The gate: uses that are admitted, seals that wait for them, and what is in doubt."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.patience import PATIENCE_SECONDS
from tests.support import until

from leasehold import Conflict, GuardUnavailable, StaleEpoch
from leasehold.core.clock import SteadyClock
from leasehold.guard import Mark, Seal
from leasehold.guards import Gate, Use
from leasehold.guards.gate import memory
from leasehold.guards.gate.database import SqliteDatabase
from leasehold.testing import ManualClock

from .gate_calls import NEW, NEWEST, OLD, Call, Open, opened, sealing, shared, under
from .gates import Places, places

__all__ = ["opened", "places", "shared"]  # fixtures


# Seals wait for older uses


def test_a_seal_waits_for_an_older_use_and_refuses_others_meanwhile(opened: Open) -> None:
    """The mark comes first; what had begun before it may end."""
    gate, other = opened(), opened()
    use = gate.begin("k", **under(OLD))
    seal = sealing(other)

    for each in (gate, other):
        with pytest.raises(StaleEpoch) as refusal:
            each.begin("k", **under(OLD))
        assert (refusal.value.resource, refusal.value.current, refusal.value.owner) == ("gate:k", NEW, "owner-11")
    assert [one.epoch for one in other._home.running("k", NEW)] == [OLD]
    assert seal.is_alive()
    use.end()

    found: Seal = seal.result()
    assert found.doubts == ()
    assert found.mark == gate.mark("k")
    assert gate.doubts() == []


def test_a_seal_does_not_wait_for_uses_of_its_own_epoch_or_of_another_key(opened: Open) -> None:
    """Only what is older than itself, under its own key."""
    gate = opened()
    with gate.use("k", **under(NEW)), gate.use("other", **under(OLD)):
        assert gate.seal("k", **under(NEW)).doubts == ()
        assert opened().seal("k", **under(NEW)).doubts == ()


def test_the_first_use_of_a_newer_owner_waits_for_the_older_uses_too(opened: Open) -> None:
    """Without it, an old handler could write over what the new one has written."""
    gate = opened()
    old = gate.begin("k", **under(OLD))
    new = Call(lambda: gate.begin("k", **under(NEW)))
    until(lambda: (mark := gate.mark("k")) is not None and mark.epoch == NEW)
    assert new.is_alive()
    old.end()

    use: Use = new.result()
    assert (use.key, use.epoch, use.owner, use.doubts) == ("k", NEW, "owner-11", ())
    use.end()


def test_a_use_that_waits_to_begin_is_refused_if_a_still_newer_owner_comes(opened: Open) -> None:
    """The older use ends, and the waiting one finds that it is too late."""
    gate = opened()
    old = gate.begin("k", **under(OLD))
    new = Call(lambda: gate.begin("k", **under(NEW)))
    until(lambda: (mark := gate.mark("k")) is not None and mark.epoch == NEW)
    newest = sealing(gate, NEWEST)
    old.end()

    assert newest.result().doubts == ()
    with pytest.raises(StaleEpoch) as refusal:
        new.result()
    assert (refusal.value.presented, refusal.value.current) == (NEW, NEWEST)


def test_a_use_that_does_not_end_in_time_is_in_doubt_once(opened: Open) -> None:
    """Recorded, returned with each seal until it is resolved, and never waited for again."""
    gate, hasty = opened(), opened(drain_seconds=0)
    use = gate.begin("k", **under(OLD))

    [doubt] = hasty.seal("k", **under(NEW)).doubts
    assert (doubt.key, doubt.epoch, doubt.owner, doubt.uses) == ("k", OLD, "owner-7", 1)
    assert "did not end in 0 s" in doubt.note
    assert doubt.noted_at is not None

    assert gate.seal("k", **under(NEW)).doubts == (doubt,)  # which would wait for ever
    with gate.use("k", **under(NEWEST)) as newest:
        assert newest.doubts == (doubt,)
    use.end()
    assert gate.doubts("k") == gate.doubts() == [doubt], "its end comes too late: it may have written since"
    assert gate.doubts("other") == []


class WokenClock(SteadyClock):
    """A clock that waits for a notification alone, and records whether there was one."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.woken = False

    def wait(self, condition: threading.Condition, until: int) -> None:
        """Wait; the caller holds the lock, so what is to wake it comes after *began*."""
        self.began.set()
        self.woken = condition.wait(PATIENCE_SECONDS)


def test_the_end_of_a_use_in_memory_wakes_the_seal_that_waits_for_it(places: Places) -> None:
    """A seal also looks five times a second, which would hide that no end is announced."""
    clock = WokenClock()
    with places.opener("memory", clock=clock)() as gate:
        use = gate.begin("k", **under(OLD))
        seal = threading.Thread(target=gate.seal, args=["k"], kwargs=under(NEW))
        seal.start()
        assert clock.began.wait(PATIENCE_SECONDS)
        use.end()
        seal.join()
    assert clock.woken


def test_drain_seconds_is_how_long_a_seal_waits(places: Places) -> None:
    """By the gate's clock."""
    clock = ManualClock()
    with places.opener("memory", clock=clock, drain_seconds=10)() as gate:
        gate.begin("k", **under(OLD))
        seal = sealing(gate)
        clock.advance(9)
        assert seal.is_alive()
        clock.advance(1)
        [doubt] = seal.result().doubts
        assert "did not end in 10 s" in doubt.note


def test_two_seals_at_once_record_a_use_once(opened: Open) -> None:
    """Each returns it, and it is one use."""
    opened(0).begin("k", **under(OLD))
    start = threading.Barrier(2)

    def seal(gate: Gate) -> Seal:
        start.wait()
        return gate.seal("k", **under(NEW))

    calls = [Call(lambda gate=gate: seal(gate)) for gate in (opened(0), opened(0))]  # type: ignore[misc]
    doubts = [call.result().doubts for call in calls]
    assert doubts[0] == doubts[1]
    assert [doubt.uses for doubt in doubts[0]] == [1]


def test_a_block_that_raises_has_ended(opened: Open) -> None:
    """Nothing of it goes on, so no seal waits for it, and nothing is in doubt."""
    gate = opened()
    with pytest.raises(ZeroDivisionError), gate.use("k", **under(OLD)):
        raise ZeroDivisionError
    assert gate.seal("k", **under(NEW)).doubts == ()


def test_a_use_can_be_in_doubt_at_once(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    """No seal waits for it; its own epoch goes on."""
    gate = opened()
    use = gate.begin("k", **under(OLD))
    with caplog.at_level(logging.WARNING, "leasehold"):
        use.doubt("the connection broke")
    use.end()
    assert "in doubt: the connection broke" in caplog.text
    with gate.use("k", **under(OLD)) as again:
        assert again.doubts == ()
    [doubt] = gate.seal("k", **under(NEW)).doubts
    assert doubt.note == "the connection broke"


# Doubts are resolved


def test_a_doubt_is_there_until_it_is_resolved(opened: Open) -> None:
    """By an operator, by key and epoch; the mark stays."""
    gate = opened(0)
    for epoch in (OLD, OLD, NEW):
        gate.begin("k", **under(epoch)).doubt("lost")
    assert [(doubt.epoch, doubt.uses) for doubt in gate.doubts("k")] == [(OLD, 2), (NEW, 1)]

    assert gate.resolve("k", by="ada", epoch=OLD, note="looked at the bank account") == 2
    assert [doubt.epoch for doubt in gate.doubts("k")] == [NEW]
    assert gate.resolve("k", by="ada") == 1
    assert gate.resolve("k", by="ada") == 0
    assert gate.seal("k", **under(NEWEST)).doubts == ()
    with pytest.raises(StaleEpoch):
        gate.begin("k", **under(NEW))


def test_a_doubt_that_comes_up_again_is_open_again(opened: Open) -> None:
    """And counts from one."""
    gate = opened(0)
    gate.begin("k", **under(OLD)).doubt("lost")
    gate.begin("k", **under(OLD)).doubt("lost")
    gate.resolve("k", by="ada")
    gate.begin("k", **under(OLD)).doubt("lost")
    assert [doubt.uses for doubt in gate.doubts("k")] == [1]


# Processes

_CHILD = """
import sys
from leasehold.guards import Gate
gate = Gate(sys.argv[1], uses=sys.argv[2])
use = gate.begin("k", epoch=int(sys.argv[3]), owner=f"owner-{sys.argv[3]}", store="store-1")
print("begun", flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def child(opened: Open, epoch: int = OLD, program: str = _CHILD) -> Iterator[subprocess.Popen[str]]:
    """A process that is inside a use."""
    uses = "memory" if opened.home == "memory" else "sql"
    command = [sys.executable, "-P", "-c", program, opened.places.url(opened.home), uses, str(epoch)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            yield process
        finally:
            process.kill()


def test_a_use_of_a_dead_process_is_in_doubt_at_once(shared: Open) -> None:
    """It is proved, so no seal waits, and the doubt says so."""
    gate = shared(drain_seconds=1)
    with child(shared) as process:
        process.kill()
        process.wait()
        [doubt] = gate.seal("k", **under(NEW)).doubts
        assert doubt.epoch == OLD
        assert f"process {process.pid} on " in doubt.note
        assert "ended during the use" in doubt.note


def test_a_use_of_a_stopped_process_is_waited_for_and_then_in_doubt(shared: Open) -> None:
    """A process that is stopped holds no lock: the seal is bounded, and names it."""
    gate = shared(drain_seconds=0.01)
    with child(shared) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        [doubt] = gate.seal("k", **under(NEW)).doubts
        assert f"process {process.pid} " in doubt.note
        process.send_signal(signal.SIGCONT)


def test_a_use_of_another_process_is_waited_for(shared: Open) -> None:
    """It ends, and so does the wait."""
    gate = shared()
    program = _CHILD + "use.end()\nprint('ended', flush=True)\nsys.stdin.readline()\n"
    with child(shared, program=program) as process:
        seal = sealing(gate)
        assert seal.is_alive()
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        assert seal.result().doubts == ()


def test_a_second_process_on_a_gate_in_memory_fails_at_start(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """In either order; and a process that has ended is in nobody's way."""
    opened = Open(places, "memory")
    # The process that has the file open keeps it for longer than the others would wait.
    defaults = SqliteDatabase.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "busy_seconds", 0.0)
    monkeypatch.setattr(memory, "_BUSY_SECONDS", 0.0)
    with child(opened), pytest.raises(Conflict, match="uses='sql'"):
        opened()
    with opened() as gate:
        assert gate.mark("k") is not None
        command = [sys.executable, "-P", "-c", _CHILD, places.url("memory"), "memory", str(OLD)]
        failed = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        assert failed.returncode != 0
        assert "is already open in another process" in failed.stderr
    shared = places.opener("sqlite")
    with opened(), pytest.raises(GuardUnavailable, match="open with uses='memory'"):
        shared()


def test_gates_of_one_process_on_one_file_share_their_uses(places: Places) -> None:
    """Whatever the path is called, and until the last of them is closed."""
    with places.opener("memory", drain_seconds=0)() as gate:
        link = places.folder / "link.db"
        link.symlink_to(places.folder / "gate.db")
        other = Gate(f"sqlite:///{link}", drain_seconds=0)
        gate.begin("k", **under(OLD))
        assert len(other.seal("k", **under(NEW)).doubts) == 1
        other.close()
        other.close()
        assert gate.mark("k") is not None
    with pytest.raises(Conflict, match="closed"):
        gate.begin("k", **under(NEW))


def test_after_a_crash_the_keys_that_were_in_use_are_in_doubt(places: Places) -> None:
    """Uses in memory are gone with their process; that it has not closed the gate is on the disk."""
    opened = Open(places, "memory")
    with opened() as gate:
        gate.begin("untouched", **under(OLD)).end()
    with child(opened) as process:
        process.kill()
        process.wait()
    with opened() as gate:
        before = gate.mark("k")
        assert before is not None
        assert gate.seal("untouched", **under(NEW)).doubts == ()
        for _ in range(2):
            [doubt] = gate.seal("k", **under(NEW)).doubts
            assert (doubt.epoch, doubt.uses) == (OLD, 1)
            assert "ended without closing" in doubt.note


def test_after_a_clean_end_nothing_is_in_doubt(places: Places) -> None:
    """Also if the process only comes to its end, without close()."""
    opened = Open(places, "memory")
    with child(opened, program=_CHILD.replace('print("begun"', 'use.end(); print("begun"')) as process:
        process.communicate("go\n", timeout=PATIENCE_SECONDS)
    with opened() as gate:
        assert gate.seal("k", **under(NEW)).doubts == ()


def test_what_runs_when_a_gate_in_memory_is_closed_is_in_doubt(places: Places) -> None:
    """The next process does not see it."""
    opened = Open(places, "memory")
    with opened() as gate:
        use = gate.begin("k", **under(OLD))
    use.end()
    use.doubt("too late, and harmless")
    with opened() as gate:
        [doubt] = gate.seal("k", **under(NEW)).doubts
        assert "closed the gate" in doubt.note


def test_the_mark_of_a_gate_in_memory_goes_up_over_restarts(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counter is in memory; the file is ahead of it. Here, so little that it is written several times."""
    monkeypatch.setattr(memory, "RESERVED", 3)
    opened = Open(places, "memory")
    marks: list[Mark | None] = []
    for _ in range(3):
        with opened() as gate:
            marks.append(gate.seal("k", **under(OLD)).mark)
            for _ in range(10):
                with gate.use("k", **under(OLD)):
                    marks.append(gate.mark("k"))
    counters = [mark.counter for mark in marks if mark is not None]
    assert counters == sorted(set(counters))
    assert len(counters) == 33


def test_a_gate_in_memory_forgets_keys_that_are_not_in_use(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a limit; their marks are in the file, and uses that run are kept."""
    monkeypatch.setattr(memory, "_ENTRIES", 3)
    with places.opener("memory", drain_seconds=0)() as gate:
        use = gate.begin("k", **under(OLD))
        for number in range(10):
            gate.seal(f"{number}", **under(NEW))
        assert len(gate._home._entries) <= 4  # type: ignore[attr-defined]
        for number in range(10):
            with pytest.raises(StaleEpoch):
                gate.begin(f"{number}", **under(OLD))
        assert len(gate.seal("k", **under(NEW)).doubts) == 1
        use.end()


def test_a_key_that_was_forgotten_is_not_taken_for_one_of_a_crash(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file names the process that used it last: this one, which is alive and knows that no use is running."""
    monkeypatch.setattr(memory, "_ENTRIES", 3)
    with places.opener("memory", drain_seconds=0)() as gate:
        for _ in range(2):
            for number in range(10):
                gate.begin(f"{number}", **under(OLD)).end()
        assert gate.seal("0", **under(NEW)).doubts == ()
        assert gate.doubts() == []


class Ahead:
    """A lock that another thread has a moment before: *first* runs there, once."""

    def __init__(self, home: Any, name: str, first: Callable[[], None]) -> None:
        self.home, self.name, self.first = home, name, first
        self.lock = getattr(home, name)
        setattr(home, name, self)

    def __enter__(self) -> None:
        setattr(self.home, self.name, self.lock)
        thread = threading.Thread(target=self.first)
        thread.start()
        thread.join()
        self.lock.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.lock.__exit__(*error)


def test_no_use_begins_unseen_when_a_gate_in_memory_has_come_to_rest(places: Places) -> None:
    """The file would say that none is running, and a crash would leave no doubt of it."""
    with places.opener("memory", drain_seconds=0)() as gate:
        home: Any = gate._home
        gate.begin("k", **under(OLD)).end()
        Ahead(home, "_lock", gate.rest)
        assert gate._try_begin("k", gate.writer("k", under(OLD))) is None
        assert not home.running("k", NEW)


def test_a_use_that_ends_after_its_gate_was_closed_leaves_no_file_open(places: Places) -> None:
    """Its end is recorded all the same: otherwise the next seal would wait for it."""
    opener = places.opener("sqlite", drain_seconds=0)
    gate: Any = opener()
    use = gate.begin("k", **under(OLD))
    gate.close()
    use.end()
    assert gate._home._database._open is None
    with opener() as other:
        assert other.seal("k", **under(NEW)).doubts == ()


@pytest.mark.parametrize("verb", ["begin", "seal"])
def test_no_verb_passes_a_gate_in_memory_that_was_closed_meanwhile(places: Places, verb: str) -> None:
    """The use would be unknown to the next process, and the file open again, which keeps that process out."""
    opener = places.opener("memory", drain_seconds=0)
    gate = opener()
    gate.begin("k", **under(OLD)).end()
    Ahead(gate._home, "_writing", gate.close)
    with pytest.raises(Conflict, match="is closed"):
        getattr(gate, verb)("another", **under(OLD))
    assert gate._home._database._open is None  # type: ignore[attr-defined]


def test_a_fork_of_a_gate_in_memory_is_refused(places: Places) -> None:
    """The child would not see its parent's uses, nor the parent the child's."""
    with places.opener("memory")() as gate, gate.use("k", **under(OLD)):
        if (pid := os.fork()) == 0:
            refused = 0
            for call in (
                lambda: gate.begin("k", **under(OLD)),
                lambda: gate.seal("k", **under(NEW)),
                lambda: asyncio.run(gate.aio.begin("k", **under(OLD))),
                lambda: places.opener("memory")(),
            ):
                try:
                    call()
                except Conflict:
                    refused += 1
                except BaseException:
                    pass
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
        assert gate.seal("k", **under(OLD)).doubts == ()


def test_a_fork_of_a_shared_gate_has_connections_of_its_own(shared: Open) -> None:
    """And is seen by its parent."""
    gate = shared(drain_seconds=0)
    gate.begin("k", **under(OLD)).end()
    if (pid := os.fork()) == 0:
        try:
            gate.begin("k", **under(OLD))
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    [doubt] = gate.seal("k", **under(NEW)).doubts
    assert f"process {pid} " in doubt.note
