"""Looks a lease up in the store, when its owner does not know how its own transaction ended."""

from __future__ import annotations

from ..core.job import Grant
from ..core.ownership import Reason
from ..errors import StaleEpoch, UnknownJob, is_of_lease, refusal_of_lease
from ..store import Store
from ..transaction import Joined

_BY_ITS_OWNER = ("done", "failed", Reason.RETRY, Reason.RELEASE)


class Recorded:
    """The part of a lease that reads the store's record of it."""

    __slots__ = ()

    _store: Store
    _grant: Grant
    _joined: tuple[Joined, ...]
    _settled: bool | None

    def is_settled(self) -> bool:
        """
        Ask the store whether this lease was settled by its owner: completed, failed or released under its epoch.

        After a COMMIT whose reply was lost this tells whether it has committed, if the settlement was a part of it.
        Raises `UnknownJob` and `StoreUnavailable`.
        """
        job_id, epoch = self._grant.spec.id, self._grant.epoch
        return any(held.ended in _BY_ITS_OWNER for held in self._store.ownerships(job_id) if held.epoch == epoch)

    def _refusal(self, lost: bool) -> StaleEpoch | None:
        """
        Return the refusal if this lease is not current, for `StaleEpoch.find`.

        *lost*: the connection of the caller's transaction is gone, and maybe its COMMIT had been accepted before the
        job moved on. Then it is a refusal only if the transaction is known to be rolled back.
        """
        verbs = self._store.transactions
        lost = lost and verbs is not None and not verbs.exclusive  # without a server there is no reply to lose
        # The owner's own settlement has been committed, and the error came behind it: of an on_commit hook, say.
        if not lost and self._settled is None and self._is_on_record_as_settled():
            return None
        [refusal] = self._store.check([(self._grant.spec.id, self._grant.epoch)])
        if refusal is None:
            return None
        if isinstance(refusal, UnknownJob):
            # With the job its record is gone, which would show a settlement that the caller's transaction committed.
            lost = lost or self._settled is None
            refusal = StaleEpoch.of_missing_job(self._grant.spec.id, presented=self._grant.epoch, verb="check")
        # Only now: a COMMIT that the server had received may have come through until the epoch was no longer current.
        if lost and not self._was_rolled_back():
            return None
        self._note_refusal(refusal)
        return refusal

    def _is_on_record_as_settled(self) -> bool:
        """Return whether the store's record has a settlement by this owner; False if the job is gone."""
        try:
            return self.is_settled()
        except UnknownJob:
            return False

    def _is_refused_by(self, refusal: StaleEpoch) -> bool:
        """Return whether *refusal* is one of this lease, and remember that it is lost if its job has refused."""
        if refusal.presented != self._grant.epoch or refusal.job_id not in (None, self._grant.spec.id):
            return False
        if refusal.job_id is not None:
            self._note_refusal(refusal)
        return True

    def _note_refusal(self, refusal: Exception) -> Exception:
        """Remember that the lease is lost."""
        raise NotImplementedError

    def _was_rolled_back(self) -> bool:
        """Whether the caller's lost transaction is known to be rolled back; False also if that cannot be known."""
        # The record is no proof: the settlement that it lacks may have been part of an earlier transaction, or of a
        # savepoint that was rolled back, and the one that it has may be that of another holder of this epoch.
        verbs, joined = self._store.transactions, self._joined
        # A lease may be part of several. The error does not tell which connection it is of, so each that was lost
        # counts; and all of them, where a driver has not noticed yet.
        lost = [one for one in joined if one.is_lost()] or joined
        return verbs is not None and bool(lost) and all(verbs.is_rolled_back(one.number) for one in lost)


is_of_lease.append(Recorded._is_refused_by)
refusal_of_lease.append(Recorded._refusal)
