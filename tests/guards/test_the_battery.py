"""The battery itself: a guard that keeps the contract passes, and each way to break it turns a named test red."""

from __future__ import annotations

import functools
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.guards import reference
from tests.guards.reference import CarelessShelf, Reference, Version

import leasehold.guard
from leasehold.guard import Guard
from leasehold.testing.guard_contract import GuardContract


class OnReference(GuardContract):
    """The hooks of the reference guard, and of one that is broken."""

    made: type[Reference] = Reference
    folder: Path

    def open(self) -> Guard:
        """Return a guard on the folder."""
        return self.made(self.folder)

    @property
    def factory(self) -> Callable[[], Guard]:
        """What a child process opens."""
        return functools.partial(self.made, self.folder)

    def value(self, guard: Guard, key: str) -> bytes | None:
        """Return what is there, past the guard."""
        version = reference.Shelf(self.folder).newest(key)[1]
        return None if version is None else version.value

    def spoil_mark(self, key: str) -> None:
        """Make the mark something else."""
        shelf = reference.Shelf(self.folder)
        version = shelf.newest(key)[1]
        assert version is not None
        shelf.put(key, Version("{", version.value))

    def unfenced(self) -> Guard:
        """Return a guard on a folder that ignores the condition."""
        return self.made(self.folder, CarelessShelf)

    @contextmanager
    def lose_reply(self, guard: Guard, meanwhile: Callable[[], None]) -> Iterator[None]:
        """Lose the reply of the next swap."""
        assert isinstance(guard, Reference)
        guard.shelf.lose = meanwhile
        yield
        assert guard.shelf.lose is None


class TestReference(OnReference):
    """The reference guard keeps every clause."""

    @pytest.fixture(autouse=True)
    def resource(self, tmp_path: Path) -> None:
        """A folder for each test."""
        self.folder = tmp_path


# What is broken, and a test that must notice.
BROKEN: list[tuple[type[Reference], str]] = [
    (reference.AdmitsAll, "test_g1_a_late_write_is_refused_and_names_both_epochs_and_the_owner"),
    (reference.AdmitsAll, "test_g3_a_late_write_after_a_seal_is_refused"),
    (reference.AdmitsAll, "test_g4_the_mark_never_falls"),
    (reference.SilentRefusals, "test_g1_a_refusal_is_counted_logged_and_reported"),
    (reference.RefusesEqual, "test_g1_an_equal_epoch_is_admitted_again_and_again"),
    (reference.CallsSiblingsStale, "test_g1_writes_of_one_epoch_from_two_threads_both_succeed"),
    (reference.OneMarkForAll, "test_g1_another_key_is_not_affected"),
    (reference.AnonymousWrites, "test_g1_without_a_lease_nothing_is_written"),
    (reference.TakesAnyKey, "test_g1_what_cannot_be_a_key_is_an_invalid_argument"),
    (reference.SkipsAStep, "test_g2_a_write_goes_through_its_steps"),
    (reference.ComparesThenWrites, "test_g2_no_old_value_lands_on_top"),
    (reference.ComparesThenWrites, "test_g2_after_a_seal_nothing_changes"),
    (reference.ComparesThenWrites, "test_g3_a_stopped_writer_does_not_block_a_seal_silently"),
    (reference.HalfWritten, "test_g2_a_write_that_is_killed_leaves_the_old_or_the_new_value"),
    (reference.HalfWritten, "test_g2_a_first_write_that_is_killed_leaves_all_or_nothing"),
    (reference.SecretiveLock, "test_g3_a_stopped_writer_does_not_block_a_seal_silently"),
    (reference.SealsInMemory, "test_g3_a_seal_is_durable_and_seen_by_others"),
    (reference.SealsInMemory, "test_g4_the_mark_is_seen_by_another_process"),
    (reference.ReadsWithoutSeal, "test_g3_read_seals_and_then_reads"),
    (reference.ReadsWithoutCheck, "test_g3_read_checks_that_the_lease_is_current"),
    (reference.PeeksAndSeals, "test_g3_peek_needs_no_lease_and_never_seals"),
    (reference.DeletesTheMark, "test_g4_the_mark_survives_the_deletion_of_the_data"),
    (reference.DeletesTheMark, "test_g4_a_deletion_of_nothing_raises_the_mark"),
    (reference.LeavesTheMark, "test_g4_every_write_and_every_seal_changes_the_mark"),
    (reference.IgnoresWhatItCannotRead, "test_g5_an_unreadable_mark_refuses_every_write"),
    (reference.ProvesNothing, "test_g6_prove_fails_on_a_resource_that_ignores_the_condition"),
    (reference.CountsItsProofs, "test_g6_prove_disturbs_nothing"),
    (reference.GuessesStale, "test_g8_a_write_whose_reply_was_lost_is_recognised"),
    (reference.WritesTwice, "test_g8_a_write_whose_reply_was_lost_is_recognised"),
    (reference.WritesTwice, "test_g8_it_is_recognised_after_a_later_write_of_a_sibling"),
    (reference.GuessesStale, "test_g8_it_is_recognised_after_the_seal_of_a_new_owner"),
    (reference.SilentTakeovers, "test_g9_a_higher_epoch_of_another_store_takes_the_key_over_and_is_logged"),
    (reference.NoForeigners, "test_g9_a_higher_epoch_of_another_store_takes_the_key_over_and_is_logged"),
    (reference.SilentTakeovers, "test_g9_an_equal_epoch_of_another_store_is_refused"),
    (reference.AnyStore, "test_g9_a_strict_guard_refuses_every_other_store"),
]


