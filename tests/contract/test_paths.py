"""The table of paths.py is complete, and its tests exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from leasehold.store import Store
from leasehold.testing.store_contract import StoreContract

from .paths import PATHS, TABLE

TOP = Path(__file__).resolve().parent.parent.parent
SETTLE = {"complete", "fail", "release"}
# What neither an owner nor an operator calls to change a job.
OTHERS = {"transactions", "wake", "claimed", "lease", "check", "verify", "close"}
OTHERS |= {"transfers", "report", "retire", "observe"}
OTHERS |= {"reclaim", "take_reclaimed", "open_keys", "prune", "tend", "advance"}  # upkeep
READERS = {"identity", "job", "jobs", "search", "ownerships", "effects", "events", "queues", "workers", "counts"}
READERS |= {"oldest", "lately", "leases", "observed"}


def test_the_table_has_every_verb_that_writes() -> None:
    """A verb that is added to the contract comes with its paths."""
    verbs = {name for name in vars(Store) if not name.startswith("_")}

    assert (set(TABLE) - SETTLE) | {"settle"} | OTHERS | READERS == verbs
    assert set(TABLE) >= SETTLE


@pytest.mark.parametrize("verb", TABLE)
def test_no_cell_of_the_table_is_empty(verb: str) -> None:
    """Each names a test that exists, or says why there is none."""
    assert tuple(TABLE[verb]) == PATHS
    for path, cell in TABLE[verb].items():
        assert cell
        if isinstance(cell, str):
            assert cell.startswith("- "), (verb, path)
            continue
        for test in cell:
            file, _, name = test.rpartition("::")
            if not file:
                assert hasattr(StoreContract, name), (verb, path, name)
                continue
            names = {node.name for node in ast.walk(_tree(file)) if isinstance(node, ast.FunctionDef)}
            assert name in names, (verb, path, test)


def _tree(file: str) -> ast.Module:
    return ast.parse((TOP / file).read_text())
