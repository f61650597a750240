"""procrastinate: one async task, LISTEN on, done jobs deleted, a pool as large as the concurrency allows.

One claim and one completion a job are its design; concurrency and pool are what its guide offers.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import procrastinate
from common import Poster, carry_out, options, payload, run, until_stopped

POOL = 20
BULK = 1000


class Procrastinate:
    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.app = procrastinate.App(
            connector=procrastinate.PsycopgConnector(conninfo=given.dsn, min_size=1, max_size=POOL)
        )
        self.post: Callable[[dict[str, Any]], Awaitable[None]] | None = None

        @self.app.task(name="send")
        async def send(email: dict[str, Any]) -> None:
            assert self.post is not None
            await self.post(email)

        self.send = send

    async def setup(self) -> None:
        async with self.app.open_async():
            await self.app.schema_manager.apply_schema_async()

    async def work(self) -> None:
        self.post = Poster(self.given.url, self.given.slots)
        async with self.app.open_async():
            await until_stopped(
                self.app.run_worker_async(
                    concurrency=self.given.slots, delete_jobs="successful", install_signal_handlers=False
                )
            )

    async def producer(self) -> Callable[[str], Awaitable[None]]:
        await self.app.open_async()

        async def enqueue(key: str) -> None:
            await self.send.defer_async(email=payload(key))

        return enqueue

    async def fill(self, keys: list[str]) -> None:
        async with self.app.open_async():
            for place in range(0, len(keys), BULK):
                await self.send.batch_defer_async(
                    *({"email": payload(key)} for key in keys[place : place + BULK])
                )


async def main() -> None:
    logging.disable(logging.WARNING)
    given = options()
    await carry_out(Procrastinate(given), given)


if __name__ == "__main__":
    run(main())
