"""Advice for names that do not exist here: what other libraries call something, and near misses."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def _all(advice: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, advice)


# What follows is the rest of a sentence: "Retry has no 'max_retries': …"

RETRY: Mapping[str, str] = {
    **_all(
        "use max_errors, which counts the first run too: 3 retries are max_errors=4.", "max_retries", "retries", "limit"
    ),
    **_all("use max_errors.", "max_attempts", "attempts", "max_tries", "tries", "times", "stop"),
    **_all("use delay_seconds.", "delay", "backoff", "retry_delay", "interval", "wait", "countdown", "min_delay"),
    **_all("use max_delay_seconds.", "max_delay", "max_backoff", "retry_backoff_max"),
    **_all("use factor.", "backoff_factor", "multiplier", "exponent", "base"),
    **_all("use only.", "retry_on", "retry_for", "autoretry_for", "exceptions", "on"),
    **_all("use @router.task(final=…).", "final", "dont_autoretry_for", "not_on", "ignore"),
}

WORK: Mapping[str, str] = {
    **_all(
        "use concurrency.",
        "workers", "threads", "num_workers", "max_workers", "n_workers", "worker_count", "parallelism", "slots",
    ),
    **_all("start `leasehold worker app:router --processes N`.", "processes", "num_processes"),
    **_all("use queues, a list of names.", "queue", "queue_names"),
    **_all("use router.work(until_empty=True).", "until_empty", "burst", "once", "run_once"),
    **_all("use grace_seconds.", "timeout", "grace", "shutdown_timeout", "stop_timeout"),
    **_all("use name; the owner's name begins with it.", "owner", "worker_id", "worker_name", "hostname"),
}  # fmt: skip

_ADD = "Use router.add(id, payload, task=…), or my_task.add(…) with the task's own arguments."
_SCHEDULE = (
    "There are no schedules yet: start a script from cron that adds the job, with an id that names the day or hour, so "
    "that it is added once (examples/nightly.py)."
)
ROUTER: Mapping[str, str] = {
    **_all(_ADD, "enqueue", "enqueue_many", "send", "send_task", "push", "put", "publish", "submit", "insert", "defer"),
    **_all(
        "Use router.add(…, delay_seconds=…) or run_at=…; for a task, my_task.options(delay_seconds=…).add(…).",
        "enqueue_in", "enqueue_at", "apply_async", "delay", "add_in", "add_at",
    ),
    **_all(_SCHEDULE, "cron", "crontab", "every", "periodic", "periodic_task", "schedule", "schedules", "repeat"),
    **_all("Use router.claim(owner).", "dequeue", "fetch", "pop", "acquire", "reserve", "get_job"),
    **_all("Use router.work(), or `leasehold worker app:router`.", "run", "start", "consume", "listen", "run_worker"),
    **_all("Use @router.task.", "actor", "register", "function", "handler", "define", "add_task"),
    **_all("Use router.result(id, wait_seconds=…).", "wait", "get_result", "wait_for", "fetch_result"),
    **_all("Use router.cancel(router.job(id), by=…).", "revoke", "abort", "delete", "remove", "kill"),
    **_all("Use router.replay(router.job(id), by=…).", "retry", "rerun", "resubmit", "retry_job"),
    **_all("Use router.requeue(router.job(id), by=…).", "put_back", "unlock", "return_to_queue"),
    **_all("Use router.prune(keep_seconds=…).", "purge", "clean", "cleanup", "vacuum"),
    **_all("Use router.counts().", "count", "stats", "size", "length", "info"),
}  # fmt: skip

_TASK = "Use {own}.add(…); later, {own}.options(delay_seconds=…).add(…)."
TASK: Mapping[str, str] = _all(
    _TASK, "delay", "apply_async", "send", "send_with_options", "enqueue", "defer", "schedule", "kiq"
)


def no_attribute(owner: object, what: str, name: str, advice: Mapping[str, str], *, own: str = "") -> AttributeError:
    """Return the error for *name*, which *what* does not have; Python itself suggests similar names."""
    text = f"{what} has no attribute {name!r}."
    if name in advice:
        text += f" {advice[name].format(own=own)}"
    return AttributeError(text, name=name, obj=owner)


def near(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the one of *known* that is spelled most like *name*, or ""."""
    import difflib  # on use: for an error

    return next(iter(difflib.get_close_matches(name, known, 1, cutoff)), "")


def advising(what: str, advice: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """
    Have a function refuse a keyword that it does not take with *advice*, instead of Python's bare sentence.

    Its own signature stays what it is, for type checkers and for `help`. Nothing is looked at before a call has failed.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except TypeError:
                known = [name for name in inspect.signature(function).parameters if name != "self"]
                unknown = next((name for name in kwargs if name not in known), None)
                if unknown is None:
                    raise
            raise TypeError(_refusal(what, unknown, known, advice))

        return call

    return decorate


def _refusal(what: str, name: str, known: list[str], advice: Mapping[str, Any]) -> str:
    taken = f"It takes {', '.join(known)}."
    if name in advice:
        return f"{what} has no {name!r}: {advice[name]} {taken}"
    meant = f" Did you mean {found!r}?" if (found := near(name, known)) else ""
    return f"{what} has no {name!r}. {taken}{meant}"
