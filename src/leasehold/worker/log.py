"""The logger of a worker."""

from __future__ import annotations

import logging

from ..logs import Log

log = Log(logging.getLogger("leasehold.worker"), {})
