"""The battery of the guard contract on a service behind HTTP: a real server in a process of its own."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, ClassVar

import httpx
import pytest

from leasehold.guard import Guard
from leasehold.guards import HttpGuard
from leasehold.testing.guard_contract import GuardContract
from leasehold.testing.guard_contract.support import FIRST, NEW, NEWS, OLD, OLDS, OTHER_STORE, STORE, under

from .gates import Places
from .http_service import AUDIENCE, RING
from .services import Service


class FilesClient(HttpGuard):
    """Writes files through the service."""

    def __init__(self, url: str) -> None:
        super().__init__(url, audience=AUDIENCE, ring=RING, client=httpx.Client(timeout=60))

    def write(self, key: str, value: bytes, **presented: Any) -> None:
        """Put a file."""
        self.request("PUT", key, content=value, **presented).raise_for_status()

    def delete(self, key: str, **presented: Any) -> None:
        """Delete a file."""
        self.request("DELETE", key, **presented).raise_for_status()

    def peek(self, key: str) -> bytes | None:
        """Read without a lease."""
        response = httpx.get(self.url_of(key))
        return None if response.status_code == 404 else response.content

    def read(self, key: str, **presented: Any) -> bytes | None:
        """Seal, check the lease, then read."""
        self.seal(key, **presented)
        self._check_current(presented)
        return self.peek(key)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[Service, Places]]]:
    """One server of each kind for all tests: each test has keys of its own."""
    with ExitStack() as running:

        @functools.cache
        def start(home: str) -> tuple[Service, Places]:
            places = Places(tmp_path_factory.mktemp(home))
            running.callback(places.close)
            return running.enter_context(Service(places, home)), places

        yield start


class _HttpContract(GuardContract):
    """A service with one process, whose handlers write plain files."""

    home: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _service(self, started: Callable[[str], tuple[Service, Places]]) -> Iterator[None]:
        self.service, self.places = started(self.home)
        self.url = self.service.url
        self.prefix = uuid.uuid4().hex
        self.clients: list[FilesClient] = []
        yield
        for client in self.clients:
            client._client.close()

    def key(self, number: int = 0) -> str:
        """A key that no other test has."""
        return f"{self.prefix}-{number}"

    def unfenced(self) -> FilesClient:
        """A service that says it has sealed."""
        self.clients.append(FilesClient(self.url.replace("/files", "/unfenced")))
        return self.clients[-1]

    def test_g9_a_higher_epoch_of_another_store_takes_the_key_over_and_is_logged(  # type: ignore[override]
        self, guard: FilesClient
    ) -> None:
        """In the log of the service."""
        for key, change in ((self.key(0), guard.write), (self.key(1), None)):
            guard.write(key, FIRST, **under(OLD))
            if change is None:
                guard.seal(key, **under(NEW, store=OTHER_STORE))
            else:
                change(key, NEWS, **under(NEW, store=OTHER_STORE))
            assert self.mark(guard, key).store == OTHER_STORE
            [line] = [line for line in self.service.log().splitlines() if key in line and "is being taken over" in line]
            assert STORE in line
            assert OTHER_STORE in line
            self.refused(guard.write, key, OLDS, **under(OLD))

    def open(self) -> FilesClient:
        """A client of the service; of a thousand, the early ones are done."""
        self.clients.append(self.factory())
        while len(self.clients) > 16:
            self.clients.pop(0)._client.close()
        return self.clients[-1]

    @property
    def factory(self) -> Callable[[], FilesClient]:
        """For child processes too."""
        return functools.partial(FilesClient, self.url)

    def strict(self) -> Guard:
        """The service decides that."""
        pytest.skip("the gate of the service decides which stores it takes")

    def in_doubt(self, guard: Guard, key: str, epoch: int) -> bool:
        """The owner of a newer epoch learns of it by a seal."""
        mark = guard.mark(key)
        assert mark is not None
        doubts = guard.seal(key, epoch=mark.epoch, owner=mark.owner, store=mark.store).doubts
        return any(doubt.epoch == epoch for doubt in doubts)


class TestHttpWithUsesInMemory(_HttpContract):
    """One server process."""

    home = "memory"


class TestHttpWithUsesInPostgres(_HttpContract):
    """As several would have it."""

    home = "postgresql"

    def spoil_mark(self, key: str) -> None:
        """A count that no owner has written."""
        self.places.execute(self.home, f"update leasehold_gate_marks set counter = -7 where key = '{key}'")
