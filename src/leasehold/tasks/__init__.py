"""
What a task is, for everything that adds jobs: no worker is needed.

    registry    the tasks of one router, and what they share
    adder       adds their jobs to the store
    task        a function that handles jobs of one name, and the way to add them with its own arguments
    signature   which functions can be tasks, what they take, where they run
    arguments   a handler's arguments: from a call to a payload, and back
    convert/    values that JSON has no form for, by their annotation
    hooks       what wraps handlers, and a worker

beside them: unknown_tasks (warns of names that are spelled almost like a task's) and main_guard (no job is added by a
process of handlers that is only importing the main module).
"""

from .adder import Adder, Backend
from .registry import Registry

__all__ = ["Adder", "Backend", "Registry"]  # the rest is imported on use
