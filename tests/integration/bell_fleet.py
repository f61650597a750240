"""`Night`: a fleet of workers that sleep, each with a pool of its own, and an ear that counts the rings."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
from outbox import Outbox, until

from notifyq import Worker

NO_POLLING = {"poll": 60.0, "quiet_poll": 60.0}
SOON = 15.0
"""Far below a minute; it takes milliseconds."""

BELL_LOCKS = """
select l.objid, l.granted, l.pid from pg_locks l join pg_database d on d.oid = l.database
where l.locktype = 'advisory' and l.classid = 1852798834 and d.datname = current_database()
"""


class Ear:
    """A session of the test's own that hears what the workers hear."""

    def __init__(self, conn: asyncpg.Connection) -> None:
        self.conn = conn
        self._heard: Counter[str] = Counter()
        self._fence = asyncio.Event()

    def hear(self, _conn: Any, _pid: int, channel: str, _payload: object) -> None:
        """A notification came."""
        self._heard[channel] += 1
        if channel == "fence":
            self._fence.set()

    async def rings(self) -> int:
        """How often the bell rang since the last count."""
        self._fence.clear()
        await self.conn.execute("select pg_notify('fence', '')")
        await asyncio.wait_for(self._fence.wait(), 10)
        return self._heard.pop("notifyq", 0)


class Night:
    """The workers of one test. *pools* closes what they were given."""

    def __init__(self, outbox: Outbox, dsn: str, ear: Ear, pools: AsyncExitStack) -> None:
        self.outbox = outbox
        self.ear = ear
        self.workers: list[Worker] = []
        self._dsn = dsn
        self._pools = pools

    async def pool(self, size: int = 5, **settings: str) -> asyncpg.Pool[asyncpg.Record]:
        """A pool whose sessions start with these settings."""
        made = asyncpg.create_pool(self._dsn, min_size=0, max_size=size, server_settings=settings)
        pool: asyncpg.Pool[asyncpg.Record] = await self._pools.enter_async_context(made)
        return pool

    async def start(self, **options: Any) -> Worker:
        """Start one more worker; its ear's session is named ``ear``."""
        pool = await self.pool(application_name="ear")
        worker = await self.outbox.start(pool=pool, **{**NO_POLLING, **options})
        self.workers.append(worker)
        return worker

    async def fleet(self, count: int, **options: Any) -> list[Worker]:
        """Start *count* workers; return when they sleep."""
        workers = [await self.start(**options) for _ in range(count)]
        await self.settled()
        return workers

    def sleeper(self) -> Worker | None:
        """The one that sleeps for all."""
        asleep = [worker for worker in self.workers if bell(worker)._asleep]
        assert len(asleep) <= 1
        return asleep[0] if asleep else None

    async def asleep(self) -> Worker:
        """Wait until one worker sleeps for all."""

        async def sleeps() -> bool:
            return self.sleeper() is not None

        await until(sleeps, what="a worker sleeps")
        sleeper = self.sleeper()
        assert sleeper is not None
        return sleeper

    async def settled(self) -> None:
        """Wait until one worker sleeps, and all have looked for the last time."""
        await self.asleep()

        async def nothing_owed() -> bool:
            return not any(bell(worker)._owes_call for worker in self.workers)

        await until(nothing_owed, what="all calls are made")
        before = {worker: turns(worker) for worker in self.workers}
        # Notifications keep their order: who has heard this one has heard all before it.
        await self.outbox.pool.execute("select pg_notify('notifyq_call', '')")

        async def looked() -> bool:
            return all(turns(worker) > count for worker, count in before.items()) and all(
                lane.resting for worker in self.workers for lane in worker._lanes
            )

        await until(looked, what="every worker has looked")

    def turns(self) -> int:
        """The claim statements of all workers so far."""
        return sum(map(turns, self.workers))

    def found_by_timer(self) -> int:
        """What no bell was rung for, or nobody heard."""
        return sum(lane.found_by_timer for worker in self.workers for lane in worker._lanes)

    async def end(self, sessions: str) -> int:
        """End the sessions whose names match; answers how many."""
        ended: int = await self.ear.conn.fetchval(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity "
            "where datname = current_database() and application_name ~ $1 "
            "and pid <> pg_backend_pid()",
            sessions,
        )
        return ended

    async def locks(self) -> list[tuple[int, bool]]:
        """The bell's locks: (1 SLEEP or 2 SEAT, granted)."""
        rows = await self.ear.conn.fetch(BELL_LOCKS)
        return sorted((row["objid"], row["granted"]) for row in rows)


def bell(worker: Worker) -> Any:
    """The worker's bell."""
    assert worker._bell is not None
    return worker._bell


def turns(worker: Worker) -> int:
    """How many claims the worker has made."""
    return sum(lane.turns + lane.first_looks for lane in worker._lanes)


@asynccontextmanager
async def night(outbox: Outbox, dsn: str) -> AsyncIterator[Night]:
    """A fleet that is not there yet; at the end its workers are drained and its pools closed."""
    conn = await asyncpg.connect(dsn, server_settings={"application_name": "test"})
    ear = Ear(conn)
    for channel in ("notifyq", "fence"):
        await conn.add_listener(channel, ear.hear)
    try:
        async with AsyncExitStack() as pools:
            try:
                yield Night(outbox, dsn, ear, pools)
            finally:
                outbox.fake.release()
                await outbox.stop()
    finally:
        await conn.close()
