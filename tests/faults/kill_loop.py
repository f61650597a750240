"""The kill loop: real workers killed at random moments, Postgres restarted under them, a provider at fault.

An application enqueues all the while, and treats its own unknown commits properly. At the end every
committed order has one accepted email, or one that is held, and nobody has two.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
from checker import CANARY_TOKEN, Tally, canaries_in, check, watch
from processes import Child, Zygote, zygote

from notifyq.testing import FakePostmark, faults

SETTINGS: dict[str, Any] = {
    "slots": 10,
    "post_budget": 0.5,
    "lease": 1.0,
    "settle": 1.5,
    "grace": 2.0,
    "poll": 0.5,
    "backoff": 0.1,
    "backoff_cap": 1.0,
}
SEARCH_LAG = 0.3
LATE = 0.4
"""Both together are below settle: the printed assumptions hold."""

PATIENCE = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to break: at least *kills*, and until *emails* are accepted."""

    kills: int
    emails: int = 0
    rate: float
    workers: int = 3
    every_restart: int = 10
    pause: float = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the loop did and what the checker found."""

    kills: int
    restarts: int
    seconds: float
    tally: Tally
    canaries: list[str]

    def __str__(self) -> str:
        return f"{self.kills} kills, {self.restarts} Postgres restarts, {self.seconds:.0f} s; {self.tally}"


async def kill_loop(
    dsn: str, restart: Callable[[], Awaitable[None]], folder: Path, plan: Plan, *, seed: int
) -> Report:
    """Break things as *plan* says, then wait for the end and check. *restart* restarts Postgres at once."""
    began = time.monotonic()
    chance = random.Random(seed)
    fake = FakePostmark(token=CANARY_TOKEN, search_lag=SEARCH_LAG)
    _be_faulty(fake, chance)
    conn = await asyncpg.connect(dsn)
    await watch(conn)
    await conn.close()
    async with fake, zygote(folder) as children:
        seeds = [chance.randrange(10**9) for _ in range(2)]
        apps = [await children.fork("orders", dsn=dsn, seed=s, rate=plan.rate / 2) for s in seeds]
        workers = [await _worker(children, dsn, fake) for _ in range(plan.workers)]
        restarts = 0
        number = 0
        while number < plan.kills or len(fake.accepted) < plan.emails:
            number += 1
            await asyncio.sleep(chance.uniform(0.4, 1.6) * plan.pause)
            place = chance.randrange(plan.workers)
            assert workers[place].code is None, f"a worker ended by itself:\n{children.logged[-3000:]}"
            await workers[place].kill()
            workers[place] = await _worker(children, dsn, fake)
            if number % plan.every_restart == 0:
                restarts += 1
                await restart()
        for app in apps:
            app.signal(15)
            await app.ended.wait()
            assert app.code == 0, children.logged[-3000:]
        fake.clear_faults()
        tally = await _ended(dsn, fake)
        for worker in workers:
            worker.signal(15)
            await asyncio.wait_for(worker.ended.wait(), 10)
            assert worker.code == 0, children.logged[-3000:]
        return Report(
            kills=number,
            restarts=restarts,
            seconds=time.monotonic() - began,
            tally=tally,
            canaries=canaries_in([children.logged]),
        )


async def _worker(children: Zygote, dsn: str, fake: FakePostmark) -> Child:
    return await children.fork("worker", dsn=dsn, env=fake.env(), settings=SETTINGS)


async def _ended(dsn: str, fake: FakePostmark) -> Tally:
    """Wait until every row has ended, within what the promise allows (and the backlog needs)."""
    conn = await asyncpg.connect(dsn)
    try:
        deadline = time.monotonic() + PATIENCE
        open_rows = "select count(*) from notifyq.emails where status not in ('sent', 'dead', 'held')"
        while await conn.fetchval(open_rows) and time.monotonic() < deadline:  # noqa: ASYNC110 (a database)
            await asyncio.sleep(0.1)
        return await check(conn, fake.accepted)
    finally:
        await conn.close()


def _be_faulty(fake: FakePostmark, chance: random.Random) -> None:
    """One send in nine meets a fault, one search in twelve."""

    def sometimes(share: float) -> Callable[[dict[str, Any]], bool]:
        return lambda _message: chance.random() < share

    for fault, share in (
        (faults.Close(record=True), 0.02),
        (faults.Close(record=False), 0.015),
        (faults.Reset(record=True), 0.02),
        (faults.Reset(record=False), 0.015),
        (faults.LateAccept(after=LATE), 0.02),
        (faults.unexpected(record=True), 0.01),
        (faults.bad_gateway(record=True), 0.01),
        (faults.Truncated(record=True), 0.01),
        (faults.maintenance(), 0.01),
        (faults.too_many_requests("0.2"), 0.001),
    ):
        fake.fault(fault, times=None, when=sometimes(share))
    fake.fault(faults.bad_gateway(), times=None, when=sometimes(0.04), on="search")
    fake.fault(faults.Close(), times=None, when=sometimes(0.04), on="search")
