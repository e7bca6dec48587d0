"""Django's default connection, for as long as a test has it; there is no project, and no settings module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django
from django.conf import settings
from django.db import connections
from django.db.utils import load_backend


@contextmanager
def django_connection(**database: Any) -> Iterator[Any]:
    """Make `django.db.connection` one to *database*, which has the names of Django's DATABASES."""
    if not settings.configured:
        settings.configure(DATABASES={}, LOGGING_CONFIG=None)
        django.setup()
    full = connections.configure_settings({"default": database})["default"]
    made = load_backend(database["ENGINE"]).DatabaseWrapper(full, "default")
    before = connections["default"]
    connections["default"] = made
    try:
        yield made
    finally:
        made.close()
        connections["default"] = before
