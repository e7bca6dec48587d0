"""What holds for every command alike: forms of output, streams, colours, times, prompts, exit codes."""

from __future__ import annotations

import codecs
import json
import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pytest
from tests.cli.command import COMMAND, environment
from tests.patience import PATIENCE_SECONDS
from tests.support import until

from leasehold import Retry, Router, Status, StoreUnavailable
from leasehold.cli.app import app, run
from leasehold.cli.asking import DECLINED
from leasehold.cli.exit_codes import INTERRUPTED
from leasehold.cli.watching import Watch
from leasehold.core.search import Search
from leasehold.core.workers import WorkerReport
from leasehold.router.bulk import matching

# Every command, with arguments that do something in the store of the fixture; EPOCH stands for that of the job.
CALLS: dict[str, tuple[str, ...]] = {
    "add": ("x",),
    "jobs": (),
    "show": ("first",),
    "history": ("first",),
    "explain": ("first",),
    "events": (),
    "transfer": ("first", "--to", "worker-2", "--epoch", "EPOCH"),
    "requeue": ("first", "--epoch", "EPOCH"),
    "cancel": ("first", "--epoch", "EPOCH"),
    "replay": ("mail-0", "--epoch", "EPOCH"),
    "complete": ("first", "--epoch", "EPOCH"),
    "resolve": ("first", "charge", "--did-not-happen", "--epoch", "EPOCH"),
    "prune": ("--older-than", "1h"),
    "queues": (),
    "queues pause": ("mail",),
    "queues resume": ("mail",),
    "workers": (),
    "doctor": (),
    "store check": (),
    "store stats": (),
    "store advance": (),
    "store migrate": ("--dry-run",),
    "guard seal": ("mail-0", "--app", "APP"),
    "guard prove": ("--app", "APP"),
    "exit-codes": (),
}
# A story, a service, a probe and a script have no rows; rights and indexes need PostgreSQL (tests/postgres).
OTHERS = {"demo", "demo zombie", "worker", "worker-health", "completion", "guard", "store"}
ON_POSTGRES = {"store grant", "store revoke", "store index-meta"}
ASKING = {"transfer", "requeue", "cancel", "replay", "complete", "resolve", "prune", "store advance"}
WATCHING = {"jobs", "events", "queues", "workers"}
FORMS = {"--json", "--jsonl", "--fields", "--utc", "--color"}
APP = """
from leasehold import Router
from leasehold.guards import FileGuard

router = Router({url!r})
router.guard("files", FileGuard({folder!r}))
"""


def commands(group: click.Group = app, prefix: str = "") -> dict[str, click.Command]:
    """Every command by its path, groups too."""
    found: dict[str, click.Command] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found[prefix + name] = command
        if isinstance(command, click.Group):
            found |= commands(command, f"{prefix}{name} ")
    return found


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with a running job whose effect is in doubt, a failed one, and a worker's report; far from Greenwich."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.setenv("LEASEHOLD_STORE", url)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"app_of_{tmp_path.name}.py").write_text(APP.format(url=url, folder=str(tmp_path / "guarded")))
    (tmp_path / "guarded").mkdir()
    with Router(url) as router:

        @router.task(queue="mail", retry=Retry(max_errors=1))
        def send(to: str) -> None:
            raise ConnectionError(to)

        send.options(id="mail-0").add("ann")
        router.drain()
        router.store.report(WorkerReport("mailer-1", "mailer", None, ("mail",), ("send",), 1, 0, 0))
        router.add("second", queue="slow")
        router.add("first", {"total": 10}, priority=1)
        lease = router.claim("worker-1", process=None)
        assert lease is not None
        with pytest.raises(FileNotFoundError):
            lease.once("charge", lambda key: os.stat("nothing"))
    return url


@pytest.fixture(autouse=True)
def zone() -> Iterator[None]:
    """Put the zone of the process back."""
    yield
    os.environ.pop("TZ", None)
    time.tzset()


def call(name: str, *more: str) -> list[str]:
    """The arguments of a command of the table, with the epoch as it is now."""
    arguments = CALLS[name]
    if "EPOCH" in arguments:
        with Router(os.environ["LEASEHOLD_STORE"]) as router:
            epoch = str(router.job(arguments[0]).epoch)
        arguments = tuple(epoch if one == "EPOCH" else one for one in arguments)
    return [*name.split(), *(f"app_of_{Path.cwd().name}" if one == "APP" else one for one in arguments), *more]


