"""The README's FastAPI app, whole."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import asyncpg
from fastapi import FastAPI

import notifyq


def password_reset(user_id: int, token: str) -> notifyq.Email:
    return notifyq.Email(
        key=f"password-reset:{user_id}:{token}",
        to="ann@example.com",
        subject="Your new password",
        text=f"https://shop.example.com/reset/{token}",
        priority=-1,  # ahead of every newsletter
        on_doubt="resend",  # twice is harmless, late is useless
    )


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with asyncpg.create_pool(os.environ["DATABASE_URL"]) as pool, anyio.create_task_group() as tasks:
        app.state.pool = pool
        await tasks.start(notifyq.Worker(pool, provider=notifyq.Postmark()).run)  # listening now
        yield
        tasks.cancel_scope.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/forgot/{user_id}")
async def forgot(user_id: int) -> dict[str, bool]:
    token = secrets.token_urlsafe()  # new for each request: it is in the key
    async with app.state.pool.acquire() as conn, conn.transaction():
        made = await notifyq.enqueue(conn, password_reset(user_id, token))
    return {"created": made.created}
