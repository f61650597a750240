"""`Fleet`: workers in the test's own event loop, for tests about tasks and deferred emails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any, TypeAlias

import anyio
import asyncpg
from outbox import PATIENCE, until

from notifyq import Postmark, Worker, WorkerSettings, enqueue
from notifyq import builders as builder_module
from notifyq import tasks as task_module
from notifyq.builders import Builder, DeferredEmail
from notifyq.tasks import Call, Task
from notifyq.testing import FakePostmark

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

QUICK: dict[str, Any] = {"post_budget": 0.5, "lease": 2.0, "settle": 0.5, "grace": 5.0, "poll": 0.5}


class Fleet:
    """Workers on one database. What was declared meanwhile is forgotten at the end."""

    def __init__(self, pool: Pool, fake: FakePostmark) -> None:
        self.pool = pool
        self.fake = fake
        self._running: dict[Worker, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Fleet:
        self._kept = [(registry, dict(registry)) for registry in _REGISTRIES]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.fake.release()
        try:
            await self.stop()
        finally:
            for registry, kept in self._kept:
                registry.clear()
                registry.update(kept)

    async def start(
        self,
        *tasks: Task[Any],
        builders: Iterable[Builder[Any]] = (),
        pool: Pool | None = None,
        **settings: Any,
    ) -> Worker:
        """Start a worker that serves these, and return when it is ready."""
        worker = Worker(
            pool or self.pool,
            provider=Postmark(env=self.fake.env()),
            settings=WorkerSettings(**{**QUICK, **settings}),
            tasks=tasks,
            builders=builders,
        )
        ready = asyncio.Event()
        running = asyncio.create_task(_run(worker, ready), name="worker")
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if running.done():
            await running
        self._running[worker] = running
        return worker

    def is_running(self, worker: Worker) -> bool:
        """True until the worker's `run` has returned."""
        return not self._running[worker].done()

    async def stop(self, *workers: Worker) -> None:
        """Drain *workers* (default: all) and wait for their end."""
        for worker in workers or tuple(self._running):
            worker.drain()
        for worker in workers or tuple(self._running):
            await asyncio.wait_for(self._running.pop(worker), PATIENCE)

    async def put(self, item: Call | DeferredEmail, **options: Any) -> int:
        """Enqueue, committed; answers the row's id."""
        enqueued = await enqueue(self.pool, item, **options)
        return enqueued.id

    async def call(self, id: int) -> asyncpg.Record:
        """The call's row as it is now."""
        row = await self.pool.fetchrow("select * from notifyq.tasks where id = $1", id)
        assert row is not None
        return row

    async def email(self, id: int) -> asyncpg.Record:
        """The email's row as it is now."""
        row = await self.pool.fetchrow("select * from notifyq.emails where id = $1", id)
        assert row is not None
        return row

    async def until_call(self, id: int, *statuses: str, seconds: float = PATIENCE) -> asyncpg.Record:
        """Wait until the call has one of *statuses*."""

        async def reached() -> bool:
            return (await self.call(id))["status"] in statuses

        await until(reached, seconds=seconds, what=f"call {id} is {statuses}")
        return await self.call(id)

    async def until_email(self, id: int, *statuses: str) -> asyncpg.Record:
        """Wait until the email has one of *statuses*."""

        async def reached() -> bool:
            return (await self.email(id))["status"] in statuses

        await until(reached, what=f"email {id} is {statuses}")
        return await self.email(id)

    async def until_event(self, event: str, id: int, lane: str = "task", times: int = 1) -> None:
        """Wait until *event* has happened to the row."""

        async def happened() -> bool:
            return (await self.events(id, lane)).count(event) >= times

        await until(happened, what=f"{event} happened to {lane} {id}")

    async def until_all(self, status: str, count: int, *, seconds: float = PATIENCE) -> None:
        """Wait until *count* calls have *status*."""

        async def reached() -> bool:
            query = "select count(*) from notifyq.tasks where status = $1"
            return bool(await self.pool.fetchval(query, status) == count)

        await until(reached, seconds=seconds, what=f"{count} calls are {status}")

    async def events(self, id: int, lane: str = "task") -> list[str]:
        """What happened to the row, in order."""
        rows = await self.pool.fetch(
            "select event from notifyq.history where lane = $1 and row_id = $2 order by id", lane, id
        )
        return [row["event"] for row in rows]


_REGISTRIES = (task_module.registered, builder_module.registered)


async def _run(worker: Worker, ready: asyncio.Event) -> None:
    async with anyio.create_task_group() as tasks:
        await tasks.start(worker.run)
        ready.set()
