"""The web applications among the examples: an order and its job are one commit, and a worker writes the receipt."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.cli.command import TOP, run

_FASTAPI = """
import json, time
from fastapi.testclient import TestClient
from examples.fastapi_shop import app, router

with TestClient(app, raise_server_exceptions=False) as client:
    placed, refused = client.post("/orders/tea"), client.post("/orders/nothing")
    until = time.monotonic() + 100
    where = f"/orders/{placed.json()['order']}"
    while not (order := client.get(where).json())["receipt"] and time.monotonic() < until:
        time.sleep(0.02)
print(json.dumps([placed.json(), refused.status_code, order, len(router.jobs()), router.jobs()[0].status]))
"""

_DJANGO = """
import json
import examples.django_shop as shop
from django.test import Client

shop.migrate()
client = Client(raise_request_exception=False)
placed, refused = client.post("/orders/tea/"), client.post("/orders/nothing/")
shop.router.work(until_empty=True)
order, router = client.get(f"/orders/{placed.json()['order']}/").json(), shop.router
print(json.dumps([placed.json(), refused.status_code, order, len(router.jobs()), router.jobs()[0].status]))
"""


@pytest.mark.parametrize("program", [_FASTAPI, _DJANGO], ids=["fastapi", "django"])
def test_an_order_and_its_job_are_one_commit(program: str, tmp_path: Path) -> None:
    """The order that was kept has its receipt; the one that failed has left neither a row nor a job. Again, too."""
    for orders in (1, 2):
        shown = run([sys.executable, "-c", f"import sys; sys.path.append({str(TOP)!r})\n{program}"], cwd=tmp_path)

        assert shown.returncode == 0, shown.stderr
        assert json.loads(shown.stdout) == [
            {"order": orders},
            500,
            {"sku": "tea", "receipt": "receipt for tea"},
            orders,
            "done",
        ]
