"""pgqueuer on asyncpg: batches as large as the slots, heartbeats and the log of jobs as they come."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Awaitable, Callable

import asyncpg
from common import Poster, carry_out, options, payload, run, until_stopped
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

BULK = 1000


class Pgqueuer:
    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given

    async def setup(self) -> None:
        conn = await asyncpg.connect(self.given.dsn)
        await Queries(AsyncpgDriver(conn)).install()
        await conn.close()

    async def work(self) -> None:
        post = Poster(self.given.url, self.given.slots)
        queues = PgQueuer(AsyncpgDriver(await asyncpg.connect(self.given.dsn)))

        @queues.entrypoint("send")
        async def send(job: Job) -> None:
            assert job.payload is not None
            await post(job.payload)

        slots = self.given.slots
        await until_stopped(queues.run(batch_size=slots, max_concurrent_tasks=2 * slots))

    async def producer(self) -> Callable[[str], Awaitable[None]]:
        queries = Queries(AsyncpgDriver(await asyncpg.connect(self.given.dsn)))

        async def enqueue(key: str) -> None:
            await queries.enqueue("send", json.dumps(payload(key)).encode())

        return enqueue

    async def fill(self, keys: list[str]) -> None:
        queries = Queries(AsyncpgDriver(await asyncpg.connect(self.given.dsn)))
        for place in range(0, len(keys), BULK):
            some = keys[place : place + BULK]
            emails: list[bytes | None] = [json.dumps(payload(key)).encode() for key in some]
            await queries.enqueue(["send"] * len(some), emails, [0] * len(some))


async def main() -> None:
    logging.disable(logging.WARNING)
    given = options()
    await carry_out(Pgqueuer(given), given)


if __name__ == "__main__":
    run(main())
