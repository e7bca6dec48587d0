"""How answers are printed: tables for people, JSON for programs, and the same names in both."""

from __future__ import annotations

import difflib
import functools
import json
import os
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import click

from ..core.clock import SystemClock
from ..core.explanation import span

F = TypeVar("F", bound=Callable[..., Any])

_MARGIN = 2
_LEAST = 4  # columns of a cell that is cut
_LEAST_WRAPPED = 30  # of one that goes on in the next line, even if the terminal is narrower than the table
_WHOLE = frozenset({"id", "job_id", "name", "epoch", "status", "number"})  # never cut
_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00")
_COLORS = ("auto", "always", "never")
# Each word says the same without its colour.
_STYLES: dict[tuple[str, str], dict[str, Any]] = {
    **{("status", status): {"fg": fg} for status, fg in (("done", "green"), ("failed", "red"), ("running", "cyan"))},
    **{("kind", kind): {"fg": "yellow"} for kind in ("refused", "retried", "reclaimed", "released")},
    **{("kind", kind): {"fg": "red"} for kind in ("failed", "alarm", "break-glass")},
    ("alive", "no"): {"fg": "red"},
}


class Output(NamedTuple):
    """The form that the caller wants."""

    as_json: bool
    as_lines: bool
    fields: tuple[str, ...] = ()
    utc: bool = False
    color: bool = False

    @property
    def is_for_programs(self) -> bool:
        """Whether a program reads it."""
        return self.as_json or self.as_lines


def output_options(command: F) -> F:
    """Give *command* the options of its output; it gets an `Output`."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document, for programs.")
    @click.option("--jsonl", "as_lines", is_flag=True, help="Print one JSON object a line.")
    @click.option("--fields", metavar="A,B", default="", help="Only these fields, in this order.")
    @click.option("--utc", is_flag=True, help="Times in UTC. Default: local, with their offset.")
    @click.option(
        "--color", type=click.Choice(_COLORS), default="auto", help="Default: on a terminal, unless NO_COLOR is set."
    )
    @functools.wraps(command)
    def wrapped(as_json: bool, as_lines: bool, fields: str, utc: bool, color: str, **options: Any) -> Any:
        if as_json and as_lines:
            raise click.UsageError("--json is one document and --jsonl one object a line: pass one of them.")
        named = tuple(field.strip() for field in fields.split(",") if field.strip())
        return command(output=Output(as_json, as_lines, named, utc, _is_colored(color)), **options)

    return wrapped  # type: ignore[return-value]  # the same command with more options


def _is_colored(choice: str) -> bool:
    """Return whether stdout gets colours: as --color says, else NO_COLOR, FORCE_COLOR, and whether it is a terminal."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")


def show_rows(
    rows: Sequence[dict[str, Any]],
    columns: Sequence[str],
    output: Output,
    *,
    empty: str,
    wrap: bool = False,
    known: Sequence[str] = (),
    **more: Any,
) -> None:
    """
    Print *rows*: as a table of *columns*, as one document with *more* beside them, or a line each.

    With *wrap*, the last column of a table takes as many lines as it needs: it is what the table is read for. *known*
    are the fields that rows have, even if there are no rows.
    """
    check_fields(rows, output.fields, known)
    if output.as_lines:
        for row in rows:
            click.echo(_json(_chosen(row, output.fields)))
        return
    if output.as_json:
        click.echo(_json({**more, "rows": [_chosen(row, output.fields) for row in rows]}))
        return
    if not rows:
        click.echo(empty, err=True)
        return
    text = table(rows, output.fields or columns, utc=output.utc, wrap=wrap and not output.fields, color=output.color)
    click.echo(text, color=output.color)


def show_one(facts: dict[str, Any], output: Output) -> None:
    """Print one thing: a line for each of its fields, or one document."""
    check_fields([facts], output.fields)
    facts = _chosen(facts, output.fields)
    if output.is_for_programs:
        click.echo(_json(facts))
        return
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        if value is None or value in ([], {}):
            continue
        text = cell(name, value, utc=output.utc)
        text = localized(text, output) if name == "explanation" else text
        lines = _styled(name, text, output.color).replace("\n", "\n" + " " * (width + 2))
        head = f"{name:<{width}}"
        click.echo(f"{click.style(head, bold=True) if output.color else head}  {lines}", color=output.color)


def show_sentence(facts: dict[str, Any], sentence: str, output: Output) -> None:
    """Print *sentence* for a person; for a program, or if fields are chosen, the same as *facts*."""
    if output.is_for_programs or output.fields:
        show_one(facts, output)
    else:
        click.echo(sentence)


def _styled(name: str, text: str, color: bool) -> str:
    """Return a value in its colour, if it has one."""
    style = _STYLES.get((name, text.strip())) if color else None
    return click.style(text, **style) if style else text


def check_fields(rows: Sequence[dict[str, Any]], fields: Iterable[str], known: Iterable[str] = ()) -> None:
    """Refuse fields that are neither *known* nor in a row."""
    names = list(dict.fromkeys([*known, *(name for row in rows for name in row)]))
    for field in fields:
        if names and field not in names:
            near = difflib.get_close_matches(field, names, 2)
            meant = f" Did you mean {' or '.join(near)}?" if near else ""
            raise click.UsageError(f"--fields: there is no {field!r}; there are: {', '.join(names)}.{meant}")


