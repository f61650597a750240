"""A worker as a process of its own: ``worker_process.py DSN [setting=value …]``; says ``ready``."""

from __future__ import annotations

import signal
import sys

import anyio
import asyncpg

from notifyq import Postmark, Worker, WorkerSettings


async def main(dsn: str, *settings: str) -> None:
    """Work until SIGTERM, which drains."""
    values = {name: float(value) for name, _, value in (setting.partition("=") for setting in settings)}
    async with asyncpg.create_pool(dsn, min_size=0, max_size=10) as pool:
        worker = Worker(pool, provider=Postmark(), settings=WorkerSettings(**values))  # type: ignore[arg-type]
        async with anyio.create_task_group() as tasks:
            await tasks.start(worker.run)
            with anyio.open_signal_receiver(signal.SIGTERM) as signals:
                print("ready", flush=True)
                async for _ in signals:
                    worker.drain()
                    break


anyio.run(main, *sys.argv[1:])
