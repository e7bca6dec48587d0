"""Clients of the S3 servers of the tests. Child processes import this, so it imports little."""

from __future__ import annotations

import functools

from obstore.store import S3Store

from leasehold.guards import ObjectGuard

BUCKET = "leasehold-tests"  # SeaweedFS makes it with its first object


@functools.cache  # to make one takes 20 ms
def store_at(endpoint: str, prefix: str = "") -> S3Store:
    """Return a client of the bucket, for what is below *prefix*."""
    return S3Store(
        BUCKET,
        prefix=prefix or None,
        endpoint=endpoint,
        region="us-east-1",
        skip_signature=True,
        client_options={"allow_http": True},
    )


def guard_at(endpoint: str, prefix: str, inline_bytes: int = 0) -> ObjectGuard:
    """Return a guard; a function of a module, so that child processes can call it. All data is apart, unless told."""
    return ObjectGuard(store_at(endpoint, prefix), inline_bytes=inline_bytes)
