"""The verbs of an object guard, for async callers."""

from __future__ import annotations

from ...aio import Facade, threaded, warn_on_loops
from .guard import ObjectGuard


class AsyncObjectGuard(Facade):
    """The verbs of an `ObjectGuard`, to be awaited. Data that is an iterable is read on a thread."""

    mark = threaded(ObjectGuard.mark)
    peek = threaded(ObjectGuard.peek)
    read = threaded(ObjectGuard.read)
    locate = threaded(ObjectGuard.locate)
    write = threaded(ObjectGuard.write)
    delete = threaded(ObjectGuard.delete)
    seal = threaded(ObjectGuard.seal)
    collect = threaded(ObjectGuard.collect)
    prove = threaded(ObjectGuard.prove)


warn_on_loops(ObjectGuard, lambda: AsyncObjectGuard, "guard")
