"""
How a worker's log is written: lines for people, or one JSON object per line.

Every record that is logged inside a handler, by any logger, names its job.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ..core.wording import printable
from ..lease import lease_here

LEVELS = ("debug", "info", "warning", "error", "critical")
FORMATS = ("text", "json")
# As in --json.
_FIELDS = (
    *("kind", "job_id", "task", "queue", "epoch", "owner", "began", "attempt", "errors", "reclaims", "delay_seconds"),
    *("error", "error_type", "facts"),
)

Write = Callable[[str, int], None]


def to_stderr(line: str, level: int) -> None:
    """Write one line, at once and whole, since other processes may write there too."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


class Lines(logging.Handler):
    """Writes each record as one line, or with an exception as several, by *write*."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.addFilter(_about_the_job)
        self.write: Write = to_stderr

    def emit(self, record: logging.LogRecord) -> None:
        """Write it; an error while writing is reported as `logging` does, and not raised."""
        try:
            self.write(self.format(record), record.levelno)
        except Exception:
            self.handleError(record)


def set_up(level: str, format: str) -> Lines:
    """Send all logs to stderr. An application that configures logging itself, when it is imported, comes after this."""
    lines = Lines(_Json() if format == "json" else _Text())
    logging.basicConfig(level=level.upper(), handlers=[lines], force=True)
    logging.captureWarnings(True)
    return lines


def revive() -> None:
    """Enable leasehold's loggers again: `logging.config.dictConfig` disables those that exist."""
    for name, logger in logging.root.manager.loggerDict.items():
        if name.partition(".")[0] == "leasehold" and isinstance(logger, logging.Logger):
            logger.disabled = False


def _about_the_job(record: logging.LogRecord) -> bool:
    lease = lease_here()
    if lease is not None and not hasattr(record, "job_id"):
        record.job_id, record.task, record.epoch, record.owner = lease.job_id, lease.task, lease.epoch, lease.owner
    return True


def _known(record: logging.LogRecord) -> dict[str, Any]:
    facts = vars(record)
    return {name: facts[name] for name in _FIELDS if facts.get(name) is not None}


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message, job_id = record.getMessage(), getattr(record, "job_id", None)
        about = "" if job_id is None or str(job_id) in message else f" [job {printable(str(job_id))}]"
        head = f"{_instant(record)} {record.levelname:<8} {record.name}: {message}{about}"
        return "\n".join([head, *_exception(record)])


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "at": _instant(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_known(record),
        }
        if exception := _exception(record):
            fields["exception"] = "\n".join(exception)
        return json.dumps(fields, ensure_ascii=False, default=str)


def _instant(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _exception(record: logging.LogRecord) -> list[str]:
    found = []
    if record.exc_info and record.exc_info[0] is not None:
        found.append(logging.Formatter().formatException(record.exc_info))
    if record.stack_info:
        found.append(record.stack_info)
    return found
