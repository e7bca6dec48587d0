"""
A service behind a gate, for a process of its own: files of a folder, over a real HTTP server.

    GET /files/KEY       the file, or 404
    PUT /files/KEY       write it; with ?stop=NAME the handler first makes the file NAME.here, and waits for NAME.go
    DELETE /files/KEY    remove it
    /unfenced/KEY        the same without a gate; it says that it has sealed, and has not

Arguments: the URL of the gate's state, where its uses are, the folder, drain_seconds. Prints the port.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from urllib.parse import parse_qs

import uvicorn

from leasehold.core.marks import Mark
from leasehold.credentials import CredentialKey, KeyRing, unverified
from leasehold.guards import Gate
from leasehold.guards.http import GateMiddleware
from leasehold.guards.http.asgi import Receive, Scope, Send
from leasehold.guards.http.problems import described

RING = KeyRing([CredentialKey("tests", "hs256", b"a secret of the tests, 32 bytes at least")])
AUDIENCE = "files"


class Files:
    """The application, which compares nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            for _ in range(2):
                await send({"type": f"{(await receive())['type']}.complete"})
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if headers.get("leasehold-action"):
            await self._pretend(headers, send)
            return
        path = self.folder / scope["path"].split("/", 2)[2].encode().hex()
        content, more = b"", True
        while more:
            message = await receive()
            content, more = content + message.get("body", b""), message.get("more_body", False)
        if stop := parse_qs(scope["query_string"].decode()).get("stop"):
            (self.folder / f"{stop[0]}.here").touch()
            while not (self.folder / f"{stop[0]}.go").exists():
                await asyncio.sleep(0.005)
        status, answer = 200, b""
        if scope["method"] == "PUT":
            path.write_bytes(content)
        elif scope["method"] == "DELETE":
            path.unlink(missing_ok=True)
        elif path.exists():
            answer = path.read_bytes()
        else:
            status = 404
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": answer})

    async def _pretend(self, headers: dict[str, str], send: Send) -> None:
        mark = None
        if headers["leasehold-action"] == "seal":
            writer = unverified(headers["leasehold-lease"])
            mark = Mark(writer.epoch, 1, writer.owner, writer.store)
        answer = described(mark)
        await send({"type": "http.response.start", "status": answer.status, "headers": []})
        await send({"type": "http.response.body", "body": answer.body})


def key_of(scope: Scope) -> str | None:
    """Everything below /files/ is a key."""
    path: str = scope["path"]
    return path.removeprefix("/files/") if path.startswith("/files/") else None


def main() -> None:
    """Serve until a signal comes."""
    url, uses, folder, drain_seconds = sys.argv[1:5]
    gate = Gate(url, uses=uses, drain_seconds=float(drain_seconds), keys=RING, audience=AUDIENCE)  # type: ignore[arg-type]
    app = GateMiddleware(Files(Path(folder)), gate, key=key_of, public_marks=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        config = uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=1)
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
