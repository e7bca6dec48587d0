"""
The PostgreSQL store.

    store        the verbs, each one call of a function in the server
    claiming     how claims look for jobs, and how they wait: floors, LISTEN
    owning       batches of which some wait for a lock, and writes whose reply was lost
    upkeep       what is taken back, ended and pruned without a claim
    transactions the fence and the verbs inside a transaction that the store does not end
    fenced       the connection of a `lease.transaction()` block
    refusals     refusals inside COMMIT          lost_commits   what became of a COMMIT without a reply
    database     calls to the server, and their retry policy
    connection   a connection, the fast path to ask on it, and the pool
    searching    the statements of `jobs` with conditions
    rows         values to JSON, rows to values, and the statements of calls
    errors       what went wrong, in leasehold's words
    url          what a URL may have beside what libpq understands
    schema       makes the schema, brings it up to date, and reads the files below
    rights       which role may do what
    schema.sql, migrations/    the tables
    functions/                 the verbs, and the checker
    statements.sql             what readers ask
"""

from .store import PostgresStore

__all__ = ["PostgresStore"]
