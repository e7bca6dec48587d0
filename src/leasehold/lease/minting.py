"""`lease.credential()`: a signed statement of an ownership, for guards that cannot ask the store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..store import Store
from .held import Held

if TYPE_CHECKING:
    from ..credentials import KeyRing

SECONDS = 7 * 86_400.0  # how long a credential is good for: a bound on theft, so far above what a lease lasts


class Minting(Held):
    """The part of a lease that mints credentials."""

    __slots__ = ()

    _store: Store

    def check(self) -> None:
        """Return if this is still the current epoch."""
        raise NotImplementedError

    def credential(
        self,
        audience: str,
        *,
        keys: Iterable[str] = (),
        prefixes: Iterable[str] = (),
        seconds: float | None = SECONDS,
        ring: KeyRing | None = None,
    ) -> str:
        """
        Return a signed credential of this ownership for the guard *audience*, if the epoch is still current.

        It covers the *keys* exactly and every key that begins with one of *prefixes*; without both, the keys that the
        guard assigns to the job's lock. It is good for *seconds*, a week by default, or for ever with None. That only
        bounds what a thief can do with it: whether its epoch is current is for the guard to decide. *ring* signs it;
        without one, the keys of `LEASEHOLD_CREDENTIAL_KEYS` do.

        Raises `StaleEpoch` if the job has moved on, `InvalidArgument` if it would cover nothing or there are no keys,
        and `Unsupported` if none of them can sign, or without the extra `signed`.
        """
        from ..credentials import ring_of_environment  # on use: few leases mint

        ring = ring_of_environment() if ring is None else ring
        self.check()
        keys, prefixes = ring.texts(keys, "keys"), ring.texts(prefixes, "prefixes")
        return ring.mint(
            store=self._store.identity(),
            job_id=self.job_id,
            epoch=self.epoch,
            owner=self.owner,
            audience=audience,
            keys=keys,
            prefixes=prefixes,
            lock=None if keys or prefixes else self._grant.spec.lock,
            seconds=seconds,
        )
