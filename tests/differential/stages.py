"""A store with the caller's rows beside it, and programs that run there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from psycopg import IsolationLevel

from leasehold import Router
from leasehold.testing import elsewhere

from .libraries import LIBRARIES, Database, Library, run
from .programs import Came, Case, Scene, came_of, scene_of


def with_task(router: Router) -> Router:
    """Give the router a task whose jobs are added."""

    @router.task(queue="new")
    def echo(number: int) -> int:
        return number

    return router


@dataclass
class Stage:
    """A store, and where the caller's rows are."""

    router: Router
    database: Database
    rows: Callable[[str], list[str]]

    def at(self, isolation: IsolationLevel) -> Stage:
        """Return the same with transactions of another isolation."""
        return replace(self, database=replace(self.database, isolation=isolation))

    def came_of(self, library: str, cases: Iterable[Case], beside: Callable[[Scene], Any] | None = None) -> list[Came]:
        """Run *cases* one after the other on one connection; *beside* happens elsewhere after each step."""
        made = LIBRARIES[library](self.database)
        return run(self._all(made, list(cases), beside), is_async=made.is_async)

    async def _all(self, library: Library, cases: list[Case], beside: Callable[[Scene], Any] | None) -> list[Came]:
        await library.connect()
        try:
            return [await self._one(library, case, beside) for case in cases]
        finally:
            await library.close()

    async def _one(self, library: Library, case: Case, beside: Callable[[Scene], Any] | None) -> Came:
        scene = elsewhere(scene_of, self.router, library, self.rows)
        scene.beside = beside
        try:
            return await came_of(case, scene)
        finally:
            with suppress(Exception):  # the server has hung up
                await library.rollback()
