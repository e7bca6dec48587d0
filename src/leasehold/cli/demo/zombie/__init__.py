"""
`leasehold demo zombie`: a frozen process wakes up and writes to everything that it held, with guards and without.

    play        the two acts, what was seen in each, and the exit code
    objects     an object store, started where one is installed, and an object in it
    resources   what both processes write to: guarded, and bare
    service     an HTTP service behind a gate
    worker      one of the two processes
"""

from .play import play

__all__ = ["play"]
