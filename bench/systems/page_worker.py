"""notifyq with the operator's page in the same process; says where the page is."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import anyio
import asyncpg
from common import TOKEN, options, run, say, told_to_stop

import notifyq
from notifyq import admin


async def main() -> None:
    given = options()
    stop = told_to_stop()
    async with asyncpg.create_pool(given.dsn, min_size=0, max_size=12) as pool:
        worker = notifyq.Worker(
            pool,
            provider=notifyq.Postmark(TOKEN, api_url=given.url, connections=given.slots + 100),
            settings=notifyq.WorkerSettings(slots=given.slots, grace=2),
        )
        async with anyio.create_task_group() as tg, admin.serve(pool, port=0, worker=worker) as page:
            await tg.start(worker.run)
            say({"page": page})
            await stop.wait()
            worker.drain()


if __name__ == "__main__":
    run(main())
