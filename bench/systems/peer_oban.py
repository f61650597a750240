"""oban for Python: one queue with as many slots as asked for, its own debounce of 5 ms as it is."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import oban
from common import Poster, carry_out, options, payload, run, say, told_to_stop
from oban import schema
from psycopg_pool import AsyncConnectionPool

BULK = 1000
POSTER: list[Poster] = []


@oban.worker(queue="emails")
class Send:
    async def process(self, job: Any) -> None:
        await POSTER[0](job.args)


class Oban:
    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given

    async def setup(self) -> None:
        async with self._pool() as pool:
            await schema.install(pool)

    async def work(self) -> None:
        POSTER.append(Poster(self.given.url, self.given.slots))
        stop = told_to_stop()
        queues = {"emails": self.given.slots}
        async with self._pool() as pool, oban.Oban(pool=pool, queues=queues, shutdown_grace_period=1):
            say({"ready": True})
            await stop.wait()

    async def producer(self) -> Callable[[str], Awaitable[None]]:
        pool = self._pool()
        await pool.open()
        client = oban.Oban(pool=pool)

        async def enqueue(key: str) -> None:
            await client.enqueue(Send.new(payload(key)))

        return enqueue

    async def fill(self, keys: list[str]) -> None:
        async with self._pool() as pool:
            client = oban.Oban(pool=pool)
            for place in range(0, len(keys), BULK):
                await client.enqueue_many([Send.new(payload(key)) for key in keys[place : place + BULK]])

    def _pool(self) -> AsyncConnectionPool:
        return AsyncConnectionPool(self.given.dsn, min_size=2, max_size=20, open=False)


async def main() -> None:
    logging.disable(logging.WARNING)
    given = options()
    await carry_out(Oban(given), given)


if __name__ == "__main__":
    run(main())
