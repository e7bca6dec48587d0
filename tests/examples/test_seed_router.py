"""The examples run, and show what they say."""

from __future__ import annotations

import sys

from tests.cli.command import TOP, run


def test_the_seed_router_ends_every_job_and_refuses_the_late_worker() -> None:
    shown = run([sys.executable, str(TOP / "examples" / "seed_router.py")])

    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert [line.partition(":")[2].split(",")[:2] for line in lines[-3:]] == [
        [" done", " attempt 0"],
        [" done", " attempt 1"],
        [" done", " attempt 1"],
    ]
    assert "was late: job 'job-B': complete with epoch" in lines[0]
    assert [line.split()[1:3] for line in lines if " reclaimed " in line] == [
        ["reclaimed", "job-B"],
        ["reclaimed", "job-C"],
    ]
    assert [line.split()[1:3] for line in lines if " refused " in line] == [["refused", "job-B"]]