def printed(capsys: pytest.CaptureFixture[str], name: str, *more: str) -> str:
    """What a command of the table prints; it ends with 0, or with 1 where that is an answer."""
    code = run(call(name, *more))
    out, err = capsys.readouterr()
    assert code in ((0, 1) if name == "doctor" else (0,)), err
    return out


def test_every_command_is_in_the_table() -> None:
    """A new one has to be put into it."""
    assert commands().keys() == CALLS.keys() | OTHERS | ON_POSTGRES


def test_every_command_has_the_options_of_its_kind() -> None:
    """The forms of output; those that ask can be kept from asking; those that list can watch."""
    options = {name: {one for it in each.params for one in it.opts} for name, each in commands().items()}

    assert {name: sorted(FORMS - options[name]) for name in CALLS.keys() | ON_POSTGRES if FORMS - options[name]} == {}
    assert {name for name in options if "--yes" in options[name]} == ASKING
    assert {name for name in options if "--watch" in options[name]} == WATCHING


def test_every_help_begins_with_examples() -> None:
    """They are what a reader copies: behind the first sentence, with the command itself in them."""
    helps = {name: (each.help or "").split("\n\n") for name, each in commands().items()}

    assert [
        name
        for name, (_, second, *rest) in helps.items()
        if not second.startswith("\b\nExample") or f"leasehold {name}" not in "\n".join([second, *rest])
    ] == []


