"""What users write: mypy --strict must have nothing to say. Never run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import asyncpg

import notifyq
from notifyq import Email, TaskContext


@notifyq.task("make-invoice", timeout=30, limit=4, max_attempts=5, priority=-1, backoff=5)
async def make_invoice(ctx: TaskContext, *, order_id: int, total: Decimal = Decimal(0)) -> None:
    """A coroutine function with its context, a transaction, and both ways out."""
    async with ctx.transaction() as conn:
        await conn.execute("insert into invoices (order_id) values ($1)", order_id)
        await notifyq.enqueue(
            conn, order_shipped.deferred(order_id=order_id), key=f"order-shipped:{order_id}"
        )
    if ctx.attempt > 3:
        ctx.give_up("no use")
    if ctx.deadline is not None and ctx.deadline < 1:
        ctx.retry_later(60)


@notifyq.task("shrink")
def shrink(ctx: TaskContext, photo_id: UUID, sizes: list[int]) -> None:
    """A plain function, with positional parameters."""
    for _ in sizes:
        if ctx.cancelled:
            ctx.retry_later(0, "stopped half way")


@notifyq.periodic("0 3 * * *", timezone="Europe/Paris", missed="one")
@notifyq.task("nightly-report")
async def nightly_report(ctx: TaskContext) -> None:
    """A periodic task."""


@notifyq.email("order-shipped", connection=True, priority=-1, on_doubt="resend", sample={"order_id": 1})
async def order_shipped(conn: asyncpg.Connection, *, order_id: int) -> Email:
    """An async builder that reads its record."""
    to = await conn.fetchval("select email from orders where id = $1", order_id)
    if to is None:
        raise notifyq.Unrenderable("the order was deleted")
    return Email(key=f"order-shipped:{order_id}", to=to, subject="Shipped", text="On its way.")


@notifyq.email("welcome")
def welcome(*, name: str) -> Email:
    """A plain builder."""
    return Email(key=f"welcome:{name}", to="ann@example.com", subject="Welcome", text=name)


async def place_order(pool: asyncpg.Pool[Any], order_id: int) -> int:
    """Everything that can be enqueued, with everything that it takes."""
    soon = datetime.now(UTC) + timedelta(hours=1)
    async with pool.acquire() as conn, conn.transaction():
        made = await notifyq.enqueue(conn, make_invoice.call(order_id=order_id), key=f"invoice:{order_id}")
        await notifyq.enqueue(
            conn, make_invoice.call(order_id=order_id, total=Decimal("1.10")), run_after=soon
        )
        await notifyq.enqueue(conn, shrink.call(UUID(int=1), [10, 20]))
        await notifyq.enqueue(conn, shrink.call(photo_id=UUID(int=1), sizes=[]))
        await notifyq.enqueue(conn, nightly_report.call())
        await notifyq.enqueue(conn, welcome(name="ann"))
        await notifyq.enqueue(
            conn, welcome.deferred(name="ann"), key="welcome:ann", run_after=soon, send_before=soon
        )
    return made.id if made.created else 0


async def serve(pool: asyncpg.Pool[Any]) -> None:
    """A worker that serves just these."""
    worker = notifyq.Worker(
        pool, provider=notifyq.Postmark(), tasks=[make_invoice, shrink, nightly_report], builders=[welcome]
    )
    await worker.run()
