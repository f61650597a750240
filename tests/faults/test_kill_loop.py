"""Real processes, kill -9, restarts of Postgres: nothing lost, nothing twice, nothing stuck."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kill_loop import Plan, Report, kill_loop

from notifyq import embedded
from notifyq.testing.database import Databases


@pytest.fixture
def server() -> Iterator[embedded.Server]:
    """A server to restart. Not a throwaway one: each restart of that leaves a process behind, for its end."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)  # root's server runs as somebody else
        with embedded.running(Path(folder) / "postgres") as server:
            yield server


@pytest.mark.timeout(400)
async def test_a_hundred_kills_lose_nothing_and_send_nothing_twice(server: embedded.Server) -> None:
    """The promise, on real processes: the short form of the long run. Each order is counted once, too."""
    await _run(server, Plan(kills=100, most=2000, rate=20, burst=3))


@pytest.mark.long
@pytest.mark.timeout(7200)
async def test_a_thousand_kills_lose_nothing_and_send_nothing_twice(server: embedded.Server) -> None:
    """0 of 1,000 bounds the rate of a fault below 0.3 % (95 %)."""
    report = await _run(server, Plan(kills=1000, emails=20_000, most=21_500, rate=15, burst=5, pause=0.5))
    assert report.tally.rows >= 20_000
    assert report.restarts >= 100


async def _run(server: embedded.Server, plan: Plan) -> Report:
    seed = random.randrange(10**9)
    with Databases(server.dsn).fresh() as dsn:
        report = await kill_loop(
            dsn,
            lambda: asyncio.to_thread(server.restart, immediate=True),
            server.folder.parent,
            plan,
            seed=seed,
        )
    print(f"\nkill loop, seed {seed}: {report}")
    assert report.tally.wrong == []
    assert report.canaries == []
    assert report.tally.counted >= report.tally.rows
    return report
