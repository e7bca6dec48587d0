"""The hunter of races: what its judge finds, that it finds nothing in the stores, and what is broken in broken ones."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.patience import PATIENCE_SECONDS

from leasehold.errors import InvalidArgument
from leasehold.stores.postgres import schema as making
from leasehold.stores.postgres.schema import functions, in_schema
from leasehold.testing.hunt import Evidence, Result, hunt
from leasehold.testing.hunt.command import as_text, main
from leasehold.testing.hunt.judge import (
    Accepted,
    EffectRow,
    Ended,
    Front,
    Issued,
    Judge,
    Paused,
    PickedUp,
    Refused,
    Report,
    Token,
)
from leasehold.testing.hunt.tables import PostgresTables

from .postgres.fixtures import NEWEST, VERSIONS, url_of


def judged(*reports: Report) -> list[str]:
    """What a judge finds in *reports*, the same in both orders of their arrival."""
    found = []
    for order in (reports, reports[::-1]):
        judge = Judge()
        judge.hear(order)
        judge.judge_issues()
        found.append(sorted({finding.what.partition(":")[0] for finding in judge.findings}))
    assert found[0] == found[1]
    return found[0]


def issued(
    epoch: int, asked: int, told: int, job_id: str = "a", lock: str | None = None, checkpoint: int = 0
) -> Issued:
    """An epoch that a claim has issued."""
    return Issued(job_id, lock, epoch, asked, told, "claim", "owner", checkpoint)


def accepted(epoch: int, asked: int, job_id: str = "a", lock: str | None = None, verb: str = "renew") -> Accepted:
    """A write that was accepted."""
    return Accepted(job_id, lock, epoch, asked, asked + 1, verb, "owner")


# The judge


@pytest.mark.parametrize(
    ("reports", "found"),
    [
        ([Paused("mail", 1, 2, "pause")], True),
        ([Paused("mail", 1, 11, "pause")], False),  # the claim began before the pause had returned
        ([Paused("other", 1, 2, "pause")], False),
        ([Paused("mail", 1, 2, "pause"), Paused("mail", 3, 4, "resume")], False),
        ([Paused("mail", 1, 2, "pause"), Paused("mail", 11, 14, "resume")], False),  # it may have come first
        ([Paused("mail", 1, 2, "pause"), Paused("mail", 13, 14, "resume")], True),
        ([Paused("mail", 3, 4, "pause"), Paused("mail", 1, 2, "resume")], True),
        ([Paused("mail", 2, 4, "pause"), Paused("mail", 1, 3, "resume")], False),  # either may have been the last
        ([Paused("mail", n, n + 1, verb) for n, verb in ((1, "pause"), (3, "resume"), (5, "pause"))], True),
        ([Paused("mail", 1, 9, "resume"), Paused("mail", 2, 3, "pause"), Paused("mail", 4, 5, "pause")], False),
    ],
)
def test_a_claim_from_a_paused_queue_is_found(reports: list[Paused], found: bool) -> None:
    """Only where it is certain that the queue was paused from before the claim was asked for until it was answered."""
    claim = Issued("a", None, 1, 10, 12, "claim", "owner", 0, "mail")
    orders: list[list[Report]] = [[claim, *reports], [*reversed(reports), claim]]
    for order in orders:
        judge = Judge()
        judge.hear(order)
        judge.judge_pauses()

        assert [finding.what.partition(":")[0] for finding in judge.findings] == (
            ["a claim took from a paused queue"] if found else []
        )


def test_a_transfer_that_was_accepted_twice_is_found() -> None:
    """Under two claim ids; to repeat a call is no second one, nor is to ask for one's lease again."""
    once = PickedUp("a", 1, "x")

    assert judged(once, once, PickedUp("a", 1, None), PickedUp("b", 2, "y")) == []
    assert [what.partition(":")[0] for what in judged(once, PickedUp("a", 1, "y"))] == ["a transfer was accepted twice"]


def test_a_front_answers_as_a_search_through_all_points_would() -> None:
    """The earliest tick at an epoch or above, whatever the order in which the points came."""
    points = [(epoch * 7 % 11, tick * 5 % 13) for tick, epoch in enumerate(range(1, 40))]
    front = Front()
    for number, (epoch, tick) in enumerate(points, 1):
        front.add(epoch, tick, issued(epoch, 0, tick))
        for asked in range(13):
            ticks = [tick for epoch, tick in points[:number] if epoch >= asked]
            found = front.earliest(asked)
            assert (found and found[0]) == (min(ticks) if ticks else None)


