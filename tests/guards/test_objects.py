"""`ObjectGuard` on obstore's memory store: pointers, data of every kind, garbage, and the async form."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import AzureStore, HTTPStore, LocalStore, MemoryStore

from leasehold import GuardUnavailable, InvalidArgument, StaleEpoch, Unsupported
from leasehold.aio import Facade
from leasehold.guards import ObjectGuard
from leasehold.guards.objects import AsyncObjectGuard
from leasehold.guards.objects.garbage import BATCH
from leasehold.guards.objects.guard import KEY_LIMIT
from leasehold.testing import ManualClock
from leasehold.testing.leases import lease

OLD: dict[str, Any] = {"epoch": 1_000, "owner": "old", "store": "s"}
NEW: dict[str, Any] = {"epoch": 2_000, "owner": "new", "store": "s"}
NEWEST: dict[str, Any] = {"epoch": 3_000, "owner": "newest", "store": "s"}


def content(store: MemoryStore, path: str) -> bytes:
    """Return what is at *path*."""
    return bytes(obstore.get(store, path).bytes())


def paths(store: MemoryStore, prefix: str | None = None) -> list[str]:
    """Return the paths of all objects."""
    return sorted(meta["path"] for meta in obstore.list(store, prefix).collect())


@pytest.fixture
def store() -> MemoryStore:
    """An empty store."""
    return MemoryStore()


@pytest.fixture
def clock() -> ManualClock:
    """The time, which only the test moves."""
    return ManualClock()


@pytest.fixture
def guard(store: MemoryStore, clock: ManualClock) -> ObjectGuard:
    """A guard on that store."""
    return ObjectGuard(store, clock=clock, inline_bytes=0)


# The pointer


def test_the_key_holds_a_pointer_with_the_mark_and_the_last_sixteen_nonces(
    guard: ObjectGuard, store: MemoryStore
) -> None:
    """All of it in the content, since an ETag covers nothing else; the data is elsewhere and never changes."""
    guard.write("reports/q3.csv", b"1", **OLD)

    pointer = json.loads(content(store, "reports/q3.csv"))
    assert {name: pointer[name] for name in ("epoch", "counter", "owner", "store")} == {
        "epoch": 1_000,
        "counter": 1,
        "owner": "old",
        "store": "s",
    }
    [nonce] = pointer["nonces"]
    assert pointer["data"] == f".leasehold/reports/q3.csv/0000000000001000-1-{nonce}" == guard.locate("reports/q3.csv")
    assert content(store, pointer["data"]) == b"1"

    for _ in range(20):
        guard.seal("reports/q3.csv", **OLD)
    later = json.loads(content(store, "reports/q3.csv"))
    assert (later["counter"], len(set(later["nonces"])), later["data"]) == (21, 16, pointer["data"])
    assert nonce not in later["nonces"]


def test_a_deletion_keeps_the_pointer(guard: ObjectGuard, store: MemoryStore) -> None:
    """It names no data; the mark is there."""
    guard.write("k", b"1", **OLD)
    guard.delete("k", **NEW)

    assert json.loads(content(store, "k"))["data"] is None
    assert (guard.peek("k"), guard.read("k", **NEW), guard.locate("k")) == (None, None, None)


@pytest.mark.parametrize(
    "foreign",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"year,sum\n2026,1\n",
        b"\xff\xfe",
        b'{"epoch":0,"counter":1,"owner":"a","store":"s","data":null,"nonces":["a"]}',
        b'{"epoch":1,"counter":1,"owner":"a","store":"s","data":7,"nonces":["a"]}',
        b'{"epoch":1,"counter":1,"owner":"a","store":"s","data":null,"nonces":[]}',
        b'{"epoch":1,"counter":1,"owner":"a","store":"s","data":null}',
        b'{"epoch":1,"counter":1,"owner":"a","store":"s","data":"others/secret","nonces":["a"]}',
        b'{"epoch":1,"counter":1,"owner":"a","store":"s","data":".leasehold/k/0000000000000002-1-a","nonces":["a"]}',
        b'{"epoch":1,"counter":1,"owner":"a","store":"s","data":".leasehold/l/0000000000000001-1-a","nonces":["a"]}',
        b" " * 1_000_000,
    ],
    ids=lambda foreign: repr(foreign[:70]),
)
def test_an_object_that_is_not_a_pointer_is_never_replaced(
    guard: ObjectGuard, store: MemoryStore, foreign: bytes
) -> None:
    """A file that was there before the guard, a pointer that was copied from another key, or a forged one."""
    obstore.put(store, "k", foreign)
    calls: list[Callable[[], object]] = [
        lambda: guard.write("k", b"1", **NEW),
        lambda: guard.delete("k", **NEW),
        lambda: guard.seal("k", **NEW),
        lambda: guard.read("k", **NEW),
        lambda: guard.peek("k"),
        lambda: guard.mark("k"),
        lambda: guard.collect("k"),
    ]
    for call in calls:
        with pytest.raises(GuardUnavailable, match="object:k"):
            call()

    assert (paths(store), content(store, "k")) == (["k"], foreign)


def test_a_pointer_that_was_deleted_past_the_guard_is_noticed_by_who_knew_it(
    guard: ObjectGuard, store: MemoryStore
) -> None:
    """Once: the mark is gone, and only a person can know whether an older owner is at work."""
    guard.write("k", b"1", **OLD)
    obstore.delete(store, "k")

    with pytest.raises(GuardUnavailable, match="deleted without the guard"):
        guard.write("k", b"2", **OLD)

    guard.seal("k", **OLD)
    guard.write("k", b"3", **OLD)
    assert guard.peek("k") == b"3"


def test_data_that_was_deleted_past_the_guard_is_not_taken_for_none(guard: ObjectGuard, store: MemoryStore) -> None:
    """Nor does a reader look for it for ever."""
    guard.write("k", b"1", **OLD)
    path = guard.locate("k")
    assert path is not None
    obstore.delete(store, path)

    with pytest.raises(GuardUnavailable, match="deleted without the guard"):
        guard.peek("k")
    guard.write("k", b"2", **OLD)
    assert guard.peek("k") == b"2"


def test_a_refusal_names_the_present_owner_and_not_the_one_that_was_known(
    guard: ObjectGuard, store: MemoryStore
) -> None:
    """Though the pointer that this guard has seen would refuse too."""
    guard.write("k", b"1", **NEW)
    ObjectGuard(store).seal("k", **NEWEST)

    with pytest.raises(StaleEpoch) as refusal:
        guard.write("k", b"2", **OLD)

    assert (refusal.value.current, refusal.value.owner) == (3_000, "newest")


def test_many_threads_of_one_owner_all_write(store: MemoryStore) -> None:
    """Through guards of their own, so that each meets the others' changes."""
    failures: list[BaseException] = []
    start = threading.Barrier(8)

    def write(number: int) -> None:
        guard = ObjectGuard(store)
        start.wait()
        try:
            for turn in range(5):
                guard.write("k", b"%d %d" % (number, turn), **OLD)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    mark = ObjectGuard(store).mark("k")
    assert mark is not None
    assert mark.counter == 40


