"""A server that goes away and comes back: what is said meanwhile, and what is issued afterwards."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from leasehold import Router, StaleEpoch, StoreUnavailable
from leasehold.core.clock import SystemClock

from .fixtures import NEWEST, must_have
from .server import Server, server


@pytest.fixture(params=[NEWEST])
def mortal(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of this test's own."""
    must_have(request.param)
    with server(request.param, durable=True) as running:
        yield running


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["shutdown", "crash"])
def test_epochs_go_on_above_the_clock_after_a_restart(mortal: Server, how: signal.Signals) -> None:
    """Verbs say that the server is gone, find it again by themselves, and trust no epoch from before."""
    with Router(mortal.url()) as router:
        for name in "abc":
            router.add(name)
        before = router.claim("worker")
        assert before is not None
        mortal.stop(how)
        for verb in (lambda: router.add("d"), lambda: router.job("a"), before.renew, lambda: router.claim("worker")):
            with pytest.raises(StoreUnavailable):
                verb()

        mortal.start()
        began = SystemClock().now()  # the server's too: it is on this machine
        after = router.claim("worker")

        assert after is not None
        # It was issued above the clock, and not by counting on.
        assert after.epoch >= began
        assert [it.facts["found"] for it in router.events(kind="advanced")] == ["another start of the server"]
        before.complete()
        assert router.job("a").status == "done"
        assert router.verify() == []


def test_an_owner_from_before_a_restart_is_refused_once_its_job_has_moved(mortal: Server) -> None:
    """The fence holds over a restart."""
    with Router(mortal.url(), lease_seconds=0.001) as router:
        router.add("a")
        old = router.claim("worker")
        assert old is not None
        mortal.stop(signal.SIGQUIT)
        mortal.start()
        assert router.claim("other") is not None

        with pytest.raises(StaleEpoch) as refused:
            old.complete()

        assert refused.value.owner == "other"
