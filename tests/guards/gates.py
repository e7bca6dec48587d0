"""What the tests of gates share: a gate in front of plain files, which compare nothing themselves."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres.fixtures import NEWEST, url_of, with_path

from leasehold.guards import Gate

HOMES = ("memory", "sqlite", "postgresql")
_numbers = itertools.count()


class FilesGate(Gate):
    """A gate whose uses write files of a folder."""

    def __init__(self, url: str, folder: Path, **options: Any) -> None:
        super().__init__(url, **options)
        self.folder = folder

    def write(self, key: str, value: bytes, **presented: Any) -> None:
        """Write in a use."""
        with self.use(key, **presented):
            self.path(key).write_bytes(value)

    def delete(self, key: str, **presented: Any) -> None:
        """Delete in a use."""
        with self.use(key, **presented):
            self.path(key).unlink(missing_ok=True)

    def read(self, key: str, **presented: Any) -> bytes | None:
        """Seal, check the lease, then read."""
        self.seal(key, **presented)
        self._check_current(presented)
        return self.peek(key)

    def peek(self, key: str) -> bytes | None:
        """Read without asking the gate."""
        return self.path(key).read_bytes() if self.path(key).exists() else None

    def path(self, key: str) -> Path:
        """Where the file of *key* is."""
        return self.folder / key.encode().hex()


class Places:
    """Where gates of one test keep their state: `opener(home)` returns what opens one, here or in a child process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.schema = ""

    def url(self, home: str) -> str:
        """The URL of the gate's state, the same for every call in a test."""
        if home != "postgresql":
            return f"sqlite:///{self.folder / 'gate.db'}"
        server = url_of(NEWEST)
        if not self.schema:
            self.schema = f"gate_{next(_numbers)}"
            with psycopg.connect(server, autocommit=True) as connection:
                connection.execute(f"create schema {self.schema}")
        return with_path(server, self.schema)

    def opener(self, home: str, **options: Any) -> Callable[[], FilesGate]:
        """Return a function that opens a gate, which can be pickled."""
        uses = "memory" if home == "memory" else "sql"
        return functools.partial(FilesGate, self.url(home), self.folder, uses=uses, **options)

    def execute(self, home: str, sql: str) -> None:
        """Run a statement on the state of a gate that is not in memory, past the gate."""
        if home == "postgresql":
            with psycopg.connect(self.url(home), autocommit=True) as server:
                server.execute(sql)
        else:
            import sqlite3

            with contextlib.closing(sqlite3.connect(self.folder / "gate.db")) as file, file:
                file.execute(sql)
            file.close()

    def close(self) -> None:
        """Drop what the server has of this test."""
        if self.schema:
            with psycopg.connect(url_of(NEWEST), autocommit=True) as connection:
                connection.execute(f"drop schema {self.schema} cascade")


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    """The places of one test."""
    found = Places(tmp_path)
    yield found
    found.close()