# Data


def test_data_may_be_bytes_a_path_a_file_or_an_iterable(guard: ObjectGuard, tmp_path: Path) -> None:
    """Short or long; what is read is bytes."""
    long = b"0123456789abcdef" * (6 * 1024 * 64)  # 6 MiB, more than a part
    for data in (b"", b"short", long):
        (tmp_path / "file").write_bytes(data)
        with (tmp_path / "file").open("rb") as file:
            pieces = (data[at : at + 100_000] for at in range(0, len(data), 100_000))
            for form in (data, bytearray(data), memoryview(data), tmp_path / "file", file, io.BytesIO(data), pieces):
                guard.write("k", b"before", **OLD)
                guard.write("k", form, **OLD)
                assert guard.peek("k") == data
    guard.write("k", [b"a", bytearray(b"b"), memoryview(b"c")], **OLD)
    assert guard.read("k", **OLD) == b"abc"


def test_an_iterable_may_read_from_an_object_store(guard: ObjectGuard, store: MemoryStore) -> None:
    """The usual way to copy a large object."""
    guard.write("k", b"x" * 6_000_000, **OLD)
    path = guard.locate("k")
    assert path is not None

    guard.write("copy", obstore.get(store, path).stream(min_chunk_size=1_000_000), **OLD)

    assert guard.peek("copy") == b"x" * 6_000_000


