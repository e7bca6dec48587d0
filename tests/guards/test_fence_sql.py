"""The fence of SqlGuard and the fence of the store are two texts of one idea: where they must agree, they do."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

GUARD = (files("leasehold.guards.sql") / "postgres.sql").read_text()
STORE = (files("leasehold.stores.postgres") / "functions" / "08_fences.sql").read_text()

# From where to where, and why a difference would be a hole.
PARTS = {
    "a row of a savepoint is known by its transaction id": (r"RETURNING f\.ctid, f\.xmin", r"::xid"),
    "what is a COMMIT, and what prepares a transaction": (r"IF current_query\(\) NOT IN", r"THEN\n\s+RAISE"),
    "what is put off to the COMMIT": (r"IF NEW\.put_off_at", r"DEFERRED;"),
    "a fence that is put off leaves no row": (r"RETURNING f\.ctid INTO v_place;", r"RETURN NULL;"),
    "the trigger is deferred and fires in each session": (
        r"CREATE CONSTRAINT TRIGGER at_commit",
        r"TRIGGER at_commit;",
    ),
}


def part(text: str, first: str, last: str) -> str:
    """Return a part of *text* without comments, names of schemas, and blanks."""
    found = re.search(f"{first}.*?{last}", text, re.DOTALL)
    assert found is not None, f"{first} … {last} is not there any more"
    code = "\n".join(line.partition("-- ")[0] for line in found[0].splitlines())
    return " ".join(code.replace("leasehold_guard.", "leasehold.").split())


@pytest.mark.parametrize("why", PARTS)
def test_both_fences_agree(why: str) -> None:
    """A repair of one of them is needed in the other too."""
    assert part(GUARD, *PARTS[why]) == part(STORE, *PARTS[why])


@pytest.mark.parametrize("text", [GUARD, STORE], ids=["guard", "store"])
def test_the_trigger_runs_with_the_rights_of_the_schemas_owner(text: str) -> None:
    """A caller's role has none on what it compares."""
    found = re.search(r"FUNCTION leasehold(?:_guard)?\.at_commit\(\) RETURNS trigger\n(.*?)\$lh\$", text)
    assert found is not None
    assert "SECURITY DEFINER" in found[1]
