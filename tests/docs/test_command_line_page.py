"""docs/how-to/use-the-command-line.md is played from top to bottom, and prints what the page shows."""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from tests.cli.command import leasehold
from tests.cli.test_conventions import ON_POSTGRES, commands

import leasehold.cli.app as command_line
from leasehold import Router

PAGE = Path(__file__).parents[2] / "docs/how-to/use-the-command-line.md"
TEXT = PAGE.read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EPOCH = re.compile(r"EPOCH\(([\w-]+)\)")


def steps() -> list[tuple[str, list[str]]]:
    """Each command of the page, with the lines that it prints there."""
    found: list[tuple[str, list[str]]] = []
    for line in "".join(_BLOCK.findall(TEXT)).splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def pattern(lines: list[str]) -> str:
    """What must be printed: runs of spaces are one, and … stands for anything."""
    text = " ".join(" ".join(lines).split())
    return ".*".join(re.escape(part) for part in text.split("…"))


def printed(command: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the command prints: messages behind the data, as in a terminal."""
    with Router("sqlite:///jobs.db") as router:
        command = _EPOCH.sub(lambda found: str(router.job(found[1]).epoch), command)
    words = shlex.split(command)
    assert words.pop(0) == "leasehold"
    if words[0] == "worker":
        done = leasehold(*words, cwd=Path.cwd())
        return done.stdout + done.stderr
    monkeypatch.setattr("sys.argv", ["leasehold", *words])
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        command_line.run(words)
    return out.getvalue() + err.getvalue()


def test_the_page_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Command by command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEASEHOLD_STORE", "sqlite:///jobs.db")
    monkeypatch.setenv("COLUMNS", "200")
    code = TEXT.split("```python\n")[1].split("```")[0]
    for number, (command, lines) in enumerate(steps()):
        if command.startswith("export "):
            continue
        module = f"app_{number}"  # a process of its own would import it anew
        Path(f"{module}.py").write_text(code)
        Path("app.py").write_text(code)
        if "worker" not in command.split():
            command = command.replace("app:router", f"{module}:router")
        shown = " ".join(printed(command, monkeypatch).split())
        assert re.fullmatch(pattern(lines), shown), f"{command}\nprints: {shown}\npage:   {' '.join(lines)}"


def test_the_page_has_every_command() -> None:
    """With its output; those of PostgreSQL's roles and indexes by name."""
    typed = [command.removeprefix("leasehold ") for command, _ in steps()]
    leaves = {name for name, each in commands().items() if name not in ("store", "guard")} - ON_POSTGRES
    missing = {name for name in leaves if not any(f"{one} ".startswith(f"{name} ") for one in typed)}

    assert missing == {"demo", "demo zombie"}
    assert [name for name in ON_POSTGRES if name.split()[1] not in TEXT] == []
