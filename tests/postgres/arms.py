"""
Which test goes through each arm of the SQL functions.

arms.txt has a line for every arm of an IF and of a CASE in the functions, and beside it a test that was seen to go
through it. A CASE without an ELSE has one arm more: the null that it is where no WHEN applies. The table is measured,
not written by hand:

    python tests/postgres/arms.py           run the tests of the table, and see that each goes through its arm
    python tests/postgres/arms.py --write   run every test that may, and write the table anew

Both run the tests on a copy of the package in which each arm writes a line to the server's log. test_arms.py, which is
part of every run, sees that the table has every arm and that its tests exist. The CASE expressions of the views are not
in it: they belong to the schema, and no function changes with them.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

TOP = Path(__file__).resolve().parent.parent.parent
PACKAGE = TOP / "src" / "leasehold"
FUNCTIONS = Path("stores/postgres/functions")
TABLE = Path(__file__).with_name("arms.txt")
FILES = tuple(path.stem for path in sorted((PACKAGE / FUNCTIONS).glob("*.sql")))
UNREACHED = "-"  # beside an arm that no test goes through; the text behind it says why
TESTS = (
    "tests/contract/test_postgres.py",
    *(f"tests/postgres/test_{name}.py" for name in ("beside", "traps", "fence_blocks", "hostile", "floors", "callers")),
    *(f"tests/postgres/test_{name}.py" for name in ("retention", "waiting", "fence_matrix", "faults_server")),
    *(f"tests/postgres/test_{name}.py" for name in ("adding", "clock", "names", "words", "checker", "connection")),
    *(f"tests/postgres/test_{name}.py" for name in ("replaced", "restarts", "restores", "failover")),
    *(
        f"tests/postgres/test_{name}.py"
        for name in ("snapshots", "lost_commits", "lock_order", "parking", "late_starts")
    ),
)

_AT_RANDOM = re.compile("whatever_happens|over_threads|at_the_same_time")  # which may go another way the next time

# In front of the functions of the copy. As a condition, an arm that is gone through can be noted whatever its type is.
_NOTE = """CREATE OR REPLACE FUNCTION leasehold.arm(p_number integer) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $lh$
BEGIN RAISE LOG 'leasehold arm %', p_number; RETURN true; END $lh$;
"""
_SKIPPED = re.compile(r"--[^\n]*|'(?:[^']|'')*'")  # comments and strings: what stands in them is not SQL
_WORDS = re.compile(r"\b(?:CASE|WHEN|THEN|ELSE|END)\b")


class Edit(NamedTuple):
    """What instruments an arm: the part of the text from *start* to *end* is replaced; {} is the arm's number."""

    start: int
    end: int
    text: str


class Arm(NamedTuple):
    """An arm: its name in the table, and how the copy of the package notes that it was gone through."""

    name: str
    edits: tuple[Edit, ...]


def arms(file: str, text: str) -> list[Arm]:
    """Return the arms of every IF and CASE in the functions of one file, in their order."""
    found = sorted([*_ifs(text), *_cases(text)], key=lambda arm: arm[1][0].start)
    begun = [(match.start(), match[1]) for match in re.finditer(r"^(?:CREATE .*?leasehold\.(\w+)|DO )", text, re.M)]
    names: dict[str, int] = {}
    answer = []
    for name, edits in found:
        function = max((start, known or "") for start, known in begun if start < edits[0].start)[1]
        if function:  # a DO runs once, when the schema is made
            name = f"{file}.{function}: {name}"
            names[name] = names.get(name, 0) + 1
            answer.append(Arm(name if names[name] == 1 else f"{name} ({names[name]})", edits))
    return answer


def _ifs(text: str) -> Iterator[tuple[str, tuple[Edit, ...]]]:
    opened, condition, end = list[str](), "", -1
    for line in text.split("\n"):
        end += len(line) + 1
        code = line.split("--")[0].strip()
        if code == "END IF;":
            opened.pop()
        if condition or re.match(r"(IF|ELSIF|EXCEPTION WHEN)\b", code):
            condition = f"{condition} {code}".strip()
        name = ""
        if condition.endswith(" THEN"):
            name = condition.removesuffix(" THEN")
            if name.startswith("IF"):
                opened.append(name)
            condition = ""
        elif code == "ELSE":
            name = f"ELSE of {opened[-1]}"
        if name:
            yield name, (Edit(end, end, "\nRAISE LOG 'leasehold arm {}';"),)


def _cases(text: str) -> Iterator[tuple[str, tuple[Edit, ...]]]:
    code = _SKIPPED.sub(lambda match: " " * len(match[0]), text)
    opened: list[list[re.Match[str]]] = []  # the words of each CASE that has not ended
    for word in _WORDS.finditer(code):
        if word[0] == "CASE":
            opened.append([])
        if opened:
            opened[-1].append(word)
            if word[0] == "END":
                yield from _case(text, opened.pop())


