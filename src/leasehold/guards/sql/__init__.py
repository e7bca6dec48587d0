"""
Guards rows of databases other than leasehold's own.

    guard        `SqlGuard` and its async form
    dialect      CONTRACT: how marks are compared and raised in one kind of database
    postgres     inside COMMIT, by a deferred constraint trigger (postgres.sql)
    sqlite       by a conditional write, which holds the file's write lock
    connecting   where the guard's own connections come from
"""

from .guard import AsyncSqlGuard, Fence, SqlGuard

__all__ = ["AsyncSqlGuard", "Fence", "SqlGuard"]
