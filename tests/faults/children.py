"""What the children of `zygote` do: be a worker, or an application that enqueues.

Only the zygote imports this: what is declared here (`count`) is no business of the test's own process.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import asyncpg
from canary_email import an_email
from stepping import Steps

import notifyq
from notifyq import Postmark, TaskContext, Worker, WorkerSettings, enqueue, enqueue_many, low_water

CALLS = (
    "select notifyq.enqueue_task('count', jsonb_build_object('order', o), p_max_attempts => 1000) "
    "from unnest($1::text[]) o"
)


@notifyq.task("count", max_attempts=1000, backoff=0.1, backoff_cap=1)
async def count(ctx: TaskContext, *, order: str) -> None:
    """Counts an order, exactly once: the counter, the line and "done" commit together."""
    async with ctx.transaction() as conn:
        await conn.execute("insert into app.counted (call, key) values ($1, $2)", ctx.id, order)
        await conn.execute("update app.counter set total = total + 1")


async def work(order: dict[str, Any]) -> None:
    """A worker that drains at SIGTERM. With ``counts`` it knows `count`; with ``steps`` it stops where it is
    told (see `stepping`)."""
    steps = Steps(order["steps"]) if "steps" in order else None
    if steps is not None:
        steps.install()
        # Stopped and watched, it is slow: no sign that somebody holds an old snapshot.
        setattr(low_water, "SLOW", math.inf)  # noqa: B010 (final for everybody else)
    async with asyncpg.create_pool(order["dsn"], min_size=0, max_size=8) as pool:
        worker = Worker(
            pool,
            provider=Postmark(env=order["env"]),
            settings=WorkerSettings(**order["settings"]),
            tasks=(count,) if order.get("counts") else (),
            builders=(),
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.drain)
        async with anyio.create_task_group() as tasks:
            if steps is not None:
                steps.cancel, steps.drain = tasks.cancel_scope.cancel, worker.drain
                asyncio.get_running_loop().add_signal_handler(
                    signal.SIGUSR1, lambda: (steps.report(), os._exit(0))
                )
            await tasks.start(worker.run)
    if steps is not None and "stop" not in order["steps"]:
        steps.report()


@dataclass(frozen=True, slots=True, kw_only=True)
class Basket:
    """What an application commits, or rolls back, in one transaction: the keys of its orders."""

    number: int
    keys: Sequence[str]
    rolled_back: bool


async def take_orders(order: dict[str, Any]) -> None:
    """An application: orders, their emails and calls in one transaction, at a steady rate, until SIGTERM.

    ``rate`` is transactions a second, ``burst`` the most orders in one of them, ``most`` how many it takes in
    all. A commit whose answer is lost is repeated with the same keys; every tenth transaction is rolled back.
    """
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    chance = random.Random(order["seed"])
    conn: Any = None
    number, taken, due = 0, 0, time.monotonic()
    while not told.is_set() and taken < order["most"]:
        number += 1
        basket = _basket(order["seed"], number, chance, order["burst"])
        while True:
            try:
                if conn is None or conn.is_closed():
                    conn = await asyncpg.connect(order["dsn"], timeout=5)
                await _take(conn, basket)
                break
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                # Perhaps committed: the same keys answer that. The database may be away for a moment.
                await asyncio.sleep(0.05)
        taken += 0 if basket.rolled_back else len(basket.keys)
        # What a slow database held up is made good afterwards, a second of it at most.
        due = max(due, time.monotonic() - 1) + chance.expovariate(order["rate"])
        await asyncio.sleep(max(0, due - time.monotonic()))
    await told.wait()
    if conn:
        await conn.close()


def _basket(seed: int, number: int, chance: random.Random, burst: int) -> Basket:
    rolled_back = chance.random() < 0.1
    stem = f"order-{'rolled-back-' if rolled_back else ''}{seed}-{number}"
    keys = [f"{stem}-{one}" for one in range(chance.randint(1, burst))]
    return Basket(number=number, keys=keys, rolled_back=rolled_back)


async def _take(conn: Any, basket: Basket) -> None:
    transaction = conn.transaction()
    await transaction.start()
    new = await conn.fetch(
        "insert into app.orders (key) select unnest($1::text[]) on conflict do nothing returning key",
        basket.keys,
    )
    policy = ("ask", "ask", "hold")[basket.number % 3]
    emails = [an_email(key, on_doubt=policy) for key in basket.keys]
    if len(emails) == 1:
        await enqueue(conn, emails[0])
    else:
        await enqueue_many(conn, emails)
    # A call's key is free again once the call is done, so it cannot tell whether this was committed before;
    # the order can.
    match [row["key"] for row in new]:
        case []:
            pass
        case [key]:
            await enqueue(conn, count.call(order=key))
        case keys:
            await conn.execute(CALLS, keys)
    await (transaction.rollback() if basket.rolled_back else transaction.commit())


KINDS = {"worker": work, "orders": take_orders}
