"""
The commands of operators: they look, and what they change is fenced by the epoch that they saw.

Long on purpose: a test for each command, and all of them share the store that an operator meets.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from leasehold import Retry, Router
from leasehold.cli import acting, target
from leasehold.cli.app import run
from leasehold.cli.exit_codes import CODES
from leasehold.core.workers import WorkerReport
from leasehold.router import bulk


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with a running job, three failed ones and one that waits for a lock."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.setenv("LEASEHOLD_STORE", url)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)
    with Router(url) as router:

        @router.task(queue="mail", retry=Retry(max_errors=1))
        def send(to: str) -> None:
            raise ConnectionError(f"no route to {to}")

        for number in range(3):
            send.options(id=f"mail-{number}", meta={"tenant": "acme"}).add(f"user-{number}")
        router.drain()
        router.add("first", {"card": {"number": "4111"}, "total": 10}, lock="k")
        router.add("second", lock="k")
        assert router.claim("worker-1", process=None) is not None
        assert router.claim("worker-2", process=None) is None
    return url


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a command."""
    code = run(arguments)
    return code, *capsys.readouterr()


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """What a command prints as JSON; it must succeed."""
    code, out, err = called(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def epoch(url: str, job_id: str) -> int:
    """The epoch of a job."""
    with Router(url) as router:
        return router.job(job_id).epoch


# Looking


def test_jobs_are_found_by_what_they_are(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The filters can be combined, and the names are those of the JSON."""
    found = answer(capsys, "jobs", "--status", "failed", "--error-type", "ConnectionError", "--meta", "tenant=acme")
    assert [row["id"] for row in found["rows"]] == ["mail-2", "mail-1", "mail-0"]
    assert (found["cursor"], found["complete"]) == (None, True)
    assert answer(capsys, "jobs", "--id-prefix", "mail", "--oldest")["rows"][0]["id"] == "mail-0"
    assert [row["id"] for row in answer(capsys, "jobs", "--payload", "total=10")["rows"]] == ["first"]
    assert [row["id"] for row in answer(capsys, "jobs", "--owner", "worker-1")["rows"]] == ["first"]
    assert answer(capsys, "jobs", "--status", "failed", "--until", "1h")["rows"] == []


def test_pages_follow_each_other(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A page says how to go on."""
    code, out, err = called(capsys, "jobs", "--limit", "2", "--fields", "id")
    assert (code, out.split()) == (0, ["ID", "second", "first"])
    cursor = err.split("--cursor ")[1].strip(")\n")

    assert [row["id"] for row in answer(capsys, "jobs", "--limit", "5", "--cursor", cursor)["rows"]] == [
        "mail-2",
        "mail-1",
        "mail-0",
    ]


def test_lines_are_for_streams(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One object a line, with the fields that were asked for."""
    _, out, _ = called(capsys, "jobs", "--status", "failed", "--jsonl", "--fields", "id,errors")

    assert json.loads(out.splitlines()[0]) == {"id": "mail-2", "errors": 1}


def test_a_field_that_there_is_not_is_refused_with_those_that_there_are(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a wrong usage."""
    code, _, err = called(capsys, "jobs", "--fields", "ident")

    assert code == 2
    assert "'ident' is not a field. The fields are: id, status" in err


def test_show_has_everything_and_why_it_is_not_running(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the epoch that other commands ask for."""
    found = answer(capsys, "show", "second")
    assert found["parked"] == {"kind": "lock", "behind": "k", "by": "worker-2"}
    assert "It waits for its lock 'k', which job 'first' holds: owner 'worker-1'" in found["explanation"]
    _, out, _ = called(capsys, "show", "first")
    assert f"epoch                 {epoch(url, 'first')}" in out
    code, out, _ = called(capsys, "explain", "mail-0")
    assert (code, out[:12]) == (0, "It failed at")


def test_what_is_redacted_is_shown_only_on_demand(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By path, from the environment or the profile."""
    (tmp_path / target.FILE).write_text('[default]\nredact = ["payload.card.number", "error"]\n')
    assert answer(capsys, "show", "first")["payload"]["card"] == {"number": "[redacted]"}
    assert answer(capsys, "jobs", "--status", "failed")["rows"][0]["error"] == "[redacted]"
    assert answer(capsys, "show", "first", "--reveal")["payload"]["card"] == {"number": "4111"}
    monkeypatch.setenv("LEASEHOLD_REDACT", "payload.*")
    assert answer(capsys, "show", "first")["payload"] == {"card": "[redacted]", "total": "[redacted]"}
    monkeypatch.setenv("LEASEHOLD_REDACT", "secret.key")
    code, _, err = called(capsys, "show", "first")
    assert (code, "begins with one of payload" in err) == (2, True)


def test_history_has_ownerships_and_refusals_in_their_order(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Who held it, and who was refused."""
    seen = epoch(url, "first")
    assert run(["transfer", "first", "--to", "worker-3", "--epoch", str(seen), "--as", "ann", "--note", "slow"]) == 0
    assert run(["cancel", "first", "--epoch", str(seen), "--as", "bob"]) == acting.REFUSED
    capsys.readouterr()

    rows = answer(capsys, "history", "first")["rows"]

    assert [row["kind"] for row in rows] == ["ownership", "transferred", "ownership", "refused"] or [
        row["kind"] for row in rows
    ] == ["ownership", "ownership", "transferred", "refused"]
    assert rows[-1]["facts"]["by"] == "bob"
    _, out, _ = called(capsys, "history", "first")
    assert "ended by manual (ann): slow" in out


# Acting


def test_a_stale_operator_is_refused_with_who_moved_it_when_and_why(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two terminals: one transfers, and the other's cancel is exit code 3."""
    seen = str(epoch(url, "first"))
    assert (
        run(["transfer", "first", "--to", "worker-3", "--epoch", seen, "--as", "ann", "--note", "worker-1 hangs"]) == 0
    )
    capsys.readouterr()

    code, _, err = called(capsys, "cancel", "first", "--epoch", seen, "--as", "bob")

    assert code == 3
    assert "moved by 'ann': 'worker-1 hangs'" in err
    assert answer(capsys, "show", "first")["owner"] == "worker-3"


@pytest.mark.parametrize(
    "call",
    [
        ("cancel", "first"),
        ("transfer", "first", "--to", "x"),
        ("requeue", "first"),
        ("complete", "first"),
        ("replay", "mail-0"),
    ],
)
def test_without_an_epoch_nothing_is_done_and_the_command_is_printed(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, call: tuple[str, ...]
) -> None:
    """The state as it is now, and the exact command to repeat; which then works."""
    before = answer(capsys, "show", call[1])
    monkeypatch.setattr("sys.argv", ["leasehold", *call])

    code, out, err = called(capsys, *call)

    assert code == 2
    assert f"epoch        {before['epoch']}" in out
    again = err.strip().splitlines()[-1].split()
    assert again == ["leasehold", *call, "--epoch", str(before["epoch"])]
    assert {**answer(capsys, "show", call[1]), "explanation": ""} == {**before, "explanation": ""}
    assert run(again[1:]) == 0


def test_broken_glass_needs_a_reason_and_is_recorded(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It acts whatever the epoch is, advances it like any other verb, and shows in the history."""
    assert called(capsys, "cancel", "first", "--break-glass")[0] == 2
    assert called(capsys, "cancel", "first", "--break-glass", "--reason", "x", "--epoch", "1")[0] == 2
    before = epoch(url, "first")

    done = answer(capsys, "cancel", "first", "--break-glass", "--reason", "the owner hangs", "--as", "ann")

    assert (done["status"], done["epoch"] > before) == ("cancelled", True)
    rows = answer(capsys, "history", "first")["rows"]
    [glass] = [row for row in rows if row["kind"] == "break-glass"]
    assert glass["facts"] == {"verb": "cancel", "by": "ann", "reason": "the owner hangs", "seen": before}
    assert [row["facts"]["note"] for row in rows if row["kind"] == "cancelled"] == ["break-glass: the owner hangs"]


def test_broken_glass_is_tried_again_while_the_job_moves(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the reading of the epoch and the verb another operator may act: it reads again."""
    cancel = Router.cancel
    moves: list[Any] = []

    def moved_first(router: Router, *args: Any, **options: Any) -> Any:
        if not moves:
            moves.append(router.transfer(router.job("first"), to="other", by="bob"))
        return cancel(router, *args, **options)

    monkeypatch.setattr(Router, "cancel", moved_first)

    done = answer(capsys, "cancel", "first", "--break-glass", "--reason", "hangs")

    assert (done["status"], len(moves)) == ("cancelled", 1)


def test_what_the_state_forbids_is_a_conflict(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And what does not exist is not found; a store that cannot be reached is neither."""
    assert called(capsys, "requeue", "mail-0", "--epoch", str(epoch(url, "mail-0")))[0] == 4
    assert called(capsys, "show", "nothing")[0] == 5
    assert called(capsys, "show", "x", "--store", "postgresql://127.0.0.1:1/none?connect_timeout=1")[0] == 7
    assert called(capsys, "show", "x", "--store", "nonsense://")[0] == 2


# Many at once


def test_a_bulk_action_is_previewed_and_then_done(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The preview prints the command that does it; what has been done no longer fits."""
    call = ["replay", "--status", "failed", "--queue", "mail"]
    monkeypatch.setattr("sys.argv", ["leasehold", *call])
    code, out, err = called(capsys, *call)
    assert code == 0
    assert out.count("mail-") == 3
    again = err.strip().splitlines()[-1].split()
    assert again[-3:] == ["--apply", "--expect", "3"]
    assert answer(capsys, "jobs", "--status", "failed")["rows"] != []

    code, out, _ = called(capsys, *again[1:], "--as", "ann", "--note", "the relay is back")

    assert (code, out) == (0, "3 replayed\n")
    assert answer(capsys, *call)["count"] == 0
    [event] = answer(capsys, "events", "--kind", "bulk")["rows"]
    assert event["facts"] == {
        "verb": "replay",
        "filters": {"status": "failed", "queue": "mail"},
        "count": 3,
        "done": 3,
        "moved": 0,
        "by": "ann",
        "note": "the relay is back",
    }


def test_a_bulk_action_on_another_count_does_nothing(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The operator saw something else."""
    code, _, err = called(capsys, "replay", "--status", "failed", "--apply", "--expect", "2")

    assert (code, "3 jobs match, not the expected 2" in err) == (4, True)
    assert len(answer(capsys, "jobs", "--status", "failed")["rows"]) == 3


def test_a_job_that_moves_meanwhile_is_left_alone_and_named(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is fenced by the epoch that was read; the rest is done; exit code 3."""
    replay = Router.replay
    moved: list[Any] = []

    def moved_first(router: Router, job: Any, **options: Any) -> Any:
        if not moved:
            moved.append(replay(router, router.job("mail-0"), by="bob"))
        return replay(router, job, **options)

    monkeypatch.setattr(Router, "replay", moved_first)

    code, out, _ = called(capsys, "replay", "--status", "failed", "--apply", "--expect", "3", "--json")

    assert code == 3
    found = json.loads(out)
    assert (found["done"], [one["id"] for one in found["moved"]]) == (2, ["mail-0"])
    assert "is refused" in found["moved"][0]["why"]


@pytest.mark.parametrize(
    "call",
    [
        ("cancel",),
        ("cancel", "first", "--queue", "mail"),
        ("cancel", "first", "--apply"),
        ("cancel", "--queue", "mail", "--apply"),
        ("cancel", "--queue", "mail", "--epoch", "1"),
        ("resolve", "first", "charge"),
        ("prune", "--older-than", "soon"),
        ("prune",),
        ("prune", "--older-than", "1h", "--before", "1h"),
        ("prune", "--queue", "mail"),
        ("prune", "--status", "pending"),
        ("prune", "--status", "failed", "--until", "1h", "--older-than", "1h"),
        ("prune", "--older-than", "1h", "--note", "why"),
        ("jobs", "--json", "--jsonl"),
        ("store", "check", "sqlite:///a.db", "--store", "sqlite:///b.db"),
        ("jobs", "--since", "yesterday"),
        ("jobs", "--meta", "tenant"),
        ("jobs", "--cursor", "x"),
        ("add", "--payload", "{"),
        ("jobs", "--profile", "prod"),
    ],
)
def test_a_wrong_call_is_exit_code_2(url: str, capsys: pytest.CaptureFixture[str], call: tuple[str, ...]) -> None:
    """With a sentence on what would do."""
    code, out, err = called(capsys, *call)

    assert (code, out) == (2, "")
    assert err


def test_old_jobs_are_counted_and_then_removed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand, beside the retention of workers."""
    assert answer(capsys, "prune", "--older-than", "1h")["count"] == 0
    assert answer(capsys, "prune", "--older-than", "0s")["count"] == 3
    assert called(capsys, "prune", "--older-than", "0s", "--apply")[0] == 2

    code, _, err = called(capsys, "prune", "--older-than", "0s", "--apply", "--expect", "2")
    assert (code, "3 jobs are that old, not the expected 2. Nothing was removed." in err) == (4, True)
    assert answer(capsys, "prune", "--older-than", "0s", "--apply", "--expect", "3")["jobs"] == 3


def test_a_prune_removes_what_was_counted(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that is printed names the instant, since an age moves on."""
    monkeypatch.setattr("sys.argv", ["leasehold", "prune", "--older-than", "0s", "--as-it-was"])
    _, _, err = called(capsys, "prune", "--older-than", "0s")
    again = err.strip().splitlines()[-1].split()
    assert (again[:4], again[5:]) == (["leasehold", "prune", "--as-it-was", "--before"], ["--apply", "--expect", "3"])
    assert called(capsys, "cancel", "second", "--epoch", str(epoch(url, "second")))[0] == 0

    assert answer(capsys, "prune", "--before", again[4])["count"] == 3
    assert answer(capsys, "prune", "--older-than", "0s")["count"] == 4

    assert answer(capsys, "prune", "--before", again[4], "--apply", "--expect", "3")["jobs"] >= 3
    assert called(capsys, "prune", "--before", "2999-01-01")[0] == 2


def test_finished_jobs_that_fit_are_previewed_and_then_pruned(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the filters of `jobs`; one that was replayed since is left alone, and the action is recorded."""
    call = ["prune", "--status", "failed", "--task", "send", "--older-than", "0s"]
    monkeypatch.setattr("sys.argv", ["leasehold", *call])
    code, out, err = called(capsys, *call)
    assert (code, out.count("mail-")) == (0, 3)
    assert "3 jobs match: send 3." in err
    again = err.strip().splitlines()[-1].split()
    assert (again[:7], again[8:]) == (["leasehold", *call[:5], "--before"], ["--apply", "--expect", "3"])
    read = bulk.matching

    def moved_after(router: Router, wanted: Any) -> Any:
        found = list(read(router, wanted))
        router.replay(router.job("mail-1"), by="bob", note="once more")
        return iter(found)

    monkeypatch.setattr(bulk, "matching", moved_after)

    code, out, _ = called(capsys, *again[1:], "--as", "ann", "--note", "done with")

    lines = out.splitlines()
    assert (code, lines[0]) == (3, "2 pruned, 1 was left alone:")
    assert lines[1].startswith("  mail-1: ")
    assert "its owner settled the job under this epoch, and the job has moved since" in lines[1]
    assert lines[1].endswith("It was replayed by 'bob' since it was read: 'once more'.")
    assert answer(capsys, "jobs", "--status", "failed")["rows"] == []
    assert answer(capsys, "show", "mail-1")["status"] == "pending"
    [event] = answer(capsys, "events", "--kind", "bulk")["rows"]
    facts = event["facts"]
    assert (facts["verb"], facts["done"], facts["moved"], facts["by"]) == ("prune", 2, 1, "ann")


APP = """
from datetime import date
from leasehold import Retry, Router

router = Router({url!r})

@router.task(queue="mail", retry=Retry(max_errors=7), priority=4)
def remind(to: str, on: date) -> None: ...
"""


def test_a_job_has_the_settings_of_its_task_where_the_application_is_named(
    url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue, its retries and its arguments; an option beats them. Without the application, the defaults."""
    (tmp_path / "adding_app.py").write_text(APP.format(url=url))
    monkeypatch.syspath_prepend(str(tmp_path))
    call = ("add", "--task", "remind", "--payload", '{"to": "ann", "on": "2026-11-18"}')

    added = answer(capsys, *call, "--app", "adding_app")
    found = answer(capsys, "show", added["id"])
    assert (found["queue"], found["max_errors"], found["priority"]) == ("mail", 7, 4)
    assert found["payload"] == {"to": "ann", "on": "2026-11-18"}
    del sys.modules["adding_app"]  # in a process of its own the module is imported once
    added = answer(capsys, *call, "--app", "adding_app", "--queue", "slow", "--priority", "0")
    assert (added["queue"], added["priority"]) == ("slow", 0)

    code, out, err = called(capsys, *call)
    assert (code, answer(capsys, "show", out.strip())["max_errors"]) == (0, Retry().max_errors)
    assert "To use the task's own settings, pass --app MODULE:ROUTER" in err


@pytest.mark.parametrize(
    ("task", "payload", "words"),
    [
        ("remnd", "{}", "did you mean 'remind'?"),
        ("remind", '{"to": "ann"}', "'on'"),
        ("remind", '{"to": "ann", "on": "soon"}', "on"),
    ],
)
def test_an_application_refuses_a_job_that_its_task_could_not_run(
    url: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    task: str,
    payload: str,
    words: str,
) -> None:
    """As a wrong usage; nothing is added."""
    (tmp_path / "refusing_app.py").write_text(APP.format(url=url))
    monkeypatch.syspath_prepend(str(tmp_path))

    code, out, err = called(capsys, "add", "x", "--app", "refusing_app", "--task", task, "--payload", payload)

    assert (code, out, words in err) == (2, "", True), err
    assert called(capsys, "show", "x")[0] == 5


def test_a_job_is_added_from_the_command_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Once: a second add of the same id changes nothing and says so."""
    added = answer(
        capsys, "add", "new", "--payload", '{"n": 1}', "--meta", "tenant=1", "--queue", "q", "--priority", "3"
    )
    assert (added["id"], added["created"], added["status"], added["queue"]) == ("new", True, "pending", "q")
    assert called(capsys, "add", "new") == (0, "", "job 'new' exists already and is pending; nothing was added\n")
    found = answer(capsys, "show", "new")
    assert (found["payload"], found["meta"], found["queue"], found["priority"]) == ({"n": 1}, {"tenant": 1}, "q", 3)
    code, out, _ = called(capsys, "add", "--task", "send")
    assert (code, answer(capsys, "show", out.strip())["task"]) == (0, "send")


def test_a_profile_names_the_store(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The option beats the environment, which beats the file; the file may be in a folder above."""
    monkeypatch.delenv("LEASEHOLD_STORE")
    assert called(capsys, "jobs")[0] == 2
    (tmp_path / target.FILE).write_text(f'[default]\nstore = "{url}"\n[other]\nstore = "sqlite:///none.db"\n')
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    assert len(answer(capsys, "jobs")["rows"]) == 5
    assert called(capsys, "jobs", "--profile", "other")[0] != 0
    assert called(capsys, "jobs", "--profile", "third")[0] == 2
    (tmp_path / target.FILE).write_text("[default]\nstor = 1\n")
    code, _, err = called(capsys, "jobs")
    assert (code, "It can have: redact, schema, store" in err) == (2, True)


def test_a_word_of_another_tool_is_answered_with_ours(capsys: pytest.CaptureFixture[str]) -> None:
    """`leasehold retry` is what people type first."""
    for word, ours in (("retry", "replay"), ("jbos", "jobs"), ("kill", "cancel"), ("queue", "queues")):
        code, _, err = called(capsys, word)
        assert (code, f"Did you mean `leasehold {ours}`?" in err) == (2, True), word


def test_exit_codes_are_on_one_page(capsys: pytest.CaptureFixture[str]) -> None:
    """Each number once."""
    _, out, _ = called(capsys, "exit-codes")

    assert [int(line.split()[0]) for line in out.splitlines()] == [one.code for one in CODES]
    assert [one.code for one in CODES] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 130]


def test_a_table_fits_the_terminal_and_keeps_what_is_copied(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids are whole, whatever the width; epochs too, where they are shown."""
    monkeypatch.setenv("COLUMNS", "80")

    _, out, _ = called(capsys, "jobs", "--status", "failed")

    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["ID", "STATUS", "TASK", "QUEUE", "ERRORS", "UPDATED", "ERROR"], "OWNER is empty"
    assert "UPDAT…" not in called(capsys, "jobs")[1]
    assert max(map(len, called(capsys, "queues")[1].splitlines())) <= 80
    assert "Traceback" not in called(capsys, "events")[1]
    assert "ago" in lines[1]
    chosen = called(capsys, "jobs", "--status", "failed", "--fields", "id,error,epoch,updated_at")[1].splitlines()[1:]
    assert all(str(epoch(url, line.split()[0])) in line for line in chosen)


def test_the_doctor_finds_what_does_not_move(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, a sentence, and the command to begin with; nothing is moved."""
    before = epoch(url, "first")

    code, out, _ = called(capsys, "doctor", "--quiet-seconds", "0.000001")

    assert code == 1
    assert "not-moving: Job 'first' at 'worker-1' has made no progress for " in out
    assert "; its lease was granted " in out, "it was not renewed"
    assert "    leasehold show first" in out
    assert "no-consumer: No live worker serves queue 'default', which has due jobs." in out
    assert "which has due jobs. 1 job waits there now.\n" in out
    assert epoch(url, "first") == before
    code, out, _ = called(capsys, "doctor", "--json", "--quiet-seconds", "0.000001")
    found = json.loads(out)
    assert {row["kind"]: row["waiting"] for row in found["observations"]} == {"not-moving": None, "no-consumer": 1}
    assert (code, found["ok"]) == (1, False)
    assert {row["kind"] for row in found["observations"]} == {"not-moving", "no-consumer"}


def test_the_doctor_is_silent_about_a_store_that_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0."""
    url = f"sqlite:///{tmp_path / 'well.db'}"
    with Router(url) as router:
        router.store.advance()

    assert called(capsys, "doctor", "--store", url) == (
        0,
        "Nothing was found. No running job has been without progress for 10 min, and no due job has waited for 5 min "
        "(--quiet-seconds, --waiting-seconds). The invariants hold.\n",
        "",
    )
    assert "without progress for 0.5 s" in called(capsys, "doctor", "--store", url, "--quiet-seconds", "0.5")[1]
    for form in ((), ("--json",), ("--jsonl",)):
        code, _, err = called(capsys, "doctor", "--store", url, "--fields", "kin", *form)
        assert (code, "Did you mean kind?" in err) == (2, True)


def test_a_field_that_was_asked_for_is_shown_even_if_it_is_empty(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A script reads as many lines as it named fields; without --fields, what is empty is left out."""
    assert called(capsys, "show", "mail-0", "--fields", "status,owner")[1] == "status  failed\nowner   -\n"
    assert "\nowner" not in called(capsys, "show", "mail-0")[1]


def test_the_name_that_a_worker_was_given_leads_to_its_own(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs are held under the second, which no other worker has."""
    with Router(url) as router:
        router.store.report(WorkerReport("old:7:e7ba", "old", None, None, (), 1, 0, 0))

    for command in (("jobs", "--owner", "old"), ("requeue", "--owner", "old", "--status", "running")):
        _, _, err = called(capsys, *command)
        assert err == "No job matches. 'old' is a given name; --owner takes the full name of a worker: 'old:7:e7ba'.\n"
    assert called(capsys, "jobs", "--owner", "nobody")[2] == "No job matches.\n"


def test_an_operators_wrong_epoch_is_not_told_how_it_ended(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It may never have been issued."""
    code, _, err = called(capsys, "transfer", "mail-0", "--to", "spare", "--epoch", "1")

    assert (code, "the job is finished" in err, "was ended by" in err) == (3, True, False)


def test_an_application_in_another_folder_can_be_added_to(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `leasehold worker` finds it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "far_app.py").write_text(
        f"from leasehold import Router\nrouter = Router({url!r})\n@router.task(queue='far')\ndef go() -> None: ...\n"
    )

    add = ("add", "far-1", "--app", "far_app:router", "--task", "go")
    assert called(capsys, *add)[0] == 2
    assert called(capsys, *add, "--app-dir", "elsewhere") == (0, "far-1\n", "")
    assert answer(capsys, "show", "far-1")["queue"] == "far"


def test_the_doctor_names_a_pause_that_keeps_jobs_waiting(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1: a pause that is meant to last is known to its author alone."""
    assert run(["queues", "pause", "default", "--as", "ann", "--note", "the relay is down"]) == 0
    capsys.readouterr()

    code, out, _ = called(capsys, "doctor", "--waiting-seconds", "0.000001")

    assert code == 1
    assert "paused: Queue 'default' was paused " in out
    assert " ago by 'ann' (\"the relay is down\"), and its oldest due job has waited for " in out
    assert "1 job waits there now.\n    leasehold queues resume default\n" in out
    code, out, _ = called(capsys, "doctor", "--json", "--fields", "kind,subject,waiting")
    assert (code, json.loads(out)["ok"]) == (1, False)
    assert json.loads(out)["observations"] == [{"kind": "paused", "subject": "default", "waiting": 1}]


def test_the_doctors_lines_fit_the_terminal(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sentence is folded; the command below it is one line, to be copied."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")

    lines = called(capsys, "doctor", "--quiet-seconds", "0.000001")[1].splitlines()

    assert max(len(line) for line in lines if not line.startswith("    ")) <= 60
    assert "    leasehold show first" in lines


# What an operator must not have to look for


def test_a_history_is_not_cut(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Why a job moved is what the table is read for: it goes on in the next line."""
    monkeypatch.setenv("COLUMNS", "100")
    why = "worker-1 hangs in a call to the bank, and the bank does not answer before noon"
    assert run(["transfer", "first", "--to", "worker-3", "--epoch", str(epoch(url, "first")), "--note", why]) == 0
    for call in (("history", "first"), ("events", "--job", "first")):
        capsys.readouterr()
        _, out, _ = called(capsys, *call)
        assert why in " ".join(line[out.splitlines()[0].index("WHAT") :].strip() for line in out.splitlines())
        assert max(map(len, out.splitlines())) <= 100
        assert all(one.startswith("…") for one in out.split() if "…" in one), "only an epoch is short"


def test_the_newest_events_can_be_listed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a store that has recorded much, the last ones are those that matter; with filters too."""
    every = [row["number"] for row in answer(capsys, "events")["rows"]]
    for number in range(40):
        run(["queues", "pause" if number % 2 else "resume", "mail"])
    capsys.readouterr()
    numbers = [row["number"] for row in answer(capsys, "events", "--limit", "1000")["rows"]]
    assert len(numbers) > len(every) + 20

    for count in (1, 2, 7, 39, 1000):
        assert [row["number"] for row in answer(capsys, "events", "--last", str(count))["rows"]] == numbers[-count:]
    failed = [row["number"] for row in answer(capsys, "events", "--kind", "failed")["rows"]]
    assert len(failed) == 3
    assert [row["number"] for row in answer(capsys, "events", "--kind", "failed", "--last", "2")["rows"]] == failed[1:]
    assert answer(capsys, "events", "--job", "none", "--last", "2")["rows"] == []


def test_reclaims_are_listed_where_there_are_any(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that kills its workers has no errors."""
    assert "RECLAIMS" not in called(capsys, "jobs")[1]
    with Router(url) as router:
        router.add("deadly", retry=Retry(max_reclaims=0))
        router.claim("worker-4", lease_seconds=0.001, process=None)
        while router.job("deadly").status == "running":
            router.reclaim()

    lines = called(capsys, "jobs", "--status", "failed")[1].splitlines()

    assert lines[0].split()[6:8] == ["ERRORS", "RECLAIMS"]
    assert next(line for line in lines if "deadly" in line).split()[6:8] == ["0", "1"]


def test_meta_can_be_listed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is where producers sign; redacted like anywhere else."""
    assert answer(capsys, "jobs", "--status", "failed", "--fields", "id,meta", "--limit", "1")["rows"] == [
        {"id": "mail-2", "meta": {"tenant": "acme"}}
    ]


def test_an_alarm_is_printed_once(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is logged as well as raised; a reader sees one line."""
    code, _, err = called(capsys, "cancel", "first", "--epoch", str(epoch(url, "first") + 10**9))

    assert (code, err.count("the store has not issued that epoch")) == (3, 1)


def test_the_store_of_the_environment_is_checked(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As by every other command."""
    code, out, _ = called(capsys, "store", "check")

    assert (code, "Every invariant holds." in out) == (0, True)