@pytest.mark.parametrize("name", CALLS)
def test_json_is_one_document_and_jsonl_one_object_a_line(
    name: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stdout, and nothing beside it; fields are chosen by the names that are in it."""
    document = json.loads(printed(capsys, name, "--json"))
    assert isinstance(document, dict)
    rows = document.get("rows", document.get("observations"))
    field = next(iter(rows[0] if rows else document))
    if name in ("add", "guard seal") or name in ASKING - {"store advance", "prune"}:
        return  # what it did cannot be done again

    lines = [json.loads(line) for line in printed(capsys, name, "--jsonl").splitlines()]
    chosen = json.loads(printed(capsys, name, "--json", "--fields", field))

    assert all(isinstance(line, dict) for line in lines)
    assert [line.keys() for line in lines] == [row.keys() for row in rows or [document]]
    again = chosen.get("rows", chosen.get("observations"))
    assert {tuple(row) for row in (again if rows else [chosen])} == {(field,)}
    assert field in printed(capsys, name, "--fields", field).lower()


@pytest.mark.parametrize("name", CALLS)
def test_a_field_that_there_is_not_is_a_wrong_call(name: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The message is on stderr, and lists those that there are."""
    code = run(call(name, "--fields", "nonsense"))

    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert "--fields: 'nonsense' is not a field. The fields are: " in err


@pytest.mark.parametrize("name", CALLS)
def test_colours_add_nothing(name: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With --color always there may be some; without them the words are the same. A pipe gets none by itself."""
    if name in ("add", "guard seal") or name in ASKING - {"store advance", "prune"}:
        bright = printed(capsys, name, "--color", "always")
        assert "\x1b[" in bright or name in ("add", "guard seal")
        return
    assert "\x1b[" not in printed(capsys, name)
    bright, plain = printed(capsys, name, "--color", "always"), printed(capsys, name, "--color", "never")
    assert [_timeless(line) for line in re.sub(r"\x1b\[[0-9;]*m", "", bright).splitlines()] == [
        _timeless(line) for line in plain.splitlines()
    ]


def _timeless(line: str) -> str:
    return re.sub(r"\d+", "0", line).rstrip()


@pytest.mark.parametrize(
    ("variables", "colored"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, False),
    ],
)
def test_the_environment_decides_unless_the_option_does(
    url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    colored: bool,
) -> None:
    """NO_COLOR beats FORCE_COLOR, and --color beats both; JSON has no colours."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert ("\x1b[" in printed(capsys, "jobs")) == colored
    assert "\x1b[" in printed(capsys, "jobs", "--color", "always")
    assert "\x1b[" not in printed(capsys, "jobs", "--color", "never")
    assert "\x1b[" not in printed(capsys, "jobs", "--color", "always", "--json")


@pytest.mark.parametrize("name", ["jobs", "show", "history", "explain", "events", "workers", "queues", "cancel"])
def test_times_are_local_with_their_offset_or_utc(name: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In JSON they are always UTC."""
    offsets = re.compile(r"\d\d:\d\d:\d\d(?:\.\d+)?([+-]\d\d:\d\d)")
    if name != "cancel":
        assert set(offsets.findall(printed(capsys, name))) <= {"+05:30"}
        assert set(offsets.findall(printed(capsys, name, "--json"))) <= {"+00:00"}
    assert set(offsets.findall(printed(capsys, name, "--utc"))) <= {"+00:00"}


@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"exit-codes"}))
def test_a_store_that_is_not_there_is_exit_code_7(
    name: str, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason on stderr, and nothing on stdout; nothing is created."""
    if name.startswith("guard") or name == "store migrate":
        pytest.skip("it opens the store of its application, or makes one")
    arguments = call(name)
    monkeypatch.setenv("LEASEHOLD_STORE", "sqlite:///none.db")

    code = run(arguments)

    out, err = capsys.readouterr()
    assert (code, out, Path("none.db").exists()) == (7, "", False)
    assert "which does not exist" in err


# On a terminal


class Terminal:
    """A command whose streams are a terminal, as a person has it."""

    def __init__(self, *arguments: str, columns: int = 80) -> None:
        self._main, side = pty.openpty()
        env = {**environment(), "COLUMNS": str(columns), "PYTHONUNBUFFERED": "1"}
        env.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], stdin=side, stdout=side, stderr=side, env=env, start_new_session=True
        )
        os.close(side)
        self.shown = ""
        self._decode = codecs.getincrementaldecoder("utf-8")().decode  # a read may end in the middle of a character

    def until(self, text: str) -> None:
        """Read until the terminal shows *text*."""
        while text not in self.shown:
            read = self._read()
            assert read, self.shown
            self.shown += read

    def answer(self, text: str) -> None:
        """Type *text*."""
        os.write(self._main, text.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C until it ends: Python notices one that comes just before a read has begun only after that."""
        while self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5)

    def end(self) -> int:
        """Read to the end, and return the exit code."""
        while read := self._read():
            self.shown += read
        os.close(self._main)
        return self.process.wait(PATIENCE_SECONDS)

    def _read(self) -> str:
        try:
            read = os.read(self._main, 65536)
            return self._decode(read) or (self._read() if read else "")
        except OSError:  # the other side is closed
            return ""


QUESTIONS = {
    "transfer": "Transfer it? [y/N]",
    "requeue": "Requeue it? [y/N]",
    "cancel": "Cancel it? [y/N]",
    "replay": "Replay it? [y/N]",
    "complete": "Complete it? [y/N]",
    "resolve": "Resolve it? [y/N]",
    "store advance": "This cannot be undone. [y/N]",
    "prune": "Remove 1 job for good? [y/N]",
}
TYPED = {"no": "n\n", "yes": "y\n", "nothing": "\n", "end of input": "\x04"}


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        *((name, "no") for name in QUESTIONS),
        *((name, "yes") for name in ("cancel", "prune", "store advance")),
        ("cancel", "nothing"),
        ("cancel", "end of input"),
    ],
)
def test_a_terminal_is_asked_and_its_no_is_exit_code_8(name: str, answer: str, url: str) -> None:
    """Nothing has happened then; a yes does it, under the epoch that is shown."""
    question, typed = QUESTIONS[name], TYPED[answer]
    arguments = [one for one in CALLS[name] if one not in ("--epoch", "EPOCH")]
    if name == "prune":
        arguments = ["--older-than", "0s", "--apply"]
    before = _state(url)

    terminal = Terminal(*name.split(), *arguments)
    terminal.until(question)
    assert _state(url) == before
    terminal.answer(typed)

    agreed = typed == "y\n"
    assert terminal.end() == (0 if agreed else DECLINED), terminal.shown
    assert agreed or "Nothing was done." in terminal.shown
    assert (_state(url) != before) == agreed


def _state(url: str) -> Any:
    with Router(url) as router:
        return router.search(limit=100).jobs, router.effects("first"), len(router.events(limit=None))


def test_with_yes_a_terminal_is_not_asked(url: str) -> None:
    """What needs an epoch says so, as in a script; the rest is done."""
    assert Terminal("cancel", "first", "--yes").end() == 2
    assert Terminal("cancel", "--status", "running", "--apply", "--yes").end() == 2
    assert Terminal("store", "advance", "--yes").end() == 0
    assert Terminal("prune", "--older-than", "0s", "--apply", "--expect", "1", "--yes").end() == 0


def test_a_terminal_is_asked_for_the_reason_of_broken_glass(url: str) -> None:
    """An empty one is a wrong call."""
    terminal = Terminal("cancel", "first", "--break-glass")
    terminal.until("Why is --break-glass needed?")
    terminal.answer("\n")
    assert terminal.end() == 2
    terminal = Terminal("cancel", "first", "--break-glass")
    terminal.until("Why is --break-glass needed?")
    terminal.answer("worker-1 hangs\n")
    assert terminal.end() == 0

    with Router(url) as router:
        [event] = router.events("first", kind="break-glass")
    assert event.facts["reason"] == "worker-1 hangs"


def test_many_jobs_are_shown_before_a_terminal_is_asked(url: str) -> None:
    """Their number is what the answer is about."""
    terminal = Terminal("cancel", "--status", "running", "--apply")
    terminal.until("Cancel 1 job? [y/N]")
    assert "first" in terminal.shown
    terminal.answer("y\n")

    assert terminal.end() == 0
    assert "1 cancelled" in terminal.shown


def test_ctrl_c_at_a_question_is_exit_code_130(url: str) -> None:
    """It is no answer."""
    before = _state(url)
    terminal = Terminal("cancel", "first")
    terminal.until("[y/N]")
    terminal.interrupt()

    assert terminal.end() == INTERRUPTED
    assert _state(url) == before


# Long commands


@pytest.mark.parametrize("name", sorted(WATCHING))
@pytest.mark.parametrize("form", [(), ("--jsonl",)], ids=["table", "jsonl"])
def test_a_watch_prints_again_until_ctrl_c(name: str, form: tuple[str, ...], url: str) -> None:
    """In a pipe one list after the other; events are printed once. The exit code is 130, without a traceback."""
    watching = subprocess.Popen(
        [*COMMAND, name, "--watch", "--every", "0.1", *form],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment(), "PYTHONUNBUFFERED": "1"},
    )
    stdout = watching.stdout
    assert stdout is not None
    first = stdout.readline()
    if name == "events":
        with Router(url) as router:
            router.pause("watched", by="ann")
        until(lambda: "watched" in stdout.readline())
    else:
        until(lambda: stdout.readline().split()[:1] == first.split()[:1])
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=PATIENCE_SECONDS)

    assert (watching.returncode, err.strip()) == (INTERRUPTED, "leasehold: interrupted")


def test_a_watch_on_a_terminal_shows_the_newest_under_the_time(url: str) -> None:
    """It clears the screen first."""
    terminal = Terminal("queues", "--watch", "--every", "0.1")
    terminal.until("every 0.1 s; Ctrl-C to stop")
    with Router(url) as router:
        router.pause("watched", by="ann")
    terminal.until("watched")
    terminal.process.send_signal(signal.SIGINT)

    assert terminal.end() == INTERRUPTED
    _, cleared, screen = terminal.shown.partition("watched")[0].rpartition("\x1b[2J")
    assert cleared
    assert "every 0.1 s; Ctrl-C to stop" in screen


def test_a_watch_goes_on_when_the_store_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong is reported, and the store asked again; at the first time it is an error as without --watch."""
    answers: list[BaseException | None] = [None, StoreUnavailable("the server is gone."), None, KeyboardInterrupt()]

    def once() -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    with pytest.raises(KeyboardInterrupt):
        Watch(True, 0.001).repeat(once)
    assert answers == []
    assert capsys.readouterr().err == "leasehold: the server is gone. Trying again in 0.001 s.\n"
    answers.append(StoreUnavailable("the server is gone."))
    with pytest.raises(StoreUnavailable):
        Watch(True, 0.001).repeat(once)


def test_ctrl_c_in_a_bulk_action_leaves_what_was_done(url: str) -> None:
    """The exit code is 130; the action is recorded with its count, and can be repeated."""
    with Router(url) as router:
        router.add_many([{"id": f"many-{number}", "queue": "many"} for number in range(3000)])
    bulk = subprocess.Popen(
        [*COMMAND, "cancel", "--queue", "many", "--apply", "--expect", "3000"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    with Router(url) as router:
        until(lambda: router.events(kind="cancelled", limit=1))
        bulk.send_signal(signal.SIGINT)
        _, err = bulk.communicate(timeout=PATIENCE_SECONDS)
        left = sum(1 for _ in matching(router, Search(queue="many", status=Status.PENDING)))
        [event] = router.events(kind="bulk")

    assert (bulk.returncode, "interrupted" in err) == (INTERRUPTED, True)
    assert 0 < left < 3000
    assert event.facts["done"] in (3000 - left, 3000 - left - 1)
    assert run(["cancel", "--queue", "many", "--status", "pending", "--apply", "--expect", str(left)]) == 0
