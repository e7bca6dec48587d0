"""The table of arms.py is complete: every arm of the SQL functions stands beside a test that exists."""

from __future__ import annotations

import ast

from leasehold.testing.store_contract import StoreContract

from .arms import TOP, UNREACHED, arms, every_arm, noted, table


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
    """A dash alone is an arm that has yet to be tested."""
    assert [arm for arm, test in table().items() if test == UNREACHED] == []


def test_an_arm_is_known_by_its_condition() -> None:
    """Conditions over several lines, arms of ELSE, and two alike in one function."""
    text = """
CREATE OR REPLACE FUNCTION leasehold.f() RETURNS void AS $lh$
    IF a  -- IF this is a comment
        OR b
    THEN
        x := 1;
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


def test_an_arm_of_a_case_is_known_by_its_condition_and_the_whole() -> None:
    """With an operand or without, in a statement or in plain SQL; where there is no ELSE, the null is an arm too."""
    text = """
CREATE OR REPLACE FUNCTION leasehold.f() RETURNS text AS $lh$
    x := CASE p_verb WHEN 'WHEN' THEN 1  -- CASE this is a comment
                     ELSE 2 END;
    SELECT CASE WHEN a > 1
        THEN CASE WHEN b THEN '{}' END END;
DO $lh$
    SELECT CASE WHEN once THEN 1 END;
"""
    inner, simple = "CASE WHEN b THEN '{}' END", "CASE p_verb WHEN 'WHEN' THEN 1 ELSE 2 END"

    found = arms("file", text)

    assert [arm.name.removeprefix("file.f: ") for arm in found] == [
        f"WHEN 'WHEN' of {simple}",
        f"ELSE of {simple}",
        f"WHEN a > 1 of CASE WHEN a > 1 THEN {inner} END",
        f"WHEN b of {inner}",
        f"no ELSE of {inner}",
        f"no ELSE of CASE WHEN a > 1 THEN {inner} END",
    ]
    instrumented = """
CREATE OR REPLACE FUNCTION leasehold.f() RETURNS text AS $lh$
    x := CASE WHEN CASE WHEN p_verb = 'WHEN' THEN leasehold.arm(7) ELSE false END THEN 1  -- CASE this is a comment
                     WHEN leasehold.arm(8) THEN 2 END;
    SELECT CASE WHEN CASE WHEN a > 1 THEN leasehold.arm(9) ELSE false END
        THEN CASE WHEN CASE WHEN b THEN leasehold.arm(10) ELSE false END THEN '{}'
                  WHEN leasehold.arm(11) THEN NULL END WHEN leasehold.arm(12) THEN NULL END;
DO $lh$
    SELECT CASE WHEN once THEN 1 END;
"""
    assert noted(text, found, 7).split() == instrumented.split()
