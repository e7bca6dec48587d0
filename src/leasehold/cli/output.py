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
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import click

from ..core.clock import SystemClock
from ..core.explanation import span

F = TypeVar("F", bound=Callable[..., Any])

_MARGIN = 2
_COMFORT = 24  # characters of prose for which other columns are left out
_LEAST = 12  # of prose that is cut
_LEAST_WRAPPED = 20  # of prose that goes on in the next line, even if the terminal is narrower than the table
_WHOLE = frozenset(
    {"id", "job_id", "name", "task", "queue", "owner", "epoch", "status", "number", "kind", "error_type"}
)  # never cut
_BELOW = frozenset({"owner", "error"})  # under the row, where it has no room
_INDENT = "    "
_HEADS = {"oldest_pending_at": "OLDEST"}
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
    @click.option("--jsonl", "as_lines", is_flag=True, help="Print one JSON object per line.")
    @click.option("--fields", metavar="A,B", default="", help="Print only these fields, in this order.")
    @click.option("--utc", is_flag=True, help="Print times in UTC. Default: local time with its offset.")
    @click.option(
        "--color",
        type=click.Choice(_COLORS),
        default="auto",
        help="Whether to use colors. Default: on a terminal, unless NO_COLOR is set.",
    )
    @functools.wraps(command)
    def wrapped(as_json: bool, as_lines: bool, fields: str, utc: bool, color: str, **options: Any) -> Any:
        if as_json and as_lines:
            raise click.UsageError(
                "--json prints one document, and --jsonl one object per line: pass only one of them."
            )
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
    spare: Sequence[str] = (),
    **more: Any,
) -> None:
    """
    Print *rows*: as a table of *columns*, as one document with *more* beside them, or a line each.

    With *wrap*, the last column of a table takes as many lines as it needs: it is what the table is read for. The
    columns *spare* are left out first where the terminal is narrow. *known* are the fields that rows have, even if
    there are no rows.
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
    wrap, spare = (wrap, spare) if not output.fields else (False, ())
    text = table(rows, output.fields or columns, utc=output.utc, wrap=wrap, color=output.color, spare=spare)
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
        if not output.fields and (value is None or value in ([], {})):
            continue  # what was asked for by name is shown even if it is empty
        text = cell(name, value, utc=output.utc)
        text = folded(localized(text, output), width + 2) if name == "explanation" else text
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
            raise click.UsageError(f"--fields: {field!r} is not a field. The fields are: {', '.join(names)}.{meant}")


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


def folded(sentence: str, indent: int = 0) -> str:
    """Return *sentence* in lines that fit beside *indent* on a terminal; what is piped stays one line."""
    if not sys.stdout.isatty():
        return sentence
    width = max(terminal_width() - indent, _LEAST_WRAPPED)
    return textwrap.fill(sentence, width, break_long_words=False, break_on_hyphens=False)


def clock_times(instants: Iterable[str | None], output: Output) -> tuple[str, dict[str, str]]:
    """Return the offset of *instants*, and each as a clock time: with its date unless all are of today."""
    found = {text: datetime.fromisoformat(text) for text in instants if text is not None}
    local = {text: at if output.utc else at.astimezone() for text, at in found.items()}
    now = datetime.fromtimestamp(SystemClock().now() / 1_000_000, UTC)
    today = (now if output.utc else now.astimezone()).date()
    form = "%H:%M:%S" if all(at.date() == today for at in local.values()) else "%Y-%m-%d %H:%M:%S"
    offset = next((at.isoformat()[-6:] for at in local.values()), "")
    return offset, {text: at.strftime(form) for text, at in local.items()}


def lasted(start: str, end: str) -> str:
    """Return the time between two instants, as a person reads it."""
    micros = round((datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds() * 1_000_000)
    return span(micros) if micros >= 1_000_000 else f"{max(micros, 0) // 1000} ms"


def age(text: str) -> str:
    """Return how long ago an instant was, in its largest unit."""
    return _age(text, 1)


def _age(text: str, units: int = 2) -> str:
    away = SystemClock().now() - round(datetime.fromisoformat(text).timestamp() * 1_000_000)
    shown = " ".join(span(abs(away)).split()[: 2 * units])
    return f"{shown} ago" if away >= 0 else f"in {shown}"


def table(
    rows: Sequence[dict[str, Any]],
    columns: Sequence[str],
    *,
    utc: bool,
    wrap: bool = False,
    color: bool = False,
    spare: Sequence[str] = (),
) -> str:
    """
    Return *rows* as a table that fits the terminal, if names leave room for it.

    If it is too wide, instants are shown by their age alone and columns that are empty in all rows are left out; then
    the columns *spare*, one after the other, until what is prose has room; an owner and an error then have a line of
    their own under the row, for tables without *wrap*. Then prose is cut; with *wrap*, the last
    column goes on in the next line instead. Names, epochs, ages and figures are never cut.
    """
    columns, below = list(columns), list[str]()
    room = terminal_width()
    lines, widths = _laid_out(rows, columns, lambda name, value: cell(name, value, utc=utc))
    if _sum(widths) > room:
        short = lambda name, value: _age(value, 1) if _is_instant(name) and value else cell(name, value, utc=utc)  # noqa: E731
        columns = [name for name in columns if any(row.get(name) not in (None, [], {}) for row in rows)] or columns
        lines, widths = _laid_out(rows, columns, short)
        for name in spare:
            if name in columns and _sum(_least(rows, columns, widths, _COMFORT)) > room:
                columns.remove(name)
                below += [name] if name in _BELOW and not wrap else []
                lines, widths = _laid_out(rows, columns, short)
    least = _least(rows, columns, widths, _LEAST)
    if wrap:
        least[-1] = min(widths[-1], _LEAST_WRAPPED)
    while _sum(widths) > room and widths != least:
        widest = max(range(len(widths)), key=lambda number: (widths[number] > least[number], widths[number]))
        widths[widest] -= 1
    if wrap:
        lines = [part for line in lines for part in _wrapped(line, widths[-1])]
    head = [_headed(name) for name in columns]
    first, *rest = [[_fitted(text, width) for text, width in zip(line, widths, strict=True)] for line in [head, *lines]]
    margin = " " * _MARGIN
    top = margin.join(first).rstrip()
    printed = [margin.join(map(_styled, columns, line, [color] * len(line))).rstrip() for line in rest]
    if below:
        printed = [part for line, row in zip(printed, rows, strict=True) for part in [line, *_under(row, below, room)]]
    return "\n".join([click.style(top, bold=True) if color else top, *printed])


def _under(row: dict[str, Any], names: Sequence[str], room: int) -> list[str]:
    """Return the line under a row that has what found no room in it; none if the row has nothing of it."""
    parts = [f"{name} {row[name]}" if name == "owner" else str(row[name]) for name in names if row[name]]
    return [_fitted(_INDENT + _one_line(", ".join(parts)), room).rstrip()] if parts else []


def _sum(widths: Sequence[int]) -> int:
    return sum(widths) + _MARGIN * (len(widths) - 1)


def _least(rows: Sequence[dict[str, Any]], columns: Sequence[str], widths: Sequence[int], prose: int) -> list[int]:
    """Return how narrow each column may be, if prose keeps *prose* characters."""
    return [
        width if _is_whole(name, rows) else min(width, max(prose, len(_headed(name))))
        for name, width in zip(columns, widths, strict=True)
    ]


def _headed(name: str) -> str:
    return _HEADS.get(name) or name.removesuffix("_at").replace("_per_minute", "/min").replace("_", " ").upper()


def _is_whole(name: str, rows: Sequence[dict[str, Any]]) -> bool:
    """Return whether a column is not cut: what an operator copies, ages, and figures, whose digits all count."""
    return (
        name in _WHOLE
        or name.startswith("when ")
        or _is_instant(name)
        or all(isinstance(row.get(name), int | float | None) for row in rows)
    )


def _wrapped(line: list[str], width: int) -> list[list[str]]:
    """Return *line* as several, in which the last column has at most *width* characters."""
    first, *rest = textwrap.wrap(line[-1], width, break_on_hyphens=False) or [""]
    return [[*line[:-1], first], *([*[""] * (len(line) - 1), part] for part in rest)]


def _laid_out(
    rows: Sequence[dict[str, Any]], columns: Sequence[str], shown: Callable[[str, Any], str]
) -> tuple[list[list[str]], list[int]]:
    lines = [[_one_line(shown(name, row.get(name))) for name in columns] for row in rows]
    return lines, [max(map(_width, column)) for column in zip(map(_headed, columns), *lines, strict=True)]


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
