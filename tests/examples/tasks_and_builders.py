"""The README's tasks and builders, whole."""

from __future__ import annotations

import asyncpg

import notifyq


@notifyq.task("make-invoice", limit=4)
async def make_invoice(ctx: notifyq.TaskContext, *, order_id: int) -> None:
    async with ctx.transaction() as conn:  # the work and "done" commit together, exactly once
        await conn.execute("insert into invoices (order_id) values ($1)", order_id)
        await notifyq.enqueue(
            conn, order_shipped.deferred(order_id=order_id), key=f"order-shipped:{order_id}"
        )


@notifyq.periodic("0 3 * * *", timezone="Europe/Paris")
@notifyq.task("nightly-report")
async def nightly_report(ctx: notifyq.TaskContext) -> None: ...


@notifyq.email("order-shipped", connection=True, sample={"order_id": 7})
async def order_shipped(conn: asyncpg.Connection, *, order_id: int) -> notifyq.Email:
    address = await conn.fetchval("select email from orders where id = $1", order_id)
    if address is None:
        raise notifyq.Unrenderable("the order was deleted")
    return notifyq.Email(
        key=f"order-shipped:{order_id}", to=address, subject="Shipped", text=f"Order {order_id} has left."
    )
