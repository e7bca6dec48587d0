"""`ObjectGuard` on real S3 servers: what it costs, lost replies, and a server that ignores conditions."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import obstore
import pytest

from leasehold import GuardUnavailable, InDoubt, StaleEpoch, Unfenced

from .object_clients import guard_at, store_at
from .object_proxy import Act, Proxy, Reply, Request, answer, lose_reply, lose_request, proxy_to, twice
from .object_servers import rclone, seaweedfs

_numbers = itertools.count()


# Lost replies, and what a proxy can do to a request


OLD: dict[str, Any] = {"epoch": 1_000, "owner": "old", "store": "s"}
NEW: dict[str, Any] = {"epoch": 2_000, "owner": "new", "store": "s"}


class Site:
    """A key on SeaweedFS: one guard reaches it through a proxy, and others directly."""

    def __init__(self, proxy: Proxy) -> None:
        prefix = f"site/{os.getpid()}-{next(_numbers)}"
        self.proxy, self.prefix = proxy, prefix
        self.store = store_at(seaweedfs(), prefix)
        self.guard = guard_at(proxy.endpoint, prefix)
        self.other = guard_at(seaweedfs(), prefix)

    def counter(self) -> int:
        """The number of changes of the key so far."""
        mark = self.other.mark("k")
        return 0 if mark is None else mark.counter

    def seen(self, call: Callable[[], object]) -> list[str]:
        """Return the requests that *call* makes; a condition is shown as "?"."""
        self.proxy.requests.clear()
        call()
        return list(self.proxy.requests)


@pytest.fixture
def site() -> Iterator[Site]:
    """A key of its own, and a proxy in front of it."""
    with proxy_to(seaweedfs()) as proxy:
        yield Site(proxy)


def test_a_small_write_costs_one_request_and_one_more_if_the_pointer_is_not_known(site: Site) -> None:
    """And its read one, as of a bare object."""
    guard = guard_at(site.proxy.endpoint, site.prefix, inline_bytes=4096)
    assert site.seen(lambda: guard.write("k", b"1", **OLD)) == ["GET", "PUT?"]
    assert site.seen(lambda: guard.write("k", b"2", **OLD)) == ["PUT?"]
    assert site.seen(lambda: guard.seal("k", **NEW)) == ["PUT?"]
    assert site.seen(lambda: guard.read("k", **NEW)) == ["GET"]
    assert site.other.peek("k") == b"2"


def test_a_write_costs_two_requests_and_one_more_if_the_pointer_is_not_known(site: Site) -> None:
    """The data, and the pointer on a condition."""
    assert site.seen(lambda: site.guard.write("k", b"1", **OLD)) == ["GET", "PUT", "PUT?"]
    assert site.seen(lambda: site.guard.write("k", b"2", **OLD)) == ["PUT", "PUT?"]
    assert site.seen(lambda: site.guard.seal("k", **NEW)) == ["PUT?"]
    assert site.seen(lambda: site.guard.delete("k", **NEW)) == ["PUT?"]
    assert site.seen(lambda: site.guard.write("l", [b"3", b"4"], **NEW)) == ["GET", "PUT", "PUT?"]


def test_a_read_under_an_epoch_that_has_sealed_writes_nothing(site: Site) -> None:
    """The pointer shows that no older owner can write."""
    site.other.write("k", b"1", **OLD)

    assert site.seen(lambda: site.guard.read("k", **NEW)) == ["GET", "PUT?", "GET"]
    assert site.seen(lambda: site.guard.read("k", **NEW)) == ["GET", "GET"]


def test_a_late_write_that_knows_the_pointer_of_long_ago_is_refused(site: Site) -> None:
    """By the condition, after many writes of the new owner, and its data is removed again."""
    site.guard.write("k", b"old", **OLD)
    for number in range(20):
        site.other.write("k", b"new %d" % number, **NEW)

    with pytest.raises(StaleEpoch) as refusal:
        site.guard.write("k", b"late", **OLD)

    assert (refusal.value.current, refusal.value.owner) == (2_000, "new")
    assert site.other.peek("k") == b"new 19"
    names = [one["path"].rpartition("/")[2] for one in obstore.list(site.store, ".leasehold/k").collect()]
    assert len([name for name in names if name.startswith("0000000000001000-")]) == 1


@pytest.mark.parametrize("verb", ["write", "seal", "delete"])
@pytest.mark.parametrize("fresh", [True, False], ids=["new key", "known key"])
@pytest.mark.parametrize("act", [lose_reply(), lose_request, twice], ids=["reply lost", "request lost", "sent twice"])
def test_a_change_takes_effect_once_whatever_is_lost(site: Site, verb: str, fresh: bool, act: Act) -> None:
    """It is sent again only with the same content under the same condition, or found by its nonce."""
    if not fresh:
        site.guard.write("k", b"1", **OLD)
    before = site.counter()
    site.proxy.arm(act)

    if verb == "write":
        site.guard.write("k", b"2", **OLD)
    elif verb == "seal":
        site.guard.seal("k", **OLD)
    else:
        site.guard.delete("k", **OLD)

    assert not site.proxy.is_armed
    assert site.counter() == before + 1
    assert site.other.peek("k") == {"write": b"2", "seal": None if fresh else b"1", "delete": None}[verb]
    assert site.guard.refused == 0
    site.guard.write("k", b"3", **OLD)
    assert site.other.peek("k") == b"3"


def test_a_request_that_arrives_after_its_repetition_is_refused_by_the_server(site: Site) -> None:
    """A request may be under way for long after its sender has lost it."""
    site.guard.write("k", b"1", **OLD)
    late: list[Request] = []
    site.proxy.arm(late.append)
    site.guard.write("k", b"2", **OLD)
    site.other.write("k", b"3", **OLD)

    assert late[0].forward().status == 412
    assert (site.other.peek("k"), site.counter()) == (b"3", 3)


def test_a_request_that_is_sent_again_has_the_condition_of_the_first(site: Site) -> None:
    """A new owner may seal between the two."""
    site.guard.write("k", b"1", **OLD)
    site.proxy.arm(lose_request)
    sent = itertools.count(1)
    site.guard.at = lambda step: (
        [site.other.seal("k", **NEW)].clear() if step == "compared" and next(sent) == 2 else None
    )

    with pytest.raises(StaleEpoch):
        site.guard.write("k", b"2", **OLD)

    assert (site.other.peek("k"), site.counter(), next(sent)) == (b"1", 2, 3)


@pytest.mark.parametrize(("later", "is_known"), [(15, True), (16, False)])
def test_a_lost_reply_is_recognised_by_the_last_sixteen_changes(site: Site, later: int, is_known: bool) -> None:
    """After more of them it is in doubt: not called refused, and not written again over the others."""
    site.guard.write("k", b"1", **OLD)
    site.proxy.arm(lose_reply(lambda: [site.other.seal("k", **NEW) for _ in range(later)]))

    if is_known:
        site.guard.write("k", b"2", **OLD)
    else:
        with pytest.raises(InDoubt, match="outcome is not known") as doubt:
            site.guard.write("k", b"2", **OLD)
        assert (doubt.value.resource, doubt.value.epoch) == ("object:k", 1_000)

    assert (site.other.peek("k"), site.counter(), site.guard.refused) == (b"2", 2 + later, 0)


def test_a_lost_request_that_a_new_owner_overtakes_is_refused(site: Site) -> None:
    """The pointer has no trace of it, and never will: its condition has passed."""
    site.guard.write("k", b"1", **OLD)
    site.proxy.arm(lambda request: site.other.seal("k", **NEW) and None)

    with pytest.raises(StaleEpoch) as refusal:
        site.guard.write("k", b"2", **OLD)

    assert (refusal.value.current, refusal.value.owner, site.guard.refused) == (2_000, "new", 1)
    assert site.other.peek("k") == b"1"


def test_a_lost_request_that_a_sibling_overtakes_is_written_after_it(site: Site) -> None:
    """Equal epochs are never stale."""
    site.guard.write("k", b"1", **OLD)
    site.proxy.arm(lambda request: site.other.write("k", b"sibling", **OLD))

    site.guard.write("k", b"2", **OLD)

    assert (site.other.peek("k"), site.counter(), site.guard.refused) == (b"2", 3, 0)


@pytest.mark.parametrize("status", [409, 412, 500, 503])
def test_a_change_that_the_server_did_not_make_is_tried_again(site: Site, status: int) -> None:
    """409 is "try again", and so is a 412 of a pointer that has not changed; after 5xx the pointer tells."""
    for number in range(2):  # a pointer that is made, and one that is replaced
        site.proxy.arm(answer(status), times=2)
        site.guard.write("k", b"%d" % number, **OLD)

    assert (site.other.peek("k"), site.counter(), site.proxy.is_armed) == (b"1", 2, False)


def test_attempts_are_bounded(site: Site) -> None:
    """A server that never takes the pointer leaves a write in doubt; a seal can be repeated without harm."""
    site.guard.write("k", b"1", **OLD)
    site.proxy.arm(lose_request, times=1_000)

    with pytest.raises(InDoubt):
        site.guard.write("k", b"2", **OLD)
    with pytest.raises(GuardUnavailable, match="reply of the seal was lost"):
        site.guard.seal("k", **OLD)

    assert site.other.peek("k") == b"1"


def test_a_lost_reply_without_a_pointer_to_read_back_is_in_doubt(site: Site) -> None:
    """It happened, and the guard cannot see it."""
    site.guard.write("k", b"1", **OLD)
    site.proxy.arm(lose_reply())
    site.proxy.arm(answer(403), where=lambda request: request.method == "GET")

    with pytest.raises(InDoubt):
        site.guard.write("k", b"2", **OLD)

    assert site.other.peek("k") == b"2"
    site.guard.write("k", b"3", **OLD)
    assert site.other.peek("k") == b"3"


@pytest.mark.parametrize(("status", "where"), [(403, "GET"), (403, "PUT"), (404, "PUT"), (403, "PUT?")])
def test_a_server_that_refuses_a_request_leaves_the_key_as_it_was(site: Site, status: int, where: str) -> None:
    """A policy, credentials that have expired, a bucket that is not there."""
    site.proxy.arm(answer(status), where=lambda request: request.method + "?" * request.is_conditional == where)

    with pytest.raises(GuardUnavailable):
        site.guard.write("k", b"1", **OLD)

    assert (site.other.peek("k"), site.counter()) == (None, 0)


# Readers


def test_a_reader_that_meets_collected_data_reads_the_pointer_again(site: Site) -> None:
    """The data was replaced and removed between its two requests."""

    newer = itertools.count(2_000)

    def replace(request: Request) -> Reply:
        site.other.write("k", b"newer", **{**NEW, "epoch": next(newer)})
        assert site.other.collect("k", grace_seconds=0) == 1
        return request.forward()

    site.other.write("k", b"1", **OLD)
    site.proxy.arm(replace, times=2, where=lambda request: ".leasehold" in request.path)

    assert site.seen(lambda: site.guard.peek("k")) == ["GET"] * 6
    assert site.guard.peek("k") == b"newer"


def test_collect_looks_at_the_pointer_again_before_it_removes(site: Site) -> None:
    """What a pointer names that was restored from a backup in the meantime stays."""
    site.guard.write("k", b"1", **OLD)
    backup = bytes(obstore.get(site.store, "k").bytes())
    site.guard.write("k", b"2", **NEW)

    def restore(request: Request) -> Reply:
        obstore.put(site.store, "k", backup)
        return request.forward()

    site.proxy.arm(restore, where=lambda request: "list-type" in request.path)

    assert site.guard.collect("k", grace_seconds=0) == 0
    assert site.other.peek("k") == b"1"


def test_large_data_is_uploaded_in_parts(site: Site) -> None:
    """From an iterator, and a reader sees all of it or the data before it."""
    pieces = [os.urandom(1024 * 1024) for _ in range(11)]
    site.other.write("k", b"1", **OLD)

    def stream() -> Iterator[bytes]:
        for piece in pieces:
            assert site.other.peek("k") == b"1"
            yield piece

    requests = site.seen(lambda: site.guard.write("k", stream(), **OLD))

    assert requests[0] == "GET"
    assert requests[-1] == "PUT?"
    assert requests.count("PUT") == 3
    assert requests.count("POST") == 2
    assert site.other.peek("k") == b"".join(pieces)


# The proof


@pytest.mark.parametrize(
    ("header", "skipped", "why"),
    [
        ("if-match", 0, "that does not exist"),
        ("if-none-match", 1, "that exists"),
        ("if-match", 2, "by its previous ETag"),
        ("if-match", 3, "replacements that named the same ETag"),
    ],
)
def test_each_part_of_the_proof_bites(site: Site, header: str, skipped: int, why: str) -> None:
    """On a server that ignores one of its conditions, or ignores them under load."""
    seen: list[Request] = []

    def counts(request: Request) -> bool:
        if request.is_conditional and any(name.lower() == header for name, _ in request.headers):
            seen.append(request)
            return len(seen) > skipped
        return False

    site.proxy.arm(lambda request: request.without(header).forward(), times=20, where=counts)

    with pytest.raises(Unfenced, match=why):
        site.guard.prove()

    site.proxy.disarm()
    site.guard.prove()


def test_the_proof_leaves_nothing_behind(site: Site) -> None:
    """Its canary is removed, and a proof that cannot be made is not a failed one."""
    site.guard.prove()
    assert obstore.list(site.store).collect() == []

    site.proxy.arm(lose_request, times=1_000)
    with pytest.raises(GuardUnavailable):
        site.guard.prove()


def test_a_store_that_ignores_conditions_lets_a_stale_write_through() -> None:
    """Which is why `prove` is called at the start of a program."""
    old, new = guard_at(rclone(), "careless"), guard_at(rclone(), "careless")
    old.write("k", b"1", **OLD)
    new.seal("k", **NEW)
    old.write("k", b"stale", **OLD)

    assert new.peek("k") == b"stale"
