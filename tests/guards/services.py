"""Starts the service of `http_service` in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType
from typing import Self

from . import http_service
from .gates import Places


class Service:
    """A running service: its URL, its process and its log."""

    def __init__(self, places: Places, home: str, *, drain_seconds: float = 1.0, name: str = "service") -> None:
        uses = "memory" if home == "memory" else "sql"
        self._log = places.folder / f"{name}.log"
        command = [sys.executable, "-P", http_service.__file__, places.url(home), uses, str(places.folder)]
        with open(self._log, "w") as log:
            self.process = subprocess.Popen(
                [*command, str(drain_seconds)], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        port = self.process.stdout.readline().strip()
        assert port, self.log()
        self.url = f"http://127.0.0.1:{port}/files"

    def log(self) -> str:
        """What the process has logged."""
        return self._log.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
