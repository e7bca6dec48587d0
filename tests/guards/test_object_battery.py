"""`ObjectGuard` by the clauses of the contract, on a real S3 server and on obstore's memory store."""

from __future__ import annotations

import base64
import functools
import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import obstore
import pytest
from obstore.store import MemoryStore

from leasehold.guard import Guard
from leasehold.guards import ObjectGuard
from leasehold.guards.objects.bucket import Bucket
from leasehold.testing.guard_contract import GuardContract

from .object_clients import guard_at, store_at
from .object_proxy import lose_reply, proxy_to
from .object_servers import rclone, seaweedfs

_numbers = itertools.count()
SPOILED = b"not a pointer"


class TestSeaweedFS(GuardContract):
    """Every clause, on a server that compares; the data in objects of its own."""

    inline_bytes = 0
    blocks = False

    @pytest.fixture(autouse=True)
    def resource(self) -> None:
        """A part of the bucket that no other test has."""
        self.endpoint = seaweedfs()
        self.prefix = f"battery/{os.getpid()}-{next(_numbers)}"
        self.store = store_at(self.endpoint, self.prefix)
        self.spoiled: dict[str, bytes] = {}

    def open(self) -> ObjectGuard:
        return guard_at(self.endpoint, self.prefix, self.inline_bytes)

    @property
    def factory(self) -> Callable[[], Guard]:
        return functools.partial(guard_at, self.endpoint, self.prefix, self.inline_bytes)

    def value(self, guard: Guard, key: str) -> bytes | None:
        """What the pointer names; where it was spoiled, what it named, if it is still spoiled."""
        try:
            content = bytes(obstore.get(self.store, key).bytes())
        except FileNotFoundError:
            return None
        facts = json.loads(self.spoiled[key] if content == SPOILED else content)
        if "inline" in facts:
            return base64.b64decode(facts["inline"])
        return None if facts["data"] is None else bytes(obstore.get(self.store, facts["data"]).bytes())

    def spoil_mark(self, key: str) -> None:
        self.spoiled[key] = bytes(obstore.get(self.store, key).bytes())
        obstore.put(self.store, key, SPOILED)

    def unfenced(self) -> Guard:
        return guard_at(rclone(), "")

    @contextmanager
    def lose_reply(self, guard: Guard, meanwhile: Callable[[], None]) -> Iterator[None]:
        objects = cast(ObjectGuard, guard)
        with proxy_to(self.endpoint) as proxy:
            proxy.arm(lose_reply(meanwhile))
            direct, objects._bucket = objects._bucket, Bucket(store_at(proxy.endpoint, self.prefix))
            try:
                yield
            finally:
                objects._bucket = direct
            assert not proxy.is_armed, "no reply was lost"


class TestSeaweedFSInline(TestSeaweedFS):
    """The same with small data in the pointer, as is usual."""

    inline_bytes = 4096


class TestMemoryStore(GuardContract):
    """The clauses that need no second process."""

    @pytest.fixture(autouse=True)
    def resource(self) -> None:
        """An empty store."""
        self.store = MemoryStore()
        self.hidden: dict[str, bytes] = {}

    def open(self) -> ObjectGuard:
        return ObjectGuard(self.store)

    def value(self, guard: Guard, key: str) -> bytes | None:
        """By the pointer that was there before it was spoiled."""
        return ObjectGuard(self._unspoiled(key)).peek(key) if key in self.hidden else self.peek(guard, key)

    def spoil_mark(self, key: str) -> None:
        self.hidden[key] = _content(self.store, key)
        obstore.put(self.store, key, b"{}")

    def _unspoiled(self, key: str) -> MemoryStore:
        assert _content(self.store, key) == b"{}"
        copy = MemoryStore()
        for path in (meta["path"] for meta in obstore.list(self.store).collect()):
            obstore.put(copy, path, self.hidden[key] if path == key else _content(self.store, path))
        return copy


def _content(store: MemoryStore, path: str) -> bytes:
    return bytes(obstore.get(store, path).bytes())
