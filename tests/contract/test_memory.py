"""The memory store keeps the contract."""

from leasehold.store import Store
from leasehold.stores.memory import MemoryStore
from leasehold.testing.store_contract import AlarmClock, StoreContract


class TestMemoryStore(StoreContract):
    """Every clause but durability."""

    def open(self, clock: AlarmClock) -> Store:
        return MemoryStore(clock=clock)

    def traced(self, clock: AlarmClock) -> Store:
        return MemoryStore(clock=clock, trace=True)
