"""Django's connections, for the stores that can join them. Django is never imported: who has one has it loaded."""

from __future__ import annotations

import sys
from typing import Any

from ..errors import Conflict, InvalidArgument, NotInTransaction


def wrapper_of(connection: Any) -> Any:
    """Return Django's own connection if *connection* is one, or stands for this thread's; else None."""
    database: Any = sys.modules.get("django.db")
    base: Any = sys.modules.get("django.db.backends.base.base")  # loaded with the first connection
    if database is None or base is None:
        return None
    # What `from django.db import connection` gives: it stands for the default one, of whichever thread asks.
    if type(connection) is type(database.connection):
        alias = getattr(connection, "alias", None)
        connection = database.connections[alias] if isinstance(alias, str) else None
    return connection if isinstance(connection, base.BaseDatabaseWrapper) else None


def refuse(wrapper: Any, vendor: str, *, savepoint: bool) -> None:
    """Refuse a connection to something else than *vendor*, one that commits each statement, and one in a savepoint."""
    if wrapper.vendor != vendor:
        raise InvalidArgument(
            f"Django's connection {wrapper.alias!r} is to {wrapper.vendor}, and this store is in {vendor}: only "
            "rows in the same database can commit together."
        )
    if not wrapper.in_atomic_block and wrapper.get_autocommit():
        raise NotInTransaction(
            f"Django's connection {wrapper.alias!r} is in autocommit mode, Django's default, so each statement commits "
            "by itself, and nothing would commit or roll back together with this: call it inside `with "
            "transaction.atomic():`."
        )
    # A level of atomic(savepoint=False) is None here.
    if not savepoint and any(wrapper.savepoint_ids):
        raise Conflict(
            "that connection is inside a nested transaction.atomic(), which is a savepoint: if it is rolled back, the "
            "outer transaction would commit without what was joined here. Call this in the outermost atomic(), or pass "
            "savepoint=True if you know that it will not be. (Django's TestCase is an atomic() of its own: use "
            "TransactionTestCase.)"
        )
