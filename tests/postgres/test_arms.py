"""The table of arms.py is complete: every arm of the fence's SQL functions stands beside a test that exists."""

from __future__ import annotations

import ast

from leasehold.testing.store_contract import StoreContract

from .arms import TOP, UNREACHED, arms, every_arm, table


def test_every_arm_is_in_the_table_and_nothing_else() -> None:
    """After a change of a function: python tests/postgres/arms.py --write."""
    assert sorted(table()) == sorted(every_arm())


def test_every_test_of_the_table_exists() -> None:
    """In its file, or in the contract that the class there inherits."""
    for arm, test in table().items():
        if not test.startswith(UNREACHED):
            file, *_, name = test.split("::")
            tree = ast.parse((TOP / file).read_text())
            own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            assert name in own or (file.startswith("tests/contract/") and hasattr(StoreContract, name)), (arm, test)


def test_an_arm_that_no_test_goes_through_says_why() -> None:
    """A dash alone is an arm that somebody has yet to test."""
    assert [arm for arm, test in table().items() if test == UNREACHED] == []


def test_an_arm_is_known_by_its_condition() -> None:
    """Conditions over several lines, arms of ELSE, and two alike in one function."""
    text = """
CREATE OR REPLACE FUNCTION leasehold.f() RETURNS void AS $lh$
    IF a  -- IF this is a comment
        OR b
    THEN
        x := CASE WHEN c THEN 1 ELSE 2 END;
    ELSIF d THEN
        IF e THEN
            NULL;
        END IF;
    ELSE
        IF e THEN
            NULL;
        END IF;
    END IF;
"""

    assert [arm.name for arm in arms("file", text)] == [
        "file.f: IF a OR b",
        "file.f: ELSIF d",
        "file.f: IF e",
        "file.f: ELSE of IF a OR b",
        "file.f: IF e (2)",
    ]
