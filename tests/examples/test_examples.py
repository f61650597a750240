"""What the README shows is code that runs: here it runs."""

from __future__ import annotations

import asyncpg
import httpx
import pytest
from aiohttp.test_utils import TestClient, TestServer

import notifyq
from examples import aiohttp_app, tasks_and_builders
from notifyq.testing import FakePostmark, drain


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, fake_postmark: FakePostmark, notifyq_dsn: str) -> None:
    for name, value in fake_postmark.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("EMAIL_FROM", "shop@example.com")
    monkeypatch.setenv("DATABASE_URL", notifyq_dsn)


@pytest.mark.usefixtures("environment")
async def test_the_aiohttp_app_confirms_a_double_click_once(
    notifyq_pool: asyncpg.Pool, fake_postmark: FakePostmark
) -> None:
    """Two requests, one key, one email."""
    await notifyq_pool.execute("create table orders (id int, confirmed boolean)")
    async with TestClient(TestServer(aiohttp_app.make_app(notifyq_pool))) as client:
        for _ in range(2):
            assert (await client.post("/orders/7/confirm")).status == 200
        await fake_postmark.wait_accepted(1)

    assert [message.to for message in fake_postmark.accepted] == [("ann@example.com",)]


@pytest.mark.usefixtures("environment")
async def test_the_fastapi_app_sends_a_password_reset(fake_postmark: FakePostmark) -> None:
    """Its lifespan runs the worker."""
    from examples.fastapi_app import app

    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            answers = [(await client.post("/forgot/7")).json() for _ in range(2)]
        await fake_postmark.wait_accepted(2)

    assert answers == [{"created": True}, {"created": True}]


@pytest.mark.usefixtures("environment")
async def test_the_task_and_its_deferred_email_commit_together(
    notifyq_pool: asyncpg.Pool, fake_postmark: FakePostmark
) -> None:
    """The task's own transaction holds the invoice, the email and "done"."""
    await notifyq_pool.execute("create table orders (id int, email text)")
    await notifyq_pool.execute("create table invoices (order_id int)")
    await notifyq_pool.execute("insert into orders values (7, 'ann@example.com')")
    async with notifyq_pool.acquire() as conn:
        await notifyq.enqueue(conn, tasks_and_builders.make_invoice.call(order_id=7), key="invoice:7")

    await drain(notifyq_pool, fake_postmark)

    assert [message.to for message in fake_postmark.accepted] == [("ann@example.com",)]
    assert await notifyq_pool.fetchval("select count(*) from invoices") == 1
