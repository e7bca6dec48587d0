"""How `lease.once` records an effect: the intent before the call, the outcome after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core import inputs
from ..core.effects import Effect
from ..errors import InDoubt
from .joining import refuse_beside

if TYPE_CHECKING:
    from .lease import Lease


def begin_effect(lease: Lease, name: str, call: object, in_doubt: str, undone: object) -> Effect:
    """Record the intent, and return the effect; raise `InDoubt` if an earlier owner has left it open."""
    # Checked before the intent is recorded: a slip must not leave an effect in doubt that was never tried.
    again = inputs.effect(name, call, in_doubt, undone)
    effect, fresh = lease._noting(
        lambda: refuse_beside(lease).begin_effect(lease.job_id, lease.epoch, name, again=again)
    )
    if not (effect.known or fresh):
        raise InDoubt(lease.job_id, name, key=effect.key, epoch=effect.epoch)
    return effect


def end_effect(lease: Lease, name: str, outcome: str | None) -> None:
    """Record the outcome; None: nothing has happened."""
    # Beside a transaction that the call has left open, the effect stays in doubt: it may be among those rows.
    lease._noting(lambda: refuse_beside(lease).end_effect(lease.job_id, lease.epoch, name, outcome))
