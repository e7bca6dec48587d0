"""Runs the git program: without a shell, without prompts, in English, and for a bounded time."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import NamedTuple

from ...errors import GuardUnavailable

# Variables of a git that runs us (from a hook, say) name its repository and not ours. These are settings of the user.
_KEPT = {"GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSH_VARIANT", "GIT_SSL_CAINFO", "GIT_SSL_CERT", "GIT_SSL_KEY"}

# With these git says that it did not come to send anything.
_NOT_SENT = (
    "does not appear to be a git repository",
    "does not exist",
    "onnection refused",
    "nable to connect",
    "ouldn't connect",
    "ould not resolve",
    "Name or service not known",
    "No route to host",
    "Network is unreachable",
    "Authentication failed",
    "could not read Username",
    "could not read Password",
    "access denied",
    "not found",
    "Permission denied",
    "returned error: 4",
)
# And with these, that it was cut off. A hook that refuses a push here, or a ref that has moved, has none of them.
_CUT_OFF = ("fatal:", "RPC failed", "hung up", "unexpected disconnect", "[remote failure]")


class Ran(NamedTuple):
    """How a command ended; *code* is None if it did not end in time."""

    code: int | None
    out: str
    err: str

    @property
    def is_lost(self) -> bool:
        """Whether a push that failed may have reached the remote all the same."""
        if self.code is None or self.code < 0:
            return True
        verdicts = [line for line in self.out.splitlines() if line.startswith("!")]
        if verdicts and not any("[remote failure]" in line for line in verdicts):
            return False  # refused here, or by the server, for each ref
        own = "\n".join(line for line in (self.err + "\n" + self.out).splitlines() if not line.startswith("remote:"))
        return any(text in own for text in _CUT_OFF) and not any(text in own for text in _NOT_SENT)

    @property
    def has_no_atomic_push(self) -> bool:
        """Whether the server cannot change two refs in one step."""
        return "does not support --atomic push" in self.err

    @property
    def why(self) -> str:
        """What git reports about its failure, in one line."""
        lines = [*self.err.splitlines(), *(line for line in self.out.splitlines() if line.startswith("!"))]
        causes = [" ".join(line.split()) for line in lines if line.strip() and not line.startswith("hint:")]
        late = "it did not end in time; " if self.code is None else ""
        return late + ("; ".join(causes)[:500] or f"exit code {self.code}")


class Git:
    """The git program, with a limit of *timeout_seconds* for each command."""

    def __init__(self, program: str, timeout_seconds: float) -> None:
        self._program = program
        self.timeout_seconds = timeout_seconds

    def __call__(self, *arguments: str, cwd: str, settings: tuple[str, ...] = ()) -> Ran:
        """Run git in the folder *cwd*; raise `GuardUnavailable` if it cannot be started."""
        command = [self._program, *(part for setting in settings for part in ("-c", setting)), *arguments]
        try:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # so that its helpers (ssh, remote-https) end with it, and it has no terminal
            )
        except OSError as error:
            raise GuardUnavailable(
                f"{self._program} could not be started in {cwd}: {error.strerror}. Nothing was written."
            ) from error
        try:
            out, err = process.communicate(timeout=self.timeout_seconds)
            return Ran(process.returncode, out, err)
        except subprocess.TimeoutExpired:
            _end(process)
            out, err = process.communicate()
            return Ran(None, out, err)
        except BaseException:
            _end(process)
            process.communicate()
            raise


def _end(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name in _KEPT}
    kept.pop("SSH_ASKPASS", None)
    return {
        "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
        **kept,
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
    }
