"""chancy: its asyncio executor, eager polling, and notifications on."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from chancy import Chancy, Queue, Worker, job
from common import Poster, carry_out, options, payload, run, say, told_to_stop

BULK = 1000
POSTER: list[Poster] = []


@job(queue="emails")
async def send(*, email: dict[str, Any]) -> None:
    await POSTER[0](email)


class ChancySystem:
    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given

    async def setup(self) -> None:
        async with Chancy(self.given.dsn) as chancy:
            await chancy.migrate()
            await chancy.declare(
                Queue(
                    name="emails",
                    concurrency=self.given.slots,
                    executor="chancy.executors.asyncex.AsyncExecutor",
                    eager_polling=True,
                    polling_interval=1,
                )
            )

    async def work(self) -> None:
        POSTER.append(Poster(self.given.url, self.given.slots))
        stop = told_to_stop()
        async with Chancy(self.given.dsn) as chancy:
            worker = Worker(chancy, register_signal_handlers=False, shutdown_timeout=1)
            async with worker:
                say({"ready": True})
                await stop.wait()

    async def producer(self) -> Callable[[str], Awaitable[None]]:
        chancy = Chancy(self.given.dsn)
        await chancy.__aenter__()

        async def enqueue(key: str) -> None:
            await chancy.push(send.job.with_kwargs(email=payload(key)))

        return enqueue

    async def fill(self, keys: list[str]) -> None:
        async with Chancy(self.given.dsn) as chancy:
            jobs = [send.job.with_kwargs(email=payload(key)) for key in keys]
            async for _ in chancy.push_many(jobs, batch_size=BULK):
                pass


async def main() -> None:
    logging.disable(logging.WARNING)
    given = options()
    await carry_out(ChancySystem(given), given)


if __name__ == "__main__":
    import peer_chancy  # a job is found again by its module's name, which must not be __main__

    run(peer_chancy.main())
