"""Migrations: twice, at once, beside running workers, and who is refused by which schema."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest
from outbox import Outbox

from notifyq import Postmark, SchemaMismatch, Worker, migrate, sqlfiles
from notifyq.migrate import WORKER_AGE
from notifyq.testing.database import Databases


@pytest.fixture
def empty_dsn(notifyq_server: Databases) -> Iterator[str]:
    """A database without our schema."""
    with notifyq_server.fresh(migrated=False) as dsn:
        yield dsn


@pytest.fixture
async def conn(empty_dsn: str) -> AsyncIterator[Any]:
    """A connection to it."""
    conn = await asyncpg.connect(empty_dsn)
    yield conn
    await conn.close()


SHAPE = """
select format('%s.%s %s', c.relname, a.attname, a.atttypid::regtype) as part
from pg_attribute a join pg_class c on c.oid = a.attrelid
where c.relnamespace = 'notifyq'::regnamespace and a.attnum > 0
union all
select pg_get_functiondef(p.oid) from pg_proc p where p.pronamespace = 'notifyq'::regnamespace
order by part
"""


async def shape(conn: Any) -> list[str]:
    """Every column and function of the schema."""
    return [row["part"] for row in await conn.fetch(SHAPE)]


async def test_the_second_run_finds_nothing_to_do(conn: Any) -> None:
    """A deploy script runs it each time."""
    first, second = await migrate(conn), await migrate(conn)

    assert first[0].startswith("001_")
    assert (first[-1], second) == ("functions", [])


async def test_runs_at_once_take_turns(empty_dsn: str) -> None:
    """Several processes of one deploy start at the same moment."""

    async def one() -> list[str]:
        conn = await asyncpg.connect(empty_dsn)
        try:
            return await migrate(conn)
        finally:
            await conn.close()

    results = await asyncio.gather(*(one() for _ in range(4)))

    assert sorted(map(bool, results)) == [False, False, False, True]


async def test_a_failing_migration_leaves_nothing(conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a schema could be neither used nor repaired by running it again."""
    monkeypatch.setattr(sqlfiles, "functions", lambda: ("select 1/0",))

    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(conn)

    assert await conn.fetchval("select to_regnamespace('notifyq') is null")


async def test_the_printed_sql_makes_the_same_schema(conn: Any, notifyq_server: Databases) -> None:
    """`notifyq sql` is for people with a migration tool of their own; migrate then finds nothing to do."""
    await migrate(conn)
    with notifyq_server.fresh(migrated=False) as dsn:
        by_hand = await asyncpg.connect(dsn)
        await by_hand.execute(sqlfiles.everything())
        made, again = await shape(by_hand), await migrate(by_hand)
        await by_hand.close()

    assert (made, again) == (await shape(conn), [])


async def test_mail_goes_on_while_a_migration_runs(outbox: Outbox) -> None:
    """Migrate first, restart later: the functions are replaced under a running worker."""
    await outbox.start()
    await outbox.pool.execute("update notifyq.chores set detail = 'old' where name = 'functions'")
    await outbox.put("before")

    async with outbox.pool.acquire() as conn:
        assert await migrate(conn) == ["functions"]

    await outbox.put("after")
    await outbox.until("sent", "before")
    await outbox.until("sent", "after")
    assert len(outbox.fake.accepted) == 2


async def test_a_worker_without_a_schema_is_told_what_to_run(empty_dsn: str, fake_postmark: Any) -> None:
    """The first thing a newcomer forgets."""
    async with asyncpg.create_pool(empty_dsn, min_size=0, max_size=5) as pool:
        with pytest.raises(SchemaMismatch, match="notifyq migrate"):
            await Worker(pool, provider=Postmark(env=fake_postmark.env())).run()


@pytest.mark.parametrize("oldest", [0, 1])
async def test_a_newer_schema_runs_with_the_workers_that_it_allows(outbox: Outbox, oldest: int) -> None:
    """A deploy never stops the mail: only a worker that is too old is refused."""
    await add_version(outbox.pool, WORKER_AGE + 1, WORKER_AGE + oldest)
    if oldest:
        with pytest.raises(ExceptionGroup) as refused:
            await outbox.start()
        assert refused.group_contains(SchemaMismatch, match="upgrade the package")
        return

    await outbox.start()

    await outbox.put()
    await outbox.until("sent")


async def test_an_older_schema_is_refused_with_what_to_run(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker newer than the schema would call what is not there yet."""
    monkeypatch.setattr(sys.modules["notifyq.migrate"], "WORKER_AGE", WORKER_AGE + 1)

    with pytest.raises(ExceptionGroup) as refused:
        await outbox.start()

    assert refused.group_contains(SchemaMismatch, match="run `notifyq migrate`")


async def test_a_newer_schema_is_left_alone(conn: Any) -> None:
    """An old command must not put old functions into a newer database."""
    await migrate(conn)
    await add_version(conn, WORKER_AGE + 1, 1)
    await conn.execute("update notifyq.chores set detail = 'newer' where name = 'functions'")

    assert await migrate(conn) == []
    assert await conn.fetchval("select detail from notifyq.chores where name = 'functions'") == "newer"


async def add_version(conn: Any, version: int, oldest_worker: int) -> None:
    """Pretend that a later package has migrated the database."""
    await conn.execute(
        "insert into notifyq.migrations (version, name, oldest_worker) values ($1, 'later', $2)",
        version,
        oldest_worker,
    )
