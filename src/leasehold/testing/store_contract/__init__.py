"""
The clauses of `leasehold.store`, as tests for any store.

A test named `test_c14_…` checks clause C14. A store of your own runs all of them in three lines:

    from leasehold.testing.store_contract import StoreContract

    class TestMyStore(StoreContract):
        def open(self, clock): return MyStore(clock=clock)

What a store cannot do is skipped, with the reason: `reopen`, `traced`, `connect` and
`connect_autocommit` are the hooks that say it can (see `support.Contract`).
Time moves only by hand and nothing sleeps. Each test ends by asking `verify`.
"""

import pytest

# Before they are imported, so that a failing assertion shows its values in the test run of another project too.
_TOPICS = (
    "adding",
    "claiming",
    "effects",
    "epochs",
    "fencing",
    "keeping",
    "locking",
    "operating",
    "owning",
    "parking",
    "paths",
    "pausing",
    "picking_up",
    "pruning",
    "reading",
    "reclaiming",
    "recording",
    "searching",
    "settling",
    "starting",
    "support",
    "tending",
    "transactions",
    "transactions_progress",
    "transitions",
    "waiting",
    "workers",
)
pytest.register_assert_rewrite(*(f"{__name__}.{topic}" for topic in _TOPICS))

from .adding import Adding  # noqa: E402  # after the registration above
from .claiming import Claiming  # noqa: E402
from .effects import Effects  # noqa: E402
from .epochs import Epochs  # noqa: E402
from .fencing import Fencing  # noqa: E402
from .keeping import Keeping  # noqa: E402
from .locking import Locking  # noqa: E402
from .observing import Observing  # noqa: E402
from .operating import Operating  # noqa: E402
from .owning import Owning  # noqa: E402
from .parking import Parking  # noqa: E402
from .paths import Paths  # noqa: E402
from .pausing import Pausing  # noqa: E402
from .picking_up import PickingUp  # noqa: E402
from .pruning import Pruning  # noqa: E402
from .reading import Reading  # noqa: E402
from .reclaiming import Reclaiming  # noqa: E402
from .recording import Recording  # noqa: E402
from .searching import Searching  # noqa: E402
from .settling import Settling  # noqa: E402
from .starting import Starting  # noqa: E402
from .support import AlarmClock  # noqa: E402
from .tending import Tending  # noqa: E402
from .transactions import InTransactions  # noqa: E402
from .transactions_progress import ProgressInTransactions  # noqa: E402
from .transitions import Transitions  # noqa: E402
from .waiting import Waiting  # noqa: E402
from .workers import Workers  # noqa: E402

__all__ = ["AlarmClock", "StoreContract"]


class StoreContract(
    Epochs,
    Adding,
    Claiming,
    Locking,
    Parking,
    Waiting,
    Fencing,
    Owning,
    Settling,
    Paths,
    Effects,
    Operating,
    Pausing,
    Workers,
    PickingUp,
    Transitions,
    Reclaiming,
    Starting,
    Keeping,
    Pruning,
    Tending,
    Recording,
    Reading,
    Searching,
    Observing,
    InTransactions,
    ProgressInTransactions,
):
    """Every clause of the contract; a subclass named `Test…` says how to `open` its store."""
