"""notifyq itself, as an app would use it.

Variants: ``poll`` (no LISTEN), ``always`` / ``off`` (the setting notifyq.bell of the producer).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import anyio
import asyncpg
from common import HTML, TEXT, TOKEN, options, produce, run, say, told_to_stop

import notifyq

BULK = 1000


class Notifyq:
    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given

    async def setup(self) -> None:
        conn = await asyncpg.connect(self.given.dsn)
        await notifyq.migrate(conn)
        await conn.close()

    async def work(self) -> None:
        given = self.given
        pool = await asyncpg.create_pool(given.dsn, min_size=0, max_size=8)
        stop = told_to_stop()
        async with anyio.create_task_group() as tg:
            worker = notifyq.Worker(
                pool,
                provider=notifyq.Postmark(TOKEN, api_url=given.url, connections=given.slots),
                settings=notifyq.WorkerSettings(slots=given.slots, grace=2),
                listen=given.variant != "poll",
            )
            await tg.start(worker.run)
            say({"ready": True})
            await stop.wait()
            worker.drain()
        await pool.close()

    async def produce(self) -> list[list[Any]]:
        """The sink knows an email by its uid, which only the database knows."""
        conn = await asyncpg.connect(self.given.dsn)
        if self.given.variant in ("always", "off"):
            await conn.execute(f"set notifyq.bell = '{self.given.variant}'")
        made = [email(f"{self.given.prefix}-{number}") for number in range(self.given.count)]
        emails = {one.key: one for one in made}

        async def enqueue(key: str) -> None:
            await notifyq.enqueue(conn, emails[key])

        sent = await produce(enqueue, self.given)
        uids = dict(
            await conn.fetch("select key, uid::text from notifyq.emails where key = any($1)", [*emails])
        )
        await conn.close()
        return [[uids[key], start, end] for key, start, end in sent]

    async def producer(self) -> Callable[[str], Awaitable[None]]:
        raise NotImplementedError

    async def fill(self, keys: list[str]) -> None:
        conn = await asyncpg.connect(self.given.dsn)
        for place in range(0, len(keys), BULK):
            await notifyq.enqueue_many(conn, [email(key) for key in keys[place : place + BULK]])
        await conn.close()


def email(key: str, *, priority: int = 0) -> notifyq.Email:
    return notifyq.Email(
        key=key,
        to="ann@example.com",
        from_="shop@example.com",
        subject="Your order",
        html=HTML,
        text=TEXT,
        priority=priority,
    )


async def main() -> None:
    given = options()
    system = Notifyq(given)
    match given.verb:
        case "setup":
            await system.setup()
        case "work":
            await system.work()
        case "produce":
            say(await system.produce())
        case "fill":
            await system.fill([f"{given.prefix}-{number}" for number in range(given.count)])


if __name__ == "__main__":
    run(main())
