"""The mutants of mutants.py and guard_mutants.py can be tried: each edit still applies, and each named test exists."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest
from tests.guard_mutants import MUTANTS as GUARD_MUTANTS
from tests.mutants import MUTANTS, PACKAGE, TOP, Mutant, applied, main

from leasehold.testing.guard_contract import GuardContract
from leasehold.testing.store_contract import StoreContract

ALL = (*MUTANTS, *GUARD_MUTANTS)
CONTRACTS = {"tests/contract/": StoreContract, "tests/guards/": GuardContract}  # what the tests there inherit


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_every_edit_applies(mutant: Mutant, tmp_path: Path) -> None:
    """Its text is in the file exactly once, and Python that was edited can still be read."""
    for file in {edit.file for edit in mutant.edits}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PACKAGE / file, tmp_path / file)

    assert applied(mutant.edits, tmp_path) == []

    for file in {edit.file for edit in mutant.edits if edit.file.endswith(".py")}:
        ast.parse((tmp_path / file).read_text())


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_every_named_test_exists(mutant: Mutant) -> None:
    """In the file that its name says, or in the contract that the class there inherits."""
    assert mutant.tests
    for test in mutant.tests:
        file, *_, name = test.split("::")
        tree = ast.parse((TOP / file).read_text())
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        inherited = [hasattr(kind, name) for folder, kind in CONTRACTS.items() if file.startswith(folder)]
        assert name in own or any(inherited), test


def test_names_are_unique_and_say_what_is_wrong() -> None:
    """So that `--only` means one of them, and the table can be read alone."""
    assert len({mutant.name for mutant in ALL}) == len(ALL)
    assert all(mutant.wrong.endswith(".") for mutant in ALL)


def test_an_edit_that_no_longer_applies_is_told(tmp_path: Path) -> None:
    """Neither a text that is gone nor one that is there twice is edited."""
    (tmp_path / "run.py").write_text("a = 1\nb = 1\n")

    [gone] = applied((MUTANTS[0].edits[0]._replace(file="run.py", text="c"),), tmp_path)
    [twice] = applied((MUTANTS[0].edits[0]._replace(file="run.py", text="= 1"),), tmp_path)

    assert "0 times" in gone
    assert "2 times" in twice
    assert (tmp_path / "run.py").read_text() == "a = 1\nb = 1\n"


@pytest.mark.soak
@pytest.mark.parametrize("table", [MUTANTS, GUARD_MUTANTS], ids=["leasehold", "guards"])
def test_every_mutant_is_killed(table: tuple[Mutant, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Each turns one of its tests red."""
    assert main([], table) == 0, capsys.readouterr().out
