"""
A hunter of races, for any store that shares its database with rows of yours.

    python -m leasehold.testing.hunt postgresql://host/scratch --minutes 10

Many processes and threads act at random as producers, owners and operators of one store, and write rows in fenced
transactions; what they saw is weighed by a judge, for whom a finding is a proof (`judge`). What is done and what is
asked is in docs/how-to/hunt-for-races.md.

It was let loose on PostgreSQL stores that were broken on purpose, and found each of them within seconds: a fence that
does not compare, or compares and holds nothing; a takeover that leaves the lease; a settlement, a renewal, a checkpoint
and children by the job's id alone; a claim that loses what is behind a lock key; a freed key that wakes no job; and,
with a pause of 50 ms to help it, an epoch that is drawn before its key is held. `tests/test_hunt.py` has them.
"""

from .run import Evidence, Result, hunt

__all__ = ["Evidence", "Result", "hunt"]