@pytest.mark.parametrize(("broken", "test"), BROKEN, ids=lambda each: getattr(each, "__name__", each))
def test_a_broken_guard_is_noticed(
    broken: type[Reference], test: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the test that stands for what it breaks, which fails and is not skipped."""

    class Contract(OnReference):
        made = broken
        folder = tmp_path

    contract = Contract()
    function = getattr(contract, test)
    given: dict[str, Any] = {"guard": contract.open(), "caplog": caplog, "key": ""}
    arguments = {name: given[name] for name in inspect.signature(function).parameters}

    with pytest.raises((Exception, pytest.fail.Exception)) as failure:
        function(**arguments)

    # Not by a mistake in the broken guard.
    assert not isinstance(failure.value, NotImplementedError | TypeError | AttributeError), repr(failure.value)


def test_every_clause_has_a_test_and_a_guard_that_breaks_it() -> None:
    """G7 is not built, and G10 is the router's."""
    clauses = {int(number) for number in re.findall(r"^G(\d+)\. ", leasehold.guard.__doc__ or "", re.M)} - {10}

    tests = {int(match[1]) for name in dir(GuardContract) if (match := re.match(r"test_g(\d+)_", name))}
    broken = {int(re.findall(r"test_g(\d+)_", test)[0]) for _, test in BROKEN}

    assert tests == broken == clauses == {1, 2, 3, 4, 5, 6, 8, 9}


def test_every_test_says_its_property_in_a_sentence() -> None:
    """The docstring is what a failing guard has broken."""
    silent = [
        name for name in dir(GuardContract) if name.startswith("test_") and not getattr(GuardContract, name).__doc__
    ]

    assert silent == []


def test_a_guard_needs_one_hook_and_skips_with_reasons() -> None:
    """What a resource cannot do is skipped; what a guard has to do is not."""

    class Bare(GuardContract):
        pass

    with pytest.raises(NotImplementedError, match="open"):
        Bare().open()
    for hook in ("unfenced", "spoil_mark", "lose_reply"):
        arguments = [None] * (len(inspect.signature(getattr(Bare, hook)).parameters) - 1)
        with pytest.raises(pytest.skip.Exception, match=hook):
            getattr(Bare(), hook)(*arguments)
    with pytest.raises(pytest.skip.Exception, match="factory"):
        _ = Bare().factory


PROJECT = """
import functools
from pathlib import Path
import pytest
from leasehold.testing.guard_contract import GuardContract
from reference import Reference

class TestMine(GuardContract):
    @pytest.fixture(autouse=True)
    def resource(self, tmp_path):
        self.path = tmp_path

    def open(self):
        return Reference(self.path)

    @property
    def factory(self):
        return functools.partial(Reference, self.path)

    @staticmethod
    def put(guard, key, value, presented):
        guard.write(key, value, **presented)
"""


@pytest.mark.parametrize(
    ("mode", "chosen"), [("prepend", "late or another_process"), ("importlib", "late or another_process or killed")]
)
def test_another_project_runs_it_in_a_few_lines(tmp_path: Path, mode: str, chosen: str) -> None:
    """Also where its child processes cannot import the project's tests by their name; the long ones can be left out."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "tests" / "deep").mkdir(parents=True)
    (tmp_path / "lib" / "reference.py").write_text(Path(reference.__file__).read_text())
    (tmp_path / "tests" / "deep" / "test_mine.py").write_text(PROJECT)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\npythonpath = lib\n")

    ran = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", f"--import-mode={mode}", "-m", "not soak", "-k", chosen],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"\b[4-9] passed", ran.stdout), ran.stdout
