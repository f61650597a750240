"""The README's test of an app's own email, whole."""

from __future__ import annotations

import asyncpg
import pytest

import notifyq
from notifyq.testing import FakePostmark, drain


def order_confirmation(order_id: int) -> notifyq.Email:
    return notifyq.Email(
        key=f"order-confirmed:{order_id}", to="ann@example.com", subject="Your order", text="Thank you."
    )


@pytest.fixture(autouse=True)
def sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAIL_FROM", "shop@example.com")


async def test_an_order_is_confirmed_once(notifyq_pool: asyncpg.Pool, fake_postmark: FakePostmark) -> None:
    for _ in range(2):  # a double click
        async with notifyq_pool.acquire() as conn, conn.transaction():
            await notifyq.enqueue(conn, order_confirmation(order_id=7))

    await drain(notifyq_pool, fake_postmark)

    assert [message.to for message in fake_postmark.accepted] == [("ann@example.com",)]
