"""
The text that a job keeps as its last error: written here, and parsed into type and message.

The worker writes `Type: message`, a header line and the frames, every line of which is indented. So the last header
divides the text, even if the message itself looks like a traceback. Any other text comes from `lease.fail` or from a
store, and is a message without a type. If it has a traceback as Python prints one, only the last exception of that is
returned: frames name files, and must not reach a browser.
"""

from __future__ import annotations

import re
from typing import NamedTuple

HEADER = "Traceback (most recent call last):"
_TEXT = 8_000  # characters of the exception, and again as many of the frames
_EXCEPTION = re.compile(r"([\w.<>]+)(?:: |\n|\Z)")  # as Python prints one
_FRAMES = re.compile(r"(?:(?:  .*)?(?:\n|\Z))*")
_CHAINED = re.compile(r"\n\n(?:The above exception was|During handling of the above exception,) .*:\n\n(?=  \+|Traceb)")
_GROUP = re.compile(rf"^  \+ Exception Group {re.escape(HEADER)}\n(?:  \|   .*\n)*((?:  \| .*\n)*)", re.MULTILINE)


class Failure(NamedTuple):
    """The class of an exception, as a traceback names it, or None; and its message."""

    type: str | None
    message: str


def written(exception: str, frames: str) -> str:
    """Return the text of an error: *exception* as `Type: message`, and the *frames* in which it was raised."""
    indented = "\n".join(line if line.startswith("  ") else f"  {line}" for line in frames.split("\n"))
    return f"{exception[:_TEXT]}\n{HEADER}\n{indented[:_TEXT]}".rstrip()


def read(text: str) -> Failure:
    """Return the type and the message of an error."""
    exception, header, frames = text.rpartition(f"\n{HEADER}")
    if header and _FRAMES.fullmatch(frames) and _EXCEPTION.match(exception):
        return _split(exception)
    return _printed(text) or Failure(None, text)


def _printed(text: str) -> Failure | None:
    """Return the last exception of a traceback as Python prints one, if the text has any."""
    last = _CHAINED.split(text)[-1]
    if group := _GROUP.search(last):
        return _split(re.sub(r"^  \| ", "", group[1], flags=re.MULTILINE))
    before, header, after = f"\n{last}".partition(f"\n{HEADER}\n")
    if not header:
        return None
    found = _FRAMES.match(after)
    assert found is not None  # it matches every text
    return _split(after[found.end() :] or before[1:])


def _split(exception: str) -> Failure:
    exception = exception.rstrip("\n")
    found = _EXCEPTION.match(exception)
    return Failure(found[1], exception[found.end() :]) if found else Failure(None, exception)
