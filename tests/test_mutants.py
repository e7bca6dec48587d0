"""The mutants of tests/mutants.py can be tried: each edit still applies, and each named test exists."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest
from tests.mutants import MUTANTS, PACKAGE, TOP, Mutant, applied, main

from leasehold.testing.store_contract import StoreContract


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_edit_applies(mutant: Mutant, tmp_path: Path) -> None:
    """Its text is in the file exactly once, and Python that was edited can still be read."""
    for file in {edit.file for edit in mutant.edits}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PACKAGE / file, tmp_path / file)

    assert applied(mutant.edits, tmp_path) == []

    for file in {edit.file for edit in mutant.edits if edit.file.endswith(".py")}:
        ast.parse((tmp_path / file).read_text())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_named_test_exists(mutant: Mutant) -> None:
    """In the file that its name says, or in the contract that the class there inherits."""
    assert mutant.tests
    for test in mutant.tests:
        file, *_, name = test.split("::")
        tree = ast.parse((TOP / file).read_text())
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in own or (file.startswith("tests/contract/") and hasattr(StoreContract, name)), test


def test_names_are_unique_and_say_what_is_wrong() -> None:
    """So that `--only` means one of them, and the table can be read alone."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert all(mutant.wrong.endswith(".") for mutant in MUTANTS)


def test_an_edit_that_no_longer_applies_is_told(tmp_path: Path) -> None:
    """Neither a text that is gone nor one that is there twice is edited."""
    (tmp_path / "run.py").write_text("a = 1\nb = 1\n")

    [gone] = applied((MUTANTS[0].edits[0]._replace(file="run.py", text="c"),), tmp_path)
    [twice] = applied((MUTANTS[0].edits[0]._replace(file="run.py", text="= 1"),), tmp_path)

    assert "0 times" in gone
    assert "2 times" in twice
    assert (tmp_path / "run.py").read_text() == "a = 1\nb = 1\n"


@pytest.mark.soak
def test_every_mutant_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each turns one of its tests red."""
    assert main([]) == 0, capsys.readouterr().out
