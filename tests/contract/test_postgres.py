"""The PostgreSQL store keeps the contract, on the oldest and the newest server that there is."""

from typing import Any

import pytest
from tests.postgres.fixtures import Place, database, each_version, kept_sessions, place, server_url

from leasehold.store import Store
from leasehold.stores.postgres import PostgresStore
from leasehold.testing.store_contract import AlarmClock, StoreContract
from leasehold.testing.store_contract.adding import Adding
from leasehold.testing.store_contract.claiming import Claiming
from leasehold.testing.store_contract.owning import Owning
from leasehold.testing.store_contract.settling import Settling
from leasehold.testing.store_contract.support import Contract

__all__ = ["kept_sessions", "place", "server_url"]  # fixtures


@each_version
@pytest.mark.usefixtures("kept_sessions")
class OnAServer(Contract):
    """How the contract opens its stores on a server."""

    @pytest.fixture(autouse=True)
    def where(self, place: Place) -> None:
        """Give each test a place of its own."""
        self.place = place

    def open(self, clock: AlarmClock, *, trace: bool = False) -> Store:
        # The second store of a test is in another database, so that its rows cannot commit with the first one's.
        url = database(self.place.url, "second") if self.place.stores else None
        return self.place.store(clock, trace=trace, url=url)

    def traced(self, clock: AlarmClock) -> Store:
        return self.open(clock, trace=True)

    def reopen(self, store: Store, clock: AlarmClock) -> Store:
        assert isinstance(store, PostgresStore)
        return self.place.again(store, clock)

    def connect(self, store: Store) -> Any:
        assert isinstance(store, PostgresStore)
        return self.place.connect(store)

    def connect_autocommit(self, store: Store) -> Any:
        assert isinstance(store, PostgresStore)
        return self.place.connect(store, autocommit=True)


class TestPostgresStore(OnAServer, StoreContract):
    """Every clause."""


class TestWithACursor(OnAServer, Adding, Claiming, Owning, Settling):
    """The same answers where psycopg lacks what the fast path of `Connection.ask` needs."""

    @pytest.fixture(autouse=True)
    def without_generators(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let every statement go through a cursor of psycopg's."""
        monkeypatch.setattr("leasehold.stores.postgres.connection.execute", None)
