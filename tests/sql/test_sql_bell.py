"""The bell: rung once a transaction by whatever makes a row due, and by nothing where it is off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from sqlclient import ACCOUNT, Outbox

ONE_SERVER_IS_ENOUGH = True


class Listener:
    """Another session that hears the channel."""

    def __init__(self, conn: asyncpg.Connection) -> None:
        self.conn = conn
        self.rings: list[str] = []
        self.fence = asyncio.Event()

    def heard(self, _conn: Any, _pid: int, _channel: str, payload: Any) -> None:
        """A notification came; one that we sent ourselves says that all before it have come."""
        if payload == "fence":
            self.fence.set()
        else:
            self.rings.append(payload)

    async def count(self) -> int:
        """How often it rang since the last count."""
        self.fence.clear()
        await self.conn.execute("select pg_notify('notifyq', 'fence')")
        await asyncio.wait_for(self.fence.wait(), 10)
        heard, self.rings = self.rings, []
        assert set(heard) <= {""}
        return len(heard)


@pytest.fixture
async def listener(notifyq_dsn: str) -> AsyncIterator[Listener]:
    """Listening, while somebody else rings."""
    conn = await asyncpg.connect(notifyq_dsn)
    listener = Listener(conn)
    await conn.add_listener("notifyq", listener.heard)
    yield listener
    await conn.remove_listener("notifyq", listener.heard)
    await conn.close()


@pytest.fixture
async def open_db(notifyq_dsn: str, listener: Listener) -> AsyncIterator[Outbox]:
    """A connection whose statements commit, and always ring."""
    conn = await asyncpg.connect(notifyq_dsn, server_settings={"notifyq.bell": "always"})
    yield Outbox(conn)
    await conn.close()


async def test_a_transaction_rings_once_however_much_it_enqueues(open_db: Outbox, listener: Listener) -> None:
    """One hint is enough, and only the commit gives it."""
    async with open_db.conn.transaction():
        for n in range(5):
            await open_db.put(f"k{n}")
        assert await listener.count() == 0

    assert await listener.count() == 1


async def test_a_rollback_does_not_ring(open_db: Outbox, listener: Listener) -> None:
    """There is nothing to come for."""
    transaction = open_db.conn.transaction()
    await transaction.start()
    await open_db.put()
    await transaction.rollback()

    assert await listener.count() == 0


async def test_plain_sql_and_copy_ring_too(open_db: Outbox, listener: Listener) -> None:
    """A program in any language may write rows without our functions."""
    message = '{"to": [{"email": "a@b.org"}], "subject": "s", "text": "t"}'
    await open_db.conn.execute(
        "insert into notifyq.emails (key, message) select n, $1::text::jsonb from generate_series(1, 3) n",
        message,
    )
    assert await listener.count() == 1
    await open_db.conn.copy_records_to_table(
        "emails", schema_name="notifyq", columns=["key", "message"], records=[("a", message), ("b", message)]
    )

    assert await listener.count() == 1


@pytest.mark.parametrize("setting", ["off", "asleep"])
async def test_nobody_is_rung_where_the_bell_is_off_or_nobody_sleeps(
    open_db: Outbox, listener: Listener, setting: str
) -> None:
    """A NOTIFY takes a lock of the whole cluster at commit, so it is not made for nothing."""
    await open_db.conn.execute("select set_config('notifyq.bell', $1, false)", setting)
    await open_db.put()

    assert await listener.count() == 0


async def held(db: Outbox) -> int:
    """A held row."""
    return await db.in_state("held")


async def ask_says_no(db: Outbox) -> None:
    """A doubt whose ask came back as a conclusive no."""
    row_id = await db.in_state("doubt")
    await db.claim()
    await db.pending(row_id, 2)


async def lease_ends(db: Outbox) -> None:
    """A lease that ran out."""
    await db.put()
    (claim,) = await db.claim()
    await db.lease_ended(claim)


async def gate_opens(db: Outbox) -> None:
    """A probe that succeeded."""
    await db.call("gate_failed", account=ACCOUNT, count=10, probe=False, reason="503")
    await db.call("gate_succeeded", account=ACCOUNT, probe=True)


async def retried(db: Outbox) -> None:
    """An operator's retry."""
    await db.call("retry_email", id=await held(db))


async def released(db: Outbox) -> None:
    """A lost claim given back."""
    await db.in_state("processing")
    await db.call("release_lost_emails", worker="w1", known=[])


async def mended(db: Outbox) -> None:
    """A blocked account that looks well again."""
    await db.call("gate_blocked", account=ACCOUNT, reason="401")
    await db.call("gate_mended", account=ACCOUNT)


@pytest.mark.parametrize("happens", [ask_says_no, lease_ends, gate_opens, retried, released, mended])
async def test_what_makes_a_row_due_earlier_rings(
    open_db: Outbox, listener: Listener, happens: Callable[[Outbox], Awaitable[None]]
) -> None:
    """A worker that sleeps until tomorrow must hear that there is work today."""
    async with open_db.conn.transaction():
        await open_db.conn.execute("select set_config('notifyq.bell', 'off', true)")
        row = await open_db.put("other")
        await open_db.conn.execute("update notifyq.emails set run_after = '9000-01-01' where id = $1", row)
    assert await listener.count() == 0
    await happens(open_db)

    assert await listener.count() >= 1
