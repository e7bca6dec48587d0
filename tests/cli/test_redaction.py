"""What is hidden by its path is hidden wherever it is shown, in Python and on the command line alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leasehold import InvalidArgument, Lease, Retry, Router
from leasehold.cli.app import run
from leasehold.core.redaction import HIDDEN, Redaction
from leasehold.core.search import checked
from leasehold.views import Views

SECRET = "4111-1111"
PATHS = ["payload.card.*", "result.receipt", "meta.token", "checkpoint", "error"]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store in which the same secret stands wherever one can: in jobs, ownerships, events, and filters."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.setenv("LEASEHOLD_STORE", url)
    monkeypatch.delenv("LEASEHOLD_REDACT", raising=False)
    monkeypatch.chdir(tmp_path)
    with Router(url) as router:

        @router.task(retry=Retry(max_errors=2, delay_seconds=3600))
        def pay(lease: Lease, card: dict[str, str]) -> None:
            lease.progress(0.5, checkpoint={"card": SECRET})
            raise ValueError(f"card {SECRET} is stolen")

        for id, most in (("later", 2), ("failed", 1)):
            pay.options(id=id, retry=Retry(max_errors=most, delay_seconds=3600), meta={"token": SECRET}).add(
                {"number": SECRET}
            )
        router.drain()
        router.add("done", {"card": {"number": SECRET}}, meta={"token": SECRET})
        lease = router.claim("worker-1")
        assert lease is not None
        lease.complete({"receipt": SECRET})
        router.add("released", {"card": {"number": SECRET}}, meta={"token": SECRET})
        lease = router.claim("worker-1")
        assert lease is not None
        lease.fail(f"card {SECRET} is blocked", delay_seconds=3600)
        router.bulk("cancel", checked(status="failed", meta={"token": SECRET + "-2"}), expect=0, by="ann")
        filters = checked(status="failed", payload={"card.number": SECRET}, meta={"token": SECRET})
        router.bulk("requeue", filters, expect=1, by="ann", note="again")
    return url


def everything(router: Router) -> str:
    """All that is shown of a store."""
    views = Views(router)
    ids = [job.id for job in router.search(limit=100).jobs]
    shown: list[Any] = [views.job(id) for id in ids] + [views.history(id) for id in ids]
    shown += [[views.event(event) for event in router.events(limit=None)], [router.explain(id) for id in ids]]
    return json.dumps(shown)


def test_nothing_shows_what_is_hidden(url: str) -> None:
    """Jobs, ownerships, the facts of events, the filters of bulk actions, and explanations."""
    with Router(url) as plain:
        assert everything(plain).count(SECRET) > 15
        assert plain.job("done").result == {"receipt": SECRET}
    with Router(url, redact=PATHS) as router:
        assert SECRET not in everything(router)
        assert router.job("done").result == {"receipt": SECRET}, "the data itself is not changed"
        assert Views(router).job("failed")["error_type"] == "ValueError"
        assert Views(router).job("done")["payload"] == {"card": {"number": HIDDEN}}


@pytest.mark.parametrize("path", PATHS)
def test_each_path_is_needed(url: str, path: str) -> None:
    """Without it the secret is seen: each of them hides something that the others do not."""
    with Router(url, redact=[one for one in PATHS if one != path]) as router:
        assert SECRET in everything(router)


CALLS = [
    *(("show", id) for id in ("later", "failed", "done", "released")),
    *(("history", id) for id in ("later", "failed", "done", "released")),
    *(("explain", id) for id in ("later", "failed", "done", "released")),
    ("jobs", "--fields", "id,error,meta"),
    ("events",),
    ("cancel", "later"),
    ("cancel", "--status", "pending"),
    ("doctor", "--waiting-seconds", "0.001"),
]


@pytest.mark.parametrize("way", ["environment", "file", "application"])
def test_the_command_line_hides_the_same_and_shows_it_on_demand(
    url: str, way: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the environment, by leasehold.toml, or by the Router of the application; --reveal shows it."""
    more: tuple[str, ...] = ()
    if way == "environment":
        monkeypatch.setenv("LEASEHOLD_REDACT", ",".join(PATHS))
    elif way == "file":
        (tmp_path / "leasehold.toml").write_text(f"[default]\nredact = {json.dumps(PATHS)}\n")
    else:
        monkeypatch.delenv("LEASEHOLD_STORE")
        monkeypatch.syspath_prepend(str(tmp_path))
    for form in ((), ("--json",), ("--jsonl",)):
        for number, call in enumerate(CALLS):
            if way == "application":  # which is imported once in a process
                name = f"hiding_{len(form and form[0])}_{number}"
                text = f"from leasehold import Router\nrouter = Router({url!r}, redact={PATHS!r})\n"
                (tmp_path / f"{name}.py").write_text(text)
                more = ("--app", name)
            run([*call, *form, *more])
            assert SECRET not in "".join(capsys.readouterr()), (call, form)
    if way != "application":
        assert run(["show", "done", "--reveal"]) == 0
        assert SECRET in capsys.readouterr().out
        assert run(["explain", "released", "--reveal"]) == 0
        assert SECRET in capsys.readouterr().out


def test_a_traceback_is_shown_on_demand_unless_errors_are_hidden(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the frames, which name files, so it is not one of the views."""
    assert run(["show", "failed", "--traceback", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["traceback"]
    assert shown.startswith(f"ValueError: card {SECRET} is stolen")
    assert __file__ in shown

    assert run(["show", "failed", "--json"]) == 0
    assert __file__ not in capsys.readouterr().out

    monkeypatch.setenv("LEASEHOLD_REDACT", "error")
    assert run(["show", "failed", "--traceback", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["traceback"] == HIDDEN


def test_what_is_configured_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """No place can show what another hides."""
    monkeypatch.setenv("LEASEHOLD_REDACT", "meta.token, error")
    with Router(redact=["payload.card", "error"]) as router:
        assert router.redaction.paths == ("payload.card", "error", "meta.token")
    assert (Redaction(["error"]) | Redaction(["error", "meta"])).paths == ("error", "meta")


@pytest.mark.parametrize("paths", [["secret.key"], ["payload..x"], "error"])
def test_a_path_that_hides_nothing_is_refused(paths: Any) -> None:
    """A slip must not look like a protection."""
    with pytest.raises(InvalidArgument, match="redact"):
        Router(redact=paths)
