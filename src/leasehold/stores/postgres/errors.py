"""
What went wrong, in leasehold's words: whether something may have happened, and what to do next.

What the server refused has not happened. A reply that was lost leaves the outcome unknown, and nothing here guesses.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from ...connections import IN_SAVEPOINT
from ...core.ownership import wrong_clock
from ...core.redaction import secrets_of, shown_url
from ...errors import (
    Conflict,
    InvalidArgument,
    LeaseholdError,
    NotInTransaction,
    StaleSnapshot,
    StoreIncompatible,
    StoreUnavailable,
    Unsupported,
)
from .rights import missing_right

NOTHING = "Nothing was changed."
_PLAIN = re.compile(r"[@/?#]|%(?![0-9a-fA-F]{2})")  # what a password in a URL should not have as it stands
_TORN = re.compile(r"[@/&]")  # where libpq takes a password to be over: it would call the rest a host, or a setting
ENCODE = "In a URL, a password's @ / ? # & % are written percent-encoded: %40 %2F %3F %23 %26 %25."
_QUESTION = re.compile(r" *Is the server running (?:on that host|locally)[^?]*\?")  # our advice asks it better
_ENDED = {"57P01", "57P02", "57P03", "57P05", "25P03"}  # the server has ended the session

# Why a connection could not be made has no SQLSTATE, only words; a server that speaks another language gets no advice.
_ADVICE = (
    (
        r"expected authentication request|invalid response|unsupported frontend|lost synchroni[sz]ation",
        "What answers at that address does not seem to be PostgreSQL: look at the port in the URL.",
    ),
    (
        r"resolve host|translate host name|name or service not known",
        "Check the name of the host in the URL, and your DNS.",
    ),
    (
        r"too many clients|remaining connection slots|too many connections",
        "Every connection that the server allows is taken: run fewer processes, give each of them fewer connections, "
        "put a pooler in front of the server, or raise max_connections.",
    ),
    (
        r"starting up|shutting down|recovery mode|not yet accepting",
        "It is being started or stopped: try again in a moment.",
    ),
    (r"SSL|encryption", "Check whether the server requires TLS: put sslmode=require or sslmode=disable into the URL."),
    (
        r"password|authentication|pg_hba|role \".*\" does not exist",
        "Look at the user and the password in the URL, and at the server's pg_hba.conf.",
    ),
    (r"database \".*\" does not exist", "Create that database (createdb), or name another in the URL."),
    (r"refused|No such file|server running", "Is the server running, and is this its address?"),
    (r"timeout|timed out", "Is this its address, and does a firewall let you through?"),
    (
        r"closed the connection|server closed",
        "Something accepted the connection and closed it: check that it is PostgreSQL, and look at its log.",
    ),
)


def explained(error: Any, where: str, schema: str, *, role: str | None = None) -> LeaseholdError:
    """Return the driver's *error* in leasehold's words; *error* has a `sqlstate`, or None for a lost connection."""
    code = sqlstate_of(error)
    message = str(error).strip().partition("\n")[0]
    if is_lost(error):
        return StoreUnavailable(
            f"the connection to {where} was lost: {message}. This call may or may not have taken effect; check before "
            "you repeat it.",
            outcome_unknown=True,
        )
    match code:
        case "LH002":
            return InvalidArgument(
                f"the connection that you passed is not to the database of this store ({where}): only rows in the same "
                "database can commit together."
            )
        case "LH003":
            return wrong_clock(int(detail_of(error) or 0))
        case "LH004":
            return StaleSnapshot(
                "your transaction had read before the job was claimed, so it cannot see whether the epoch is current: "
                "roll it back and run it again."
            )
        case "LH005":
            return StoreIncompatible(
                f"connections to {where} do not begin in READ COMMITTED, the isolation level that the store needs: "
                f"set default_transaction_isolation for the role or in the URL (options=…). {NOTHING}"
            )
        case "LH006":
            return Conflict(IN_SAVEPOINT)
        case "LH007":
            return Unsupported(
                "a transaction that is fenced by a lease cannot be prepared: its lease would stay locked until it is "
                f"committed, even across restarts of the server. Use COMMIT instead of PREPARE TRANSACTION. {NOTHING}"
            )
        case "3F000" | "42P01" | "42883":
            return StoreIncompatible(
                f"schema {schema!r} of {where} does not exist, or belongs to another version of leasehold: {message}. "
                "If the store is in another schema, pass its name (schema=…, or --schema). If not, run `leasehold "
                f"store migrate URL`, which creates or updates it. {NOTHING}"
            )
        case "42501":
            return missing_right(message, where, schema, role)
        case "25P02":
            return NotInTransaction(
                "the transaction on the connection that you passed failed at an earlier statement, so the server "
                f"accepts nothing more in it: roll it back, and repeat this call in a new transaction. {NOTHING}"
            )
        case "25006":
            return StoreUnavailable(
                f"{where} is read-only: {message}. If it is a standby, put the primary into the URL, or all hosts with "
                "target_session_attrs=read-write. If it is not a standby, turn off default_transaction_read_only for "
                f"the role, the database or the server. {NOTHING}"
            )
        case "55P03":
            return StoreUnavailable(
                "another transaction holds a lock that this call needs (a row, or the id or unique key of a new job): "
                f"{message}. {NOTHING} Try again once that transaction has ended: pg_stat_activity shows which ones "
                "are open, and since when."
            )
        case "40P01" | "40001":
            return StoreUnavailable(
                f"PostgreSQL rolled back this transaction, which conflicted with another: {message}. "
                f"{NOTHING} Try again."
            )
        case "57014":
            return StoreUnavailable(
                f"the statement was cancelled or timed out: {message}. {NOTHING} If statement_timeout is set for the "
                "role, raise it."
            )
        case "53100" | "53200" | "53300" | "53400":
            return StoreUnavailable(
                f"{where} has run out of a resource: {message}. {NOTHING} Try again once more of it is available."
            )
        case "2200H":
            return StoreUnavailable(f"no epoch is left below 2**53: {message}. {NOTHING}")
    # The server has refused the statement, and with it the whole transaction.
    return StoreUnavailable(f"{where} refused this call with SQLSTATE {code}: {message}. {NOTHING}")


def cannot_connect(error: Exception, url: str) -> StoreUnavailable:
    """Return why no connection could be made, and what to do about it."""
    message = " ".join(str(error).split()).removeprefix("connection failed: ").rstrip(".")
    advice = [advice for words, advice in _ADVICE if re.search(words, message, re.IGNORECASE)][:1]
    if any(_PLAIN.search(secret) for secret in secrets_of(url)):
        advice.append(ENCODE)
    shown = without_secrets(_QUESTION.sub("", message), url)
    if secrets_of(url):
        error.args = (shown,)  # it is shown too, as the cause of ours
    return StoreUnavailable(" ".join([f"cannot connect to {shown_url(url)}: {shown}.", *advice, NOTHING]))


def is_lost(error: object) -> bool:
    """Whether the driver's *error* says that the session is over, and so not how what was asked has ended."""
    code = sqlstate_of(error)
    severity = getattr(getattr(error, "diag", None), "severity_nonlocalized", None)
    # The server may end a session after its COMMIT and before the answer to it, with whatever code.
    return code is None or code in _ENDED or code.startswith("08") or severity in ("FATAL", "PANIC")


def sqlstate_of(error: object) -> str | None:
    """Return the SQLSTATE that a driver's error carries, by whatever name."""
    for name in ("sqlstate", "pgcode"):
        code = getattr(error, name, None)
        if isinstance(code, str):
            return code
    return None


def detail_of(error: object) -> str | None:
    """Return the DETAIL that a driver's error carries, by whatever name: facts, if a function raised it."""
    return getattr(getattr(error, "diag", None), "message_detail", None) or getattr(error, "detail", None)


def without_secrets(text: str, url: str) -> str:
    """Return *text*, which a driver wrote about *url*, without the password; or none of it, if in doubt."""
    secrets = secrets_of(url)
    if any(_TORN.search(secret) for secret in secrets):
        return "the driver's message is omitted, since it may contain a part of the password"
    for secret in sorted({form for one in secrets for form in (one, unquote(one)) if form}, key=len, reverse=True):
        text = text.replace(secret, "…")
    return text
