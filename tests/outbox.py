"""`Outbox`: what integration tests do again and again: enqueue, run workers, wait for a row to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import anyio
import asyncpg

from notifyq import Email, Enqueued, Postmark, Worker, WorkerSettings, enqueue
from notifyq.testing import FakePostmark

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

PATIENCE = 20.0
"""How long to wait for what must come; far above what it takes, so that a busy machine changes nothing."""

QUICK: dict[str, Any] = {"post_budget": 1.0, "lease": 2.5, "settle": 1.0, "grace": 5.0}


class Outbox:
    """One database and one fake Postmark; workers that run in the test's own event loop."""

    def __init__(self, pool: Pool, fake: FakePostmark) -> None:
        self.pool = pool
        self.fake = fake
        self._running: dict[Worker, asyncio.Task[None]] = {}

    async def put(self, key: str = "k", **parts: Any) -> Enqueued:
        """Enqueue one email, committed when this returns."""
        return await enqueue(self.pool, an_email(key, **parts))

    async def row(self, key: str = "k") -> asyncpg.Record:
        """The row of *key* as it is now."""
        row = await self.pool.fetchrow("select * from notifyq.emails where key = $1", key)
        assert row is not None, f"there is no row {key!r}"
        return row

    async def events(self, key: str = "k") -> list[str]:
        """What happened to the row of *key*, in order."""
        rows = await self.pool.fetch(
            "select h.event from notifyq.history h join notifyq.emails e on e.id = h.row_id "
            "where e.key = $1 and h.lane = 'email' order by h.id",
            key,
        )
        return [row["event"] for row in rows]

    async def statuses(self) -> dict[str, int]:
        """How many rows have each status."""
        rows = await self.pool.fetch("select status, count(*) as n from notifyq.emails group by status")
        return {row["status"]: row["n"] for row in rows}

    async def until(self, status: str, key: str = "k", *, seconds: float = PATIENCE) -> asyncpg.Record:
        """Wait until the row of *key* has *status*."""

        async def reached() -> bool:
            return bool((await self.row(key))["status"] == status)

        await until(reached, seconds=seconds, what=f"{key} is {status}")
        return await self.row(key)

    async def until_statuses(self, wanted: dict[str, int], *, seconds: float = PATIENCE) -> None:
        """Wait until exactly these statuses are there, in these numbers."""

        async def reached() -> bool:
            return await self.statuses() == wanted

        await until(reached, seconds=seconds, what=f"statuses are {wanted}")

    async def until_event(self, event: str, key: str = "k") -> None:
        """Wait until *event* has happened to the row of *key*."""

        async def happened() -> bool:
            return event in await self.events(key)

        await until(happened, what=f"{event} happened to {key}")

    async def start(
        self, *, env: dict[str, str] | None = None, connections: int = 100, **options: Any
    ) -> Worker:
        """Start a worker and return when it listens. *options* are settings, or arguments of `Worker`."""
        named = ("listen", "listen_url", "pool", "tasks", "builders")
        # Not whatever other modules of the run have declared.
        arguments: dict[str, Any] = {"tasks": (), "builders": ()}
        arguments |= {name: options.pop(name) for name in named if name in options}
        worker = Worker(
            arguments.pop("pool", self.pool),
            provider=Postmark(env={**self.fake.env(), **(env or {})}, connections=connections),
            settings=WorkerSettings(**{**QUICK, **options}),
            **arguments,
        )
        ready = asyncio.Event()
        task = asyncio.create_task(_run(worker, ready), name="worker")
        listening = asyncio.create_task(ready.wait())
        await asyncio.wait((task, listening), return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if task.done():
            await task
        self._running[worker] = task
        return worker

    def is_running(self, worker: Worker) -> bool:
        """True until the worker's `run` has returned."""
        return not self._running[worker].done()

    async def stop(self, *workers: Worker) -> None:
        """Drain *workers* (default: all) and wait for their end. Raises what they raised."""
        for worker in workers or tuple(self._running):
            worker.drain()
        for worker in workers or tuple(self._running):
            await asyncio.wait_for(self._running.pop(worker), PATIENCE)

    async def crash(self, worker: Worker) -> None:
        """End a worker by cancellation."""
        task = self._running.pop(worker)
        task.cancel()
        await asyncio.wait((task,))


async def _run(worker: Worker, ready: asyncio.Event) -> None:
    async with anyio.create_task_group() as tasks:
        await tasks.start(worker.run)
        ready.set()


@asynccontextmanager
async def a_worker(dsn: str, tasks: str = "{}") -> AsyncIterator[None]:
    """What the database knows of a worker that lives: its line, and a session of its name.

    It does nothing, so that rows stay as a test has put them.
    """
    conn = await asyncpg.connect(dsn, server_settings={"application_name": "notifyq worker"})
    await conn.execute(
        "insert into notifyq.workers (name, listening, tasks, builders) "
        "values ('w', true, $1::text::text[], '{}')",
        tasks,
    )
    try:
        yield
    finally:
        await conn.close()


def an_email(key: str = "k", **parts: Any) -> Email:
    """A small good email."""
    return Email(
        key=key,
        **{"to": "ann@example.com", "from_": "shop@example.com", "subject": "s", "text": "t", **parts},
    )


def keys(count: int, prefix: str = "k") -> list[str]:
    """``["k0", "k1", …]``."""
    return [f"{prefix}{number}" for number in range(count)]


def emails(names: Iterable[str], **parts: Any) -> list[Email]:
    """One small good email for each key."""
    return [an_email(name, **parts) for name in names]


async def until(is_so: Callable[[], Awaitable[bool]], *, seconds: float = PATIENCE, what: str) -> None:
    """Wait for something that another process or task does."""
    deadline = time.monotonic() + seconds
    while not await is_so():
        assert time.monotonic() < deadline, f"it did not come about in {seconds:g} s that {what}"
        await asyncio.sleep(0.01)
