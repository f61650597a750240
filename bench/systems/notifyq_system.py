"""notifyq itself, as an app would use it.

Variants: ``poll`` (no LISTEN), ``tasks`` (tasks are served, too), ``urgent`` (the producer's emails have
priority -1), ``workers=N`` (N workers in this process, each with a pool of its own). With BENCH_TRACE=FILE a
worker writes down its claims: one JSON line ``[start, end, [uid, ...]]`` each, in monotonic seconds.
Python's collector is set as ``notifyq worker`` sets it, but for BENCH_GC=default.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import anyio
import asyncpg
from common import HTML, TEXT, TOKEN, options, produce, run, say, told_to_stop

import notifyq
from notifyq.cli.runner import RARELY
from notifyq.db import Link

BULK = 1000


@notifyq.task("bench.nap")
async def nap(ctx: notifyq.TaskContext, number: int) -> None:
    """The first run of a call hangs, as one does whose worker is killed; later runs are done at once."""
    say({"run": number, "attempt": ctx.attempt, "at": time.monotonic()})
    if ctx.attempt == 1:
        await anyio.sleep(3600)


class Notifyq:
    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given

    async def setup(self) -> None:
        conn = await asyncpg.connect(self.given.dsn)
        await notifyq.migrate(conn)
        await conn.close()

    async def work(self) -> None:
        given = self.given
        if os.environ.get("BENCH_GC") != "default":
            gc.set_threshold(*RARELY)
        stop = told_to_stop()
        claims = trace_claims() if "BENCH_TRACE" in os.environ else []
        name, _, number = given.variant.partition("=")
        pools = [
            await asyncpg.create_pool(given.dsn, min_size=0, max_size=8)
            for _ in range(int(number) if name == "workers" else 1)
        ]
        workers = [
            notifyq.Worker(
                pool,
                provider=notifyq.Postmark(TOKEN, api_url=given.url, connections=given.slots + 100),
                settings=notifyq.WorkerSettings(slots=given.slots, grace=2),
                tasks=[nap] if name == "tasks" else [],
                listen=name != "poll",
            )
            for pool in pools
        ]
        async with anyio.create_task_group() as tg:
            for worker in workers:
                await tg.start(worker.run)
            say({"ready": True})
            await stop.wait()
            for worker in workers:
                worker.drain()
        for pool in pools:
            await pool.close()
        if "BENCH_TRACE" in os.environ:
            lines = [json.dumps(claim) + "\n" for claim in claims]
            Path(os.environ["BENCH_TRACE"]).write_text("".join(lines))  # noqa: ASYNC240

    async def produce(self) -> list[list[Any]]:
        """The sink knows an email by its uid, which only the database knows."""
        conn = await asyncpg.connect(self.given.dsn)
        priority = -1 if self.given.variant == "urgent" else 0
        made = [
            email(f"{self.given.prefix}-{number}", priority=priority) for number in range(self.given.count)
        ]
        emails = {one.key: one for one in made}

        async def enqueue(key: str) -> None:
            await notifyq.enqueue(conn, emails[key])

        sent = await produce(enqueue, self.given)
        uids = await uids_of(conn, list(emails))
        await conn.close()
        return [[uids[key], start, end] for key, start, end in sent]

    async def producer(self) -> Callable[[str], Awaitable[None]]:
        raise NotImplementedError

    async def fill(self, keys: list[str]) -> None:
        conn = await asyncpg.connect(self.given.dsn)
        for place in range(0, len(keys), BULK):
            await notifyq.enqueue_many(conn, [email(key) for key in keys[place : place + BULK]])
        await conn.close()


async def uids_of(conn: Any, keys: list[str]) -> dict[str, str]:
    """The uid of each row, by its key."""
    rows = await conn.fetch("select key, uid::text from notifyq.emails where key = any ($1)", keys)
    return {row["key"]: row["uid"] for row in rows}


CLAIMS = ("claim_emails", "first_look", "first_look_of_several")


def trace_claims() -> list[tuple[float, float, list[str]]]:
    """Have every claim noted: when it was asked for, when it was answered, and what it brought."""
    claims: list[tuple[float, float, list[str]]] = []
    fetch = Link.fetch

    async def traced(link: Link, query: str, *args: Any) -> list[Any]:
        start = time.monotonic()
        rows = await fetch(link, query, *args)
        if query in CLAIMS:
            uids = [str(row["uid"]) for row in rows if row["id"] is not None]
            claims.append((start, time.monotonic(), uids))
        return rows

    Link.fetch = traced  # type: ignore[method-assign, assignment]
    return claims


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
