"""`leasehold completion`, and words that the store completes."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from tests.cli.command import COMMAND, environment, leasehold
from tests.patience import PATIENCE_SECONDS

from leasehold import Router
from leasehold.cli import completion


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with jobs in two queues, one of them held by an owner."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Router(url) as router:
        router.add_many([{"id": "mail-1", "queue": "mail"}, {"id": "mail-2", "queue": "mail"}, {"id": "photo-1"}])
        assert router.claim("worker-7", queues=["default"], process=None) is not None
    return url


def completed(*words: str, store: str | None = None) -> tuple[list[str], str]:
    """What the shell is offered for the last of *words*, and what was written to stderr."""
    env = {**environment(), completion.VARIABLE: "bash_complete"}
    env |= {"COMP_WORDS": " ".join(["leasehold", *words]), "COMP_CWORD": str(len(words))}
    env.pop("LEASEHOLD_STORE", None)
    if store is not None:
        env["LEASEHOLD_STORE"] = store
    done = subprocess.run(COMMAND, env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, cwd="/")
    assert done.returncode == 0, done.stderr
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line], done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_printed_for_each_shell(shell: str) -> None:
    """One that calls the command for what it completes, and that the shell itself accepts."""
    printed = leasehold("completion", shell)

    assert (printed.returncode, printed.stderr) == (0, "")
    assert f"{completion.VARIABLE}={shell}_complete" in printed.stdout
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=printed.stdout, text=True, check=True, timeout=PATIENCE_SECONDS)


SCRIPTS = {
    "bash": """
        eval "$(leasehold completion bash)"
        COMP_WORDS=(leasehold show mai) COMP_CWORD=2
        _leasehold_completion leasehold
        echo "${COMPREPLY[@]}"
    """,
    # Without a configuration nothing has called compinit; what the function hands to zsh is printed.
    "zsh": """
        eval "$(leasehold completion zsh)"
        test "${_comps[leasehold]}" = _leasehold_completion || echo "not bound"
        _describe() { print -r -- ${${(P)3}%%:*} }
        words=(leasehold show mai) CURRENT=3
        _leasehold_completion leasehold
    """,
    "fish": """
        leasehold completion fish | source
        complete -C "leasehold show mai" | string replace -r "\\t.*" "" | sort
    """,
}


@pytest.mark.parametrize(("shell", "bare"), [("bash", "--norc"), ("zsh", "-f"), ("fish", "--no-config")])
def test_a_shell_completes_through_the_script(shell: str, bare: str, url: str, tmp_path: Path) -> None:
    """As the shell does it, with no configuration of its own: it calls what the script has defined."""
    if shutil.which(shell) is None:
        pytest.skip(f"this machine has no {shell}")
    (tmp_path / "leasehold").write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    (tmp_path / "leasehold").chmod(0o755)
    env = {**environment(), "LEASEHOLD_STORE": url, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    env["HOME"] = str(tmp_path)  # where zsh and fish keep what they remember

    done = subprocess.run(
        [shell, bare, "-c", SCRIPTS[shell]], env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )

    assert (done.stdout.split(), done.stderr) == (["mail-1", "mail-2"], "")


def test_the_store_completes_ids_queues_and_owners(url: str) -> None:
    """That of the environment, or of --store on the line; of a group too."""
    assert completed("show", "mai", store=url) == (["mail-1", "mail-2"], "")
    assert completed("cancel", "", store=url) == (["photo-1", "mail-2", "mail-1"], "")
    assert completed("history", "--store", url, "ph") == (["photo-1"], "")
    assert completed("jobs", "--queue", "m", store=url) == (["mail"], "")
    assert completed("queues", "--store", url, "pause", "d") == (["default"], "")
    assert completed("requeue", "--owner", "wor", store=url) == (["worker-7"], "")
    assert completed("transfer", "photo-1", "--to", "wor", store=url) == (["worker-7"], "")


def test_a_store_that_does_not_answer_completes_nothing_and_is_silent(tmp_path: Path) -> None:
    """None is named; it does not exist, and is not made; its server refuses; its server accepts and never answers."""
    assert completed("show", "") == ([], "")
    assert completed("show", "", store=f"sqlite:///{tmp_path}/none.db") == ([], "")
    assert not (tmp_path / "none.db").exists()
    assert completed("show", "", store="nonsense://x") == ([], "")
    assert completed("show", "", store="postgresql://127.0.0.1:1/none") == ([], "")
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        assert completed("show", "", store=f"postgresql://127.0.0.1:{port}/none?connect_timeout=600") == ([], "")
