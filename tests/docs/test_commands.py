"""Every `leasehold …` line in a block of the README and the docs is a command that exists, with options that it has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from tests.docs.test_pages import PAGES, TOP

from leasehold.cli.app import app

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"^\s*(?:\$ |ExecStart=\S*/|\*/5 \* \* \* \*  )?leasehold (.+)$", re.MULTILINE)
_GENERATED = TOP / "docs/reference/cli.md"


def commands(text: str) -> list[str]:
    """The command lines of a page, without their comments and what follows `||`; those with a gap (…) are left out."""
    lines = [
        line
        for language, block in _BLOCK.findall(text)
        if language in ("", "text", "ini")
        for line in _LINE.findall(block)
    ]
    return [re.split(r" +# | \|\| ", line)[0].strip() for line in lines if "…" not in line]


def problem(line: str) -> str | None:
    """What is wrong with a command line, or None. Nothing is run: options with side effects are only parsed."""
    command: click.Command = app
    # With its parents, as at a shell: a command keeps the help option that it was first asked for.
    context = click.Context(app, info_name="leasehold", **app.context_settings)
    words = shlex.split(line)
    try:
        while isinstance(command, click.Group) and words and (inner := command.get_command(context, words[0])):
            command = inner
            context = click.Context(command, context, words.pop(0), **command.context_settings)
        if isinstance(command, click.Group) and words and not words[0].startswith("-"):
            return f"no such command: {words[0]}"
        command.make_context(context.info_name, words, context.parent)
    except click.exceptions.Exit:  # --help, --version
        return None
    except click.ClickException as error:
        return error.format_message()
    return None


def pages() -> list[Path]:
    """Those with a command."""
    return [page for page in PAGES if page != _GENERATED and commands(page.read_text())]


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the pages have it: the store's URL is in the environment."""
    monkeypatch.setenv("LEASEHOLD_STORE", "sqlite:///jobs.db")


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(TOP)))
def test_every_command_on_a_page_can_be_called_like_that(page: Path) -> None:
    """The command, its options and their values."""
    found = commands(page.read_text())

    assert [(line, wrong) for line in found if (wrong := problem(line)) is not None] == []


def test_a_wrong_command_is_noticed() -> None:
    """A command, an option or a value that does not exist; a comment and an alternative are not part of one."""
    text = (
        "```\n$ leasehold jobs --status failed   # which\nleasehold doctor || notify\nleasehold cancel … --apply\n```\n"
    )

    assert commands(text) == ["jobs --status failed", "doctor"]
    assert [problem(line) for line in commands(text)] == [None, None]
    assert all(problem(line) for line in ["jbos", "jobs --stauts failed", "jobs --status fialed"])
