"""Of the text that a job keeps as its error, a browser may be shown the class and the message."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from leasehold.core import failure
from leasehold.core.failure import Failure
from leasehold.core.job import Job, new_job, new_state
from leasehold.worker.calling import described

LOOKS_LIKE_ONE = """remote said:
Traceback (most recent call last):
  File "/srv/remote.py", line 3, in f
    g()
KeyError: 'far'
Traceback (most recent call last):
  File "/srv/remote.py", line 9, in f"""


class Odd(Exception):
    """A class of the user's."""


def chained() -> None:
    """An exception with a cause, which has a context."""
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise OSError("second")  # noqa: B904  # that is the point
    except OSError as error:
        raise Odd("third") from error


def grouped() -> None:
    """Several at once, one of them nested, raised while another was handled."""
    try:
        raise KeyError("before")
    except KeyError:
        raise ExceptionGroup("several\nat once", [ValueError("a"), ExceptionGroup("b", [OSError("c")])])  # noqa: B904


def raising(error: BaseException) -> Callable[[], None]:
    """A function that raises it."""

    def throw() -> None:
        raise error

    return throw


def wrong_syntax() -> None:
    """A module that cannot be compiled."""
    compile("x = (", "/srv/broken.py", "exec")


def noted() -> None:
    """A note, as `add_note` adds one."""
    error = ValueError()
    error.add_note("look: here")
    raise error


RAISED: dict[str, tuple[Callable[[], None], Failure]] = {
    "message": (raising(ValueError("no ink")), Failure("ValueError", "no ink")),
    "no message": (raising(ValueError()), Failure("ValueError", "")),
    "colon": (raising(ValueError("a: b")), Failure("ValueError", "a: b")),
    "lines": (raising(ValueError("one\n\n  two\nthree: 3")), Failure("ValueError", "one\n\n  two\nthree: 3")),
    "starts with a line break": (raising(ValueError("\none")), Failure("ValueError", "\none")),
    "of the user": (raising(Odd("no")), Failure("test_failure.Odd", "no")),
    "key": (raising(KeyError("missing")), Failure("KeyError", "'missing'")),
    "looks like a traceback": (raising(Odd(LOOKS_LIKE_ONE)), Failure("test_failure.Odd", LOOKS_LIKE_ONE)),
    "chained": (chained, Failure("test_failure.Odd", "third")),
    "group": (grouped, Failure("ExceptionGroup", "several\nat once (2 sub-exceptions)")),
    "syntax": (wrong_syntax, Failure("SyntaxError", "'(' was never closed")),
    "note": (noted, Failure("ValueError", "look: here")),
    "exit": (raising(SystemExit(3)), Failure("SystemExit", "3")),
}


def caught(call: Callable[[], None]) -> BaseException:
    """What it raises."""
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError


def qualified(expected: Failure) -> Failure:
    """As this module is called in this run."""
    kind = expected.type
    return expected._replace(type=kind and kind.replace("test_failure", __name__))


def job(last_error: str | None) -> Job:
    """A job with that error."""
    fresh = new_state(new_job("a"), 1)
    return Job(**{**{name: getattr(fresh, name) for name in Job.__slots__}, "last_error": last_error})


@pytest.mark.parametrize("what", RAISED)
def test_what_a_worker_records_is_told_apart(what: str) -> None:
    """The class as a traceback names it, the message, and nothing of the frames."""
    call, expected = RAISED[what]
    text = described(caught(call))

    assert failure.read(text) == qualified(expected)
    assert 'test_failure.py", line' in text, "an operator sees the frames"


@pytest.mark.parametrize("what", RAISED)
def test_a_traceback_that_an_owner_records_is_told_apart_too(what: str) -> None:
    """`lease.fail(traceback.format_exc())` would else show its paths."""
    call, expected = RAISED[what]
    text = "".join(traceback.format_exception(caught(call)))

    assert failure.read(text) == qualified(expected)
    assert failure.read(f"could not print:\n{text}") == qualified(expected)


@pytest.mark.parametrize("text", ["no route", "ValueError: no route", "a\nb", "", 'see File "x", line 3', "trailing\n"])
def test_any_other_text_is_a_message_without_a_class(text: str) -> None:
    """As `lease.fail` and the stores record them, word for word."""
    assert (job(text).error_type, job(text).error_message) == (None, text)


def test_a_job_tells_what_its_last_error_was() -> None:
    """And nothing if there was none."""
    failed = job(described(caught(raising(ValueError("no ink")))))

    assert (failed.error_type, failed.error_message) == ("ValueError", "no ink")
    assert (job(None).error_type, job(None).error_message) == (None, None)


def test_no_path_gets_into_a_message_however_odd_or_long() -> None:
    """Neither a file's name with a line break in it nor a cut in the middle makes a frame part of the message."""
    frames = '  File "/srv/odd\nname.py", line 1, in f\n    boom()\n' * 2000

    for exception in ("ValueError: no", "ValueError: " + "x" * 20_000):
        kept = failure.written(exception, frames)
        assert len(kept) < 17_000
        assert failure.read(kept) == Failure("ValueError", exception.removeprefix("ValueError: ")[: 8000 - 12])
    assert failure.read(failure.written("ValueError: no", "")) == Failure("ValueError", "no")
