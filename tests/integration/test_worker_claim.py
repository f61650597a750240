"""The claim: never more rows than free slots under any plan, and durable whatever the role says."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from outbox import Outbox, Pool, emails, keys

from notifyq import (
    Postmark,
    UnsafeDatabase,
    Worker,
    WorkerSettings,
    embedded,
    enqueue_many,
    low_water,
    migrate,
)
from notifyq.db import Link
from notifyq.email_work import FIRST_LOOKS
from notifyq.sqlfiles import query
from notifyq.testing import FakePostmark, faults

WHOLE = """
select id from notifyq.claim_emails(
    p_worker => $1, p_account => $2, p_slots => $3, p_ask_slots => 1, p_builders => $4, p_lease => $5)
where id is not null and $6::timestamptz is null
"""
CLAIMS: dict[str, tuple[str, Any]] = {
    "whole": (WHOLE, [""]),
    "first": (query("first_look"), ""),
    "first of several": (query("first_look_of_several"), ["", "reset"]),
}
SWITCHES = (
    "hashjoin",
    "mergejoin",
    "nestloop",
    "sort",
    "hashagg",
    "material",
    "seqscan",
    "indexscan",
    "bitmapscan",
)


async def claim(conn: Any, slots: int, worker: str = "w", how: str = "whole") -> list[int]:
    """Claim as a worker does."""
    text, served = CLAIMS[how]
    rows = await conn.fetch(text, worker, "test", slots, served, timedelta(seconds=20), None)
    return [row["id"] for row in rows]


@pytest.mark.parametrize("how", CLAIMS)
@pytest.mark.parametrize("switch", ["none", *SWITCHES, "all"])
async def test_a_claim_takes_no_more_than_its_slots_under_any_plan(
    notifyq_pool: Pool, switch: str, how: str
) -> None:
    """The plan of `in (select … limit n for update)` may run the inner query again: not here."""
    await enqueue_many(notifyq_pool, emails(keys(200)))
    off = {"none": (), "all": SWITCHES}.get(switch, (switch,))
    async with notifyq_pool.acquire() as conn:
        await conn.execute("analyze notifyq.emails")
        for name in off:
            await conn.execute(f"set enable_{name} = off")

        taken = [await claim(conn, slots, how=how) for slots in (1, 3, 20)]

    assert [len(ids) for ids in taken] == [1, 3, 20]
    assert len({id for ids in taken for id in ids}) == 24


@pytest.mark.parametrize("how", CLAIMS)
async def test_claims_at_once_never_share_a_row(notifyq_pool: Pool, how: str) -> None:
    """Eight claimers, one table: each row has one of them, and none got more than it asked for."""
    await enqueue_many(notifyq_pool, emails(keys(100)))

    async def one(worker: str) -> list[list[int]]:
        async with notifyq_pool.acquire() as conn:
            return [await claim(conn, 5, worker, how) for _ in range(4)]

    batches = [ids for mine in await asyncio.gather(*map(one, keys(8, "w"))) for ids in mine]

    taken = [id for ids in batches for id in ids]
    assert max(map(len, batches)) == 5
    assert len(taken) == len(set(taken)) == 100


async def test_a_worker_has_no_more_under_way_than_its_slots(outbox: Outbox) -> None:
    """The provider sees as many requests at once as were allowed, however long the backlog is."""
    outbox.fake.fault(faults.Hang(record=True), times=None)
    await outbox.start(slots=3, post_budget=8, lease=16)
    await enqueue_many(outbox.pool, emails(keys(50)))
    await outbox.fake.wait_posts(3)

    for _ in range(5):  # five more chances to claim too much
        await outbox.pool.execute("select notifyq.ring()")
        assert (await outbox.statuses())["processing"] <= 3
    assert outbox.fake.requests_in_flight == 3

    outbox.fake.clear_faults()
    outbox.fake.release()
    await outbox.until_statuses({"sent": 50})
    assert set(outbox.fake.posts_by_uid().values()) == {1}


@pytest.mark.parametrize("how", CLAIMS)
@pytest.mark.parametrize(
    ("given", "wanted"), [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")]
)
async def test_a_claim_is_durable_whatever_the_role_says(
    notifyq_pool: Pool, given: str, wanted: str, how: str
) -> None:
    """A claim that a crash forgets would be sent again; what is stricter already stays as it is."""
    await enqueue_many(notifyq_pool, emails(keys(2)))
    async with notifyq_pool.acquire() as conn:
        await conn.execute(f"set synchronous_commit = {given}")
        transaction = conn.transaction()
        await transaction.start()
        await claim(conn, 1, how=how)
        at_commit = await conn.fetchval("show synchronous_commit")
        await transaction.rollback()

    assert at_commit == wanted


async def test_a_claim_survives_the_crash_of_a_server_that_need_not_keep_it(
    fake_postmark: FakePostmark,
) -> None:
    """The proof of the setting: kill -9 of Postgres right after the claim, and the row is still claimed."""
    settings = {"synchronous_commit": "off", "wal_writer_delay": "10s"}
    with embedded.running(throwaway=True, settings=settings) as server:
        conn = await asyncpg.connect(server.dsn)
        await migrate(conn)
        await conn.execute("set synchronous_commit = on")
        await enqueue_many(conn, emails(keys(1)))
        await conn.execute("reset synchronous_commit")

        ids = await claim(conn, 1)
        await asyncio.to_thread(server.kill)
        conn.terminate()
        await asyncio.to_thread(server.restart)

        conn = await asyncpg.connect(server.dsn)
        status = await conn.fetchval("select status from notifyq.emails where id = $1", ids[0])
        await conn.close()

    assert status == "processing"


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
async def test_a_server_that_may_forget_commits_is_refused(fake_postmark: FakePostmark, setting: str) -> None:
    """The promise cannot be kept on it; who says so all the same may run."""
    with embedded.running(throwaway=True, settings={setting: "off"}) as server:
        async with asyncpg.create_pool(server.dsn, min_size=0, max_size=10) as pool:
            async with pool.acquire() as conn:
                await migrate(conn)
            provider = Postmark(env=fake_postmark.env())
            with pytest.raises(UnsafeDatabase, match="unsafe-durability"):
                await Worker(pool, provider=provider).run()

            unsafe = Worker(pool, provider=provider, settings=WorkerSettings(unsafe_durability=True))
            unsafe.drain()
            await unsafe.run()


async def test_a_backlog_is_drained_by_first_looks_and_whole_claims_in_between(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are cheaper; but doubts, gates and what expires are looked at all the time."""
    queries: list[str] = []
    fetch = Link.fetch

    async def noted(link: Link, query: str, *args: Any) -> list[Any]:
        if query in ("first_look", "claim_emails"):
            queries.append(query)
        return await fetch(link, query, *args)

    monkeypatch.setattr(Link, "fetch", noted)
    monkeypatch.setattr(low_water, "SLOW", 60.0)  # a slow machine is not a held snapshot
    await enqueue_many(outbox.pool, emails(keys(200)))
    await outbox.start(slots=5)
    await outbox.until_statuses({"sent": 200})

    runs = [len(run.split()) for run in " ".join(queries).split("claim_emails")]
    assert 0 < max(runs) <= FIRST_LOOKS


async def test_a_doubt_is_asked_about_while_a_backlog_is_drained(outbox: Outbox) -> None:
    """Its answer is overdue, and the backlog may last for an hour."""
    account = Postmark(env=outbox.fake.env()).account
    await outbox.put("doubt")
    await outbox.pool.execute(
        "update notifyq.emails set status = 'doubt', doubt_since = now() - interval '1 hour', account = $1",
        account,
    )
    await enqueue_many(outbox.pool, emails(keys(300)))

    await outbox.start(slots=2)
    await outbox.until_event("not found", "doubt")

    assert (await outbox.statuses())["pending"] > 100
