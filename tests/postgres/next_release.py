"""
A release that does not exist yet: this one, copied, with one more migration and changed functions.

Its migration is compatible: it adds a column, which the functions of both releases live with.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import leasehold
from leasehold.stores.postgres.schema import latest

NEXT = latest() + 1

COLUMN = """
ALTER TABLE leasehold.jobs ADD COLUMN tag text;
-- At the end, everywhere: code that does not know a column does not look that far.
CREATE OR REPLACE VIEW leasehold.seen AS
SELECT j.id, j.payload, j.task, j.queue, j.priority, j.lock, j.unique_key, j.lease_us, j.stall_us,
       j.start_within_us, j.parent, j.max_errors, j.max_reclaims, j.options, j.meta,
       CASE WHEN j.status <> 'unfinished' THEN j.status WHEN l.seq IS NULL THEN 'pending' ELSE 'running' END AS status,
       coalesce(l.epoch, j.epoch) AS epoch, l.owner, coalesce(l.reason, j.reason) AS reason,
       j.attempt, j.errors, j.reclaims, j.run_at, l.granted_at, l.expires_at,
       coalesce(l.progress, j.progress) AS progress, coalesce(l.note, j.note) AS note, c.checkpoint,
       j.result, j.last_error, j.created_at, coalesce(l.updated_at, j.updated_at) AS updated_at, j.finished_at, j.seq,
       NULL::text AS parked, coalesce(l.renewed_at, l.granted_at) AS renewed_at, j.cause, j.tag
FROM leasehold.jobs AS j
LEFT JOIN leasehold.leases AS l ON l.seq = j.seq AND l.epoch > j.epoch
LEFT JOIN leasehold.checkpoints AS c ON c.seq = j.seq;
CREATE TABLE leasehold.tags (tag text PRIMARY KEY);
"""
DROP = "DROP FUNCTION leasehold.check_holders(json, bigint);"
TAG = """
-- Who tags a job is an operator.
CREATE OR REPLACE FUNCTION leasehold.tag(p_id text, p_tag text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $lh$
BEGIN
    UPDATE leasehold.jobs SET tag = p_tag WHERE id = p_id;
END
$lh$;
"""


_RUNS = """
import contextlib, io, json, sys
from leasehold.cli.app import run
said = []
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        said.append((run(command), out, err))
print(json.dumps([(code, out.getvalue(), err.getvalue()) for code, out, err in said]))
"""


class Said(NamedTuple):
    """The exit code of a command, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def found(self) -> Any:
        """What it printed for programs; it must have gone well."""
        assert (self.code, self.err) == (0, "")
        return json.loads(self.out)


@dataclass
class Release:
    """Source code of leasehold, somewhere else than here."""

    source: Path

    def runs(self, *commands: Sequence[str]) -> list[Said]:
        """Run commands of this release one after the other, in one process, since to start one takes longer."""
        done = subprocess.run(
            [sys.executable, "-c", _RUNS, json.dumps(commands)],
            capture_output=True,
            text=True,
            env=self._env(),
            check=True,
        )
        return [Said(*each) for each in json.loads(done.stdout)]

    def run(self, *arguments: str) -> Said:
        """Run one command."""
        return self.runs(arguments)[0]

    def start(self, script: Path, *arguments: str) -> subprocess.Popen[str]:
        """Start a process that runs *script* with this release."""
        return subprocess.Popen(
            [sys.executable, str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._env(),
        )

    def command(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the command `leasehold` of this release."""
        return subprocess.Popen(
            [sys.executable, "-m", "leasehold", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._env(),
        )

    def _env(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.source)}


def this_release() -> Release:
    """The code under test, as processes of its own have it."""
    return Release(Path(leasehold.__file__).parents[1])


def next_release(folder: Path, *, oldest: int | None = None, drops: bool = False) -> Release:
    """
    Make the next release in *folder*.

    *oldest* is the version of the code that goes on working, as its migration says. *drops*: it takes `check` away.
    """
    package = folder / "leasehold"
    shutil.copytree(Path(leasehold.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    postgres = package / "stores" / "postgres"
    declared = f"-- oldest code: {oldest}\n" if oldest is not None else ""
    (postgres / "migrations" / f"{NEXT:04}_tag_jobs.sql").write_text(
        f"-- Jobs have tags.\n{declared}{COLUMN}{DROP if drops else ''}"
    )
    (postgres / "functions" / "10_tags.sql").write_text(TAG)
    shared = postgres / "functions" / "01_shared.sql"
    was = "jsonb_strip_nulls(p_facts)::text"
    assert was in shared.read_text()
    shared.write_text(shared.read_text().replace(was, f"jsonb_strip_nulls(p_facts || '{{\"release\": {NEXT}}}')::text"))
    rights = postgres / "rights.py"
    assert '"advance",' in rights.read_text()
    rights.write_text(rights.read_text().replace('"advance",', '"advance", "tag",'))
    if drops:
        owning = postgres / "functions" / "05_owning.sql"
        owning.write_text(owning.read_text().replace("leasehold.check_holders", "leasehold.check_all"))
        rights.write_text(rights.read_text().replace("check_holders", "check_all"))
    return Release(folder)
