"""The kill loop: real workers killed at random moments, Postgres restarted under them, a provider at fault.

Applications take orders all the while, and treat their own unknown commits properly. At the end every
committed order has one accepted email, or one that is held, nobody has two, and every order was counted
once by its call.

The provider must not be what the loop waits for: `quick_desk` gives it an index, and `Memory` lets it forget
what nobody can ask about any more, so that one listing reaches back to the oldest doubt.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
from checker import CANARY_TOKEN, Tally, accepted_too_late, canaries_in, check, watch
from processes import Child, Zygote, zygote
from quick_desk import make_quick

from notifyq.testing import FakePostmark, faults

SETTLE = 2.0
SETTINGS: dict[str, Any] = {
    "slots": 16,
    "post_budget": 0.8,
    "lease": 1.6,
    "settle": SETTLE,
    "grace": 2.0,
    "poll": 0.5,
    "backoff": 0.1,
    "backoff_cap": 1.0,
}
SEARCH_LAG = 0.3
LATE = 0.4
"""Both together are below settle: the printed assumptions hold, unless the machine stands still."""

PATIENCE = 40.0
"""How long the rest may go on, in seconds, without one row less to wait for."""

NEWS_EVERY = 30.0
REMEMBERED = 10.0
OLDEST = """select extract(epoch from min(created_at))::float8 from notifyq.emails
            where status not in ('sent', 'dead', 'held')"""
OPEN = """select (select count(*) from notifyq.emails where status not in ('sent', 'dead', 'held'))
               + (select count(*) from notifyq.tasks where status not in ('done', 'dead'))"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to break: at least *kills*, and until *emails* are accepted.

    *rate* is the applications' transactions a second, *burst* the most orders in one of them; they stop at
    *most* orders, so that a slow machine has no endless backlog. *pause* is the time between two kills.
    """

    kills: int
    emails: int = 0
    most: int
    rate: float
    burst: int = 1
    workers: int = 3
    every_restart: int = 10
    pause: float = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the loop did and what the checker found."""

    kills: int
    restarts: int
    seconds: float
    stalled: float
    tally: Tally
    canaries: list[str]

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.restarts} Postgres restarts, {self.seconds:.0f} s "
            f"(longest standstill {self.stalled:.1f} s); {self.tally}"
        )


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far the loop is. `tell` prints it."""

    fake: FakePostmark
    kills: int = 0
    restarts: int = 0
    restarting: float = 0.0
    stalled: float = 0.0
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def tell(self, what: str = "") -> None:
        """Print one line, at once."""
        print(
            f"kill loop: {self.kills} kills, {self.restarts} restarts ({self.restarting:.0f} s), "
            f"{len(self.fake.accepted)} emails accepted, {self.seconds:.0f} s{what}",
            flush=True,
        )

    async def tell_on(self) -> None:
        """Tell now and then."""
        while True:
            await asyncio.sleep(NEWS_EVERY)
            self.tell()

    async def look_for_stalls(self) -> None:
        """Measure how long this process, and the provider in it, stood still."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.05)
            self.stalled = max(self.stalled, time.monotonic() - began - 0.05)


class Memory:
    """Lets *fake* forget what was accepted before the oldest row that is still open.

    Without the database it forgets nothing more: what it may forget is a moment, not an age.
    """

    def __init__(self, dsn: str, fake: FakePostmark) -> None:
        self._dsn, self._fake = dsn, fake
        self._forgotten = time.time() - REMEMBERED

    async def run(self) -> None:
        while True:
            try:
                await self._forget(await asyncpg.connect(self._dsn, timeout=5))
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                self._keep()
                await asyncio.sleep(0.1)  # it is being restarted

    async def _forget(self, conn: Any) -> None:
        try:
            while True:
                now = time.time()
                oldest = await conn.fetchval(OLDEST) or now
                self._forgotten = max(self._forgotten, min(oldest, now) - REMEMBERED)
                self._keep()
                await asyncio.sleep(0.3)
        finally:
            conn.terminate()

    def _keep(self) -> None:
        self._fake.retention_days = (time.time() - self._forgotten) / 86400


