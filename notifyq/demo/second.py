"""The story's second worker, a process of its own (``python -m notifyq.demo.second``), to be killed.

It says ``ready`` once it listens, and ends when its standard input ends: however the demo dies, it does
not stay behind.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Final

import anyio
import asyncpg
from anyio.abc import ByteReceiveStream, Process

from notifyq.demo.short import SHORT
from notifyq.postmark import Postmark
from notifyq.worker import Worker

__all__ = ["second_worker"]

HERE: Final = str(Path(__file__).resolve().parents[2])
"""Where the package is: a checkout need not be installed."""

START_LIMIT: Final = 20.0
OURS: Final = ("EMAIL_", "POSTMARK_", "NOTIFYQ_")
"""The user's own settings, such as a shunt, are not for the story."""


@asynccontextmanager
async def second_worker(env: Mapping[str, str]) -> AsyncIterator[Process]:
    """Start the second worker, and make sure that it is gone afterwards.

    *env*: DATABASE_URL and what the provider needs. Raises TimeoutError if it does not start.
    """
    path = os.pathsep.join(filter(None, (HERE, os.environ.get("PYTHONPATH"))))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    process = await anyio.open_process(
        [sys.executable, "-m", "notifyq.demo.second"],
        env={**kept, "PYTHONPATH": path, **env},
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        start_new_session=True,  # Ctrl-C at the terminal is for us
    )
    try:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        await _ready(process.stdout)
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()


async def _ready(said: ByteReceiveStream) -> None:
    try:
        with anyio.fail_after(START_LIMIT):
            await said.receive()
    except (anyio.EndOfStream, TimeoutError):
        raise TimeoutError("the second worker did not start") from None


def main() -> None:
    """Work until the standard input ends, or worse."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    anyio.run(_work)


def _end_with_parent() -> None:
    while os.read(0, 1024):  # not through sys.stdin, whose lock would be in the way of a normal end
        pass
    os._exit(0)


async def _work() -> None:
    pool = await asyncpg.create_pool(os.environ["DATABASE_URL"], min_size=0)
    worker = Worker(pool, provider=Postmark(), settings=SHORT, tasks=(), builders=())
    async with anyio.create_task_group() as tg:
        await tg.start(worker.run)
        print("ready", flush=True)


if __name__ == "__main__":
    main()
