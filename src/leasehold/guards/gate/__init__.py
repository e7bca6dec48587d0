"""
The gate: G2 for resources that are code.

    gate       `Gate`: begin, end, seal and drain; the proof
    home       CONTRACT: where marks, uses and doubts are kept
    memory     uses in this process, marks and doubts in an SQLite file
    rows       uses, marks and doubts as rows: statements, and how to run them on SQLite or PostgreSQL
    database   one connection to SQLite, or several to PostgreSQL
    forks      whether this process was forked meanwhile
    opening    the URLs that name them
"""

from .gate import AsyncGate, Gate, Use

__all__ = ["AsyncGate", "Gate", "Use"]
