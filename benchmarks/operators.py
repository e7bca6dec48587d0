"""
How long an operator's questions take on a store with a million jobs, and what they cost the workers beside.

    python benchmarks/operators.py             every row; it starts a server of its own
    python benchmarks/operators.py --quick     every row with 50,000 jobs
    python benchmarks/operators.py --url URL   on a server of yours: it makes databases there, and drops them

A question has 50 ms. Exact counts and paths into payloads have none: their rows show how long they take.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # this checkout, whatever is installed
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness import Row, Run, Sides, main, rate, row
from benchmarks.operators_data import fill_postgres, fill_sqlite
from benchmarks.postgres import URL, _running, database

from leasehold import Router
from leasehold.core.job import Status, completion, new_job
from leasehold.core.search import Search
from leasehold.views import Views

BOUND_MS = 50.0
JOBS = 1_000_000
QUICK_JOBS = 50_000
ASKED = 5  # times in a round
_numbers = itertools.count()
_opened: dict[str, Router] = {}
_kept = ExitStack()

Question = Callable[[Router, Views, int], object]


def _page(**filters: object) -> Question:
    return lambda router, views, count: views.page(Search(**filters))  # type: ignore[arg-type]  # by name


def _next_page(router: Router, views: Views, count: int) -> object:
    return views.page(Search(Status.DONE), cursor=views.page(Search(Status.DONE), limit=1)["cursor"])


def _failed(count: int) -> str:
    return f"job-{count // 100 * 50:08}"


def _waiting(count: int) -> str:
    return f"job-{count - count % 70 - 67:08}"


QUESTIONS: dict[str, Question] = {
    "jobs": _page(),
    "jobs, oldest first": _page(newest=False),
    "pending jobs": _page(status=Status.PENDING),
    "running jobs": _page(status=Status.RUNNING),
    "done jobs": _page(status=Status.DONE),
    "done jobs, the next page": _next_page,
    "failed jobs": _page(status=Status.FAILED),
    "cancelled jobs, oldest first": _page(status=Status.CANCELLED, newest=False),
    "jobs of a queue": _page(queue="mail"),
    "pending jobs of a queue, oldest first": _page(status=Status.PENDING, queue="mail", newest=False),
    "jobs of a task": _page(task="charge"),
    "jobs of an owner": _page(status=Status.RUNNING, owner="worker-0"),
    "failed jobs by error type": _page(status=Status.FAILED, error_type="ConnectionError"),
    "failed jobs by an error type that none has": _page(status=Status.FAILED, error_type="KeyError"),
    "jobs by the beginning of their id": _page(id_prefix="job-0001"),
    "jobs by meta": _page(meta={"tenant": "t10"}),
    "jobs of a queue that has none": _page(queue="none"),
    "done jobs of a task that none has": _page(status=Status.DONE, task="none"),
    "jobs of the last minute": lambda router, views, _: views.page(Search(since_us=router._clock.now() - 60_000_000)),
    "done jobs of a minute an hour ago": lambda router, views, _: views.page(
        Search(Status.DONE, until_us=router._clock.now() - 3_000_000_000)
    ),
    "show": lambda router, views, count: views.job(_failed(count)),
    "history": lambda router, views, count: views.history(_failed(count)),
    "explain": lambda router, views, count: router.explain(_waiting(count)),
    "workers": lambda router, views, _: views.workers(),
    "oldest due jobs": lambda router, views, _: router.store.oldest(),
    "rates": lambda router, views, _: router.store.lately(),
    "observations": lambda router, views, _: router.observations(),
    "events": lambda router, views, _: router.events(limit=50),
}
UNBOUNDED: dict[str, Question] = {
    "queues, with exact depths": lambda router, views, _: views.queues(),
    "exact counts": lambda router, views, _: views.counts(),
    "jobs by a path into their payload": _page(payload={"order.total": 7}),
    "jobs by a path that none has": _page(payload={"order.tax": 7}),
}


@contextmanager
def new_store(kind: str, count: int) -> Iterator[Router]:
    """A store with *count* jobs."""
    with ExitStack() as stack:
        if kind == "SQLite":
            path = stack.enter_context(tempfile.TemporaryDirectory()) + "/jobs.db"
            router = stack.enter_context(Router(f"sqlite:///{path}"))
            router.counts()  # the first verb makes the tables
            fill_sqlite(path, count)
        else:
            url = stack.enter_context(database())
            router = stack.enter_context(Router(url))
            router.counts()
            fill_postgres(url, count)
        yield router


def store_of(kind: str, run: Run) -> Router:
    """The store that all questions are put to; it is made once."""
    if kind not in _opened:
        count = run.pick(JOBS, QUICK_JOBS)
        run.say(f"    writing {count:,} jobs")
        _opened[kind] = _kept.enter_context(new_store(kind, count))
    return _opened[kind]


def question(kind: str, name: str, ask: Question, bound: float | None) -> Row:
    """Return the row of a question."""
    peer, goal = ("a bound of 50 ms", 1.0) if bound else ("50 ms, which it need not keep", 0.0)

    @row(f"{kind}: {name}", peer=peer, goal=goal, unit="ms", better="less", rounds=9)
    def asking(run: Run) -> Iterator[Sides]:
        router, count = store_of(kind, run), run.pick(JOBS, QUICK_JOBS)
        views = Views(router)
        ask(router, views, count)

        def ours() -> float:
            times = []
            for _ in range(ASKED):
                began = time.perf_counter()
                ask(router, views, count)
                times.append(time.perf_counter() - began)
            return sorted(times)[ASKED // 2] * 1_000

        yield ours, lambda: BOUND_MS

    return asking


def beside_watching(kind: str) -> Row:
    """Return the row of claims beside `leasehold jobs --watch`."""

    @row(f"{kind}: claims beside jobs --watch", peer="claims without it", goal=0.9)
    def watching(run: Run) -> Iterator[Sides]:
        router, count, batch = store_of(kind, run), run.pick(3_000, 500), 20
        store = router.store
        command = [sys.executable, "-P", "-m", "leasehold", "jobs", "--status", "running", "--watch"]
        environment = {**os.environ, "LEASEHOLD_STORE": str(router.url), "PYTHONPATH": sys.path[1]}

        def fill() -> None:
            store.add([new_job(f"watched-{next(_numbers)}", queue="watched") for _ in range(count)])

        def work() -> int:
            for _ in range(0, count, batch):
                store.settle([completion(grant) for grant in store.claim("w", limit=batch, queues=["watched"])])
            return count

        def watched() -> float:
            with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
                assert child.stdout is not None
                child.stdout.readline()  # it has begun
                try:
                    return rate(work, before=fill)
                finally:
                    child.terminate()
                    child.stdout.read()

        yield watched, lambda: rate(work, before=fill)

    return watching


ROWS = [
    made
    for kind in ("PostgreSQL", "SQLite")
    for made in (
        *(question(kind, name, ask, BOUND_MS) for name, ask in QUESTIONS.items()),
        *(question(kind, name, ask, None) for name, ask in UNBOUNDED.items()),
        beside_watching(kind),
    )
]

if __name__ == "__main__":
    with _running, _kept:
        sys.exit(main(ROWS, about=__doc__, on_server=lambda url: os.environ.update({URL: url})))