def _chosen(row: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    return {field: row.get(field) for field in fields} if fields else row


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# For people


def cell(name: str, value: Any, *, utc: bool) -> str:
    """Return a value as a person reads it: an instant with its age, a fraction as a percentage."""
    if value is None or value in ([], {}):
        return "-"
    if _is_instant(name):
        return _instant(str(value), utc)
    if name == "progress" and isinstance(value, float):
        return f"{value:.0%}"
    if name.endswith("_seconds") and isinstance(value, int | float):
        return f"{value:g} s"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ", ".join(value)
    return value if isinstance(value, str) else _json(value)


def _instant(text: str, utc: bool) -> str:
    return f"{_clock_time(text, utc)} ({_age(text)})"


def _clock_time(text: str, utc: bool) -> str:
    at = datetime.fromisoformat(text)
    return (at if utc else at.astimezone()).isoformat(sep=" ", timespec="seconds")


def localized(sentence: str, output: Output) -> str:
    """Return *sentence* with its instants as tables have them: local, with their offset, or in UTC."""
    return _ISO.sub(lambda found: _clock_time(found[0], output.utc), sentence)


def _age(text: str, units: int = 2) -> str:
    away = SystemClock().now() - round(datetime.fromisoformat(text).timestamp() * 1_000_000)
    shown = " ".join(span(abs(away)).split()[: 2 * units])
    return f"{shown} ago" if away >= 0 else f"in {shown}"


def table(
    rows: Sequence[dict[str, Any]], columns: Sequence[str], *, utc: bool, wrap: bool = False, color: bool = False
) -> str:
    """
    Return *rows* as a table that fits the terminal.

    If it is too wide, instants are shown by their age alone and columns that are empty in all rows are left out. Then
    the widest columns are cut; names and epochs, which an operator copies, ages and figures are not. With *wrap*, the
    last column is not cut but goes on in the next line.
    """
    head = [_headed(name) for name in columns]
    room = terminal_width() - _MARGIN * (len(columns) - 1)
    lines, widths = _laid_out(rows, columns, head, lambda name, value: cell(name, value, utc=utc))
    if sum(widths) > room:  # what no row has says nothing
        columns = [name for name in columns if any(row.get(name) not in (None, [], {}) for row in rows)] or columns
        head = [_headed(name) for name in columns]
        room = terminal_width() - _MARGIN * (len(columns) - 1)
        short = lambda name, value: _age(value, 1) if _is_instant(name) and value else cell(name, value, utc=utc)  # noqa: E731
        lines, widths = _laid_out(rows, columns, head, short)
    if wrap and sum(widths) > room:
        widths[-1] = max(room - sum(widths[:-1]), _LEAST_WRAPPED)
        lines = [part for line in lines for part in _wrapped(line, widths[-1])]
    while sum(widths) > room and not wrap:
        prose = [number for number, name in enumerate(columns) if not _is_whole(name, rows)]
        widest = max(prose, key=lambda number: widths[number], default=None)
        if widest is None or widths[widest] <= _LEAST:
            break
        widths[widest] -= 1
    first, *rest = [[_fitted(text, width) for text, width in zip(line, widths, strict=True)] for line in [head, *lines]]
    margin = " " * _MARGIN
    top = margin.join(first).rstrip()
    return "\n".join(
        [
            click.style(top, bold=True) if color else top,
            *(margin.join(map(_styled, columns, line, [color] * len(line))).rstrip() for line in rest),
        ]
    )


def _headed(name: str) -> str:
    return name.removesuffix("_at").replace("_per_minute", "/min").replace("_", " ").upper()


def _is_whole(name: str, rows: Sequence[dict[str, Any]]) -> bool:
    """Return whether a column is not cut: what an operator copies, ages, and figures, whose digits all count."""
    return name in _WHOLE or _is_instant(name) or all(isinstance(row.get(name), int | float | None) for row in rows)


def _wrapped(line: list[str], width: int) -> list[list[str]]:
    """Return *line* as several, in which the last column has at most *width* characters."""
    first, *rest = textwrap.wrap(line[-1], width, break_on_hyphens=False) or [""]
    return [[*line[:-1], first], *([*[""] * (len(line) - 1), part] for part in rest)]


def _laid_out(
    rows: Sequence[dict[str, Any]], columns: Sequence[str], head: list[str], shown: Callable[[str, Any], str]
) -> tuple[list[list[str]], list[int]]:
    lines = [[_one_line(shown(name, row.get(name))) for name in columns] for row in rows]
    return lines, [max(map(_width, column)) for column in zip(head, *lines, strict=True)]


def _is_instant(name: str) -> bool:
    return name.endswith("_at") or name == "at"


def terminal_width() -> int:
    """Return how wide a line may be; what is piped is not cut."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return 100_000
    return shutil.get_terminal_size((100, 24)).columns


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else "�" for char in " ".join(text.split()))


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _fitted(text: str, width: int) -> str:
    if _width(text) > width:
        while text and _width(text) > width - 1:
            text = text[:-1]
        text += "…"
    return text + " " * (width - _width(text))
