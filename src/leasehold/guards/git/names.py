"""Which names branches and marks have."""

from __future__ import annotations

import re

from ...core import checks
from ...core.wording import shown
from ...errors import InvalidArgument

HEADS = "refs/heads/"

# What `git check-ref-format` refuses, and a leading dash, which git would take for an option.
_REFUSED = re.compile(
    r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(/|$)|^[-./]|[./]$|^@$",
)


def canonical_branch(branch: object) -> str:
    """Return the short name of a branch (`main`), or raise `InvalidArgument`."""
    if isinstance(branch, str):
        branch = branch.removeprefix(HEADS)
    return _checked(branch, "a branch")


def checked_prefix(prefix: object) -> str:
    """Return the prefix of the refs that hold marks, with a slash at its end."""
    name = _checked(prefix.rstrip("/") if isinstance(prefix, str) else prefix, "the prefix of the marks")
    if not name.startswith("refs/") or name.startswith(HEADS[:-1]) or name == "refs/":
        raise InvalidArgument(
            f"the prefix of the marks must begin with refs/ but not with {HEADS}, not {shown(prefix)}: a mark is not "
            "a branch."
        )
    return name + "/"


def mark_ref(prefix: str, branch: str) -> str:
    """Return the ref that holds the mark of *branch*."""
    # Without slashes: git cannot have both a and a/b, and the mark of a deleted branch a would be in the way of a/b.
    return prefix + branch.replace("%", "%25").replace("/", "%2F")


def _checked(name: object, what: str) -> str:
    text = checks.name(name, f"the name of {what}" if what == "a branch" else what)
    if _REFUSED.search(text):
        raise InvalidArgument(f"{shown(name)} cannot be {what}: git refuses such a name (see git check-ref-format).")
    return text


def checked_remote(remote: object) -> str:
    """Return the URL or path of a repository; refuse the name of a remote, which means something in one clone only."""
    text = checks.text(remote, "remote")
    if not text or text.startswith("-") or "\n" in text or "\0" in text:
        raise InvalidArgument(f"remote must be the URL or path of a repository, not {shown(remote)}.")
    if "/" not in text and ":" not in text:
        raise InvalidArgument(
            f"remote must be the URL or path of a repository, not {shown(remote)}: the name of a remote is known only "
            "in the clone that defines it. `git remote get-url NAME` shows its URL; for a folder inside the current "
            "one, write ./NAME."
        )
    return text


def checked_commit(commit: object) -> str:
    """Return how a caller names a commit, if git cannot take it for an option or a range."""
    text = checks.name(commit, "commit")
    if text.startswith(("-", "^")) or ".." in text or "\n" in text:
        raise InvalidArgument(f"commit= must name one commit (HEAD, a branch, an id), not {shown(commit)}.")
    return text
