"""Tasks for tests that kill: ``task_process.py DSN [setting=value …]`` is a worker that says ``ready``."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

import anyio
import asyncpg

import notifyq
from notifyq import Postmark, TaskContext, Worker, WorkerSettings


@notifyq.task("hold", max_attempts=1000)
async def hold(ctx: TaskContext) -> None:
    """Says who runs it; in a process with HOLD it then never ends."""
    await ctx.pool.execute("insert into runs (call, pid) values ($1, $2)", ctx.id, os.getpid())
    if os.environ.get("HOLD"):
        await asyncio.sleep(3600)


@notifyq.task("add", max_attempts=1000)
async def add(ctx: TaskContext) -> None:
    """Leaves one row in its own transaction. In a process with HOLD it commits 1.5 s later, not before."""
    async with ctx.transaction() as conn:
        await conn.execute("insert into effects (call) values ($1)", ctx.id)
        await ctx.pool.execute("insert into runs (call, pid) values ($1, $2)", ctx.id, os.getpid())
        await asyncio.sleep(1.5 if os.environ.get("HOLD") else 0.02)


@notifyq.task("kills", max_attempts=3)
async def kills(ctx: TaskContext) -> None:
    """Takes its process with it."""
    await ctx.pool.execute("insert into runs (call, pid) values ($1, $2)", ctx.id, os.getpid())
    os._exit(9)


@notifyq.task("forks")
async def forks(ctx: TaskContext, *, then: str) -> None:
    """Says how the child ended that goes on in the worker's own code."""
    child = os.fork()
    if child == 0:
        if then == "await":
            await asyncio.sleep(0.001)
        return
    await asyncio.to_thread(_tell_of, child, ctx)


@notifyq.task("forks-in-thread")
def forks_in_thread(ctx: TaskContext, *, then: str) -> None:
    """The same, of a child that has one thread: this one."""
    child = os.fork()
    if child == 0:
        if then == "raise":
            raise ValueError("in the child")
        return
    _tell_of(child, ctx)


def _tell_of(child: int, ctx: TaskContext) -> None:
    ctx.give_up(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))


@notifyq.task("leaves")
async def leaves(ctx: TaskContext) -> None:
    """Says who runs it; in a process with HOLD that is a child, which outlives the worker."""
    child = os.fork() if os.environ.get("HOLD") else os.getpid()
    if child == 0:
        signal.pause()
        os._exit(0)
    await ctx.pool.execute("insert into runs (call, pid) values ($1, $2)", ctx.id, child)
    if os.environ.get("HOLD"):
        await asyncio.sleep(3600)


@notifyq.task("one", limit=1)
async def one(ctx: TaskContext) -> None:
    """Notes how many of its kind run, over all processes."""
    async with ctx.pool.acquire() as conn:
        alone = await conn.fetchval("select pg_try_advisory_lock(42)")
        await conn.execute(
            "insert into runs (call, pid) values ($1, $2)", ctx.id if alone else -1, os.getpid()
        )
        if alone:
            await conn.execute("select pg_advisory_unlock(42)")


async def main(dsn: str, *settings: str) -> None:
    """Work until SIGTERM, which drains."""
    values = {name: float(value) for name, _, value in (setting.partition("=") for setting in settings)}
    values["slots"] = int(values.get("slots", 20))
    # Five for the worker, and for each call its transaction's and one more.
    async with asyncpg.create_pool(dsn, min_size=0, max_size=5 + 2 * min(values["slots"] + 4, 12)) as pool:
        settings = WorkerSettings(**values)  # type: ignore[arg-type]
        serves = () if os.environ.get("NOTHING") else None
        worker = Worker(pool, provider=Postmark(), settings=settings, tasks=serves)
        async with anyio.create_task_group() as tasks:
            await tasks.start(worker.run)
            with anyio.open_signal_receiver(signal.SIGTERM) as signals:
                print("ready", flush=True)
                async for _ in signals:
                    worker.drain()
                    break


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    anyio.run(main, sys.argv[1], *sys.argv[2:])
