"""The command as a whole: its help, its version, and how it ends when something is wrong."""

from __future__ import annotations

import sys

import pytest
from tests.cli.command import COMMAND, leasehold, run

from leasehold import __version__


def test_version_names_the_package_and_its_version() -> None:
    shown = leasehold("--version")

    assert (shown.returncode, shown.stdout) == (0, f"leasehold {__version__}\n")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_begins_with_something_to_try(arguments: list[str]) -> None:
    shown = leasehold(*arguments)

    assert shown.returncode == 0
    assert "Background jobs whose stale owners cannot write." in shown.stdout
    assert "leasehold demo  " in shown.stdout
    assert "leasehold store check sqlite:///demo.db" in shown.stdout
    assert "Look after a store" in shown.stdout


@pytest.mark.parametrize("command", [["demo"], ["store"], ["store", "check"], ["store", "advance"]])
def test_every_command_explains_itself(command: list[str]) -> None:
    shown = leasehold(*command, "--help")

    assert shown.returncode == 0
    assert "sqlite:///" in shown.stdout


def test_an_unknown_command_is_a_usage_error() -> None:
    shown = leasehold("nothing-like-it")

    assert shown.returncode == 2
    assert "No such command 'nothing-like-it'" in shown.stderr


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_its_extra_the_command_says_what_to_install(missing: str) -> None:
    hidden = f"import sys; sys.modules[{missing!r}] = None; from leasehold.cli import main; main()"
    shown = run([sys.executable, "-c", hidden])

    assert shown.returncode == 2
    assert shown.stderr == f"The command needs {missing}: pip install {missing.replace(' and', '')}\n"


def test_the_library_is_imported_without_click_and_rich() -> None:
    shown = run([sys.executable, "-c", "import leasehold, sys; print({'click', 'rich'} & set(sys.modules))"])

    assert shown.stdout == "set()\n"


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
@pytest.mark.parametrize("command", [[], ["store"], ["worker"]], ids=lambda command: " ".join(command) or "leasehold")
def test_help_is_as_wide_as_the_terminal_up_to_100_columns_and_cuts_no_word(command: list[str], columns: int) -> None:
    """Prose is wrapped; what stands in columns of its own, as the examples do, stays as it is written."""
    text = run(["env", f"COLUMNS={columns}", *COMMAND, *command, "--help"]).stdout
    usage, _, rest = text.partition("\n")

    assert usage.startswith("Usage: ")
    assert "..." not in rest
    assert "Look after a store: check it, measure it, migrate it, advance its epochs, grant rights." in " ".join(
        text.split()
    ) or (command == ["worker"])
    widest = max(len(line) for line in rest.partition("Commands:")[2].splitlines() or [""])
    assert widest <= min(columns, 100)
    if columns == 200 and command != []:
        assert max(map(len, rest.splitlines())) > 80


def test_a_command_that_only_reads_loads_no_worker_and_no_server() -> None:
    """Each command is imported when it is used; all of them took 0.07 s more."""
    heavy = {"leasehold.worker.worker", "http.server", "rich", "leasehold.cli.demo"}
    reading = (
        "import sys; from leasehold.cli.app import run; code = run(['jobs', '--store', 'sqlite:///none.db']); "
        f"print(code, sorted({heavy!r} & set(sys.modules)))"
    )
    shown = run([sys.executable, "-c", reading])

    assert shown.stdout == "7 []\n"
