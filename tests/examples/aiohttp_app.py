"""The README's aiohttp app, whole."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import asyncpg
from aiohttp import web

import notifyq

POOL = web.AppKey("POOL", asyncpg.Pool)


async def confirm(request: web.Request) -> web.Response:
    order_id = int(request.match_info["id"])
    async with request.app[POOL].acquire() as conn, conn.transaction():
        await conn.execute("update orders set confirmed = true where id = $1", order_id)
        email = notifyq.Email(
            key=f"order-confirmed:{order_id}",  # a double click is one email
            to="ann@example.com",
            subject="Your order",
            text=f"Thank you. Order {order_id} is on its way.",
        )
        await notifyq.enqueue(conn, email)  # commits with the order, or not at all
    return web.json_response({"confirmed": order_id})


async def worker(app: web.Application) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        await tasks.start(notifyq.Worker(app[POOL], provider=notifyq.Postmark()).run)
        yield
        tasks.cancel_scope.cancel()


def make_app(pool: asyncpg.Pool) -> web.Application:
    app = web.Application()
    app[POOL] = pool
    app.router.add_post("/orders/{id}/confirm", confirm)
    app.cleanup_ctx.append(worker)
    return app
