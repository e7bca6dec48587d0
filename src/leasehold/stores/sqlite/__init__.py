"""
The SQLite store.

    store         the verbs: each runs a program in a transaction of its own
    transactions  the same programs in a caller's transaction, and in `lease.transaction()`

Programs are functions that take a session, yield statements and are sent rows:

    owning        of producers and owners: add, renew, progress, settle, effects
    claiming      how a job gets an owner: claim, and picking up a transfer
    moving        of operators: transfer, cancel, replay, requeue, finish, resolve, pause
    upkeep        of the store itself: reclaims, reports of workers, pruning
    reading       of readers
    backlog       where a pending job waits: ready, scheduled or parked
    ownership     the session: epochs, and who may write; refusals

    database      the file: connections, transactions, forks        wal    its write-ahead log
    connection    how threads share a connection, errors, the fenced connection
    sql           the named statements, and the migrations          *.sql  the schema and every statement
"""

from .store import SqliteStore

__all__ = ["SqliteStore"]
