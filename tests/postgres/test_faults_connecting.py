"""Addresses at which there is no store: each says what was tried, and what to do next, and never the password."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psycopg
import pytest

from leasehold import InvalidArgument, Router, StoreUnavailable
from leasehold.core.redaction import shown_url
from leasehold.stores.postgres.errors import cannot_connect

from .fixtures import NEWEST, url_of
from .proxy import Proxy

SECRET = "tr%40p-d00r"


@contextmanager
def answering(reply: bytes | None) -> Iterator[int]:
    """A port at which something answers with *reply* and hangs up, or says nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as left_open:

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                if reply is None:
                    left_open.enter_context(client)
                    continue
                with client:
                    client.recv(1024)
                    client.sendall(reply)

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def refusal(url: str) -> str:
    """What the first verb says."""
    with Router(url) as router, pytest.raises(StoreUnavailable) as raised:
        router.add("a")
    said = str(raised.value)
    assert said.endswith("Nothing was changed.")
    for secret in (SECRET, "tr@p-d00r"):
        assert secret not in said
        assert secret not in str(raised.value.__cause__)
    return said


def test_a_host_that_nobody_knows() -> None:
    """Its name is shown, and where to look."""
    said = refusal(f"postgresql://ann:{SECRET}@nowhere.invalid/jobs")

    assert said.startswith("cannot connect to postgresql://ann:…@nowhere.invalid/jobs: failed to resolve host")
    assert "Check the name of the host" in said


def test_a_port_that_nobody_listens_to() -> None:
    """The kernel says so at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    said = refusal(f"postgresql://ann:{SECRET}@127.0.0.1:{port}/jobs")

    assert f"127.0.0.1:{port}/jobs" in said
    assert "Connection refused" in said
    assert "Is the server running" in said


@pytest.mark.parametrize("reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"220 mail ESMTP\r\n", b""])
def test_a_port_at_which_something_else_answers(reply: bytes) -> None:
    """It is not said to be a matter of passwords or encryption."""
    with answering(reply) as port:
        said = refusal(f"postgresql://ann:{SECRET}@127.0.0.1:{port}/jobs?sslmode=disable&gssencmode=disable")

    assert "check that it is PostgreSQL" in said or "does not seem to be PostgreSQL" in said


@pytest.mark.soak  # two seconds is the least that the driver waits
def test_a_port_at_which_nobody_says_anything() -> None:
    """It is given up after connect_timeout, which is ten seconds unless the URL has another."""
    with answering(None) as port:
        said = refusal(f"postgresql://ann:{SECRET}@127.0.0.1:{port}/jobs?connect_timeout=1")

    assert "timeout" in said
    assert "does a firewall let you through" in said


def test_a_database_that_is_not_there() -> None:
    """The way to make it is named."""
    said = refusal(url_of(NEWEST).replace("/leasehold_test", "/nowhere"))

    assert 'database "nowhere' in said
    assert "createdb" in said


def test_a_role_that_is_not_there() -> None:
    """The user is shown, and where to look."""
    said = refusal(url_of(NEWEST).replace("postgres@", f"nobody:{SECRET}@"))

    assert said.startswith("cannot connect to postgresql://nobody:…@/")
    assert "Look at the user and the password" in said


def test_encryption_that_the_server_does_not_have() -> None:
    """The URL may ask for it."""
    with Proxy(url_of(NEWEST)) as proxy:
        said = refusal(proxy.url.replace("sslmode=disable", "sslmode=require"))

    assert "SSL was required" in said
    assert "sslmode=" in said


def test_a_wrong_password() -> None:
    """The server wants one for this role alone, by its pg_hba.conf, which is put back afterwards."""
    url = url_of(NEWEST)
    with psycopg.connect(url, autocommit=True) as connection:
        [(path,)] = connection.execute("show hba_file").fetchall()
        with open(path) as file:
            before = file.read()
        connection.execute("drop role if exists guarded")
        connection.execute("create role guarded login superuser password 'right'")
        try:
            with open(path, "w") as file:
                file.write(f"local all guarded scram-sha-256\n{before}")
            connection.execute("select pg_reload_conf()")
            wrong = refusal_until_asked(url.replace("postgres@", f"guarded:{SECRET}@"))
            none = refusal(url.replace("postgres@", "guarded@"))
            with Router(url.replace("postgres@", "guarded:right@"), schema="guarded") as router:
                assert router.add("a").created
        finally:
            with open(path, "w") as file:
                file.write(before)
            connection.execute("select pg_reload_conf()")
            connection.execute("drop schema if exists guarded cascade")
            connection.execute("drop role guarded")

    assert 'password authentication failed for user "guarded"' in wrong
    assert "Look at the user and the password" in wrong
    assert "no password supplied" in none
    assert "Look at the user and the password" in none


def refusal_until_asked(url: str) -> str:
    """The same, once the server has read its pg_hba.conf again."""
    for _ in range(1_000):
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            return refusal(url)
        threading.Event().wait(0.01)
    raise AssertionError("the server wants no password")


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("FATAL: sorry, too many clients already", "max_connections"),
        ("FATAL: remaining connection slots are reserved for roles with the SUPERUSER attribute", "max_connections"),
        ("FATAL: the database system is starting up", "try again in a moment"),
        ('FATAL: no pg_hba.conf entry for host "10.0.0.1", user "ann", no encryption', "sslmode=require"),
        ("FATAL: das Datenbanksystem startet", "Nothing was changed."),
    ],
)
def test_what_else_a_server_may_say(said: str, advice: str) -> None:
    """Each with the advice that fits; what is said in another language is passed on."""
    error = cannot_connect(psycopg.OperationalError(said), f"postgresql://ann:{SECRET}@host/jobs")

    assert said in str(error)
    assert advice in str(error)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{SECRET}@host/jobs",
        f"postgresql://ann:{SECRET}@one,two/jobs?application_name=me@home",
        f"postgresql://host/jobs?user=ann&password={SECRET}",
        f"postgresql://host/jobs?password={SECRET}&application_name=me@home",
        f"postgresql://ann@host/jobs?sslkey=x&sslpassword={SECRET}",
    ],
)
def test_a_password_is_never_shown(url: str) -> None:
    """Wherever in the URL it is."""
    assert SECRET not in shown_url(url)
    assert SECRET not in repr(Router(url))
    with pytest.raises(InvalidArgument) as raised:
        Router(url.replace("postgresql:", "postgresq1:"))
    assert SECRET not in str(raised.value)


def test_a_url_that_is_none_does_not_give_away_its_password() -> None:
    """The driver quotes what it cannot read."""
    with pytest.raises(InvalidArgument, match="not a URL that PostgreSQL understands") as raised:
        Router("postgresql://ann:100%sure@host/jobs")

    assert "sure" not in str(raised.value)
    assert raised.value.__cause__ is None
