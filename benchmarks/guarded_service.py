"""
A service for benchmarks/guards.py, in a process of its own: it answers, behind a gate (/guarded) or not (/bare).

Its argument is the URL of the gate's state. Prints the port.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from leasehold.credentials import CredentialKey, KeyRing
from leasehold.guards import Gate
from leasehold.guards.http import GateMiddleware

RING = KeyRing([CredentialKey("benchmark", "hs256", b"the secret of a benchmark, 32 bytes")])


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Only answer."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def main() -> None:
    """Serve until a signal comes."""
    import uvicorn

    gate = Gate(sys.argv[1], keys=RING, audience="benchmark")
    app = GateMiddleware(answer, gate, key=_key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off")).run(sockets=[listener])


def _key(scope: Any) -> str | None:
    path: str = scope["path"]
    return path.removeprefix("/guarded/") if path.startswith("/guarded/") else None


if __name__ == "__main__":
    main()