@pytest.mark.parametrize("size", [1, 6_000_000])
@pytest.mark.parametrize("error", [OSError("the disk"), RuntimeError("the caller"), KeyboardInterrupt()])
def test_an_iterable_that_fails_leaves_the_key_as_it_was(
    guard: ObjectGuard, store: MemoryStore, error: BaseException, size: int
) -> None:
    """Its error is passed on, even one that a store could have raised."""
    guard.write("k", b"1", **OLD)
    before = paths(store)

    def failing() -> Iterator[bytes]:
        yield b"x" * size
        raise error

    with pytest.raises(type(error)) as raised:
        guard.write("k", failing(), **OLD)

    assert raised.value is error
    assert (guard.peek("k"), paths(store)) == (b"1", before)


@pytest.mark.parametrize("data", ["text", 7, None, io.StringIO("text")], ids=["str", "int", "None", "text file"])
def test_what_is_not_bytes_is_an_invalid_argument(guard: ObjectGuard, store: MemoryStore, data: Any) -> None:
    """A text has many encodings."""
    with pytest.raises(InvalidArgument, match="binary"):
        guard.write("k", data, **OLD)
    with pytest.raises(FileNotFoundError):
        guard.write("k", Path("/nowhere/at/all"), **OLD)

    assert paths(store) == []


@pytest.mark.parametrize(
    "key", ["/a", "a/", "a//b", ".", "../a", "a/./b", "a\nb", ".leasehold", ".leasehold/k", "é" * 451]
)
def test_what_a_store_knows_by_another_name_cannot_be_a_key(guard: ObjectGuard, key: str) -> None:
    """Nor what is below the folder of the data."""
    with pytest.raises(InvalidArgument):
        guard.canonical(key)


@pytest.mark.parametrize("key", ["a", "a/b", "a b", "ä%2F#?&+=~.csv", ".hidden", "a/.leasehold/b", "x" * KEY_LIMIT])
def test_keys_are_used_as_they_are(guard: ObjectGuard, store: MemoryStore, key: str) -> None:
    """And their data is found again."""
    guard.write(key, b"1", **OLD)

    assert (guard.peek(key), guard.collect(key)) == (b"1", 0)
    assert key in paths(store)


# Garbage


def test_replaced_data_is_removed_by_a_later_write_after_the_grace_time(
    guard: ObjectGuard, store: MemoryStore, clock: ManualClock
) -> None:
    """A reader that has read the pointer has that long to read the data."""
    for number in range(3):
        guard.write("k", b"%d" % number, **OLD)
    clock.advance(60)
    guard.write("k", b"3", **OLD)
    assert len(paths(store, ".leasehold/k")) == 4

    clock.advance(61)  # twice the grace time since the first two
    guard.write("k", b"4", **OLD)

    assert len(paths(store, ".leasehold/k")) == 2, "the present data, and what it has replaced just now"
    assert guard.peek("k") == b"4"


def test_much_replaced_data_is_removed_in_batches(guard: ObjectGuard, store: MemoryStore, clock: ManualClock) -> None:
    """A request for each would cost a busy writer as much as its writes."""
    for number in range(BATCH + 1):
        guard.write("k", b"%d" % number, **OLD)
    assert len(paths(store, ".leasehold/k")) == BATCH + 1
    clock.advance(61)
    guard.write("k", b"last", **OLD)

    assert len(paths(store, ".leasehold/k")) == 2
    assert guard.peek("k") == b"last"


