"""`leasehold store index-meta`: the index is there when it is asked for, and queries use it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from leasehold.cli.app import run
from leasehold.core.job import new_job
from leasehold.stores.postgres import PostgresStore

from .fixtures import Place


@pytest.fixture
def store(place: Place) -> Iterator[PostgresStore]:
    """A store; the index is gone after the test, since the next one may have the same schema."""
    store = place.store()
    yield store
    with psycopg.connect(store.database.url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("drop index if exists {}").format(sql.Identifier(store.database.schema, "jobs_meta"))
        )


def plan(store: PostgresStore) -> str:
    """How a query by meta finds its rows."""
    with psycopg.connect(store.database.url) as connection:
        connection.execute("set enable_seqscan = off")
        query = sql.SQL("explain select id from {} where meta::jsonb @> {}").format(
            sql.Identifier(store.database.schema, "jobs"), sql.Literal('{"tenant": "t7"}')
        )
        return "\n".join(line for (line,) in connection.execute(query))


def test_the_index_is_made_once_and_used(store: PostgresStore, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run makes nothing; a second run has nothing to do; jobs are added and settled as before."""
    store.add([new_job(f"a{n}", meta={"tenant": f"t{n}"} if n % 2 else {}) for n in range(20)])
    command = ["store", "index-meta", store.database.url, "--schema", store.database.schema]

    assert run([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("CREATE INDEX CONCURRENTLY jobs_meta ON ")
    assert "jobs_meta" not in plan(store)

    assert run(command) == 0
    assert capsys.readouterr().out == "The meta of jobs is indexed.\n"
    assert "jobs_meta" in plan(store)

    assert run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["statements"] == []
    store.add([new_job("later", meta={"tenant": "t7"})])
    with psycopg.connect(store.database.url) as connection:
        connection.execute("set enable_seqscan = off")
        query = sql.SQL("select id from {} where meta::jsonb @> {} order by id").format(
            sql.Identifier(store.database.schema, "jobs"), sql.Literal('{"tenant": "t7"}')
        )
        assert connection.execute(query).fetchall() == [("a7",), ("later",)]
    assert store.verify() == []


def test_an_index_that_was_begun_and_not_finished_is_made_anew(store: PostgresStore) -> None:
    """CREATE INDEX CONCURRENTLY leaves an invalid one behind if it is interrupted."""
    store.add([new_job("a", meta={"tenant": "t7"})])
    schema = sql.Identifier(store.database.schema)
    with psycopg.connect(store.database.url, autocommit=True) as connection:
        # The only way to an invalid index without a race: what is unique twice cannot be indexed.
        connection.execute(
            sql.SQL("insert into {}.finished values (1, 'done', '{{}}'), (1, 'done', '{{}}')").format(schema)
        )
        statement = sql.SQL("create unique index concurrently jobs_meta on {}.finished (finished_at)").format(schema)
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute(statement)
        connection.execute(sql.SQL("delete from {}.finished").format(schema))

    made = store.index_meta()

    assert [statement.split(" CONCURRENTLY")[0] for statement in made] == ["DROP INDEX", "CREATE INDEX"]
    assert "jobs_meta" in plan(store)
