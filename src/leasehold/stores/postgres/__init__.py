"""
The PostgreSQL store.

    store        the verbs, each one call of a function in the server
    database     calls to the server, and their retry policy      calls   the statements of calls
    pool         the connections of verbs and of blocks
    faults       what went wrong, in leasehold's words
    schema       makes the schema, and brings it up to date
    rights       which role may do what
    settings     what a URL may say
    floors       what a claim may skip
    waiting      how a claim waits for a job
    transactions the fence and the verbs inside a caller's own transaction
    rows         values to JSON, and rows to values
    sql          reads the files below, and names the schema in them
    schema.sql, migrations/    the tables
    functions/                 the verbs, and the checker
    statements.sql             what readers ask
"""

from .store import PostgresStore

__all__ = ["PostgresStore"]
