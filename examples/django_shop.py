"""
A Django view that adds a job in the same transaction as the rows that the job is about. A whole project in one file:

    pip install '.[cli]' django
    python examples/django_shop.py migrate              makes the table
    python examples/django_shop.py runserver            POST /orders/tea/
    leasehold worker examples.django_shop               writes the receipts

If the order is rolled back there is no job; if it is committed there is one. No signal, no `on_commit`.
"""

import sys
from collections.abc import Iterator

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import connection, models, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from leasehold import Lease, Router

settings.configure(
    SECRET_KEY="only good for an example",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "django_shop.db"}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
django.setup()

router = Router("sqlite:///django_shop.db")


class Order(models.Model):
    sku = models.CharField(max_length=50)
    receipt = models.CharField(max_length=200, default="")

    class Meta:
        app_label = "shop"


@router.task
def send_receipt(lease: Lease, order_id: int) -> None:
    """Write the receipt. The row and the completion are one commit, and only the current owner can make it."""
    with transaction.atomic():
        lease.fence(connection)
        order = Order.objects.get(pk=order_id)
        order.receipt = f"receipt for {order.sku}"
        order.save()
        lease.complete(connection=connection)


@router.around
def closing_connections(lease: Lease) -> Iterator[None]:
    """Django opens a connection for each thread; what a request does at its end, a handler does too."""
    try:
        yield
    finally:
        connection.close()


def place_order(request: HttpRequest, sku: str) -> JsonResponse:
    """Keep the order and ask for its receipt, or neither."""
    with transaction.atomic():
        order = Order.objects.create(sku=sku)
        send_receipt.options(connection=connection).add(order.pk)
        if sku == "nothing":
            raise ValueError("there is no such thing, so there is no order, and no job either")
    return JsonResponse({"order": order.pk})


def show_order(request: HttpRequest, order_id: int) -> JsonResponse:
    """Show an order; its receipt is there soon."""
    order = Order.objects.get(pk=order_id)
    return JsonResponse({"sku": order.sku, "receipt": order.receipt})


urlpatterns = [path("orders/<int:order_id>/", show_order), path("orders/<str:sku>/", place_order)]


def migrate() -> None:
    """Make the table; a project with migrations has its own command for that."""
    with connection.schema_editor() as editor:
        if Order._meta.db_table not in connection.introspection.table_names():
            editor.create_model(Order)


if __name__ == "__main__":
    migrate() if sys.argv[1:] == ["migrate"] else execute_from_command_line(sys.argv)
