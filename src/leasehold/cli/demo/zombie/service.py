"""An HTTP service that keeps reports in memory, behind a gate."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from .... import StaleEpoch
from ....guards import Gate


class Service:
    """The service, on a thread, at a port of its own. As a context manager it ends with its block."""

    def __init__(self, folder: Path, *, guarded: bool) -> None:
        self._gate = Gate(f"sqlite:///{folder / 'gate.db'}") if guarded else None
        self._reports: dict[str, str] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        (folder / "service.url").write_text(f"http://127.0.0.1:{self._server.server_port}")

    def __enter__(self) -> Service:
        threading.Thread(target=self._server.serve_forever, name="demo-service", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        if self._gate is not None:
            self._gate.close()

    def put(self, key: str, text: str, headers: Any) -> tuple[int, str]:
        """Keep a report, if the gate admits its owner; return the status and the body of the reply."""
        if self._gate is None:
            self._reports[key] = text
            return 204, ""
        try:
            presented = {"owner": headers["X-Owner"], "store": headers["X-Store"]}
            with self._gate.use(key, epoch=int(headers["X-Epoch"]), **presented):
                self._reports[key] = text
            return 204, ""
        except StaleEpoch as refusal:
            return 409, f"{refusal.current} {refusal.owner}"

    def _handler(service) -> type[BaseHTTPRequestHandler]:  # `self` is the request's, inside
        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                text = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._reply(*service.put(self.path[1:], text, self.headers))

            def do_GET(self) -> None:
                self._reply(200, service._reports.get(self.path[1:], ""))

            def _reply(self, status: int, body: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *args: Any) -> None: ...

        return Handler
