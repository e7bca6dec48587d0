"""Questions, which are asked on a terminal only; elsewhere a missing answer is a wrong call."""

from __future__ import annotations

import sys

import click

DECLINED = 8

yes_option = click.option("--yes", is_flag=True, help="Do not prompt for confirmation. It does not replace --epoch.")


def can_ask(yes: bool = False) -> bool:
    """Return whether there is a person to answer: both the question and the answer need a terminal."""
    return not yes and sys.stdin.isatty() and sys.stderr.isatty()


def agrees(question: str) -> bool:
    """Ask on stderr; only "y" or "yes" is a yes, and the end of the input is a no. Ctrl-C interrupts the command."""
    return _answer(f"{question} [y/N] ").lower() in ("y", "yes")


def asked(question: str) -> str:
    """Ask for a text; "" if there is none."""
    return _answer(f"{question}: ")


def _answer(question: str) -> str:
    sys.stdout.flush()
    click.echo(question, err=True, nl=False)
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        click.echo(err=True)  # the end of the input leaves the cursor behind the question
    return line.strip()


def declined() -> int:
    """Print that nothing was done, and return the exit code."""
    click.echo("Nothing was done.", err=True)
    return DECLINED