def test_deleted_data_is_removed_too(store: MemoryStore, clock: ManualClock) -> None:
    """Without a grace time, by the next change but one."""
    guard = ObjectGuard(store, clock=clock, grace_seconds=0, inline_bytes=0)
    guard.write("k", b"1", **OLD)
    clock.advance(1)
    guard.delete("k", **OLD)
    clock.advance(1)
    guard.write("l", b"1", **OLD)
    guard.write("l", b"2", **OLD)

    assert paths(store, ".leasehold/k") == []


def test_a_refused_write_leaves_no_data(guard: ObjectGuard, store: MemoryStore) -> None:
    """Neither one that is refused at once, nor one that is refused after its upload."""
    guard.write("k", b"1", **OLD)
    other = ObjectGuard(store, inline_bytes=0)
    before = paths(store)
    guard.at = lambda step: [other.seal("k", **NEW)].clear() if step == "compared" else None

    for _ in range(2):
        with pytest.raises(StaleEpoch):
            guard.write("k", b"2", **OLD)

    assert paths(store) == before


def test_collect_removes_what_is_below_the_epoch_and_not_named(guard: ObjectGuard, store: MemoryStore) -> None:
    """Whether it was replaced, or left by a writer that died after its upload."""
    guard.write("k", b"named", **OLD)
    named = guard.locate("k")
    for epoch in (500, 1_000, 1_500, 2_000, 2_500):
        obstore.put(store, f".leasehold/k/{epoch:016}-7-abcdef", b"left")
    obstore.put(store, ".leasehold/k/notes.txt", b"foreign")
    guard.write("k/l", b"another key", **{**OLD, "epoch": 1})

    assert guard.collect("k", grace_seconds=0) == 1  # 500: the key stands at 1000
    guard.seal("k", **NEW)
    assert guard.collect("k", grace_seconds=0) == 2

    assert guard.locate("k") == named
    assert (guard.peek("k"), guard.peek("k/l")) == (b"named", b"another key")
    left = [path.rpartition("/")[2] for path in paths(store, ".leasehold/k")]
    assert {"0000000000002000-7-abcdef", "0000000000002500-7-abcdef", "notes.txt"} < set(left)
    assert guard.collect("k", grace_seconds=0) == 0


def test_collect_leaves_what_is_younger_than_the_grace_time(store: MemoryStore) -> None:
    """By the clock of the guard and the time of the object."""
    clock = ManualClock(datetime.now(UTC))
    guard = ObjectGuard(store, clock=clock, inline_bytes=0)
    guard.write("k", b"1", **OLD)
    guard.write("k", b"2", **NEW)

    assert guard.collect("k") == 0
    clock.advance(4_000)
    assert guard.collect("k") == 1
    assert guard.collect("never written") == 0


# Small data in the pointer


@pytest.mark.parametrize("size", [0, 1, 4096, 4097])
def test_small_data_is_in_the_pointer_and_larger_data_is_not(store: MemoryStore, size: int) -> None:
    """Up to 4 KiB, so that such a write is one request."""
    guard, data = ObjectGuard(store), bytes(range(256)) * 17
    guard.write("k", data[:size], **OLD)

    assert ("inline" in json.loads(content(store, "k"))) == (size <= 4096)
    assert len(paths(store, ".leasehold/k")) == (size > 4096)
    assert ObjectGuard(store).peek("k") == data[:size]


def test_a_seal_keeps_data_that_is_in_the_pointer(store: MemoryStore) -> None:
    """Under a newer epoch, and again and again; a deletion takes it away."""
    guard = ObjectGuard(store)
    guard.write("k", b"1", **OLD)
    for writer in (OLD, NEW, NEW):
        guard.seal("k", **writer)
        assert guard.peek("k") == guard.read("k", **writer) == b"1"

    guard.delete("k", **NEW)

    assert (guard.peek("k"), guard.locate("k")) == (None, None)
    assert "inline" not in json.loads(content(store, "k"))


