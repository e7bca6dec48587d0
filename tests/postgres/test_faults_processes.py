"""Processes that inherit a store, and processes without its driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS

from .fixtures import NEWEST, Place, url_of
from .forker import CASES


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("case", CASES)
def test_a_child_process_leaves_its_parents_connections_alone(case: str) -> None:
    """The cases are told in forker.py."""
    place = Place(url_of(NEWEST))
    store = place.store()
    try:
        ran = subprocess.run(
            [sys.executable, Path(__file__).with_name("forker.py"), case, store.database.url, store.database.schema],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert (ran.returncode, ran.stdout) == (0, "ok\n"), ran.stderr
    finally:
        place.clear()


def test_without_the_driver_the_extra_is_named() -> None:
    """And everything else works."""
    script = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from leasehold import Router, Unsupported\n"
        "Router().add('a')\n"
        "try: Router('postgresql://user:secret@host/database')\n"
        "except Unsupported as error: print(error)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )

    assert "pip install 'psycopg[binary]'" in ran.stdout
    assert "secret" not in ran.stdout
