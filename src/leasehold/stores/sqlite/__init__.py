"""
The SQLite store.

    store         the verbs: each runs a program in a transaction of its own
    transactions  the same programs in a caller's transaction, and in `lease.transaction()`

Programs are functions that take a session, yield statements and are sent rows:

    owning        of producers and owners: add, renew, progress, settle, effects; where a pending job waits
    claiming      how a job gets an owner, and how the store takes it back: claims; upkeep, which reclaims and prunes
    moving        of operators: transfer, cancel, replay, requeue, finish, resolve, pause; of workers: reports, pick-up
    reading       of readers, of `search`, and of what operators look at
    programs      what they are made of: named statements, the session, epochs and who may write; the migrations

    database      the file: its connections and transactions
    connection    how threads share a connection, errors, the fenced connection, the write-ahead log, forks
    *.sql         the schema and every statement
"""

from .store import SqliteStore

__all__ = ["SqliteStore"]
