"""The filters of `leasehold jobs`, which the commands that act on many jobs take too."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from .. import Router
from ..core import instants, search
from ..core.clock import SystemClock
from ..core.job import Status
from ..core.search import Search
from .completion import job_ids, owner_names, queue_names, task_names
from .target import pairs

F = TypeVar("F", bound=Callable[..., Any])

_AGO = re.compile(r"(\d+)\s*(s|m|min|h|d)")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def filter_options(command: F) -> F:
    """Give *command* the filters; it gets a `Search`, and whether any filter was given."""

    @click.option("--status", type=click.Choice([status.value for status in Status]), help="Jobs with this status.")
    @click.option("--queue", metavar="NAME", shell_complete=queue_names, help="Jobs of this queue.")
    @click.option("--task", metavar="NAME", shell_complete=task_names, help="Jobs of this task.")
    @click.option(
        "--owner",
        metavar="NAME",
        shell_complete=owner_names,
        help="Jobs that this owner holds; `leasehold workers` prints the names.",
    )
    @click.option("--parent", metavar="ID", shell_complete=job_ids, help="Children of this job.")
    @click.option("--lock", metavar="KEY", help="Jobs with this lock.")
    @click.option("--error-type", metavar="CLASS", help="Jobs whose last error is of this class, such as ValueError.")
    @click.option("--id-prefix", metavar="TEXT", help="Jobs whose ids begin with this, sorted by id.")
    @click.option(
        "--since",
        metavar="TIME",
        help="Jobs added since TIME (an age such as 15min, 2h or 3d, or an ISO time). With a finished --status: ended "
        "since TIME.",
    )
    @click.option(
        "--until", metavar="TIME", help="Jobs added before TIME. With a finished --status: ended before TIME."
    )
    @click.option(
        "--meta", multiple=True, metavar="KEY=VALUE", help="Jobs whose meta has this value; VALUE is JSON or text."
    )
    @click.option(
        "--payload",
        multiple=True,
        metavar="PATH=VALUE",
        help="Jobs whose payload has this value, such as order.total=10.",
    )
    @functools.wraps(command)
    def wrapped(**options: Any) -> Any:
        own = {name: options.pop(name) for name in _NAMES}
        return command(**options, wanted=_search(**own))

    return wrapped  # type: ignore[return-value]  # the same command with more options


_NAMES = (
    *("status", "queue", "task", "owner", "parent", "lock", "error_type", "id_prefix"),
    *("since", "until", "meta", "payload"),
)


def _search(since: str | None, until: str | None, meta: Any, payload: Any, **names: Any) -> Search:
    return search.checked(
        **names,
        since_us=None if since is None else instant_us(since, "--since"),
        until_us=None if until is None else instant_us(until, "--until"),
        meta=pairs(meta, "--meta"),
        payload=pairs(payload, "--payload"),
    )


def has_filter(wanted: Search) -> bool:
    """Return whether *wanted* leaves anything out."""
    return wanted != Search(newest=wanted.newest)


def age_us(text: str, option: str) -> int:
    """Return a duration such as 15min, 2h or 3d in microseconds."""
    found = _AGO.fullmatch(text.strip())
    if found is None:
        raise click.UsageError(f"{option} takes an age such as 90s, 15min, 2h or 3d, not {text!r}.")
    return int(found[1]) * _UNITS[found[2]] * 1_000_000


def instant_us(text: str, option: str) -> int:
    """Return an age such as 2h, or an ISO time, as the instant that it names; a time without an offset is local."""
    if _AGO.fullmatch(text.strip()):
        return SystemClock().now() - age_us(text, option)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"{option} takes an age such as 15min, 2h or 3d, or an ISO time, not {text!r}."
        ) from None
    return instants.instant(at if at.tzinfo else at.astimezone(UTC), option)


def nothing_fits(router: Router, wanted: Search) -> str:
    """Return what is printed if no job fits: a worker's given name is not the name that its jobs have."""
    known = () if wanted.owner is None else router.workers()
    own = [repr(worker.name) for worker in known if wanted.owner == worker.given_name != worker.name]
    hint = (
        f" {wanted.owner!r} is a given name; --owner takes the full name of a worker: {', '.join(own)}." if own else ""
    )
    return f"No job matches.{hint}"
