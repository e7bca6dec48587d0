"""The programs that a page shows before and after: the one before runs on its own library, and does the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS

TOP = Path(__file__).parents[2]
_BEFORE = re.compile(r"^```py\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# A real Celery worker on a thread, with a broker and results in memory instead of Redis.
CELERY = """
import os
from celery.contrib.testing.worker import start_worker
source = BEFORE[0].replace('broker="redis://localhost"', 'broker="memory://"')
run(source.replace('backend="redis://localhost"', 'backend="cache+memory://"'))
with start_worker(names["app"], perform_ping_check=False, pool="solo"):
    run(BEFORE[1])
    print(found, flush=True)
    os._exit(0)  # its shutdown takes seconds
"""

# RQ's own worker, with a Redis in memory. RQ imports functions by the name of their module.
RQ = """
import sys, types
import fakeredis, redis
redis.Redis = fakeredis.FakeStrictRedis
shop = sys.modules["shop"] = types.ModuleType("shop")
names = vars(shop)
names["_shows"] = shows
run(BEFORE[0])
run(BEFORE[1])
"""

BEGIN = """
from tests.docs.test_pages import run_block, shows
BEFORE = {blocks!r}
names = {{"_shows": shows, "__name__": "shop"}}
found = 0
def run(source):
    global found
    found += run_block(source, names, "shop.py")
"""


@pytest.mark.parametrize(("page", "library", "driver"), [("celery", "celery", CELERY), ("rq", "rq", RQ)])
def test_the_program_before_does_what_the_page_says(page: str, library: str, driver: str, tmp_path: Path) -> None:
    """In a process of its own, since it patches and configures; with every `# ->` compared."""
    blocks = _BEFORE.findall((TOP / f"docs/how-to/come-from-{page}.md").read_text())
    assert len(blocks) == 2
    script = BEGIN.format(blocks=blocks) + driver + "print(found)\n"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(TOP)!r})\n{script}"]

    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_SECONDS)

    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[-1] == "3"
