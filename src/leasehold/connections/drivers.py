"""What a driver's connection says of its transaction, whichever library stands above it."""

from __future__ import annotations

from typing import Any

_IDLE = 0  # of libpq's PGTransactionStatusType
_OFF = 0  # of libpq's PGpipelineStatus


class Driver:
    """A connection of psycopg, or of another driver with an `autocommit` setting."""

    def begins(self, driver: Any) -> bool:
        """Return whether it begins a transaction by itself: with the next statement, or the next write."""
        return not getattr(driver, "autocommit", False)

    def has_begun(self, driver: Any) -> bool | None:
        """Return whether it has a transaction open; None if it does not say."""
        info = getattr(driver, "info", None)
        return None if info is None else bool(info.transaction_status != _IDLE)

    def shows_the_end(self, driver: Any) -> bool:
        """Return whether it can be seen that its transaction has ended; asked on the thread of the connection."""
        return True

    def is_still_open(self, driver: Any) -> bool:
        """Return whether a transaction is still open, as far as it says: perhaps a later one. Any thread may ask."""
        return driver is not None and not getattr(driver, "closed", False) and self.has_begun(driver) is not False

    def is_lost(self, driver: Any) -> bool:
        """Return whether it is gone. One that its user has closed counts only where the driver cannot tell the two."""
        if hasattr(driver, "broken"):
            return bool(driver.broken)  # psycopg; stays true if the connection is closed after that
        is_closed = getattr(driver, "is_closed", None)
        return bool(getattr(driver, "closed", False) if is_closed is None else is_closed())  # the latter: asyncpg


class SqliteDriver(Driver):
    """A connection of sqlite3 or aiosqlite."""

    def begins(self, driver: Any) -> bool:
        """Return whether it begins a transaction before the next write, as it does by default."""
        return driver.isolation_level is not None and getattr(driver, "autocommit", -1) not in (True, False)

    def has_begun(self, driver: Any) -> bool:
        """Return whether it has a transaction open."""
        return bool(driver.in_transaction)

    def shows_the_end(self, driver: Any) -> bool:
        """Return False for autocommit=False, which begins anew with its COMMIT."""
        return getattr(driver, "autocommit", None) is not False

    def is_still_open(self, driver: Any) -> bool:
        """Return whether a transaction is still open. Any thread may read `in_transaction`, but not `autocommit`."""
        try:
            return self.has_begun(driver)
        except Exception:  # closed or dropped, in whatever words it has for that
            return False


def is_piped(driver: Any) -> bool:
    """Return whether a connection of psycopg is in pipeline mode, where answers come later."""
    return bool(driver.pgconn.pipeline_status != _OFF)
