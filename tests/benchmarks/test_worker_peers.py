"""The peers of the worker's benchmark: each runs every job once and says so, and what it says can be wrong."""

import importlib.metadata
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from benchmarks.worker_peers import Countdown, Huey, MissingPeer, Peer, Pgqueuer, Pool, Procrastinate, need
from tests.postgres.fixtures import NEWEST, database, url_of

ROOT = Path(__file__).resolve().parents[2]
JOBS = 30

# What the peers warn of is theirs.
pytestmark = pytest.mark.filterwarnings("default")


def pool(folder: Path) -> Peer:
    return Pool(4)


def huey_memory(folder: Path) -> Peer:
    return Huey(workers=4)


def huey_sqlite(folder: Path) -> Peer:
    return Huey(str(folder / "huey.db"), workers=2)


def pgqueuer(folder: Path) -> Peer:
    return Pgqueuer(database(url_of(NEWEST), "pgqueuer" + folder.name))


def procrastinate(folder: Path) -> Peer:
    return Procrastinate(database(url_of(NEWEST), "procrastinate" + folder.name))


PEERS = [pool, huey_memory, huey_sqlite, pgqueuer, procrastinate]


@pytest.fixture
def peer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Peer]:
    """One of the peers that are installed."""
    make: Callable[[Path], Peer] = request.param
    if make is not pool:
        pytest.importorskip(make.__name__.partition("_")[0], reason="it is in the extra `bench`")
    with closing(make(tmp_path)) as made:
        yield made


@pytest.mark.parametrize("peer", PEERS, indirect=True)
def test_a_peer_runs_each_job_once_and_has_it_done_in_every_round(peer: Peer) -> None:
    for _ in range(2):
        peer.fill(JOBS)
        assert peer.work(JOBS) > 0
        peer.check()


@pytest.mark.parametrize("peer", PEERS, indirect=True)
def test_a_check_fails_before_the_work_is_done(peer: Peer) -> None:
    peer.fill(JOBS)

    with pytest.raises(AssertionError, match=f"0 handlers ran for {JOBS} jobs"):
        peer.check()


@pytest.mark.parametrize("peer", PEERS[1:], indirect=True)
def test_a_check_looks_at_what_is_kept_and_not_only_at_the_handler(peer: Peer) -> None:
    peer.fill(JOBS)
    for _ in range(JOBS):
        peer._count()  # type: ignore[attr-defined]  # as if the handler had run

    with pytest.raises(AssertionError, match=r"left|procrastinate has \{\('todo', 0\): 30\}"):
        peer.check()


@pytest.mark.parametrize("peer", [pgqueuer], indirect=True)
def test_a_check_of_pgqueuer_fails_if_a_job_was_picked_twice(peer: Peer) -> None:
    assert isinstance(peer, Pgqueuer)
    peer.fill(JOBS)
    peer.work(JOBS)
    again = "INSERT INTO pgqueuer_log (job_id, status, entrypoint, priority) VALUES (1, 'picked', 'noop', 0)"
    peer._loop.run(peer._connection.execute(again))

    with pytest.raises(AssertionError, match=f"'picked': {JOBS + 1}"):
        peer.check()


@pytest.mark.parametrize("peer", [pgqueuer], indirect=True)
def test_an_idle_peer_starts_the_handler_of_each_job_that_is_added(peer: Peer) -> None:
    assert isinstance(peer, Pgqueuer)
    with peer.idling() as once:
        assert all(once() > 0 for _ in range(3))


@pytest.mark.parametrize("runs", [JOBS - 1, JOBS + 1])
def test_a_countdown_tells_too_few_runs_and_too_many(runs: int) -> None:
    count = Countdown()
    count.expect(JOBS)
    for _ in range(runs):
        count()

    with pytest.raises(AssertionError, match=f"{runs} handlers ran for {JOBS} jobs"):
        count.check()


def test_a_countdown_misses_no_run_of_any_thread() -> None:
    count = Countdown()
    count.expect(4_000)

    def run() -> None:
        for _ in range(1_000):
            count()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert count.wait() > 0
    count.check()


def test_a_peer_that_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", missing)

    with pytest.raises(MissingPeer, match=r"huey is not installed.*pip install -e '\.\[bench\]'"):
        need("huey")


def test_the_benchmark_says_which_peer_is_missing_and_measures_nothing(tmp_path: Path) -> None:
    """Its own package alone is on the path, as where the extra was never installed."""
    command = [sys.executable, str(ROOT / "benchmarks" / "worker.py"), "--quick", "--only", "memory: 4 threads"]
    code = "import importlib.metadata as m, runpy, sys\n" + (
        "def version(package): raise m.PackageNotFoundError(package)\n"
        "m.version = version\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )

    ran = subprocess.run([command[0], "-c", code, *command[1:]], capture_output=True, text=True, check=False)

    assert ran.returncode != 0
    assert ran.stdout == ""
    assert "huey is not installed" in ran.stderr
    assert "pip install -e '.[bench]'" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_worker_benchmarks_print_their_rows_as_json() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "worker.py"), "--quick", "--json", "--rounds", "1"]

    ran = subprocess.run([*command, "--only", "add_many"], capture_output=True, text=True, check=True)

    [line] = ran.stdout.splitlines()
    said = json.loads(line)
    assert said["peer"].startswith("ThreadPoolExecutor(4)")
    assert all(isinstance(said[field], float) for field in ("ours", "theirs", "ratio", "goal"))
