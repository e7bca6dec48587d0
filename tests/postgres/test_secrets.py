"""Whatever a password is made of, and wherever it stands: no error, no repr and no line of a log has it."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from urllib.parse import quote

import psycopg
import pytest

from leasehold import LeaseholdError, Router
from leasehold.cli.opening import open_existing
from leasehold.core.redaction import shown_url
from leasehold.stores.postgres.errors import cannot_connect
from leasehold.testing.hunt.tables import tables_of

ODD = "@/?#%&=:,[];'\"\\ +~é℀"
# Each odd character within, before and behind, then some together: what is between them is in no other word.
PASSWORDS = [
    *(f"Xq{odd}Zv" for odd in ODD),
    *(f"{odd}XqZv" for odd in ODD[:8]),
    *(f"XqZv{odd}" for odd in ODD[:8]),
    *("Xq@Zv/Wk", "Xq/Zv@Wk", "Xq?Zv#Wk", "Xq@Zv:Wk", "Xq@Zv?user=Wk", "Xq/?connections=Zv", "Xq/?wait_seconds=Zv"),
    *("Xq@Zv%zz", "Xq@@Zv", "Xq//Zv", "Xq://Zv@Wk", "Xq&port=Zv", "Xq@Zv:99", "XqZv", "Xq@[Zv"),
]
PIECES = ("Xq", "Zv", "Wk")

FORMS = [
    "postgresql://ann:{}@127.0.0.1:1/jobs",
    "postgresql://ann:{}@127.0.0.1:1/jobs?connections=3",
    "postgres://ann:{}@127.0.0.1:1/jobs?application_name=me",
    "postgresql://:{}@127.0.0.1:1/jobs",
    "postgresql://ann:{}@127.0.0.1:nan/jobs",
    "postgresql://127.0.0.1:1/jobs?user=ann&password={}",
    "postgresql://127.0.0.1:1/jobs?password={}&user=ann",
    "postgresql://127.0.0.1:1/jobs?sslpassword={}",
    "postgresql://127.0.0.1:1/jobs?connections=many&password={}",
    "postgresql:ann:{}@127.0.0.1:1/jobs",
    "postgresql:/ann:{}@127.0.0.1:1/jobs",
    "postgresql:host=127.0.0.1 port=1 password={} dbname=jobs",
    "postgres//ann:{}@127.0.0.1:1/jobs",
    "postgresql+psycopg://ann:{}@127.0.0.1:1/jobs",
    "mysql://ann:{}@127.0.0.1:1/jobs",
    "//ann:{}@127.0.0.1:1/jobs",
    "host=127.0.0.1 password={} dbname=jobs",
    "password = {}",
    "password={}.db",
    "sqlite://ann:{}@127.0.0.1/jobs",
    "sqlite://ann:{}@127.0.0.1/jobs?x=1",
]


def said_of(url: str) -> Iterator[str]:
    """All that is said about *url* on the way to a connection, which nobody answers."""
    for make in (lambda: tables_of(url, "x"), lambda: open_existing(url), lambda: Router(url)):
        try:
            made = make()
        except LeaseholdError as error:
            yield str(error)
            yield "".join(traceback.format_exception_only(error))
            if error.__cause__ is not None:
                yield str(error.__cause__)
            continue
        if isinstance(made, Router):
            yield repr(made)
            with made, pytest.raises(LeaseholdError) as raised:
                made.add("a")
            yield str(raised.value)
            yield str(raised.value.__cause__)


@pytest.mark.parametrize("form", FORMS)
def test_no_password_is_said(form: str, caplog: pytest.LogCaptureFixture) -> None:
    """As it stands or percent-encoded; nor a part of it, where libpq takes it to be over."""
    caplog.set_level(logging.DEBUG)

    for password in [*PASSWORDS, *(quote(one, safe="") for one in PASSWORDS)]:
        url = form.format(password)
        for said in [*said_of(url), caplog.text]:
            assert not [piece for piece in PIECES if piece in said], (url, said)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://odd:pa?ss@localhost/app", "postgresql://odd:…@localhost/app"),
        ("postgresql://odd:pa#ss@localhost/app", "postgresql://odd:…@localhost/app"),
        ("postgresql://odd:p@ss/word@localhost/app", "postgresql://odd:…@localhost/app"),
        ("postgresql://odd@localhost:5432/app", "postgresql://odd@localhost:5432/app"),
        ("postgresql://localhost/app?password=pa#ss&user=odd", "postgresql://localhost/app?password=…&user=odd"),
        ("postgresql://localhost/app?user=odd&password=p&a", "postgresql://localhost/app?user=odd&password=…"),
        ("sqlite:////srv//a:b@c.db", "sqlite:////srv//a:b@c.db"),
    ],
)
def test_what_is_shown_of_a_url(url: str, shown: str) -> None:
    """All but the password."""
    assert shown_url(url) == shown


@pytest.mark.parametrize(("password", "told"), [("p@ss", True), ("pa?ss", True), ("100%sure", True), ("p%40ss", False)])
def test_who_writes_a_password_as_it_stands_is_told_how(password: str, told: bool) -> None:
    """Percent-encoded, then; which is no news to whoever has done so."""
    error = psycopg.OperationalError('FATAL:  password authentication failed for user "ann"')

    said = str(cannot_connect(error, f"postgresql://ann:{password}@host/jobs"))

    assert "Look at the user and the password" in said
    assert ("%40 %2F" in said) is told


def test_settings_behind_a_password_with_a_question_mark_are_the_stores_own() -> None:
    """The settings begin behind the host."""
    with Router("postgresql://ann:pa?ss@host/jobs?connections=3&application_name=me") as router:
        assert router.store.database.url == "postgresql://ann:pa?ss@host/jobs?application_name=me"  # type: ignore[attr-defined]
        assert router.store.database.pool.limit == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("port", ["abc", "99999", "1,other:x", "-1"])
def test_a_port_that_is_none(port: str) -> None:
    """It is not said to be the host's name."""
    with pytest.raises(LeaseholdError, match="the port in a PostgreSQL URL must be a whole number"):
        Router(f"postgresql://localhost:{port}/app")
