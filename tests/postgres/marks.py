"""What the tests of failovers and restores remember themselves, where no database can forget it."""

from __future__ import annotations

from dataclasses import dataclass, field

from leasehold import Lease, Router

MANY = 100  # more than the 32 numbers by which the copy of a sequence in a standby or after a crash may be ahead


@dataclass
class Mark:
    """A resource outside of every database, which takes no epoch below the highest that it has seen."""

    highest: int = 0
    issued: list[int] = field(default_factory=list)

    def seal(self, leases: list[Lease]) -> None:
        """Let new owners in: every one of their epochs is greater than all that were ever issued."""
        for lease in leases:
            assert lease.epoch > max(self.issued, default=0)
            self.issued.append(lease.epoch)
            self.highest = lease.epoch

    def admits(self, lease: Lease) -> bool:
        """Whether the resource would still take a write of this owner."""
        return lease.epoch >= self.highest


def claimed(router: Router, count: int = MANY) -> list[Lease]:
    """Claim *count* jobs, which there must be."""
    leases = router.claim_many("worker", limit=count)
    assert len(leases) == count
    return leases
