"""The claim stays an index range however much lies beside what is due."""

from __future__ import annotations

import re
from pathlib import Path

import asyncpg
import pytest

from notifyq.sqlfiles import query

ONE_SERVER_IS_ENOUGH = False

FUNCTIONS = Path(__file__).parents[2] / "sql" / "functions" / "emails.sql"
FIRST_LOOKS = {"first_look": "''", "first_look_of_several": "array['', 'reset']"}
FINISHED = 1_000_000
FUTURE = 100_000
SETTINGS: dict[str, list[str]] = {
    "defaults": [],
    "random pages are dear": ["random_page_cost = 10"],
    "sequential pages are free": ["seq_page_cost = 0"],
    "no bitmaps": ["enable_bitmapscan = off"],
    "no index-only scans": ["enable_indexonlyscan = off"],
    "no sorting": ["enable_sort = off", "enable_incremental_sort = off"],
}
FILL = """
insert into notifyq.emails
    (key, message, status, run_after, attempts, provider_message_id, sent_at, finished_at, created_at)
select 'done ' || n, null, 'sent', now(), 1, 'm', now(), now(), now() from generate_series(1, $1::int) n
"""
AHEAD = """
insert into notifyq.emails (key, message, run_after)
select 'ahead ' || n, '{}', now() + interval '1 day' from generate_series(1, $1::int) n
"""


def queries() -> dict[str, tuple[str, str]]:
    """The queries for due emails, made statements, with arguments. The claim's own stands in its function."""
    text = FUNCTIONS.read_text()
    start = text.index("select b.id\n            from unnest")
    body = text[start : text.index(") due;", start)]
    body = body.replace("limit v_room", "limit $4").replace("v_since", "'-infinity'::timestamptz")
    for n, variable in enumerate(("p_builders", "v_priority", "v_now"), 1):
        body = body.replace(variable, f"${n}")
    whole = f"prepare due (text[], int, timestamptz, int) as {body}"
    found = {"whole": (whole, "array[''], 0, now(), 20")}
    for name, served in FIRST_LOOKS.items():
        found[name] = (f"prepare due as {query(name)}", f"'w', 'a', 20, {served}, '20 s', null")
    return found


async def explained(conn: asyncpg.Connection, prepare: str, arguments: str) -> str:
    """Its generic plan and what it cost, as PL/pgSQL comes to run it."""
    await conn.execute("set local plan_cache_mode = force_generic_plan")
    await conn.execute(prepare)
    rows = await conn.fetch(f"explain (analyze, buffers) execute due ({arguments})")
    await conn.execute("deallocate due")
    return "\n".join(row[0] for row in rows)


async def pages_of_claims(conn: asyncpg.Connection) -> dict[str, int]:
    """How many pages each way to claim reads in all, as a worker's session runs it."""
    await conn.execute("set local plan_cache_mode = force_generic_plan")
    pages = {}
    call = "claim_emails('w', 'a', 20, 5, array[''], '20 s', 20)"
    await conn.fetch(f"select * from notifyq.{call.replace('20', '1')}")  # what is read once a session
    for name in ("whole", "whole, nothing is left"):
        rows = await conn.fetch(f"explain (analyze, buffers) select * from notifyq.{call}")
        top = "\n".join(row[0] for row in rows).split("Planning")[0]
        pages[name] = sum(int(n) for n in re.findall(r"(?:hit|read)=(\d+)", top))
    return pages


@pytest.mark.timeout(240)
async def test_the_claim_reads_only_what_is_due(notifyq_dsn: str) -> None:
    """A million finished rows, a hundred thousand for tomorrow, stale statistics, hostile settings."""
    conn = await asyncpg.connect(notifyq_dsn)
    try:
        async with conn.transaction():
            await check_plans(conn)
    finally:
        await conn.close()


async def check_plans(conn: asyncpg.Connection) -> None:
    """Fill the table and look at the plan under each of `SETTINGS`."""
    await conn.execute("select set_config('notifyq.bell', 'off', true)")
    await conn.execute("analyze notifyq.emails")  # of an empty table: they will be as stale as can be
    await conn.execute(FILL, FINISHED, timeout=200)
    await conn.execute(AHEAD, FUTURE, timeout=100)
    await conn.execute(
        "insert into notifyq.emails (key, message) select 'due ' || n, '{}' from generate_series(1, 5) n"
    )
    bad: list[str] = []
    for statistics in ("stale", "fresh"):
        for name, settings in SETTINGS.items():
            savepoint = conn.transaction()
            await savepoint.start()
            for setting in settings:
                await conn.execute(f"set local {setting}")
            plans = {}
            for which, (prepare, arguments) in queries().items():
                tried = conn.transaction()
                await tried.start()
                plans[which] = await explained(conn, prepare, arguments)
                await tried.rollback()
            pages = await pages_of_claims(conn)
            await savepoint.rollback()
            bad += [f"{n} pages: {which}, {statistics}, {name}" for which, n in pages.items() if n > 500]
            for which, plan in plans.items():
                touched = sum(int(n) for n in re.findall(r"shared hit=(\d+)", plan.split("Planning")[0])[:1])
                if "emails_pending" not in plan or "Seq Scan on emails" in plan or touched >= 200:
                    bad.append(f"{which}, {statistics}, {name}:\n{plan}")
        await conn.execute("analyze notifyq.emails", timeout=100)
    assert bad == [], "\n".join(bad)


CLAIMS = {
    "emails": "select * from notifyq.claim_emails('w', 'a', 20, 5, array[''], '20 s', 20)",
    "tasks": "select * from notifyq.claim_tasks('w', 20, array['resize'], array[1000], '20 s')",
    **{
        name: f"execute {name} ('w', 'a', 20, {served}, '20 s', clock_timestamp())"
        for name, served in FIRST_LOOKS.items()
    },
}

FETCHED = (
    "select sum(idx_tup_fetch + seq_tup_read)::int from pg_stat_xact_user_tables where schemaname = 'notifyq'"
)
"""How many rows this transaction has looked at."""


@pytest.mark.parametrize("young", [True, False])
@pytest.mark.parametrize("claim", CLAIMS)
async def test_a_plan_made_while_nothing_was_due_serves_a_backlog(
    notifyq_dsn: str, claim: str, young: bool
) -> None:
    """A worker plans once, on a young database or in a quiet night; then ten thousand rows come at once."""
    conn = await asyncpg.connect(notifyq_dsn)
    try:
        await conn.fetch(query("prepare_session"), "test", "20s")
        await conn.execute("select set_config('notifyq.bell', 'off', false)")
        if not young:
            await conn.execute(FILL, 10_000)
            await conn.execute("vacuum analyze notifyq.emails")
        if claim in FIRST_LOOKS:
            await conn.execute(f"prepare {claim} as {query(claim)}")
        await conn.fetch(CLAIMS[claim])
        await conn.execute("begin")  # and so no analyze of autovacuum's comes between
        await conn.execute(
            "insert into notifyq.emails (key, message) select 'k' || n, '{}' from generate_series(1, 10000) n"
        )
        await conn.execute("insert into notifyq.tasks (name) select 'resize' from generate_series(1, 10000)")
        before = await conn.fetchval(FETCHED)
        claimed = await conn.fetch(CLAIMS[claim])
        fetched = await conn.fetchval(FETCHED) - before
    finally:
        await conn.close()

    assert len(claimed) == 20
    assert fetched < 400
