"""
The application that the other files of this folder deploy. Put your own in its place: a module with a Router in it.

The store comes from the environment, so that the same image runs in every place.
"""

import os

from leasehold import Router

router = Router(os.environ.get("LEASEHOLD_STORE", "sqlite:///jobs.db"))


@router.task(queue="mail", run_seconds=60)
def send_mail(to: str) -> str:
    """Send a mail."""
    return f"sent to {to}"
