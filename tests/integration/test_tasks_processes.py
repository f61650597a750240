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
from outbox import PATIENCE, until

from notifyq import WorkerSettings
from notifyq.task_run import FORKED
from notifyq.testing import FakePostmark

ONE_SERVER_IS_ENOUGH = True

PROGRAM = Path(__file__).with_name("task_process.py")
LEASE = 2.0
QUICK = ("post_budget=0.5", f"lease={LEASE}", "settle=0.5", "poll=0.5", "grace=5")
DEFAULTS: tuple[str, ...] = ()
DEFAULT_LEASE = WorkerSettings().lease

ASLEEP = """
select exists (
    select from pg_locks l join pg_database d on d.oid = l.database and d.datname = current_database()
    where l.locktype = 'advisory' and l.classid = 1852798834 and l.objid = 1 and l.granted
      and l.mode = 'ExclusiveLock')
"""


class Processes:
    """Worker processes on one database; those that live at the end are killed."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], dsn: str, fake: FakePostmark) -> None:
        self.pool = pool
        self._dsn = dsn
        self._fake = fake
        self._all: list[asyncio.subprocess.Process] = []

    async def start(
        self, *settings: str, base: tuple[str, ...] = QUICK, **env: str
    ) -> asyncio.subprocess.Process:
        """Start one with the settings *base*, as changed by *settings*, and wait until it is ready."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(PROGRAM),
            self._dsn,
            *base,
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

    async def put(self, name: str, count: int = 1, *, bell: str = "asleep", args: str = "{}") -> None:
        """Enqueue calls."""
        async with self.pool.acquire() as conn, conn.transaction():
            await conn.execute("select set_config('notifyq.bell', $1, true)", bell)
            await conn.execute(
                "insert into notifyq.tasks (name, args) "
                "select $1, $3::text::jsonb from generate_series(1, $2::int)",
                name,
                count,
                args,
            )

    async def until_asleep(self) -> None:
        """Wait until a worker sleeps for all: from then on the others look seldom too."""

        async def reached() -> bool:
            return bool(await self.pool.fetchval(ASLEEP))

        await until(reached, what="a worker sleeps")

    async def until_runs(
        self, count: int, process: asyncio.subprocess.Process | None = None, *, seconds: float = PATIENCE
    ) -> None:
        """Wait until *count* calls have said that they run (in that process)."""

        async def reached() -> bool:
            query = "select count(distinct call) from runs where pid = $1 or $1 is null"
            return bool(await self.pool.fetchval(query, process and process.pid) == count)

        await until(reached, seconds=seconds, what=f"{count} calls run")

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


async def recovered_in(processes: Processes, killed: float, heir: asyncio.subprocess.Process) -> float:
    """Seconds from the kill until fifty calls of "hold" run in *heir*, each for the second time."""
    await processes.until_runs(50, heir, seconds=90)
    took = time.monotonic() - killed
    again = "select count(*) from notifyq.tasks where name = 'hold' and status = 'done' and attempts = 2"

    async def done() -> bool:
        return bool(await processes.pool.fetchval(again) == 50)

    await until(done, what="fifty calls are done at their second attempt")
    return took


@pytest.mark.parametrize(
    ("base", "lease"),
    [
        pytest.param(QUICK, LEASE, id="quick"),
        pytest.param(DEFAULTS, DEFAULT_LEASE, id="defaults", marks=pytest.mark.long),
    ],
)
async def test_fifty_calls_of_a_killed_worker_run_again_elsewhere_within_a_lease_and_two_seconds(
    processes: Processes, base: tuple[str, ...], lease: float
) -> None:
    """No user code, no configuration: another worker watches the leases."""
    await processes.put("hold", 50)
    first = await processes.start("slots=50", base=base, HOLD="1")
    await processes.until_runs(50, first)
    second = await processes.start("slots=50", base=base)

    await processes.kill(first)
    took = await recovered_in(processes, time.monotonic(), second)

    print(f"all run again after {took:.2f} s")
    assert took <= lease + 2


@pytest.mark.parametrize(
    ("base", "lease", "seated"),
    [
        pytest.param(QUICK, LEASE, True, id="quick, seated"),
        pytest.param(DEFAULTS, DEFAULT_LEASE, True, id="defaults, seated", marks=pytest.mark.long),
        pytest.param(DEFAULTS, DEFAULT_LEASE, False, id="defaults, unseated", marks=pytest.mark.long),
    ],
)
async def test_an_idle_worker_that_never_saw_the_calls_runs_them_within_a_lease_and_two_seconds(
    processes: Processes, base: tuple[str, ...], lease: float, seated: bool
) -> None:
    """It was there before they were claimed and looks seldom; their worker dies before a heartbeat."""
    if not seated:
        await processes.start(base=base, NOTHING="1")  # sits, but cannot run them
        await processes.until_asleep()
    second = await processes.start("slots=50", base=base)
    await processes.put("add")
    await processes.until_done(1)  # so it has looked, and sleeps from now on
    await processes.pool.execute("truncate runs")
    await processes.until_asleep()
    await processes.put("hold", 50, bell="off")
    first = await processes.start("slots=50", base=base, HOLD="1")
    await processes.until_runs(50, first)

    await processes.kill(first)
    took = await recovered_in(processes, time.monotonic(), second)

    print(f"all run again after {took:.2f} s")
    assert took <= lease + 2


@pytest.mark.parametrize(
    ("name", "then"),
    [
        ("forks", "return"),
        ("forks", "await"),
        ("forks-in-thread", "return"),
        ("forks-in-thread", "raise"),
    ],
)
async def test_a_forked_child_never_becomes_a_second_worker(
    processes: Processes, name: str, then: str
) -> None:
    """It has the worker's connections and its event loop: it would take answers that are not for it."""
    worker = await processes.start("slots=4")
    await processes.put(name, args=f'{{"then": "{then}"}}')
    await processes.put("add", 20)
    await processes.until_done(20)

    async def ended() -> bool:
        return bool(
            await processes.pool.fetchval("select status = 'dead' from notifyq.tasks where name = $1", name)
        )

    await until(ended, what="the call has told how its child ended")
    call = await processes.pool.fetchrow("select * from notifyq.tasks where name = $1", name)
    worker.send_signal(signal.SIGTERM)
    log = await processes.log(worker)

    assert call is not None
    assert (call["attempts"], call["reason"], call["last_error"]) == (1, "gave_up", str(FORKED))
    assert log.count("it ends here") == 1
    assert "does not answer" not in log


async def test_what_a_killed_worker_left_runs_again_in_time_though_a_child_keeps_its_sessions_open(
    processes: Processes,
) -> None:
    """Postgres takes the dead worker for alive, and it is the one that listens for all."""
    first = await processes.start(HOLD="1")
    await processes.until_asleep()
    await processes.put("leaves")
    await processes.until_runs(1)
    orphan = await processes.pool.fetchval("select pid from runs")
    try:
        second = await processes.start("poll=60")
        first.kill()  # to wait for its end is to wait for all who have its pipes
        killed = time.monotonic()
        await processes.until_runs(1, second)
        took = time.monotonic() - killed
    finally:
        os.kill(orphan, signal.SIGKILL)

    assert took <= LEASE + 2


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
    assert (call["reason"], call["attempts"], call["max_attempts"]) == ("exhausted", 3, 3)
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
