"""The tasks of one router, with what they share."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgument
from .adder import Adder
from .hooks import Hooks

if TYPE_CHECKING:  # imported on use: most programs that add jobs need no tasks
    from ..core.ownership import Note
    from .guarded import Guards
    from .signature import TaskSettings
    from .task import AnyTask

_MOST_NOTES = 1_000


class Registry:
    """Tasks by name, the modules that define them, the hooks around their handlers, and what adds their jobs."""

    def __init__(self, imports: tuple[str, ...]) -> None:
        self.imports = imports
        self.tasks: dict[str, AnyTask] = {}
        self.hooks = Hooks()
        self.adder = Adder(self.tasks)
        self.notes: deque[Note] = deque(maxlen=_MOST_NOTES)  # of guards, met inside a transaction that was open
        self._guards: Guards | None = None

    @property
    def guards(self) -> Guards:
        """The guards of the router. Imported on use: most programs have none."""
        if self._guards is None:
            from .guarded import Guards

            self._guards = Guards(self.adder, self.notes)
        return self._guards

    def load(self) -> None:
        """Import the modules that define tasks."""
        for module in self.imports:
            importlib.import_module(module)

    def register(self, function: Callable[..., Any], settings: TaskSettings) -> AnyTask:
        """Return *function* as a task. Raises `InvalidArgument` if it cannot be one, or its name is not free."""
        from .signature import location
        from .task import Task

        if isinstance(function, Task):
            raise InvalidArgument(f"{function!r} is already a task.")
        task: AnyTask = Task(self, function, settings)
        taken = self.tasks.setdefault(task.name, task)
        if taken is not task:
            raise InvalidArgument(
                f"two tasks are called {task.name!r}: {location(taken.function)} and {location(task.function)}. A job "
                "finds its task by name: give one of them another name with name=…."
            )
        return task
