"""The clauses of the contract and the tests of the suite name each other."""

import inspect
import re

import leasehold.store
import leasehold.transaction
from leasehold.testing.store_contract import StoreContract


def clauses() -> list[int]:
    """The numbers of the clauses, as `leasehold.store` and `leasehold.transaction` list them."""
    text = "".join(inspect.getsource(module) for module in (leasehold.store, leasehold.transaction))
    return sorted(int(number) for number in re.findall(r"^\s*C(\d+)\. ", text, re.M))


def by_clause() -> dict[int, list[str]]:
    """The tests of each clause."""
    found: dict[int, list[str]] = {}
    for name in dir(StoreContract):
        if match := re.match(r"test_c(\d+)_", name):
            found.setdefault(int(match[1]), []).append(name)
    return found


def test_every_clause_has_a_test_and_every_test_a_clause() -> None:
    """A clause that nothing checks is only prose."""
    assert len(clauses()) > 40
    assert sorted(by_clause()) == clauses(), "each number is given once"


def test_every_test_says_its_property_in_a_sentence() -> None:
    """The docstring is what a failing store has broken."""
    silent = [
        name for name in dir(StoreContract) if name.startswith("test_") and not getattr(StoreContract, name).__doc__
    ]

    assert silent == []
