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
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from examples import thumbnails
from PIL import Image
from tests.cli.command import TOP, environment, run

from leasehold import Retry, Router, StaleEpoch
from leasehold.guards import FileGuard
from leasehold.testing import ManualClock

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


@pytest.mark.parametrize("zone", ["UTC-14", "UTC+12"])  # fourteen hours east, twelve hours west
def test_the_nightly_script_names_the_local_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    """As cron does. At any hour, the date of one of these zones is not that of UTC."""
    monkeypatch.setenv("TZ", zone)
    ahead = timedelta(hours=-int(zone.removeprefix("UTC")))
    before = datetime.now(UTC) + ahead

    shown = example("nightly.py", cwd=tmp_path)

    days = {f"night:{at.date()}" for at in (before, datetime.now(UTC) + ahead)}
    assert shown.splitlines()[0].split()[-1] in days


def test_a_photo_gets_its_thumbnail_and_a_missing_one_fails_for_good(tmp_path: Path) -> None:
    """A photo that waits already is not asked for twice; all of it can be done again in the same folder."""
    for colour in ("red", "blue"):
        Image.new("RGB", (800, 600), colour).save(tmp_path / "a.png")
        assert "asked for" in example("thumbnails.py", "add", "a.png", "gone.png", cwd=tmp_path)
        assert "waits already" in example("thumbnails.py", "add", "a.png", cwd=tmp_path)
        shown = example("thumbnails.py", "work", cwd=tmp_path)
        photo, file = example("thumbnails.py", "list", cwd=tmp_path).split()

        assert photo == str(tmp_path / "a.png")
        assert has_colour(Path(file), colour), "a later run replaces the thumbnail"
        assert "1 done" in shown
        assert "1 failed" in shown


def has_colour(thumbnail: Path, colour: str) -> bool:
    """Whether a thumbnail is whole, and made of a photo of that colour."""
    with Image.open(thumbnail) as image:
        assert image.size == (256, 192)
        red, _, blue = image.convert("RGB").getpixel((100, 100))  # type: ignore[misc]  # three bands
        return bool((red > blue) == (colour == "red"))


@pytest.fixture
def photo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A red photo, with the service's folder beside it."""
    guard = FileGuard(tmp_path / "thumbnails", create=True)
    guard.name = thumbnails.thumbnails.name
    monkeypatch.setattr(thumbnails, "thumbnails", guard)
    monkeypatch.setitem(thumbnails.router._registry.guards._named, "thumbnails", guard)
    Image.new("RGB", (800, 600), "red").save(tmp_path / "a.png")
    return tmp_path / "a.png"


def test_the_thumbnails_can_be_made_twice_on_a_router_in_memory(photo: Path) -> None:
    """Each on a store that begins anew: its epochs are above those that the files have seen."""
    for colour in ("red", "blue"):
        Image.new("RGB", (800, 600), colour).save(photo)
        with thumbnails.router.override() as router:
            thumbnails.add([photo])
            assert router.work(until_empty=True).done == 1
        [file] = thumbnails.found().values()
        assert has_colour(Path(file), colour)


def test_wherever_an_owner_pauses_the_thumbnail_is_its_successors(photo: Path) -> None:
    """Before each line of the handler in turn, another owner takes the job over and makes its own thumbnail."""
    code = thumbnails.shrink.function.__code__
    lines = sorted({line for _, _, line in code.co_lines() if line is not None and line > code.co_firstlineno + 1})
    refused = 0
    for number, line in enumerate(lines):
        clock = ManualClock()
        photo = photo.with_name(f"{number}.png")
        Image.new("RGB", (800, 600), "red").save(photo)
        with thumbnails.router.override(clock=clock) as router:
            thumbnails.shrink.options(id=f"{number}").add(photo)
            owner = router.claim("old")
            assert owner is not None
            successors: list[Path] = []

            def take_over(
                frame: FrameType,
                event: str,
                _: Any,
                *,
                line: int = line,
                clock: ManualClock = clock,
                router: Router = router,
                photo: Path = photo,
                successors: list[Path] = successors,
            ) -> Any:
                if frame.f_code is not code:
                    return None
                if event == "line" and frame.f_lineno == line and not successors:
                    sys.settrace(None)
                    clock.advance(31)
                    successor = router.claim("new")
                    assert successor is not None
                    Image.new("RGB", (800, 600), "blue").save(photo)
                    successors.append(thumbnails.shrink(successor, photo))
                    successor.complete()
                return take_over

            sys.settrace(take_over)
            try:
                thumbnails.shrink(owner, photo)
            except StaleEpoch:
                refused += 1
            finally:
                sys.settrace(None)
            assert successors, f"paused before line {line}"
            assert thumbnails.found()[str(photo)] == str(successors[0])
            assert has_colour(successors[0], "blue"), f"paused before line {line}: the old picture is on top"
    assert refused >= len(lines) - 1, "only at the last line everything has been written"


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
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
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
    assert example("crawl.py", start, cwd=tmp_path) == f"{PAGES} pages\n", "it is done, and can be asked for again"
    assert len(read) == PAGES
    assert sum(read.values()) <= PAGES + 1
