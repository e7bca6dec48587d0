"""The scripts among the examples, run as a reader would run them."""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from tests.cli.command import TOP, environment, run

from leasehold import Retry, Router

PAGES = 30


def example(name: str, *arguments: str, cwd: Path) -> str:
    """Run an example in *cwd*, and return what it printed."""
    shown = run([sys.executable, str(TOP / "examples" / name), *arguments], cwd=cwd)
    assert shown.returncode == 0, shown.stderr
    return shown.stdout


def test_the_nightly_script_ends_when_everything_is_done_and_does_nothing_twice(tmp_path: Path) -> None:
    """The second run of a day finds the first one's jobs."""
    first = example("nightly.py", cwd=tmp_path)
    second = example("nightly.py", cwd=tmp_path)

    assert first.splitlines()[-1] == second.splitlines()[-1] == "taken: 400"
    assert "done before" in second


def test_a_photo_gets_its_thumbnail_and_a_missing_one_fails_for_good(tmp_path: Path) -> None:
    """A photo that waits already is not asked for twice."""
    Image.new("RGB", (800, 600), "red").save(tmp_path / "a.png")

    assert "asked for" in example("thumbnails.py", "add", "a.png", "gone.png", cwd=tmp_path)
    assert "waits already" in example("thumbnails.py", "add", "a.png", cwd=tmp_path)
    shown = example("thumbnails.py", "work", cwd=tmp_path)

    with Image.open(tmp_path / "a.256.webp") as thumbnail:
        assert thumbnail.size == (256, 192)
    assert "1 done" in shown
    assert "1 failed" in shown
    assert not list(tmp_path.glob("*.17*")), "an unfinished file was left"


@pytest.fixture
def site() -> Iterator[tuple[str, Counter[str]]]:
    """A site of many pages, each linking to the next two, and how often each was read."""
    read: Counter[str] = Counter()

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            read[self.path] += 1
            number = int(self.path.strip("/") or 0)
            links = [n for n in (2 * number + 1, 2 * number + 2) if n < PAGES]
            body = "".join(f'<a href="/{n}">{n}</a>' for n in links).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", read
        server.shutdown()


def test_a_crawl_without_a_start_shows_how_it_is_called_and_a_failed_one_says_so(tmp_path: Path) -> None:
    """Both end with an error."""
    command = [sys.executable, str(TOP / "examples" / "crawl.py")]
    unasked = run(command, cwd=tmp_path)
    assert (unasked.returncode, unasked.stdout) == (1, "")
    assert "python examples/crawl.py http" in unasked.stderr
    assert "Traceback" not in unasked.stderr

    with Router(f"sqlite:///{tmp_path}/crawl.db") as router:  # as it is after the last attempt
        router.add("crawl:nowhere", {"start": "nowhere"}, task="crawl", retry=Retry(max_errors=1))
    failed = run([*command, "nowhere"], cwd=tmp_path)
    assert failed.returncode == 1
    assert "the crawl is failed, and the last error is ValueError" in failed.stderr
    assert "pages" not in failed.stdout


def test_a_crawl_that_is_killed_goes_on_where_it_was(tmp_path: Path, site: tuple[str, Counter[str]]) -> None:
    """Every page is read, and of those before the kill at most the one that was being read is read again."""
    start, read = site
    command = [sys.executable, str(TOP / "examples" / "crawl.py"), start]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as crawl:
        assert crawl.stdout is not None
        for line in crawl.stdout:
            if line.split()[0] == "10":
                break
        os.kill(crawl.pid, signal.SIGKILL)

    shown = example("crawl.py", start, cwd=tmp_path)

    assert shown.splitlines()[-1] == f"{PAGES} pages"
    assert len(read) == PAGES
    assert sum(read.values()) <= PAGES + 1
