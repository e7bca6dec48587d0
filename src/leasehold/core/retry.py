"""How often a job may be tried again, and how long it rests in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import InvalidArgument
from . import checks, suggestions

_MOST = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """
    Two budgets and a back-off.

    An error that the owner reports counts against `max_errors`: the last of them is final. A lease that expires,
    stalls or dies with its process counts against `max_reclaims`: one more than that many fails the job. A release,
    a transfer, a requeue and a replay count against neither. Back-off is for errors only; a reclaimed job is due at
    once.

    With *only*, a tuple of exception classes, an error of any other class is final. Classes cannot be stored with a
    job, so that is for `@router.task(retry=…)` alone.
    """

    max_errors: int = 5
    max_reclaims: int = 3
    delay_seconds: float = 1.0
    factor: float = 4.0
    max_delay_seconds: float = 3600.0
    jitter: bool = True
    only: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        for what, budget in (("max_errors", self.max_errors), ("max_reclaims", self.max_reclaims)):
            if budget is None:
                raise InvalidArgument(
                    f"{what} must be a whole number, not None. For practically no limit, pass {_MOST:_}."
                )
        checks.whole(self.max_errors, "max_errors", least=1, most=_MOST)
        checks.whole(self.max_reclaims, "max_reclaims", least=0, most=_MOST)
        checks.microseconds(self.delay_seconds, "delay_seconds", zero=True)
        checks.microseconds(self.factor, "factor")
        checks.microseconds(self.max_delay_seconds, "max_delay_seconds", zero=True)
        if not isinstance(self.jitter, bool):
            raise InvalidArgument(f"jitter must be True or False, not {self.jitter!r}.")
        checks.exception_classes(self.only, "only")

    def delay(self, errors: int, chance: float) -> float:
        """
        Return the seconds to rest after the *errors*-th error; *chance*, from 0 to 1, draws the jitter.

        Full jitter: anything from nothing to the whole delay, so that jobs that failed together do not return together.
        """
        try:
            whole = min(self.delay_seconds * self.factor ** max(errors - 1, 0), self.max_delay_seconds)
        except OverflowError:
            whole = self.max_delay_seconds
        return whole * chance if self.jitter else whole


if not TYPE_CHECKING:  # a type checker knows what there is
    Retry.__init__ = suggestions.advising("Retry", suggestions.RETRY)(Retry.__init__)


DEFAULT_RETRY = Retry()