@asynccontextmanager
async def beside(*jobs: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run endless *jobs* for as long as the block runs."""
    running = [asyncio.create_task(job) for job in jobs]
    try:
        yield
    finally:
        for job in running:
            job.cancel()
        ends = await asyncio.gather(*running, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends


async def kill_loop(
    dsn: str, restart: Callable[[], Awaitable[None]], folder: Path, plan: Plan, *, seed: int
) -> Report:
    """Break things as *plan* says, then wait for the end and check. *restart* restarts Postgres at once."""
    chance = random.Random(seed)
    fake = FakePostmark(token=CANARY_TOKEN, search_lag=SEARCH_LAG)
    make_quick(fake)
    _be_faulty(fake, chance)
    conn = await asyncpg.connect(dsn)
    await watch(conn)
    await conn.close()
    async with fake, zygote(folder) as children:
        progress = Progress(fake=fake)
        async with beside(progress.tell_on(), progress.look_for_stalls(), Memory(dsn, fake).run()):
            seeds = [chance.randrange(10**9) for _ in range(2)]
            take = {"dsn": dsn, "rate": plan.rate / len(seeds), "burst": plan.burst, "most": plan.most // 2}
            apps = [await children.fork("orders", seed=s, **take) for s in seeds]
            workers = [await _worker(children, dsn, fake) for _ in range(plan.workers)]
            await _break(plan, chance, children, workers, restart, progress)
            for app in apps:
                await _stopped(app, children)
            fake.clear_faults()
            progress.tell(", all broken; the rest is awaited")
            tally = await _ended(dsn, fake)
            for worker in workers:
                await _stopped(worker, children)
        return Report(
            kills=progress.kills,
            restarts=progress.restarts,
            seconds=progress.seconds,
            stalled=progress.stalled,
            tally=tally,
            canaries=canaries_in(children.log_lines()),
        )


async def _break(
    plan: Plan,
    chance: random.Random,
    children: Zygote,
    workers: list[Child],
    restart: Callable[[], Awaitable[None]],
    progress: Progress,
) -> None:
    """Kill one of *workers* after the other, and the database now and then."""
    fake = progress.fake
    while progress.kills < plan.kills or len(fake.accepted) < plan.emails:
        progress.kills += 1
        await asyncio.sleep(chance.uniform(0.4, 1.6) * plan.pause)
        place = chance.randrange(plan.workers)
        ended = workers[place]
        assert ended.code is None, f"a worker ended by itself:\n{children.logged[-3000:]}"
        await ended.kill()
        workers[place] = await _worker(children, ended.order["dsn"], fake)
        if progress.kills % plan.every_restart == 0:
            progress.restarts += 1
            began = time.monotonic()
            await restart()
            progress.restarting += time.monotonic() - began


async def _worker(children: Zygote, dsn: str, fake: FakePostmark) -> Child:
    return await children.fork("worker", dsn=dsn, env=fake.env(), settings=SETTINGS, counts=True)


async def _stopped(child: Child, children: Zygote) -> None:
    child.signal(15)
    await asyncio.wait_for(child.ended.wait(), 20)
    assert child.code == 0, children.logged[-3000:]


async def _ended(dsn: str, fake: FakePostmark) -> Tally:
    """Wait until every row has ended, or until nothing moves any more."""
    conn = await asyncpg.connect(dsn)
    try:
        fewest, since = 10**9, time.monotonic()
        while (left := await conn.fetchval(OPEN)) and time.monotonic() - since < PATIENCE:
            if left < fewest:
                fewest, since = left, time.monotonic()
            await asyncio.sleep(0.1)
        late = await accepted_too_late(conn, fake.accepted, SETTLE - SEARCH_LAG)
        return await check(conn, fake.accepted, twice_is_known=lambda row: row["id"] in late)
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