def test_small_data_is_put_where_it_is_located(store: MemoryStore, clock: ManualClock) -> None:
    """For other clients; it is removed like other data, once it was replaced."""
    guard = ObjectGuard(store, clock=clock, grace_seconds=60)
    guard.write("k", b"1", **OLD)
    guard.seal("k", **NEW)
    path = guard.locate("k")

    assert path == guard.locate("k")
    assert content(store, str(path)) == b"1"
    guard.write("k", b"2", **NEW)
    clock.advance(121)
    guard.write("k", bytes(5_000), **NEW)
    guard.write("k", b"3", **NEW)
    clock.advance(121)
    guard.write("k", bytes(5_000), **NEW)
    guard.write("k", b"4", **NEW)
    assert len(paths(store, ".leasehold/k")) == 1, "what was replaced just now"


def test_data_in_the_pointer_that_cannot_be_read_refuses(store: MemoryStore) -> None:
    """It is not taken for other data, or for none."""
    guard = ObjectGuard(store)
    guard.write("k", b"1", **OLD)
    for wrong in ("not base64!", 7, ["MQ=="]):
        pointer = {**json.loads(content(store, "k")), "inline": wrong}
        obstore.put(store, "k", json.dumps(pointer).encode())
        with pytest.raises(GuardUnavailable):
            ObjectGuard(store).peek("k")
        with pytest.raises(GuardUnavailable):
            ObjectGuard(store).write("k", b"2", **NEW)


# Stores


def test_a_store_may_be_a_url() -> None:
    """As obstore reads it, with the settings of the environment."""
    guard = ObjectGuard("memory:///")
    guard.write("k", b"1", **OLD)
    guard.prove()

    assert guard.peek("k") == b"1"
    assert "reports" in repr(ObjectGuard("s3://bucket/reports"))
    assert "GCSStore" in repr(ObjectGuard("gs://bucket/reports"))
    assert "AzureStore" in repr(ObjectGuard(AzureStore("container", account_name="account")))
    with pytest.raises(InvalidArgument, match="Account must be specified"):
        ObjectGuard("az://container/reports")


def test_what_cannot_compare_is_refused_at_once(tmp_path: Path) -> None:
    """A folder has a guard of its own."""
    with pytest.raises(Unsupported, match="FileGuard"):
        ObjectGuard(LocalStore(tmp_path))
    with pytest.raises(Unsupported):
        ObjectGuard(HTTPStore("http://127.0.0.1:1"))
    for wrong in ("no-such-scheme://x", "", 7, None, tmp_path):
        with pytest.raises(InvalidArgument):
            ObjectGuard(wrong)
    with pytest.raises(InvalidArgument, match="grace_seconds"):
        ObjectGuard(MemoryStore(), grace_seconds=-1)
    with pytest.raises(InvalidArgument):
        ObjectGuard(MemoryStore(), inline_bytes=40_000)


def test_without_obstore_the_extra_is_named() -> None:
    """And `leasehold.guards` can be imported all the same."""
    program = (
        "import sys; sys.modules['obstore'] = None\n"
        "import leasehold, leasehold.guards as guards\n"
        "try: guards.ObjectGuard\n"
        "except leasehold.Unsupported as error: print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)

    assert ran.stdout == "ObjectGuard needs obstore: pip install obstore.\n"


# The async form


def test_the_async_form_has_exactly_the_verbs() -> None:
    """With the same parameters."""
    local = {"key", "canonical", "resource", "writer"}  # these ask no store
    verbs = dict(inspect.getmembers(ObjectGuard, inspect.isfunction))
    own = {name for name in verbs if not name.startswith("_")} - local
    assert {name for name in vars(AsyncObjectGuard) if not name.startswith("_")} == own
    assert issubclass(AsyncObjectGuard, Facade)
    for name in own:
        assert inspect.signature(getattr(AsyncObjectGuard, name)) == inspect.signature(verbs[name])


def test_the_async_form_writes_under_the_current_lease(guard: ObjectGuard) -> None:
    """On a thread, which has the context of its caller."""
    held = lease(owner="worker-1")

    async def main() -> bytes | None:
        with held.active():
            await guard.aio.write("k", iter([b"1", b"2"]))
            return await guard.aio.read("k")

    assert asyncio.run(main()) == b"12"
    mark = guard.mark("k")
    assert mark is not None
    assert (mark.epoch, mark.owner) == (held.epoch, "worker-1")
