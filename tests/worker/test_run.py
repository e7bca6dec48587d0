"""The states of a run: one transition at a time, whichever threads try."""

from __future__ import annotations

import threading

import pytest
from tests.worker.staging import PATIENCE

from leasehold import Router
from leasehold.lease import Lease, worker_side
from leasehold.worker.run import Run, Runs, State, Stop

FLIGHT = {State.WAITING, State.EXECUTING, State.STOPPING, State.OUTLIVED, State.SETTLING}
SLOTS = {State.WAITING, State.EXECUTING, State.STOPPING, State.OUTLIVED, State.LINGERING}


@pytest.fixture
def runs() -> Runs:
    """The runs of a worker that has none."""
    return Runs()


@pytest.fixture
def run(runs: Runs, router: Router) -> Run:
    """A run that waits."""

    @router.task
    def work() -> None:
        """Nothing to do."""

    work.options(id="a").add()
    lease = router.claim("worker")
    assert isinstance(lease, Lease)
    made = Run(runs, worker_side.grant_of(lease), lease, work, 0, 0)
    runs.add([made])
    return made


def at(run: Run, state: State) -> Run:
    """The run, brought there."""
    ways = {
        State.WAITING: [],
        State.EXECUTING: [State.EXECUTING],
        State.STOPPING: [State.EXECUTING, State.STOPPING],
        State.OUTLIVED: [State.EXECUTING, State.STOPPING, State.OUTLIVED],
        State.LINGERING: [State.EXECUTING, State.STOPPING, State.LINGERING],
        State.SETTLING: [State.EXECUTING, State.SETTLING],
        State.OVER: [State.EXECUTING, State.SETTLING, State.OVER],
    }
    for following in ways[state]:
        assert run.transition(run.state, following)
    return run


@pytest.mark.parametrize("state", State)
def test_a_transition_from_another_state_changes_nothing(run: Run, state: State) -> None:
    """Not even the verdict of a stop that came too late."""
    at(run, state)
    for expected in set(State) - {state}:
        assert not run.transition(expected, State.OVER, Stop(1, None))
    assert (run.state, run.stop) == (state, None)


@pytest.mark.parametrize("state", State)
def test_the_counts_are_those_of_the_state(runs: Runs, run: Run, state: State) -> None:
    """A handler that lingers takes a slot, and its job is no longer in flight."""
    at(run, state)
    assert runs.count_in_flight == len(runs.in_flight()) == (state in FLIGHT)
    assert runs.count_slots == (state in SLOTS)
    assert runs.count_handlers == (State.EXECUTING <= state <= State.LINGERING)
    assert runs.count_undecided == len(runs.undecided()) == (state <= State.STOPPING)
    assert runs.count_without_job == (state in {State.OUTLIVED, State.LINGERING})
    assert runs.find(run.grant.epoch) is (run if state in FLIGHT else None)


@pytest.mark.parametrize(("state", "after"), [(State.SETTLING, State.OVER), (State.OUTLIVED, State.LINGERING)])
def test_a_confirmed_settlement_ends_a_run_unless_its_handler_goes_on(
    runs: Runs, run: Run, state: State, after: State
) -> None:
    at(run, state)
    runs.confirm([run])
    assert run.state is after


def test_of_many_threads_one_makes_a_transition(run: Run) -> None:
    """Each with a stop of its own: the verdict is that of the one that succeeds."""
    at(run, State.EXECUTING)
    stops = [Stop(number, None) for number in range(16)]
    ready, won = threading.Barrier(len(stops)), list[Stop]()

    def attempt(stop: Stop) -> None:
        ready.wait(PATIENCE)
        if run.transition(State.EXECUTING, State.STOPPING, stop):
            won.append(stop)

    threads = [threading.Thread(target=attempt, args=[stop]) for stop in stops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    assert [run.stop] == won


def test_a_run_shows_its_state(run: Run) -> None:
    assert "work executing <Lease 'a'" in repr(at(run, State.EXECUTING))