def test_a_quiet_history_has_no_findings() -> None:
    """Owners that follow each other, writes that overlap a takeover, refusals, and keys that go round."""
    assert (
        judged(
            issued(1, 1, 2, lock="k"),
            accepted(1, 3, lock="k"),
            issued(3, 5, 8, lock="k"),  # asked for at 5, told at 8: in between, nobody knows
            accepted(1, 6, lock="k"),
            Refused("a", 1, 3, 9, "settle", "owner"),
            accepted(3, 10, lock="k", verb="settle"),
            Ended("a", "k", 3, 12, "settle"),
            issued(4, 13, 14, job_id="b", lock="k"),
            accepted(4, 15, job_id="b", lock="k"),
        )
        == []
    )


@pytest.mark.parametrize(
    ("reports", "found"),
    [
        ([issued(1, 1, 2), issued(2, 3, 4), accepted(1, 5)], "a stale write was accepted"),
        ([issued(1, 1, 2), Ended("a", None, 1, 3, "settle"), accepted(1, 4)], "a stale write was accepted"),
        # Two jobs with one key.
        (
            [issued(1, 1, 2, lock="k"), issued(2, 3, 4, "b", "k"), accepted(1, 5, lock="k")],
            "a stale write was accepted",
        ),
        # The key was had at 3 and given back; then somebody has it at 2, which was drawn before.
        (
            [
                issued(2, 1, 9, lock="k"),
                issued(3, 2, 3, "b", "k"),
                Ended("b", "k", 3, 5, "settle"),
                accepted(2, 10, lock="k"),
            ],
            "a stale write was accepted",
        ),
        ([issued(1, 1, 2), issued(1, 3, 4, "b")], "epoch 1 was issued twice"),
        ([issued(2, 1, 2), issued(1, 3, 4, "b")], "an epoch is not above one that was issued before"),
        ([Refused("a", 5, 4, 1, "renew", "owner")], "renew (job_id a, epoch 5, current 4, sent 1, owner owner)"),
    ],
)
def test_the_judge_finds(reports: list[Report], found: str) -> None:
    """Each kind of wrong history, in whatever order it is told."""
    assert found in judged(*reports)


def test_the_judge_finds_a_checkpoint_that_was_lost() -> None:
    """It was durable before the next claim was sent."""
    assert judged(issued(1, 1, 2), accepted(1, 3, verb="checkpoint"), issued(2, 5, 6, checkpoint=1)) == []
    judge = Judge()
    judge.hear([issued(1, 1, 2), accepted(1, 3, verb="checkpoint"), issued(2, 5, 6, checkpoint=0)])
    assert len(judge.findings) == 1


def row(token: str, epoch: int, place: int, before: int = 0, *, settles: bool = False) -> EffectRow:
    """A row of job "a"."""
    return EffectRow(token, "a", epoch, place, before, settles, "a plan")


@pytest.mark.parametrize(
    ("rows", "there", "found"),
    [
        ([row("x", 1, 1), row("y", 2, 2, 1)], {"x": True, "y": True}, []),
        ([row("x", 1, 1)], {"x": None}, []),
        ([], {"x": None}, []),
        ([row("x", 2, 1), row("y", 1, 2, 2)], {"x": True, "y": True}, ["a stale row"]),
        ([row("x", 1, 1, 2)], {"x": True}, ["a stale row"]),
        ([row("x", 1, 2)], {"x": True}, ["rows of job a are missing before place 2"]),
        ([row("x", 1, 1)], {"x": False}, ["row 1 of job a exists, although its write was refused or rolled back"]),
        ([row("x", 1, 1)], {}, ["row 1 of job a has the token x, which no hunter wrote."]),
        ([], {"x": True}, ["an accepted row is missing"]),
        (
            [row("x", 1, 1, settles=True), row("y", 1, 2, 1, settles=True)],
            {"x": True, "y": True},
            ["job a was completed 2 times under epoch 1."],
        ),
    ],
)
def test_the_judge_compares_the_rows_with_what_was_told(
    rows: list[EffectRow], there: dict[str, bool | None], found: list[str]
) -> None:
    """What was accepted is there, once and in the order of epochs; what was refused is not."""
    judge = Judge()
    judge.hear(Token(token, "row", "a", 1, known) for token, known in there.items())
    judge.judge_rows(rows)
    assert [finding.what.partition(":")[0] for finding in judge.findings] == found


def test_the_judge_compares_the_jobs_with_what_was_told() -> None:
    """Follow-ups of refused writes never exist, and those of accepted ones do."""
    judge = Judge()
    judge.hear([Token("x", "job", "a", 1, True), Token("y", "job", "a", 1, False), Token("z", "job", "a", 1, True)])
    judge.judge_jobs([("x", "a/x"), ("y", "a/y")])
    assert [finding.job_id for finding in judge.findings] == ["a/y", "a"]


# Short hunts


NAMES = ("fenced commits", "refused commits", "takeovers", "claims", "settles", "jobs", "pick-ups")


