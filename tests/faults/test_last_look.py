"""The last look: between the claim and the bytes a worker may be told to stop, or be held up for too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
from outbox import Outbox, emails, keys

from notifyq import Postmark, Worker, WorkerSettings, enqueue_many
from notifyq.provider import Outcome
from notifyq.testing import faults

CALM: dict[str, Any] = {"post_budget": 5.0, "lease": 30.0, "settle": 60.0, "grace": 10.0}


class Held(Postmark):
    """Does *first* when rows are claimed and their POSTs are about to begin."""

    def __init__(self, outbox: Outbox, first: Callable[[], Awaitable[object]]) -> None:
        super().__init__(env=outbox.fake.env())
        self._first = first

    async def send(self, *args: Any, **named: Any) -> Outcome:
        await self._first()
        return await super().send(*args, **named)


@asynccontextmanager
async def working(outbox: Outbox, provider: Postmark, **settings: Any) -> AsyncIterator[Worker]:
    """A real worker on *provider*; at the end of the block it has ended."""
    worker = Worker(
        outbox.pool,
        provider=provider,
        settings=WorkerSettings(**{**CALM, **settings}),
        tasks=(),
        builders=(),
    )
    async with asyncio.timeout(20), anyio.create_task_group() as tasks:
        await tasks.start(worker.run)
        yield worker
        worker.drain()


async def test_a_worker_that_drains_between_claim_and_post_posts_nothing(outbox: Outbox) -> None:
    """A deploy must not start what it may have to leave behind: the rows are due at once, uncharged."""
    told = asyncio.Event()

    async def drain() -> None:
        worker.drain()
        told.set()

    async with working(outbox, Held(outbox, drain)) as worker:
        await enqueue_many(outbox.pool, emails(keys(3)))
        await asyncio.wait_for(told.wait(), 10)

    assert outbox.fake.posts == []
    rows = await outbox.pool.fetch(
        "select status, attempts, claim_seq, run_after <= clock_timestamp() from notifyq.emails"
    )
    assert [tuple(row) for row in rows] == [("pending", 0, 1, True)] * 3
    await outbox.start()
    await outbox.until_statuses({"sent": 3})
    assert len(outbox.fake.posts) == 3


async def test_a_worker_held_up_between_claim_and_post_posts_nothing_it_could_not_finish(
    outbox: Outbox,
) -> None:
    """Once less than a POST budget is left of the lease, another may have the row before the answer is in."""
    delays = iter((1.1,))

    async def dawdle() -> None:
        await asyncio.sleep(next(delays, 0.0))

    async with working(outbox, Held(outbox, dawdle), post_budget=1.0, lease=2.0):
        await outbox.put()
        row = await outbox.until("sent")

    assert await outbox.events() == ["released", "accepted"]
    assert (row["attempts"], row["claim_seq"], len(outbox.fake.posts)) == (1, 2, 1)


async def test_an_email_that_expires_between_claim_and_post_is_not_posted(outbox: Outbox) -> None:
    """A password reset whose token has died is of no use to anybody."""
    soon = datetime.now(UTC) + timedelta(seconds=0.8)

    async def dawdle() -> None:
        await asyncio.sleep(max(0.0, (soon - datetime.now(UTC)).total_seconds() + 0.05))

    async with working(outbox, Held(outbox, dawdle)):
        await outbox.put(send_before=soon)
        row = await outbox.until("dead")

    assert (row["reason"], row["attempts"] <= 1, outbox.fake.posts) == ("expired", True, [])


async def test_no_sweep_expires_what_may_have_been_accepted(outbox: Outbox) -> None:
    """After the last look there is no "expired": whoever would be told so may have the email."""
    outbox.fake.search_lag = None
    outbox.fake.fault(faults.Reset(record=True))
    async with working(outbox, Postmark(env=outbox.fake.env())):
        await outbox.put(send_before=datetime.now(UTC) + timedelta(hours=1))
        await outbox.until_event("too early")

    expired = await outbox.pool.fetchval("select notifyq.expire_emails(clock_timestamp() + interval '2 h')")

    assert (expired, (await outbox.row())["status"]) == (0, "doubt")
