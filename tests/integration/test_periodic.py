"""Periodic tasks on real workers: each tick once, whoever sees it first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from outbox import until
from task_fleet import Fleet

import notifyq
from notifyq import TaskContext
from notifyq.schedule import Missed
from notifyq.tasks import Task
from notifyq.testing import FakePostmark

ONE_SERVER_IS_ENOUGH = True


@pytest.fixture
async def fleet(notifyq_pool: Any, fake_postmark: FakePostmark) -> AsyncIterator[Fleet]:
    """No worker runs yet."""
    async with Fleet(notifyq_pool, fake_postmark) as fleet:
        yield fleet


def planned(expression: str, missed: Missed = "skip", ran: list[int] | None = None) -> Task[[]]:
    """A periodic task that notes the ids of its calls."""

    @notifyq.periodic(expression, missed=missed)
    @notifyq.task("tick")
    async def tick(ctx: TaskContext) -> None:
        if ran is not None:
            ran.append(ctx.id)

    return tick


async def test_each_tick_is_enqueued_once_by_eight_workers(notifyq_dsn: str, fleet: Fleet) -> None:
    """Quick calls, so that a late worker asks when the call of the tick is done already."""
    ran: list[int] = []
    tick = planned("* * * * * *", ran=ran)
    async with asyncpg.create_pool(notifyq_dsn, min_size=0, max_size=60) as pool:
        workers = [await fleet.start(tick, pool=pool) for _ in range(8)]
        started = await fleet.pool.fetchval("select clock_timestamp()")

        async def enough() -> bool:
            return len(ran) >= 6

        await until(enough, what="six ticks ran")
        await fleet.stop(*workers)

    rows = await fleet.pool.fetch(
        "select date_trunc('second', created_at) as tick, count(*) from notifyq.tasks "
        "where created_at > $1 group by 1 order by 1",
        started,
    )
    seconds = [row["tick"] for row in rows]
    assert [row["count"] for row in rows] == [1] * len(rows)
    assert seconds == [seconds[0] + timedelta(seconds=n) for n in range(len(seconds))]
    assert len(ran) == len(set(ran))


@pytest.mark.parametrize(("missed", "calls"), [("skip", 0), ("one", 1)])
async def test_ticks_missed_while_no_worker_ran_follow_the_policy(
    fleet: Fleet, missed: Missed, calls: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody was there for three days; three reports at once help nobody."""
    hour = (datetime.now(UTC) - timedelta(hours=2)).hour
    tick = planned(f"0 {hour} * * *", missed)
    await fleet.pool.fetch("select notifyq.last_tick('tick', $1)", datetime.now(UTC) - timedelta(days=3))
    with caplog.at_level(logging.INFO, logger="notifyq"):
        await fleet.start(tick)

        async def looked() -> bool:
            last = await fleet.pool.fetchval("select notifyq.last_tick('tick')")
            return bool(last > datetime.now(UTC) - timedelta(hours=4))

        await until(looked, what="the last tick has moved forward")
        if calls:
            await fleet.until_all("done", calls)

    assert await fleet.pool.fetchval("select count(*) from notifyq.tasks") == calls
    assert ("missed its tick" in caplog.text) == (calls == 0)


async def test_a_task_that_is_planned_for_the_first_time_has_missed_nothing(fleet: Fleet) -> None:
    """It begins with the next tick."""
    tick = planned(f"0 {(datetime.now(UTC) - timedelta(hours=2)).hour} * * *", "one")
    await fleet.start(tick)

    async def begun() -> bool:
        return bool(await fleet.pool.fetchval("select count(*) from notifyq.periodic"))

    await until(begun, what="the plan is known")

    assert await fleet.pool.fetchval("select count(*) from notifyq.tasks") == 0


async def test_ticks_go_on_after_the_database_was_away(fleet: Fleet) -> None:
    """The ticker tries again until it answers."""
    ran: list[int] = []
    await fleet.start(planned("* * * * * *", ran=ran))

    async def one_ran() -> bool:
        return bool(ran)

    await until(one_ran, what="a tick ran")
    await fleet.pool.fetch(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid()"
    )
    await asyncio.sleep(0)
    ran.clear()

    await until(one_ran, what="another tick ran")
