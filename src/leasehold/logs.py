"""A logger whose lines cannot stop what they report: what the application's logging raises goes to stderr."""

from __future__ import annotations

import logging
import traceback
from collections.abc import MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Adapter = logging.LoggerAdapter[logging.Logger]
else:
    Adapter = logging.LoggerAdapter


class Log(Adapter):
    """
    A logger. What a filter or a handler of it raises goes to stderr, and no further.

    What is logged in the middle of something, such as that the store does not answer, would otherwise end the thread
    that settles or renews, leave half of a batch undone, or make a verb that has succeeded look as if it had failed.
    """

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log this, as the caller's own."""
        try:
            super().log(level, msg, *args, **{**kwargs, "stacklevel": kwargs.get("stacklevel", 1) + 1})
        except Exception:
            with suppress(Exception):
                traceback.print_exc()

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[object, MutableMapping[str, Any]]:
        """Return both as they are: each record brings its own facts along."""
        return msg, kwargs


log = Log(logging.getLogger("leasehold"), {})