def _case(text: str, words: list[re.Match[str]]) -> Iterator[tuple[str, tuple[Edit, ...]]]:
    parts = [text[word.end() : after.start()].strip() for word, after in pairwise(words)]
    whole = " ".join(re.sub(r"--[^\n]*", "", text[words[0].start() : words[-1].end()]).split())
    operand = parts[0]
    for at, word in enumerate(words[:-1]):
        if word[0] == "WHEN":
            edits = [
                Edit(word.end(), word.end(), f" CASE WHEN {operand} =" if operand else " CASE WHEN"),
                Edit(words[at + 1].start(), words[at + 1].start(), "THEN leasehold.arm({}) ELSE false END "),
            ]
            if operand and at == 1:  # each condition is a whole one now
                edits.insert(0, Edit(words[0].end(), word.start(), " "))
            yield f"WHEN {' '.join(parts[at].split())} of {whole}", tuple(edits)
        elif word[0] == "ELSE":
            yield f"ELSE of {whole}", (Edit(word.start(), word.end(), "WHEN leasehold.arm({}) THEN"),)
    if words[-2][0] != "ELSE":
        end = words[-1].start()
        yield f"no ELSE of {whole}", (Edit(end, end, " WHEN leasehold.arm({}) THEN NULL "),)


def every_arm() -> list[str]:
    """Return the names of the arms of all functions."""
    return [arm.name for file in FILES for arm in arms(file, (PACKAGE / FUNCTIONS / f"{file}.sql").read_text())]


def table() -> dict[str, str]:
    """Return the test beside each arm."""
    return dict(reversed(line.split("\t", 1)) for line in TABLE.read_text().splitlines() if line)  # type: ignore[misc]  # two parts


def noted(text: str, found: list[Arm], first: int) -> str:
    """Return *text* with its arms instrumented; the number of the first one is *first*."""
    edits = [
        edit._replace(text=edit.text.format(number)) for number, arm in enumerate(found, first) for edit in arm.edits
    ]
    for start, end, replacement in sorted(edits, reverse=True):
        text = text[:start] + replacement + text[end:]
    return text


@contextmanager
def instrumented() -> Iterator[str]:
    """Return a folder with a copy of the package in which each arm writes its number to the server's log."""
    with tempfile.TemporaryDirectory(prefix="leasehold-arms-") as folder:
        package = Path(folder) / "leasehold"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        number = 0
        for file in FILES:
            path = package / FUNCTIONS / f"{file}.sql"
            text = path.read_text()
            found = arms(file, text)
            path.write_text(noted(text, found, number))
            number += len(found)
        first = package / FUNCTIONS / f"{FILES[0]}.sql"
        first.write_text(_NOTE + first.read_text())
        yield folder


# As a plugin of pytest: reads the servers' logs after each test

_logs: dict[Path, BinaryIO] = {}  # of each server that was started; kept open, since some are gone with their test
_seen: list[str] = []


def pytest_configure(config: Any) -> None:
    """Notice every server that a test starts."""
    server: Any = importlib.import_module("tests.postgres.server")
    launch = server._launch

    def noticed(folder: Path, *args: Any) -> Any:
        launched = launch(folder, *args)
        if folder not in _logs:
            _logs[folder] = open(folder / "log", "rb")  # noqa: SIM115  # to the end of the run
        return launched

    server._launch = noticed


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Note which arms the test went through."""
    found = {int(arm) for log in _logs.values() for arm in re.findall(rb"leasehold arm (\d+)", log.read())}
    _seen.extend(f"{arm}\t{nodeid}" for arm in sorted(found))


def pytest_sessionfinish() -> None:
    """Tell the program that started the run."""
    Path(os.environ["LEASEHOLD_ARMS"]).write_text("\n".join(_seen))


def measured(tests: list[str]) -> dict[str, list[str]]:
    """Run *tests*, and return those that went through each arm, in the order in which they ran."""
    names = every_arm()
    with instrumented() as folder:
        told = Path(folder) / "seen"
        environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{TOP}", "LEASEHOLD_ARMS": str(told)}
        command = ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "tests.postgres.arms", *tests]
        subprocess.run([sys.executable, "-P", *command], cwd=TOP, env=environment, check=False)
        found: dict[str, list[str]] = {name: [] for name in names}
        for line in told.read_text().splitlines():
            number, _, test = line.partition("\t")
            found[names[int(number)]].append(test)
    return found


def main() -> int:
    """Check the table, or write it; return the exit code."""
    parser = argparse.ArgumentParser(description="See which test goes through each arm of the SQL functions.")
    parser.add_argument("--write", action="store_true", help="run every test that may, and write the table anew")
    if parser.parse_args().write:
        before = table() if TABLE.exists() else {}
        lines = []
        for arm, seen in measured(list(TESTS)).items():
            # The function of the test, without its parameters: those name versions of PostgreSQL.
            tests = [test.partition("[")[0] for test in seen]
            tests = [test for test in tests if not _AT_RANDOM.search(test)] or tests
            known = before.get(arm, UNREACHED)
            test = known if known in tests else tests[0] if tests else known
            lines.append(f"{test if tests or test.startswith(UNREACHED) else UNREACHED}\t{arm}\n")
        TABLE.write_text("".join(lines))
        missing = sum(line.startswith(UNREACHED) for line in lines)
        print(f"{len(lines)} arms, {missing} without a test")
        return 0
    expected = {arm: test for arm, test in table().items() if not test.startswith(UNREACHED)}
    found = measured(sorted(set(expected.values())))
    wrong = [arm for arm, test in expected.items() if not any(seen.startswith(test) for seen in found.get(arm, ()))]
    for arm in wrong:
        print(f"{expected[arm]} does not go through {arm}")
    print(f"{len(expected) - len(wrong)} of {len(expected)} arms are gone through by the test beside them")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
