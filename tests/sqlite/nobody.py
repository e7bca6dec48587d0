"""
Becomes nobody, if it is root, and tries to use a store; answers with the error in one line, or "used".

    nobody.py URL
"""

from __future__ import annotations

import os
import sys

from leasehold import LeaseholdError, Router
from leasehold.stores.sqlite.programs import migrations


def main(url: str) -> None:
    migrations("leasehold")  # read before it may not: the files of this checkout may be root's alone
    router = Router(url)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        with router:
            router.add("b")
        said = "used"
    except LeaseholdError as error:
        said = f"{type(error).__name__} {error}"
    os.write(1, said.encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
