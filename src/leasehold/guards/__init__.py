"""
Guards for the resources that jobs write to, each by the clauses of `leasehold.guard`.

    FileGuard     files below a folder
"""

from ..guard import Doubt, Guard, GuardKey, Mark, Seal, Writer

__all__ = ["Doubt", "Guard", "GuardKey", "Mark", "Seal", "Writer"]
