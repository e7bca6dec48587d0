"""
The clauses of `leasehold.guard`, as tests for any guard.

A test named `test_g4_…` checks clause G4. A guard of your own runs all of them in a few lines:

    from leasehold.testing.guard_contract import GuardContract

    class TestMyGuard(GuardContract):
        @pytest.fixture(autouse=True)
        def resource(self, tmp_path): self.path = tmp_path
        def open(self): return MyGuard(self.path)
        @property
        def factory(self): return functools.partial(MyGuard, self.path)

What a guard or its resource cannot do is skipped, with the reason: `support.Hooks` has the hooks that say what it can.
The long matrices, over every pair of steps, are marked `soak`. Nothing sleeps: writers stop at the steps of the write,
which the guard calls by `at`, and processes are killed and stopped there with signals.
"""

import pytest

# Before they are imported, so that a failing assertion shows its values in the test run of another project too.
_TOPICS = (
    "crashing",
    "marking",
    "outcomes",
    "proving",
    "racing",
    "refusing",
    "sealing",
    "staging",
    "stores",
    "support",
)
pytest.register_assert_rewrite(*(f"{__name__}.{topic}" for topic in _TOPICS))

from .crashing import Crashing  # noqa: E402  # after the registration above
from .marking import Marking  # noqa: E402
from .outcomes import Outcomes  # noqa: E402
from .proving import Proving  # noqa: E402
from .racing import Race, Racing, races  # noqa: E402
from .refusing import Refusing  # noqa: E402
from .sealing import Sealing  # noqa: E402
from .staging import Child, Staged  # noqa: E402
from .stores import Stores  # noqa: E402

__all__ = ["Child", "GuardContract", "Race", "Staged", "races"]


class GuardContract(Refusing, Racing, Sealing, Marking, Proving, Outcomes, Stores, Crashing):
    """Every clause of the contract; a subclass named `Test…` says how to `open` its guard."""
