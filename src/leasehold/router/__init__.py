"""The front door: producers add jobs, owners claim them, operators move them, readers look."""

from .aio import AsyncRouter
from .front import Router

__all__ = ["AsyncRouter", "Router"]
