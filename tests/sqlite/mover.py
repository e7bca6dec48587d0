"""
Moves a job to another owner and exits, as an operator's command does.

    mover.py URL JOB EPOCH TO
"""

from __future__ import annotations

import os
import sys

from leasehold import Router


def main(url: str, job_id: str, epoch: int, to: str) -> None:
    with Router(url) as router:
        os.write(1, f"{router.transfer(job_id, to=to, by='ops', epoch=epoch).epoch}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
