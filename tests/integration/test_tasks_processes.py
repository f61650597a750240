"""Workers that are killed, frozen, and killed by what they run: real processes, real signals."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from outbox import until

from notifyq.testing import FakePostmark

ONE_SERVER_IS_ENOUGH = True

PROGRAM = Path(__file__).with_name("task_process.py")
LEASE = 2.0
QUICK = ("post_budget=0.5", f"lease={LEASE}", "settle=0.5", "poll=0.5", "grace=5")


class Processes:
    """Worker processes on one database; those that live at the end are killed."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], dsn: str, fake: FakePostmark) -> None:
        self.pool = pool
        self._dsn = dsn
        self._fake = fake
        self._all: list[asyncio.subprocess.Process] = []

    async def start(self, *settings: str, **env: str) -> asyncio.subprocess.Process:
        """Start one, and wait until it is ready."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(PROGRAM),
            self._dsn,
            *QUICK,
            *settings,
            env={**os.environ, "PYTHONPATH": os.getcwd(), **self._fake.env(), **env},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        self._all.append(process)
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 30)
        assert line == b"ready\n", (await self.log(process))[-2000:]
        return process

    async def log(self, process: asyncio.subprocess.Process) -> str:
        """What it has logged by its end."""
        assert process.stderr is not None
        return (await asyncio.wait_for(process.stderr.read(), 30)).decode()

    async def kill(self, process: asyncio.subprocess.Process) -> None:
        """kill -9."""
        process.kill()
        await process.wait()

    async def end(self) -> None:
        """Kill what is left, and read what it said."""
        for process in self._all:
            if process.returncode is None:
                process.kill()
        for process in self._all:
            await process.communicate()

    async def put(self, name: str, count: int = 1) -> None:
        """Enqueue calls."""
        await self.pool.execute(
            "insert into notifyq.tasks (name, max_attempts) "
            "select $1, case $1 when 'kills' then 3 else 1000 end from generate_series(1, $2::int)",
            name,
            count,
        )

    async def until_runs(self, count: int, process: asyncio.subprocess.Process | None = None) -> None:
        """Wait until *count* calls have said that they run (in that process)."""

        async def reached() -> bool:
            query = "select count(distinct call) from runs where pid = $1 or $1 is null"
            return bool(await self.pool.fetchval(query, process and process.pid) == count)

        await until(reached, what=f"{count} calls run")

    async def until_done(self, count: int, seconds: float = 60) -> None:
        """Wait until *count* calls are done."""

        async def reached() -> bool:
            query = "select count(*) from notifyq.tasks where status = 'done'"
            return bool(await self.pool.fetchval(query) == count)

        await until(reached, seconds=seconds, what=f"{count} calls are done")


@pytest.fixture
async def processes(
    notifyq_pool: Any, notifyq_dsn: str, fake_postmark: FakePostmark
) -> AsyncIterator[Processes]:
    """Tables for the tasks to write to."""
    await notifyq_pool.execute(
        "create table runs (call bigint, pid int, at timestamptz default clock_timestamp());"
        "create table effects (call bigint)"
    )
    started = Processes(notifyq_pool, notifyq_dsn, fake_postmark)
    yield started
    await started.end()


async def test_fifty_calls_of_a_killed_worker_run_again_elsewhere_within_a_lease_and_two_seconds(
    processes: Processes,
) -> None:
    """No user code, no configuration: another worker watches the leases."""
    await processes.put("hold", 50)
    first = await processes.start("slots=50", HOLD="1")
    await processes.until_runs(50, first)
    second = await processes.start("slots=50")

    await processes.kill(first)
    killed = time.monotonic()
    await processes.until_runs(50, second)

    assert time.monotonic() - killed <= LEASE + 2
    await processes.until_done(50)
    assert await processes.pool.fetchval("select max(attempts) from notifyq.tasks") == 2


async def test_a_worker_frozen_past_its_lease_changes_nothing_when_it_wakes_and_says_so(
    processes: Processes,
) -> None:
    """Its transaction is open and about to be committed; another has done the work meanwhile."""
    await processes.put("add")
    frozen = await processes.start(HOLD="1")
    await processes.until_runs(1, frozen)
    frozen.send_signal(signal.SIGSTOP)
    await processes.start()
    await processes.until_done(1)
    before = await processes.pool.fetchrow("select * from notifyq.tasks")
    frozen.send_signal(signal.SIGCONT)
    frozen.send_signal(signal.SIGTERM)
    log = await processes.log(frozen)

    assert before == await processes.pool.fetchrow("select * from notifyq.tasks")
    assert await processes.pool.fetchval("select count(*) from effects") == 1
    assert await processes.pool.fetchval("select array_agg(event order by id) from notifyq.history") == [
        "lease ended",
        "done",
    ]
    assert "task 1 (add)" in log and "changes nothing" in log


async def test_a_call_that_kills_its_process_ends_dead_after_its_attempts(processes: Processes) -> None:
    """A supervisor starts the worker again each time; it must not go on for ever."""
    await processes.put("kills")
    starts = 0
    while await processes.pool.fetchval("select status from notifyq.tasks") != "dead":
        starts += 1
        assert starts <= 8
        process = await processes.start()
        gone = asyncio.create_task(process.wait())
        dead = asyncio.create_task(_until_dead(processes))
        await asyncio.wait((gone, dead), timeout=30, return_when=asyncio.FIRST_COMPLETED)
        for waiting in (gone, dead):
            waiting.cancel()

    call = await processes.pool.fetchrow("select * from notifyq.tasks")
    assert call is not None
    assert (call["reason"], call["attempts"]) == ("exhausted", 3)
    assert await processes.pool.fetchval("select count(*) from runs") == 3


async def _until_dead(processes: Processes) -> None:
    async def dead() -> bool:
        return bool(await processes.pool.fetchval("select status = 'dead' from notifyq.tasks"))

    await until(dead, seconds=60, what="the call is dead")


async def test_effects_in_the_calls_own_transaction_are_exactly_as_many_as_calls_under_kills(
    processes: Processes,
) -> None:
    """Killed at any moment, also between the work and its end: there is no between."""
    calls = 300
    await processes.put("add", calls)
    workers = [await processes.start("slots=8") for _ in range(2)]
    dice = random.Random(4)
    for _ in range(5):
        await asyncio.sleep(dice.uniform(0.05, 0.6))
        victim = workers.pop(dice.randrange(2))
        await processes.kill(victim)
        workers.append(await processes.start("slots=8"))
    await processes.until_done(calls)

    rows = await processes.pool.fetch("select call, count(*) from effects group by call")
    assert len(rows) == calls
    assert {row["count"] for row in rows} == {1}


async def test_a_limit_of_one_holds_over_processes(processes: Processes) -> None:
    """Three processes, one advisory lock that must always be free."""
    await processes.put("one", 200)
    for _ in range(3):
        await processes.start()
    await processes.until_done(200)

    rows = await processes.pool.fetch("select pid, count(*) from runs group by pid")
    assert await processes.pool.fetchval("select count(*) from runs where call = -1") == 0
    assert sum(row["count"] for row in rows) == 200