def hunted(url: str) -> Result:
    """What came of a hunt of some seconds; of more, on a machine on which nothing has happened by then."""
    stop = threading.Event()

    def enough(seconds: float, counts: dict[str, int], findings: int) -> None:
        if seconds > 1.5 and all(counts.get(name) for name in NAMES):
            stop.set()

    return hunt(url, seconds=60, processes=2, seed=1, progress=enough, stop=stop)


@pytest.mark.parametrize(
    "which", [pytest.param(name, marks=[pytest.mark.soak] * (name != NEWEST)) for name in VERSIONS]
)
def test_a_short_hunt_on_postgresql_finds_nothing(which: str) -> None:
    """And leaves nothing behind; the long form is a command."""
    server_url = url_of(which)
    result = hunted(server_url)

    assert result.findings == []
    assert [name for name in NAMES if not result.counts[name]] == []
    with psycopg.connect(server_url) as connection:
        left = "select count(*) from pg_namespace where nspname like %s"
        assert connection.execute(left, [f"{result.schema}%"]).fetchone() == (0,)


def test_a_short_hunt_on_sqlite_finds_nothing(tmp_path: Path) -> None:
    """Where the write lock of the file is the fence."""
    result = hunted(f"sqlite:///{tmp_path}/hunt.db")

    assert result.findings == []
    assert [name for name in NAMES if not result.counts[name]] == []
    with closing(sqlite3.connect(tmp_path / "hunt.db")) as connection:
        left = "select name from sqlite_master where name not like 'sqlite_%'"
        assert connection.execute(left).fetchall() == []


# Stores that are broken on purpose

MUTANTS = {
    # What is wrong: in which function, and what it says and would say then.
    "a fence that does not compare": (
        "at_commit",
        [("IF NOT FOUND THEN\n            v_refusal :=", "IF false THEN\n            v_refusal :=")],
    ),
    "a fence that looks, and holds nothing": (
        "at_commit",
        [
            (
                "WHERE j.id = NEW.job_id AND l.epoch = NEW.epoch FOR KEY SHARE OF l;",
                "WHERE j.id = NEW.job_id AND l.epoch = NEW.epoch;",
            ),
            ("    IF v_refusal IS NOT NULL THEN", "    PERFORM pg_sleep(0.02);\n    IF v_refusal IS NOT NULL THEN"),
        ],
    ),
    "a takeover that leaves the lease": (
        "take_back",
        [("DELETE FROM leasehold.leases WHERE seq = l.seq;", "")],
    ),
    "a settlement by the job's id alone": (
        "complete",
        [
            ("WHERE seq = j.seq AND epoch = s.epoch AND epoch > j.epoch", "WHERE seq = j.seq AND epoch > j.epoch"),
        ],
    ),
    "a renewal by the job's id alone": (
        "renew",
        [
            (
                "WHERE seq = r.seq AND epoch = r.epoch AND epoch > r.job_epoch",
                "WHERE seq = r.seq AND epoch > r.job_epoch",
            )
        ],
    ),
    "an accept of what was picked up before": (
        "accept",
        [("AND (NOT picked_up OR claim_id = p_claim_id)", "")],
    ),
    "children under any epoch": (
        "add_children",
        [("IF leasehold.lock_lease(p_id, p_epoch, true) IS NOT NULL THEN", "IF true THEN")],
    ),
    "an epoch that is drawn before the key": (
        "claim",
        [
            ("    v_got text[];\n", "    v_got text[];\n    v_early bigint[];\n"),
            (
                "    LOOP\n        v_queues :=",
                "    SELECT array_agg(nextval('leasehold.epochs')) INTO v_early FROM generate_series(1, p_limit);\n"
                "    PERFORM pg_sleep(0.05);\n"
                "    LOOP\n        v_queues :=",
            ),
            ("nextval('leasehold.epochs') AS issued", "v_early[row_number() OVER ()] AS issued"),
        ],
    ),
    "a claim that loses what is behind a key": (
        "claim",
        [("p_owner FROM candidates WHERE blocked\n", "p_owner FROM candidates WHERE false\n")],
    ),
    "a job that is parked behind its task and keeps its key from others": (
        "pass_over",
        [("INSERT INTO leasehold.freed (lock) SELECT unnest(v_locks);", "PERFORM 1;")],
    ),
    "a freed key that wakes nobody": (
        "settle_one",
        [("INSERT INTO leasehold.freed (lock) VALUES (l.lock);", "PERFORM 1;")],
    ),
    "a key freed by a completion that wakes nobody": (
        "complete",
        [("INSERT INTO leasehold.freed (lock) SELECT unnest(v_locks);", "PERFORM 1;")],
    ),
    "a checkpoint under any epoch": (
        "progress",
        [
            (
                "WHERE id = r.id AND epoch < r.epoch) AND l.epoch = r.epoch\n        RETURNING",
                "WHERE id = r.id)\n        RETURNING",
            ),
        ],
    ),
}


