"""Child jobs: the ids that a parent gives them, so that a second run of the parent finds them again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidArgument
from . import checks
from . import meta as metas
from .job import DETACHED, NewJob, as_new_job

Child = NewJob | Mapping[str, Any]


def as_root(job: NewJob) -> NewJob:
    """Return *job* as it is kept if no owner adds it: without a parent, and with nothing inherited."""
    if job.parent == DETACHED or job.meta == metas.DETACHED:
        return job._replace(parent=job.parent or None, meta=job.meta or None)
    return job


def new_child(parent: str, child: NewJob, nth: int, meta: str | None = None) -> NewJob:
    """
    Return *child* with its parent, whose *meta* it inherits, and the id that the parent gives it: the *nth* of its name
    in this run.

    The id depends on the parent, the name and *nth* alone, so a second run of the parent asks for the same ids
    and makes no duplicates.
    """
    own = child.id.replace("%", "%25").replace("/", "%2F").replace("#", "%23")  # so that no two children share an id
    name = f"{parent}/{own}" + (f"#{nth}" if nth > 1 else "")
    if len(name) > checks.NAME_LIMIT:
        name = "child:" + hashlib.blake2b(name.encode(), digest_size=20).hexdigest()
    child = child._replace(id=name, chosen=False)
    if child.parent == DETACHED:
        return as_root(child)
    return child._replace(parent=parent, meta=metas.inherited(meta, child.meta))


def child_name(task: str | None, document: str) -> str:
    """Return the name of a child that was given none: its task and a digest of its payload."""
    return f"{task or 'job'}:{hashlib.blake2b(document.encode(), digest_size=8).hexdigest()}"


def as_child(item: Child) -> tuple[NewJob, str]:
    """Return the wish for a child, and the name that it is counted by; "" for a detached job with an id of its own."""
    if isinstance(item, NewJob):
        if item.parent == DETACHED and item.id:
            return item, ""
        name = item.id or child_name(item.task, item.document)
        return item.like(name, item.document), name
    if not isinstance(item, Mapping):
        raise InvalidArgument(
            f"a child must be a mapping with the names of add()'s arguments, or a NewJob, not {item!r}."
        )
    wish = dict(item)
    named = wish.pop("id", None) is not None
    child = as_new_job({**wish, "id": item["id"] if named else "child"})
    name = child.id if named else child_name(child.task, child.document)
    return child._replace(id=name), name
