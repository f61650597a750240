"""`drain`: let a real worker finish what an app's test has put into the outbox."""

from __future__ import annotations

import os
from typing import Any, Final

import anyio

from notifyq.db import Pool
from notifyq.postmark import Postmark
from notifyq.provider import Provider
from notifyq.settings import WorkerSettings
from notifyq.sqlfiles import query
from notifyq.tasks import registered
from notifyq.testing.fake import FakePostmark
from notifyq.worker import Worker

__all__ = ["drain"]

# Shortened for a test: a doubt is settled in less than a second. A throw-away server need not be durable.
SETTINGS: Final = WorkerSettings(
    post_budget=2.0, lease=5.0, settle=0.2, grace=5.0, poll=0.5, unsafe_durability=True
)
LOOK_AGAIN: Final = (0.005, 0.05)


async def drain(
    pool: Pool,
    provider: FakePostmark | Provider,
    *,
    limit: float = 10.0,
    settings: WorkerSettings = SETTINGS,
) -> None:
    """Run a worker until every email and call that is due has ended, doubts included; then stop it.

    What is due later stays pending (a ``run_after``, the minutes before a 503 is tried again). With a
    `FakePostmark` the environment counts as it does in production (``EMAIL_FROM``, ``EMAIL_SHUNT``).
    *pool* must allow five connections.

    Raises TimeoutError after *limit* seconds, with the ids of what has not ended: the provider
    refuses the account, for example; RuntimeError if an email waits for its sender or stream to be set up.

    Example::

        await confirm_order(pool, order_id=7)
        await drain(pool, fake_postmark)
        assert fake_postmark.accepted[0].to == ("ann@example.com",)
    """
    if isinstance(provider, FakePostmark):
        provider = Postmark(env={**os.environ, **provider.env()})
    worker = Worker(pool, provider=provider, settings=settings)
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(worker.run)
            try:
                await _wait_until_ended(pool, limit)
            finally:
                worker.drain()
    except BaseExceptionGroup as group:
        raise _only(group) from None


def _only(error: BaseException) -> BaseException:
    """The error itself, for ``pytest.raises(TimeoutError)`` to see; two that came at once stay a group."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _wait_until_ended(pool: Pool, limit: float) -> None:
    left: list[Any] = []
    pause, longest = LOOK_AGAIN
    with anyio.move_on_after(limit):
        while left := await pool.fetch(query("unfinished"), sorted(registered)):
            await anyio.sleep(pause)
            pause = min(2 * pause, longest)
        if waiting := await pool.fetch(query("waiting_to_be_set_up")):
            raise RuntimeError("; ".join(f"email {row['id']} waits: {row['last_error']}" for row in waiting))
        return
    named = (
        ", ".join(f"{row['lane']} {row['id']} is {row['status']}" for row in left) or "the database is silent"
    )
    raise TimeoutError(f"after {limit:g} s not everything due has ended: {named}")
