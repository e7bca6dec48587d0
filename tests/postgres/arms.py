"""
Which test goes through each arm of the SQL functions.

arms.txt has a line for every arm of an IF in the functions of the fence, and beside it a test that was seen to go
through it. The table is measured, not written by hand:

    python tests/postgres/arms.py           run the tests of the table, and see that each goes through its arm
    python tests/postgres/arms.py --write   run every test that may, and write the table anew

Both run the tests on a copy of the package in which each arm writes a line to the server's log. test_arms.py, which is
part of every run, sees that the table has every arm and that its tests exist. Arms of CASE expressions are not in it.
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
from pathlib import Path
from typing import Any, NamedTuple

TOP = Path(__file__).resolve().parent.parent.parent
PACKAGE = TOP / "src" / "leasehold"
FUNCTIONS = Path("stores/postgres/functions")
TABLE = Path(__file__).with_name("arms.txt")
FILES = ("04_claiming", "04_claiming_next", "05_owning", "06_settling", "07_moving", "08_fences")  # of the fence
UNREACHED = "-"  # beside an arm that no test goes through; the text behind it says why
TESTS = (
    "tests/contract/test_postgres.py",
    *(f"tests/postgres/test_{name}.py" for name in ("beside", "traps", "fence_blocks", "hostile", "floors", "callers")),
    *(f"tests/postgres/test_{name}.py" for name in ("retention", "waiting", "fence_matrix", "faults_server")),
)


class Arm(NamedTuple):
    """An arm of an IF: its name in the table, and the line behind which it begins."""

    name: str
    line: int


def arms(file: str, text: str) -> list[Arm]:
    """Return the arms of every IF in the functions of one file, in their order."""
    found: list[Arm] = []
    names: dict[str, int] = {}
    function, opened, condition = "", list[str](), ""
    for number, line in enumerate(text.split("\n")):
        code = line.split("--")[0].strip()
        if begun := re.match(r"CREATE OR REPLACE FUNCTION leasehold\.(\w+)", code):
            function, opened, condition = begun[1], [], ""
        elif code.startswith("DO "):
            function = ""  # it runs once, when the schema is made
        elif code == "END IF;":
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
        if name and function:
            name = f"{file}.{function}: {name}"
            names[name] = names.get(name, 0) + 1
            found.append(Arm(name if names[name] == 1 else f"{name} ({names[name]})", number))
    return found


def every_arm() -> list[str]:
    """Return the names of all arms of the functions of the fence."""
    return [arm.name for file in FILES for arm in arms(file, (PACKAGE / FUNCTIONS / f"{file}.sql").read_text())]


def table() -> dict[str, str]:
    """Return the test beside each arm."""
    return dict(reversed(line.split("\t", 1)) for line in TABLE.read_text().splitlines() if line)  # type: ignore[misc]  # two parts


@contextmanager
def instrumented() -> Iterator[str]:
    """Return a folder with a copy of the package in which each arm writes its number to the server's log."""
    with tempfile.TemporaryDirectory(prefix="leasehold-arms-") as folder:
        package = Path(folder) / "leasehold"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        number = 0
        for file in FILES:
            path = package / FUNCTIONS / f"{file}.sql"
            lines = path.read_text().split("\n")
            for arm in arms(file, path.read_text()):
                lines[arm.line] += f"\nRAISE LOG 'leasehold arm {number}';"
                number += 1
            path.write_text("\n".join(lines))
        yield folder


# As a plugin of pytest: reads the servers' logs after each test

_logs: dict[Path, int] = {}  # the log of each server that was started, and how much of it was read
_seen: list[str] = []


def pytest_configure(config: Any) -> None:
    """Notice every server that the fixtures start."""
    fixtures: Any = importlib.import_module("tests.postgres.fixtures")
    start = fixtures.server

    @contextmanager
    def noticed(*args: Any, **options: Any) -> Iterator[Any]:
        with start(*args, **options) as server:
            _logs[Path(server.folder) / "log"] = 0
            yield server

    fixtures.server = noticed


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Note which arms the test went through."""
    for log, offset in _logs.items():
        if log.exists():
            with open(log, "rb") as file:
                file.seek(offset)
                text = file.read()
            _logs[log] = offset + len(text)
            _seen.extend(
                f"{arm}\t{nodeid}" for arm in {int(found) for found in re.findall(rb"leasehold arm (\d+)", text)}
            )


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
        unreached = {arm: test for arm, test in before.items() if test.startswith(UNREACHED)}
        lines = []
        for arm, tests in measured(list(TESTS)).items():
            # The function of the test, without its parameters: those name versions of PostgreSQL.
            test = tests[0].partition("[")[0] if tests else unreached.get(arm, UNREACHED)
            lines.append(f"{test}\t{arm}\n")
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
