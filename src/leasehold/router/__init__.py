"""The public verbs: producers add jobs, owners claim them, operators move them, readers look them up."""

from .aio import AsyncRouter
from .front import Router

__all__ = ["AsyncRouter", "Router"]
