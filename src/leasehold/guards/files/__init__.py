"""
The guard of a folder of files on a local POSIX file system.

    guard         the verbs
    names         which names a folder admits, and the name of a key's mark and lock
    mark_files    marks on disk
    locks         the lock of a key, and who holds it
    temporary     data that has no name yet
    file_systems  on which file systems locks and renames hold
    syncing       what makes bytes and names survive a power loss
"""

from .guard import APPEND_LIMIT, AsyncFileGuard, FileGuard

__all__ = ["APPEND_LIMIT", "AsyncFileGuard", "FileGuard"]