def broken(scripts: list[str], schema: str, function: str, changes: list[tuple[str, str]]) -> list[str]:
    """Return *scripts* with one of their functions changed; each change must find its place."""
    begins = in_schema(f"CREATE OR REPLACE FUNCTION leasehold.{function}(", schema)
    [number] = [number for number, script in enumerate(scripts) if begins in script]
    head, _, tail = scripts[number].partition(begins)
    body, end, rest = tail.partition("\n$lh$;")
    for old, new in changes:
        assert in_schema(old, schema) in body, f"{function} no longer says {old!r}"
        body = body.replace(in_schema(old, schema), in_schema(new, schema))
    return [*scripts[:number], head + begins + body + end + rest, *scripts[number + 1 :]]


def test_a_broken_fence_is_found_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hunt is alive: a COMMIT that asks no fence is found, with the history of its job."""
    server_url = url_of(NEWEST)
    off = "ALTER TABLE leasehold.fences DISABLE TRIGGER at_commit;"
    monkeypatch.setattr(making, "functions", lambda schema: [*functions(schema), in_schema(off, schema)])

    result = hunt(server_url, seconds=30, processes=2, seed=1)

    PostgresTables(server_url, result.schema).drop()
    assert not result.holds
    assert any(finding.job_id and finding.reports and finding.ownerships for finding in result.findings)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_what_is_to_be_broken_is_there(mutant: str) -> None:
    """The hunts for these take minutes, and are left out of most runs; that their texts still fit is seen in each."""
    function, changes = MUTANTS[mutant]

    assert broken(functions("s"), "s", function, changes) != functions("s")


@pytest.mark.soak
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_store_is_found(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever guarantee it breaks. Each was found within 3 to 15 seconds, on two cores that had much else to do."""
    server_url = url_of(NEWEST)
    function, changes = MUTANTS[mutant]
    monkeypatch.setattr(making, "functions", lambda schema: broken(functions(schema), schema, function, changes))

    result = hunt(server_url, seconds=180)

    PostgresTables(server_url, result.schema).drop()
    assert not result.holds


# The command


def test_a_store_without_a_database_cannot_be_hunted(capsys: pytest.CaptureFixture[str]) -> None:
    """It says why, and what can be."""
    assert main(["memory:", "--minutes", "1"]) == 2
    assert "no transaction to fence" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["seconds", "processes", "threads"])
def test_a_hunt_of_nothing_is_refused(wrong: str, tmp_path: Path) -> None:
    """Before anything is made."""
    settings: dict[str, Any] = {"seconds": 1, wrong: 0}
    with pytest.raises(InvalidArgument, match=f"{wrong} must be more than 0, not 0"):
        hunt(f"sqlite:///{tmp_path}/hunt.db", **settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf"])
def test_minutes_that_are_none_are_refused_in_minutes(minutes: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As they were given."""
    with pytest.raises(SystemExit):
        main(["sqlite:///never.db", f"--minutes={minutes}"])
    assert f"--minutes must be more than 0, and finite, not {minutes}" in capsys.readouterr().err


def test_ctrl_c_ends_a_hunt_with_its_summary(tmp_path: Path) -> None:
    """Jobs are still brought to their end, and the judge still judges."""
    url = f"sqlite:///{tmp_path}/hunt.db"
    command = [sys.executable, "-m", "leasehold.testing.hunt", url, "--minutes", "5", "--seed", "7", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as hunting:
        while not (tmp_path / "hunt.db").exists():
            assert hunting.poll() is None
        os.killpg(hunting.pid, signal.SIGINT)
        said, _ = hunting.communicate(timeout=PATIENCE_SECONDS)

    assert hunting.returncode == 0
    facts = json.loads(said)
    assert (facts["holds"], facts["interrupted"], facts["seed"], facts["findings"]) == (True, True, 7, [])


def test_the_summary_for_people_says_what_was_found() -> None:
    """With the evidence, and where the rest of it is."""
    counts = {"fenced commits": 2, "refused commits": 1, "takeovers": 1, "claims": 3, "settles": 1, "jobs": 1}
    quiet = Result("postgresql://x", "hunt_1", 7, 61, counts, [], interrupted=True)
    assert as_text(quiet).startswith("1:01 (interrupted), seed 7: 2 fenced commits, 1 refused commits, 1 takeovers, ")
    assert as_text(quiet).endswith("Nothing was found.")

    found = replace(quiet, findings=[Evidence("a stale row: x.", "a", "Traceback …", rows=["row 1"])])
    assert not found.holds
    assert "the schemas hunt_1 and hunt_1_rows are kept" in as_text(found)
    assert as_text(found).endswith("FOUND a stale row: x.\nTraceback …\n  rows of job a:\n    row 1")
