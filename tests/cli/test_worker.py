"""`leasehold worker` in one process: signals, exit codes, logs."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.cli.working import APP, Working, begun
from tests.support import until

from leasehold import Retry, Router, Status
from leasehold.cli.app import run
from leasehold.views import Views


def add(router: Router, task: str, count: int = 1, **payload: object) -> list[str]:
    return [router.add(None, payload, task=task).job.id for _ in range(count)]


def worker(folder: Path, *arguments: str, app: str = APP) -> tuple[int, str]:
    """Run the command to its end."""
    with Working(folder, *arguments, app=app) as working:
        return working.ends(), working.said


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the file's only write lock."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("begin immediate")
        yield
        connection.execute("rollback")


# Until there is nothing left


def test_until_empty_does_everything_says_what_it_works_on_and_ends_with_0(tmp_path: Path, router: Router) -> None:
    [job_id] = add(router, "greet", name="Ann")

    code, said = worker(tmp_path, "app", "--until-empty", "--name", "mary", "--queues", "default,mail")

    assert code == 0, said
    assert router.job(job_id).result == "Hello Ann"
    assert f"store sqlite:///jobs.db?busy_seconds=0.1 ({tmp_path}/jobs.db), 2 tasks: gated, greet" in said
    assert "worker mary:" in said
    assert "queues default, mail" in said
    assert router.ownerships(job_id)[0].owner.startswith("mary:")
    assert "\x1b" not in said, "there is no terminal"


# Signals


def test_at_sigterm_it_finishes_what_runs(tmp_path: Path, router: Router) -> None:
    ids = add(router, "gated", 3, gate="gate")
    with Working(tmp_path, "app:router") as working:
        until(lambda: begun(tmp_path) == 3)

        working.terminate()
        working.says("stopping: waiting for running jobs (3); a second signal releases them now")
        [late] = add(router, "greet", name="Late")
        (tmp_path / "gate").touch()

        assert working.ends() == 0, working.said
    assert {router.job(id).status for id in ids} == {Status.DONE}
    # A claim that was under way at the signal may have got it, and has handed it back.
    assert router.job(late).status == Status.PENDING
    assert {held.ended for held in router.ownerships(late)} <= {"release"}


def test_a_second_signal_hands_back_at_once(tmp_path: Path, router: Router) -> None:
    """The grace is an hour, so nothing else ends it. A thread that goes on is not waited for."""
    ids = add(router, "gated", 2, gate="never")
    with Working(tmp_path, "app:router", "--grace-seconds", "3600") as working:
        until(lambda: begun(tmp_path) == 2)

        working.process.send_signal(signal.SIGINT)
        working.says("waiting for running jobs (2)")
        working.terminate()

        assert working.ends() == 0, working.said
    assert [router.job(id).status for id in ids] == [Status.PENDING] * 2
    assert [[held.ended for held in router.ownerships(id)] for id in ids] == [["release"]] * 2


def test_a_signal_while_the_application_is_imported_ends_it_with_0(tmp_path: Path) -> None:
    app = "import pathlib, time\npathlib.Path('imported').touch()\ntime.sleep(3600)"
    with Working(tmp_path, "app", app=app) as working:
        until((tmp_path / "imported").exists)

        working.terminate()

        assert working.ends() == 0, working.said


def test_threads_that_a_handler_left_behind_do_not_keep_the_process(tmp_path: Path, router: Router) -> None:
    """Python waits at its end for the threads of an executor."""
    app = APP + (
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor()\n"
        "@router.task\ndef leave() -> None:\n    pool.submit(time.sleep, 3600)\n"
    )
    [job_id] = add(router, "leave")

    code, said = worker(tmp_path, "app", "--until-empty", app=app)

    assert code == 0, said
    assert "a thread of a handler, or a call to the store, is still running" in said
    assert router.job(job_id).status is Status.DONE


def test_a_claim_that_hangs_in_the_store_does_not_keep_the_process(tmp_path: Path, router: Router) -> None:
    """It would wait for the lock for ten minutes."""
    add(router, "greet", name="Ann")
    app = APP.replace("busy_seconds=0.1", "busy_seconds=600")
    with held(tmp_path / "jobs.db"), Working(tmp_path, "app", "--grace-seconds", "1", app=app) as working:
        working.says("started on all queues")

        working.terminate()

        assert working.ends() == 0, working.said
    assert router.counts().pending == 1


# Failures


def test_jobs_that_could_not_be_settled_are_exit_code_3(tmp_path: Path, router: Router) -> None:
    add(router, "gated", gate="gate")
    with Working(tmp_path, "app:router", "--log-level", "WARNING") as working:
        until(lambda: begun(tmp_path) == 1)
        with held(tmp_path / "jobs.db"):
            (tmp_path / "gate").touch()
            working.says("could not settle 1 job (outcome unknown; retrying): ")

            working.terminate()

            assert working.ends() == 3, working.said
    assert "could not settle 1 job, which will be reclaimed" in working.said


def test_a_store_of_another_version_is_exit_code_1_and_no_traceback(tmp_path: Path, router: Router) -> None:
    add(router, "greet", name="Ann")
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as connection:
        connection.execute("update leasehold_store set schema_version = 1000")

    code, said = worker(tmp_path, "app")

    assert code == 1, said
    assert "can no longer claim: " in said
    assert "Traceback" not in said


def test_a_lifespan_that_raises_is_exit_code_1_with_the_users_frames(tmp_path: Path, router: Router) -> None:
    app = APP + (
        "def connect():\n    raise OSError('no such mail server')\n"
        "@router.lifespan\ndef mail():\n    connect()\n    yield\n"
    )

    code, said = worker(tmp_path, "app", "--until-empty", app=app)

    assert code == 1, said
    assert "OSError: no such mail server" in said
    assert "in connect" in said
    assert "lifespan.py" not in said


def test_a_store_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    """A folder that is made later stands for a server that is started later."""
    app = APP.replace("sqlite:///jobs.db", "sqlite:///later/jobs.db")
    with Working(tmp_path, "app", "--until-empty", app=app) as working:
        working.says("claim failed; retrying")

        (tmp_path / "later").mkdir()

        assert working.ends() == 0, working.said
    assert "the store answers again" in working.said
    assert "Traceback" not in working.said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--queues", "images,,mail"], "contains an empty queue name"),
        (["--concurrency", "0"], "0 is not in the range"),
        (["--processes", "0"], "0 is not in the range"),
        (["--grace-seconds", "-1"], "-1.0 is not in the range"),
        (["--log-format", "xml"], "'xml' is not one of"),
    ],
)
def test_wrong_options_are_exit_code_2(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    code = run(["worker", "app", *arguments])

    assert code == 2
    assert words in capsys.readouterr().err


# Logs


def test_json_logs_are_one_object_per_line_and_say_which_job(tmp_path: Path, router: Router) -> None:
    app = APP + (
        "import logging\n"
        "@router.task\ndef shout(lease) -> None:\n"
        "    logging.getLogger('mine').warning('in %s\\nhere', 'the handler', extra={'unknown': object()})\n"
        "    raise KeyError('lost')\n"
    )
    job_id = router.add(None, {}, task="shout", retry=Retry(max_errors=1)).job.id

    code, said = worker(tmp_path, "app", "--until-empty", "--log-format", "json", app=app)

    assert code == 0, said
    lines = [json.loads(line) for line in said.splitlines()]
    assert all({"at", "level", "logger", "message"} <= line.keys() for line in lines)
    [mine] = [line for line in lines if line["logger"] == "mine"]
    [held] = router.ownerships(job_id)
    assert mine["message"] == "in the handler\nhere"
    assert (mine["level"], mine["job_id"], mine["task"]) == ("warning", job_id, "shout")
    assert (mine["epoch"], mine["owner"]) == (held.epoch, held.owner)
    [failed] = [line for line in lines if "KeyError" in line.get("exception", "")]
    assert (failed["level"], failed["job_id"], failed["epoch"]) == ("error", job_id, held.epoch)
    views = Views(router)
    [event], job = [views.event(one) for one in router.events(job_id, kind="failed")], views.job(job_id)
    assert [failed[name] for name in ("kind", "job_id")] == [event[name] for name in ("kind", "job_id")]
    for name in ("task", "queue", "errors", "error", "error_type"):
        assert failed[name] == job[name], name


def test_a_hidden_error_is_not_logged(tmp_path: Path, router: Router) -> None:
    """Its class is; the frames show the source, whose lines may have the message, so they are not."""
    app = APP.replace("trace=True", "redact=['error']") + (
        "@router.task\ndef pay(lease, card: str) -> None:\n    raise ValueError(f'card {card} is stolen')\n"
        "@router.task(process=True)\ndef pay_apart(card: str) -> None:\n    raise ValueError(f'{card} is stolen')\n"
    )
    for task in ("pay", "pay_apart"):
        router.add(task, {"card": "4111"}, task=task, retry=Retry(max_errors=1))

    for form in ("json", "text"):
        code, said = worker(tmp_path, "app", "--until-empty", "--log-format", form, app=app)
        assert (code, "4111" in said) == (0, False), said
        assert said.count("failed for good, after 1 error: ValueError: [redacted]") == 2
        for task in ("pay", "pay_apart"):
            router.replay(router.job(task), by="ann")


def test_an_application_that_configures_logging_itself_has_its_way(tmp_path: Path) -> None:
    """And `dictConfig` does not silence the worker. One without tasks and without a durable store is warned."""
    app = (
        "import logging.config\n"
        "logging.config.dictConfig({'version': 1, 'formatters': {'f': {'format': 'MINE %(message)s'}},\n"
        " 'handlers': {'h': {'class': 'logging.StreamHandler', 'formatter': 'f'}},\n"
        " 'root': {'handlers': ['h'], 'level': 'INFO'}})\n"
        "from leasehold import Router\nrouter = Router()\n"
    )

    code, said = worker(tmp_path, "app", "--until-empty", app=app)

    assert code == 0, said
    assert all(line.startswith("MINE ") for line in said.splitlines()), said
    assert "MINE worker " in said
    assert "this router has no tasks, so the worker will not run any job" in said
    assert "the store is in the memory of this process" in said


def test_a_router_without_tasks_is_told_of_another_that_has_some(tmp_path: Path) -> None:
    """Which is what was meant, as like as not."""
    (tmp_path / "jobs.py").write_text(
        "from leasehold import Router\nqueue = Router()\n@queue.task\ndef greet() -> None: ...\n"
    )
    app = "import jobs\nfrom jobs import queue\nfrom leasehold import Router\nrouter = Router()\n"

    code, said = worker(tmp_path, "app", "--until-empty", app=app)
    assert code == 0, said
    assert "has 1 task: did you mean it?" in said
    assert "app:queue" in said or "jobs:queue" in said

    code, said = worker(tmp_path, "jobs:queue", "--until-empty", app=app)
    assert code == 0, said
    assert ", 1 task: greet" in said
    assert "did you mean" not in said


def test_a_health_file_without_a_folder_is_refused_before_anything_is_imported(tmp_path: Path) -> None:
    """So nothing has begun, and nothing was said about a start."""
    code, said = worker(tmp_path, "app", "--health-file", "gone/alive", app="print('imported')\nraise SystemExit\n")
    assert code == 2, said
    assert "the folder of 'gone/alive' does not exist" in said
    assert "it raised an error" not in said


# A terminal


def test_a_terminal_shows_a_status_line_and_what_is_logged_above_it(tmp_path: Path, router: Router) -> None:
    ours, theirs = pty.openpty()
    add(router, "gated", gate="gate")
    shown = b""
    with Working(tmp_path, "app", "--until-empty", stderr=theirs) as working:
        os.close(theirs)
        while b"1/16 running" not in shown:
            assert select.select([ours], [], [], 60)[0], shown
            shown += os.read(ours, 65536)
        (tmp_path / "gate").touch()
        while select.select([ours], [], [], 60)[0]:
            try:
                shown += os.read(ours, 65536)
            except OSError:  # its end has closed the terminal
                break

        assert working.ends() == 0, shown
    os.close(ours)
    plain = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", shown)
    assert b"1/16 running  0 done  0 retried  0 failed  0 refused  0.0/s  sqlite:///jobs.db" in plain
    assert b"2 tasks: gated, greet" in shown
    assert b"has stopped: 1 done" in shown


def test_help_teaches_with_an_example_and_names_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["worker", "--help"]) == 0

    shown = capsys.readouterr().out
    assert "leasehold worker app:router --queues images,mail --concurrency 16 \\\n" in shown
    assert "3  stopped, and some jobs are not settled" in shown
    assert "supervised" not in shown
