"""The public verbs: producers add jobs, owners claim them, operators move them, readers look them up."""

from .front import Router

__all__ = ["Router"]
