"""
The guard of objects in S3, Google Cloud Storage and Azure Blob Storage; it needs the extra `s3`.

    pointer.py      what the object at a key holds: the mark, and where the data is
    bucket.py       the requests, and what a lost reply means for each
    guard.py        ObjectGuard: read, write, delete, seal
    proof.py        shows that a store compares
    garbage.py      removes data that no pointer names any more
    aio.py          the verbs to be awaited
"""

from .aio import AsyncObjectGuard
from .guard import ObjectGuard

__all__ = ["AsyncObjectGuard", "ObjectGuard"]
