"""What the log says of operators' verbs and of observations: the names of `leasehold events --json`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold import Lease, Router, StaleEpoch
from leasehold.cli.logs import Lines, _Json, _Text
from leasehold.core import search
from leasehold.core.job import completion
from leasehold.guards import FileGuard
from leasehold.testing import ManualClock
from leasehold.views import Views

WHO = {"name": "charge", "by": "ada", "note": "late"}  # the facts of a resolution


class Written:
    """The lines that `--log-format json` writes."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def take(self) -> list[dict[str, Any]]:
        """The lines since the last time, without when and where."""
        taken, self.lines = self.lines, []
        return [{name: one[name] for name in one if name not in ("at", "logger")} for one in taken]


@pytest.fixture
def written() -> Iterator[Written]:
    """The log of the library, as a worker with `--log-format json` writes it."""
    found, lines, log = Written(), Lines(_Json()), logging.getLogger("leasehold")
    lines.write = lambda line, _level: found.lines.append(json.loads(line))
    level = log.level
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    yield found
    log.removeHandler(lines)
    log.setLevel(level)


def doubt(lease: Lease) -> None:
    """Leave an effect of the job in doubt."""

    def charge(key: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lease.once("charge", charge)


def test_each_verb_of_an_operator_is_one_line(written: Written) -> None:
    """With who, why, and the state of the job after it; each line is what the store has recorded."""
    with Router(clock=ManualClock()) as router:
        router.add("a", task="mail", queue="q")
        lease = router.claim("w")
        assert lease is not None
        doubt(lease)
        who: dict[str, Any] = {"by": "ada", "note": "late"}
        written.take()

        router.resolve("a", "charge", epoch=lease.epoch, happened=False, **who)
        router.transfer("a", to="v", epoch=router.job("a").epoch, **who)
        router.requeue("a", epoch=router.job("a").epoch, **who)
        router.cancel("a", epoch=router.job("a").epoch, by="ada")
        router.replay("a", epoch=router.job("a").epoch, **who)
        router.complete("a", epoch=router.job("a").epoch, **who)
        router.pause("q", **who)
        router.resume("q", by="ada")

        lines = written.take()
        assert [line["message"] for line in lines] == [
            "job 'a' (mail) has its effect 'charge' resolved by 'ada': late",
            "job 'a' (mail) transferred to 'v' by 'ada': late",
            "job 'a' (mail) requeued by 'ada': late",
            "job 'a' (mail) cancelled by 'ada'",
            "job 'a' (mail) replayed by 'ada': late",
            "job 'a' (mail) completed by hand by 'ada': late",
            "queue 'q' paused by 'ada': late",
            "queue 'q' resumed by 'ada'",
        ]
        events = [one for one in router.events() if one.facts.get("by") == "ada"]
        assert [line["kind"] for line in lines] == [one.kind for one in events]
        assert [line.get("job_id") for line in lines] == [one.job_id for one in events]
        assert [line.get("epoch") for line in lines] == [one.epoch for one in events]
        assert {line["queue"] for line in lines} == {"q"}
        assert lines[1]["owner"] == "v"
        assert lines[0]["facts"] == events[0].facts == {"name": "charge", **who}
        assert lines[2]["facts"] == who


def test_a_bulk_action_and_a_prune_are_one_line_each_and_hide_what_is_redacted(written: Written) -> None:
    """Beside the line of each job: the filters may repeat what a payload has."""
    clock = ManualClock()
    with Router(clock=clock, redact=["payload.card"]) as router:
        router.add("a", {"card": "4111"})
        written.take()

        router.bulk("cancel", search.checked(payload={"card": "4111"}), expect=1, by="ada", note="stolen")
        clock.advance(60)
        router.prune(keep_seconds=30)

        [each, bulk, prune] = written.take()
        assert each["kind"] == "cancelled"
        assert bulk["message"] == "bulk cancel: 1 of 1 job done by 'ada': stolen"
        assert bulk["facts"]["filters"] == {"payload": {"card": "[redacted]"}}
        assert prune["message"] == "pruned 1 job and 2 events"
        assert prune["facts"] == {"keep_seconds": 30, "jobs": 1, "events": 2, "ids": 0}


@pytest.mark.parametrize(
    ("hidden", "message", "facts"),
    [
        ("facts.name", "its effect '[redacted]' resolved by 'ada': late", {"name": "[redacted]"}),
        ("facts.note", "its effect 'charge' resolved by 'ada': [redacted]", {"note": "[redacted]"}),
        ("facts.*", "its effect '[redacted]' resolved by '[redacted]': [redacted]", dict.fromkeys(WHO, "[redacted]")),
        ("facts", "its effect '[redacted]' resolved by '[redacted]': [redacted]", None),
    ],
)
def test_a_line_hides_what_its_event_hides(
    written: Written, hidden: str, message: str, facts: dict[str, str] | None
) -> None:
    """By the names of the event's facts, in the message too."""
    with Router(redact=[hidden]) as router:
        router.add("a")
        lease = router.claim("w")
        assert lease is not None
        doubt(lease)
        written.take()

        router.resolve("a", "charge", epoch=lease.epoch, by="ada", note="late")

        [line] = written.take()
        assert line["message"] == f"job 'a' has {message}"
        [event] = [row for row in Views(router).history("a") if row["kind"] == "resolved"]
        assert line["facts"] == event["facts"] == ("[redacted]" if facts is None else {**WHO, **facts})


@pytest.mark.parametrize(
    ("hidden", "begun", "ended"),
    [
        ("facts.sentence", "no-consumer, 'mail'", "no-consumer, 'mail'"),
        ("facts.subject", "no-consumer, '[redacted]'", "no-consumer, '[redacted]'"),
        ("facts", "[redacted]", "[redacted]"),
    ],
)
def test_the_lines_of_an_observation_hide_what_its_events_hide(
    written: Written, hidden: str, begun: str, ended: str
) -> None:
    """Its sentence would repeat what is hidden."""
    clock = ManualClock()
    with Router(clock=clock, redact=[hidden]) as router:
        router.add("a", queue="mail")
        clock.advance(30)
        router.reclaim()
        router.claim("w", lease_seconds=3_600)
        clock.advance(15)
        router.reclaim()

        [first, last] = written.take()
        assert first["message"] == f"observation began: {begun}"
        assert last["message"] == f"observation ended: {ended}"
        [event] = router.events(kind="observed")
        assert first["facts"] == Views(router).event(event)["facts"]


def test_a_line_break_in_a_text_does_not_forge_a_line(written: Written) -> None:
    """A note, the name of a task and an id are shown with escapes then, and with them only."""
    forged = "x\n2026-11-18T00:00:00.000Z INFO     leasehold: job 'b' cancelled by 'root'"
    with Router() as router:
        router.add(forged, task="mail\r\u2028", queue="q\n")
        router.add("plain", task="grüße")

        router.cancel(forged, epoch=0, by="ada\n", note=forged)
        router.cancel("plain", epoch=0, by="ada", note="zu spät")
        router.pause("q\n", by="ada", note="\x1b[2K")

        assert [line["message"] for line in written.take()] == [
            f"job {forged!r} ('mail\\r\\u2028') cancelled by 'ada\\n': {forged!r}",
            "job 'plain' (grüße) cancelled by 'ada': zu spät",
            "queue 'q\\n' paused by 'ada': '\\x1b[2K'",
        ]


def test_the_job_behind_a_line_of_text_is_escaped() -> None:
    """The text format adds the id of the job that runs to lines that do not name it."""
    record = logging.makeLogRecord({"msg": "hello", "job_id": "a\nb"})

    assert _Text().format(record).endswith("hello [job 'a\\nb']")


def test_an_observation_is_logged_when_it_begins_and_when_it_ends(written: Written) -> None:
    """Once each, by the process that records it."""
    clock = ManualClock()
    with Router(clock=clock) as router:
        router.add("a", queue="mail")
        written.take()

        for _ in range(5):
            router.reclaim()
            clock.advance(15)

        [begun] = written.take()
        assert begun["message"] == "No live worker serves queue 'mail', which has due jobs."
        assert (begun["level"], begun["kind"]) == ("warning", "observed")
        assert begun["facts"] == router.events(kind="observed")[0].facts
        router.claim("w", lease_seconds=3_600)
        router.reclaim()
        [ended] = written.take()
        assert (ended["level"], ended["kind"]) == ("info", "cleared")
        assert ended["facts"] == {"observation": "no-consumer", "subject": "mail"}


@pytest.fixture
def broken_log(capsys: pytest.CaptureFixture[str]) -> Iterator[pytest.CaptureFixture[str]]:
    """A filter of the application that raises at each line of the library; what stderr has of it."""
    log = logging.getLogger("leasehold")

    def broken(record: logging.LogRecord) -> bool:
        raise RuntimeError(f"broken filter: {record.getMessage()}")

    log.addFilter(broken)
    level = log.level
    log.setLevel(logging.INFO)
    yield capsys
    log.removeFilter(broken)
    log.setLevel(level)


def test_a_verb_succeeds_whatever_the_log_does(broken_log: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What a filter of the application raises goes to stderr; a key that was not reached is recorded all the same."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Router(url) as router, Router(url) as operators:
        shelf = router.guard("shelf", FileGuard(tmp_path / "shelf", create=True))
        router.add("a")
        lease = router.claim("w")
        assert lease is not None
        router._registry.guards.seal([shelf.key("k")], lease)

        ended = operators.cancel("a", epoch=lease.epoch, by="ada")  # by a process that does not know the guard

        assert ended.status == "cancelled"
        assert ended.unsealed == (
            "shelf:k (no guard is registered as 'shelf' in this process: register it with "
            "router.guard('shelf', guard), or try again in a process that has it)",
        )
        assert [event.facts["by"] for event in router.events("a", kind="unsealed")] == ["ada"]
    assert "broken filter: 1 key of job 'a'" in broken_log.readouterr().err


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_batch_is_settled_whatever_the_log_does(
    broken_log: pytest.CaptureFixture[str], kind: str, tmp_path: Path
) -> None:
    """An epoch that was never issued is logged in the middle of the batch; the leases beside it are settled."""
    with Router("memory://" if kind == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}") as router:
        router.add_many([{"id": id} for id in "abc"])
        first, second, third = map(completion, router.store.claim("w", limit=3))

        replies = router.store.settle([first, second._replace(epoch=second.epoch + 10**12), third])

        assert [type(reply) for reply in replies] == [type(None), StaleEpoch, type(None)]
        assert [router.job(id).status for id in "abc"] == ["done", "running", "done"]
        assert [event.kind for event in router.events("b")][-2:] == ["alarm", "refused"]
    assert "broken filter: job 'b': complete with epoch" in broken_log.readouterr().err
