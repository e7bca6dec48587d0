"""A module whose import ends the process, unless a type checker or a test collector looks at it."""

from __future__ import annotations

import multiprocessing
import os

if multiprocessing.parent_process() is not None:
    os._exit(7)
