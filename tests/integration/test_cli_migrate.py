"""Migrations under a role's own limits, and what becomes of the functions of an older package."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
from command import MESSAGE, notifyq, until

from notifyq import migrate, sqlfiles
from notifyq.migrate import WORKER_AGE
from notifyq.sqlfiles import query
from notifyq.testing.database import Databases

ONE_SERVER_IS_ENOUGH = True

OLDER = "create function notifyq.ring(p_older text) returns text language sql as 'select p_older'"
NAMES = "select p.oid::regprocedure::text as f from pg_proc p where p.pronamespace = 'notifyq'::regnamespace"
IS_THERE = "select to_regprocedure('notifyq.ring(text)') is not null"
WAITS = """
select count(*) from pg_stat_activity
where pid = $1 and wait_event_type = 'Lock' and clock_timestamp() - query_start > interval '150 milliseconds'
"""


@pytest.fixture
async def two(notifyq_server: Databases) -> AsyncIterator[tuple[Any, Any]]:
    """Two connections to a database without our schema."""
    with notifyq_server.fresh(migrated=False) as dsn:
        first, second = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
        try:
            yield first, second
        finally:
            await first.close()
            await second.close()


async def waits(first: Any, second: Any) -> None:
    """Return once *second* has waited for a lock, longer than any limit of these tests."""
    pid = second.get_server_pid()

    async def now() -> bool:
        return bool(await first.fetchval(WAITS, pid))

    await until(now)


async def test_a_role_s_statement_timeout_does_not_end_a_migration(two: tuple[Any, Any]) -> None:
    """It is meant for an app's statements; what waits for a lock or builds an index takes longer."""
    first, second = two
    await second.execute("set statement_timeout = '100ms'")
    async with first.transaction():
        await first.execute(query("lock_migrations"))
        other = asyncio.create_task(migrate(second))
        await waits(first, second)

    assert (await other)[-1] == "functions"
    assert await second.fetchval("show statement_timeout") == "100ms"


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_whoever_waited_for_another_migration_sees_what_it_applied(
    two: tuple[Any, Any], level: str
) -> None:
    """At the role's own isolation the snapshot would be older than the lock, and all be applied twice."""
    first, second = two
    await second.execute(f"set default_transaction_isolation = '{level}'")
    async with first.transaction():
        await first.execute(query("lock_migrations"))
        other = asyncio.create_task(migrate(second))
        await waits(first, second)
        assert (await migrate(first))[-1] == "functions"

    assert await other == []


def test_a_database_that_is_read_only_is_told_apart_from_one_that_refuses(
    notifyq_server: Databases,
) -> None:
    """A standby in DATABASE_URL: the person needs the word, not a SQLSTATE."""
    with notifyq_server.fresh(migrated=False) as dsn:
        read_only = f"{dsn}{'&' if '?' in dsn else '?'}default_transaction_read_only=on"
        result = notifyq(read_only, "migrate")

    assert (result.returncode, result.stdout) == (1, "")
    assert "read-only" in result.stderr and "primary" in result.stderr
    assert result.stderr.count("\n") == 1


# The functions of an older package


def as_if_new(monkeypatch: pytest.MonkeyPatch, oldest_worker: int) -> None:
    """Let the functions count as changed, and the newest migration ask for workers of that age."""
    *before, last = sqlfiles.migrations()
    monkeypatch.setattr(sqlfiles, "migrations", lambda: (*before, replace(last, oldest_worker=oldest_worker)))


async def test_an_older_signature_stays_while_a_worker_that_calls_it_may_run(
    two: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deploy migrates first and restarts later: in between the old workers go on sending."""
    conn = two[0]
    as_if_new(monkeypatch, WORKER_AGE - 1)
    await conn.execute(f"create schema notifyq; {OLDER}")
    await migrate(conn)

    assert await conn.fetchval(IS_THERE)
    await conn.execute("select notifyq.ring()")  # and is in nobody's way


async def test_an_older_signature_that_makes_calls_ambiguous_goes_at_once(
    two: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parameter was added at the end: left beside the new one, the old one would stop every enqueue."""
    conn = two[0]
    as_if_new(monkeypatch, WORKER_AGE - 1)
    await conn.execute(f"create schema notifyq; {OLDER_ENQUEUE}")
    await migrate(conn)
    made = await conn.fetchrow("select * from notifyq.enqueue_email('k', $1::text::jsonb)", MESSAGE)

    assert made["created"]


OLDER_ENQUEUE = """
create function notifyq.enqueue_email(
    p_key text, p_message jsonb, p_run_after timestamptz default null, p_now timestamptz default null
) returns int language sql as 'select 1'
"""


async def test_an_older_signature_goes_with_the_last_worker_that_calls_it(
    two: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left for ever, it would be found by a later call that happens to fit it; what is not ours stays."""
    conn = two[0]
    as_if_new(monkeypatch, WORKER_AGE)
    mine = "create function notifyq.of_my_own() returns text language sql as 'select 1::text'"
    used = "create function notifyq.ring(p_used int) returns int language sql as 'select p_used'"
    await conn.execute(f"create schema notifyq; {OLDER}; {mine}; {used}")
    await conn.execute("create view public.user_of_it as select notifyq.ring(1)")
    await migrate(conn)
    left = {row["f"] for row in await conn.fetch(NAMES)}

    assert not await conn.fetchval(IS_THERE)
    assert {"notifyq.ring()", "notifyq.of_my_own()", "notifyq.ring(integer)"} <= left


async def test_ending_the_older_signatures_ends_none_of_ours(
    two: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the files make is there afterwards, each name once: no call can be ambiguous."""
    conn = two[0]
    await conn.execute("".join(m.sql for m in sqlfiles.migrations()) + "\n".join(sqlfiles.functions()))
    wanted = [row["f"] for row in await conn.fetch(f"{NAMES} order by 1")]
    await conn.execute("drop schema notifyq cascade")
    as_if_new(monkeypatch, WORKER_AGE)
    await migrate(conn)

    assert [row["f"] for row in await conn.fetch(f"{NAMES} order by 1")] == wanted
    names = [name.partition("(")[0] for name in wanted]
    assert sorted(set(names)) == sorted(names)
