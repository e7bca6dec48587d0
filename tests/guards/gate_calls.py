"""Gates of one test, opened as often as it needs, and calls on threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.patience import PATIENCE_SECONDS
from tests.support import until

from leasehold.guards import Gate

from .gates import HOMES, FilesGate, Places

OLD, NEW, NEWEST = 7, 11, 19
FOREVER = 10 * PATIENCE_SECONDS  # a drain that no test waits for


def under(epoch: int) -> dict[str, Any]:
    """What an owner presents."""
    return {"epoch": epoch, "owner": f"owner-{epoch}", "store": "store-1"}


class Open:
    """Opens gates on one state, and closes them after the test."""

    def __init__(self, places: Places, home: str) -> None:
        self.places = places
        self.home = home
        self.gates: list[FilesGate] = []

    def __call__(self, drain_seconds: float = FOREVER, **options: Any) -> FilesGate:
        self.gates.append(self.places.opener(self.home, drain_seconds=drain_seconds, **options)())
        return self.gates[-1]


@pytest.fixture(params=HOMES)
def opened(request: pytest.FixtureRequest, places: Places) -> Iterator[Open]:
    """Each home in turn."""
    found = Open(places, request.param)
    yield found
    for gate in found.gates:
        gate.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def shared(request: pytest.FixtureRequest, places: Places) -> Iterator[Open]:
    """The homes that several processes share."""
    found = Open(places, request.param)
    yield found
    for gate in found.gates:
        gate.close()


class Call(threading.Thread):
    """A call in a thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.call = call
        self.value: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Call it."""
        try:
            self.value = self.call()
        except BaseException as error:
            self.error = error

    def result(self) -> Any:
        """What it returned."""
        self.join(PATIENCE_SECONDS)
        assert not self.is_alive(), "it did not return"
        if self.error is not None:
            raise self.error
        return self.value


def sealing(gate: Gate, epoch: int = NEW, key: str = "k") -> Call:
    """Seal in a thread, and return once the mark is raised: then the seal waits for older uses."""
    call = Call(lambda: gate.seal(key, **under(epoch)))
    until(lambda: (mark := gate.mark(key)) is not None and mark.epoch == epoch)
    return call
