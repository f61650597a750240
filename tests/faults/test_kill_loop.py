"""Real processes, kill -9, restarts of Postgres: nothing lost, nothing twice, nothing stuck."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from kill_loop import Plan, Report, kill_loop

from notifyq import embedded
from notifyq.testing.database import Databases


@pytest.mark.timeout(240)
async def test_a_hundred_kills_lose_nothing_and_send_nothing_twice(tmp_path: Path) -> None:
    """The promise, on real processes: the short form of the long run. Each order is counted once, too."""
    await _run(tmp_path, Plan(kills=100, rate=20, burst=3))


@pytest.mark.long
@pytest.mark.timeout(7200)
async def test_a_thousand_kills_lose_nothing_and_send_nothing_twice(tmp_path: Path) -> None:
    """0 of 1,000 bounds the rate of a fault below 0.3 % (95 %)."""
    report = await _run(tmp_path, Plan(kills=1000, emails=20_000, rate=15, burst=5, pause=0.5))
    assert report.tally.rows >= 20_000
    assert report.restarts >= 100


async def _run(folder: Path, plan: Plan) -> Report:
    seed = random.randrange(10**9)
    server = await asyncio.to_thread(embedded.Server, throwaway=True)
    await asyncio.to_thread(server.start)
    try:
        with Databases(server.dsn).fresh() as dsn:
            report = await kill_loop(
                dsn, lambda: asyncio.to_thread(server.restart, immediate=True), folder, plan, seed=seed
            )
    finally:
        await asyncio.to_thread(server.stop)
    print(f"\nkill loop, seed {seed}: {report}")
    assert report.tally.wrong == []
    assert report.canaries == []
    assert report.tally.counted >= report.tally.rows
    return report
