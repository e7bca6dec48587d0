"""
Takes the write lock of a file and stops itself (SIGSTOP) inside the transaction; once woken, it rolls back.

    stopper.py PATH
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys


def main(path: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    os.kill(os.getpid(), signal.SIGSTOP)
    connection.execute("ROLLBACK")
    os.write(1, b"woken\n")


if __name__ == "__main__":
    main(sys.argv[1])
