"""
The SQLite store.

    store        the verbs, each a program in a transaction of its own
    owning       programs of producers and owners      moving    programs that move a job past its owner
    reading      programs of readers                   base      what they share
    transactions the same programs in a caller's own transaction
    database     the file: connections, transactions, errors
    *.sql        the schema and every statement
"""

from .store import SqliteStore

__all__ = ["SqliteStore"]
