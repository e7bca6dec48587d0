"""Makes unique ids: of jobs that are added without one, and of claims."""

from __future__ import annotations

import itertools
import os

_claims = itertools.count()
_start = ""  # what the ids of all claims of this process begin with


def new_id(now: int) -> str:
    """Return a fresh UUID, version 7: ids made later sort later, to the millisecond."""
    raw = (now // 1000).to_bytes(6, "big") + os.urandom(10)
    bits = int.from_bytes(raw, "big") & ~(0xF << 76) & ~(0x3 << 62) | (0x7 << 76) | (0x2 << 62)
    digits = f"{bits:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def new_claim_id() -> str:
    """Return an id that no claim has had, in this process or another."""
    return _start + str(next(_claims))


def _begin() -> None:
    global _start
    _start = os.urandom(8).hex() + "-"


_begin()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)  # its claims count on where its parent's were
