"""
The guard of the branches of a git repository.

    guard      the verbs
    command    runs the git program
    marks      marks as commits, and how one is written into a repository
    remote     what stands at the remote: tips and marks
    names      which names branches have
"""

from .guard import AsyncGitGuard, GitGuard

__all__ = ["AsyncGitGuard", "GitGuard"]
