"""
The PostgreSQL store.

    store         the verbs, each one call of a function in the server
    claiming      how claims look for jobs, and how they wait (floors, LISTEN); reclaims and pruning without one
    owning        batches of which some wait for a lock, and writes whose reply was lost
    transactions  the fence and the verbs inside a transaction that the store does not end
    fenced        the connection of a `lease.transaction()` block
    commits       what a COMMIT came to: a refusal inside it, or no reply
    database      calls to the server, and their retry policy
    connection    a connection, the fast path to ask on it, the pool, and the URL
    reading       jobs, `search`, and what operators and upkeep look at
    rows          values to JSON, rows to values, and the statements of calls
    errors        what went wrong, in leasehold's words
    schema        makes the schema, brings it up to date, and reads the files below
    rights        which role may do what
    schema.sql, migrations/    the tables
    functions/                 the verbs, and the checker
    statements.sql             what readers ask
"""

from .store import PostgresStore

__all__ = ["PostgresStore"]
