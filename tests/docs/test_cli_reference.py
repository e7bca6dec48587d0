"""The page of the command line is what the commands say of themselves."""

from __future__ import annotations

import runpy
from pathlib import Path

TOP = Path(__file__).parents[2]


def test_the_reference_is_what_help_prints() -> None:
    """docs/reference/cli.md is up to date; `.venv/bin/python scripts/cli-reference` makes it so."""
    script = runpy.run_path(str(TOP / "scripts" / "cli-reference"))

    assert (TOP / "docs/reference/cli.md").read_text() == script["page"]()
