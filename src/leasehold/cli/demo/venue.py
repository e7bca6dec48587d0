"""
Where the story plays: in this process, in a file that others may use too, or in a PostgreSQL schema of its own.

A file keeps the jobs afterwards, to be looked at. Every name in it has a suffix, so that it meets no other job. A
schema is made for one run and dropped after it, however it ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ... import Clock, LeaseholdError, Router, StoreIncompatible, StoreUnavailable
from ...core.redaction import shown_url

TABLE = "demo_results"
LOCK_PATIENCE_MS = 10_000  # for another session that reads the demo's tables when they are dropped
DROP_TRIES = 3
MAY_NOT, DEADLOCK = "42501", "40P01"  # as PostgreSQL numbers its errors


@dataclass(frozen=True)
class Venue:
    """A store to play in, and the names of this run in it."""

    url: str | None = None
    suffix: str = ""  # of every id and of the queue
    schema: str = "leasehold"
    own: bool = False  # whether the schema is the demo's alone

    @classmethod
    def at(cls, url: str | None) -> Venue:
        """Return a venue with names of its own in the store that *url* names."""
        scheme = url.partition(":")[0] if url is not None else "memory"
        if scheme in ("postgresql", "postgres"):
            return cls(url, schema=f"leasehold_demo_{os.urandom(4).hex()}", own=True)
        return cls(url) if scheme == "memory" else cls(url, suffix=f"-{os.urandom(2).hex()}")

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return shown_url(self.url or "memory:")

    @property
    def shared(self) -> bool:
        """Whether other processes can reach the store, and rows of one's own can be written beside its jobs."""
        return self.own or bool(self.suffix)

    @property
    def table(self) -> str:
        """The name of the table of results, as a statement has it."""
        return f"{self.schema}.{TABLE}" if self.own else TABLE

    @property
    def mark(self) -> str:
        """What stands for a parameter in a statement."""
        return "%s" if self.own else "?"

    @contextmanager
    def router(self, clock: Clock, lease_seconds: float) -> Iterator[Router]:
        """Open the store; a server goes by its own clock, and everything else by *clock*."""
        with Router(
            self.url,
            lease_seconds=lease_seconds,
            trace=True,
            clock=None if self.own else clock,
            schema=self.schema,
        ) as router:
            if not self.own:
                yield router
                return
            with self._for_a_while(router):
                yield router

    @contextmanager
    def _for_a_while(self, router: Router) -> Iterator[None]:
        """Make the schema, and drop it at the end of the block."""
        made = True
        try:
            try:
                router.store.verify()  # which makes it
            except LeaseholdError as error:
                made = False
                raise self._not_made(error) from error.__cause__
            yield
        finally:
            # Closed first: a thread that an interrupted story has left behind asks the server nothing more.
            router.close()
            if made:
                self._drop()

    def _not_made(self, error: LeaseholdError) -> LeaseholdError:
        if getattr(error.__cause__, "sqlstate", None) != MAY_NOT:
            return error
        from psycopg.conninfo import conninfo_to_dict  # on use: it is an extra

        named = conninfo_to_dict(self.url or "")
        role, database = named.get("user", "ROLE"), named.get("dbname", "DATABASE")
        return StoreIncompatible(
            f"the demo creates a schema of its own, and its role has no right to create one in {self.shown}. Pass "
            f"another database, or ask the owner of this one to run `GRANT CREATE ON DATABASE {database} TO {role}`. "
            "Nothing was changed."
        )

    def _drop(self) -> None:
        from ...stores.postgres import PostgresStore  # on use: its driver is an extra

        drop = f"drop schema if exists {self.schema} cascade"
        with Router(self.url) as router:  # a pool of its own, in which no thread of the story waits
            assert isinstance(router.store, PostgresStore)
            for tries_left in reversed(range(DROP_TRIES)):
                try:
                    with router.store.database.connection(patient=True) as connection, connection.transaction():
                        connection.execute(f"set local lock_timeout = {LOCK_PATIENCE_MS}")
                        connection.execute("set local client_min_messages = warning")
                        connection.execute(drop)
                        return
                except LeaseholdError as error:
                    if tries_left and getattr(error.__cause__, "sqlstate", None) == DEADLOCK:
                        continue  # with a claim that was under way; it is over now
                    raise StoreUnavailable(
                        f"could not drop the demo's schema: {error} The schema still exists. Once that is fixed, drop "
                        f"it with: {drop}"
                    ) from error
