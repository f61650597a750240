"""The bell in a fleet: who wakes, who does not, and that nothing waits for the timer.

The workers' polling is set to a minute, so what arrives has been rung for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from bell_fleet import NO_POLLING, SOON, Night, bell, night
from outbox import Outbox, an_email, emails, keys, until
from task_fleet import Fleet

from notifyq import TaskContext, embedded, enqueue, enqueue_many, migrate, task
from notifyq.testing import FakePostmark, faults


@pytest.fixture
async def fleet(outbox: Outbox, notifyq_dsn: str) -> AsyncIterator[Night]:
    """Workers with pools of their own."""
    async with night(outbox, notifyq_dsn) as made:
        yield made


@pytest.mark.parametrize("count", [3, 20])
async def test_one_of_many_idle_workers_wakes_for_an_email(fleet: Night, count: int) -> None:
    """Twenty workers that all look at each ring are twenty times the work."""
    await fleet.fleet(count)
    before = fleet.turns()

    await fleet.outbox.put()
    await fleet.outbox.until("sent", seconds=SOON)

    assert fleet.turns() - before <= 2
    assert fleet.found_by_timer() == 0


async def test_a_clean_end_leaves_no_lock_and_the_next_takes_the_seat(fleet: Night) -> None:
    """A deploy: the old worker goes, the new one hears the very next email."""
    await fleet.fleet(2)
    first = await fleet.asleep()

    await fleet.outbox.stop(first)
    fleet.workers.remove(first)
    await fleet.outbox.put()

    await fleet.outbox.until("sent", seconds=SOON)
    assert fleet.found_by_timer() == 0
    (second,) = fleet.workers
    await fleet.asleep()
    assert await fleet.locks() == [(1, True), (2, True)]
    await fleet.outbox.stop(second)
    assert await fleet.locks() == []


async def test_full_workers_are_not_rung(fleet: Night) -> None:
    """A NOTIFY costs every commit something, and nobody could come."""
    fleet.outbox.fake.fault(faults.Hang(record=True), times=None)
    await fleet.fleet(1, slots=2, post_budget=8, lease=16)
    for key in keys(2):
        await fleet.outbox.put(key)
    await fleet.outbox.fake.wait_posts(2)

    await fleet.outbox.put("urgent", priority=-1)
    await fleet.outbox.fake.wait_posts(3)
    await until(lambda: _no_locks(fleet), what="the full worker has left the seat")
    await fleet.ear.rings()
    for key in keys(5, "later"):
        await fleet.outbox.put(key)

    assert await fleet.ear.rings() == 0
    fleet.outbox.fake.clear_faults()
    fleet.outbox.fake.release()
    await fleet.outbox.until_statuses({"sent": 8}, seconds=SOON)
    assert fleet.found_by_timer() == 0


async def _no_locks(fleet: Night) -> bool:
    return await fleet.locks() == []


async def test_a_worker_whose_bulk_slots_are_taken_calls_one_that_has_room(fleet: Night) -> None:
    """It hears the ring, for it listens to urgent mail; the others would not hear of it."""
    fleet.outbox.fake.fault(faults.Hang(record=True), times=None)
    await fleet.fleet(2, slots=2, post_budget=8, lease=16)

    for number, key in enumerate(keys(4)):
        await fleet.outbox.put(key)
        await fleet.outbox.fake.wait_posts(number + 1, timeout=SOON)

    assert [len(lane.under_way) for worker in fleet.workers for lane in worker._lanes] == [2, 2]
    assert fleet.found_by_timer() == 0


@pytest.mark.parametrize("count", [2, 3])
async def test_a_name_that_only_the_last_worker_knows_is_served(
    notifyq_dsn: str, fake_postmark: FakePostmark, outbox: Outbox, count: int
) -> None:
    """The one who sleeps for all does not know it, and nor may the next."""
    async with night(outbox, notifyq_dsn) as made, Fleet(outbox.pool, fake_postmark) as tasks:

        @task("known to all")
        async def common(ctx: TaskContext) -> None: ...

        @task("known to one")
        async def rare(ctx: TaskContext) -> None: ...

        for number in range(count):
            served = (common, rare) if number == count - 1 else (common,)
            pool = await made.pool(application_name="ear")
            made.workers.append(await tasks.start(*served, pool=pool, **NO_POLLING))
        await made.settled()
        assert made.sleeper() is made.workers[0]

        for key in keys(3):
            id = await tasks.put(rare.call(), key=key)
            await tasks.until_call(id, "done", seconds=SOON)

        assert made.found_by_timer() == 0
        await tasks.stop()


async def test_a_name_that_came_without_a_ring_is_served_by_who_knows_it(
    notifyq_dsn: str, fake_postmark: FakePostmark, outbox: Outbox
) -> None:
    """Who falls asleep looks for itself; what it does not know, others must look for."""
    async with night(outbox, notifyq_dsn) as made, Fleet(outbox.pool, fake_postmark) as tasks:

        @task("known to all")
        async def common(ctx: TaskContext) -> None: ...

        @task("known to one")
        async def rare(ctx: TaskContext) -> None: ...

        async with outbox.pool.acquire() as conn, conn.transaction():
            silent = await enqueue(conn, rare.call())
            for served in ((common,), (common, rare)):
                pool = await made.pool(application_name="ear")
                made.workers.append(await tasks.start(*served, pool=pool, **NO_POLLING))
            await until(lambda: _have_looked(made), what="both have looked in vain")

        await tasks.until_call(silent.id, "done", seconds=SOON)
        await made.asleep()
        assert made.found_by_timer() == 0
        await tasks.stop()


async def _have_looked(fleet: Night) -> bool:
    return all(lane.turns and lane.resting for worker in fleet.workers for lane in worker._lanes)


async def test_an_email_does_not_wait_for_the_tasks_that_fill_their_lane(
    notifyq_dsn: str, fake_postmark: FakePostmark, outbox: Outbox
) -> None:
    """Twenty reports under way, and somebody asks for a new password."""
    async with night(outbox, notifyq_dsn) as made, Fleet(outbox.pool, fake_postmark) as tasks:
        done = asyncio.Event()

        @task("report", priority=-1)
        async def report(ctx: TaskContext) -> None:
            await done.wait()

        pool = await made.pool(application_name="ear")
        worker = await tasks.start(report, pool=pool, slots=1, **NO_POLLING)
        made.workers.append(worker)
        calls = [await tasks.put(report.call(), key=key) for key in keys(2)]
        for id in calls:
            await tasks.until_call(id, "processing")
        await made.asleep()

        await outbox.put()
        await outbox.until("sent", seconds=SOON)

        done.set()
        for id in calls:
            await tasks.until_call(id, "done")
        assert made.found_by_timer() == 0
        await tasks.stop()


async def test_a_burst_of_eight_writers_rings_seldom_and_leaves_nothing_to_the_timer(fleet: Night) -> None:
    """By day the lanes look by themselves: the enqueues pay for no NOTIFY."""
    await fleet.fleet(1)
    await fleet.ear.rings()
    writers = await fleet.pool(8)

    async def write(writer: str) -> None:
        async with writers.acquire() as conn:
            for key in keys(200, writer):
                await enqueue(conn, an_email(key))

    await asyncio.gather(*map(write, keys(8, "w")))

    await fleet.outbox.until_statuses({"sent": 1600}, seconds=60)
    rings = await fleet.ear.rings()
    print(f"{rings} rings for 1,600 emails")
    assert rings <= 400
    assert fleet.found_by_timer() == 0


@pytest.mark.parametrize(("slots", "count", "delay"), [(5, 5, 0.3), (5, 6, 0.3), (5, 16, 0.5), (20, 21, 0.3)])
async def test_a_ring_for_about_as_many_rows_as_slots_leaves_none_behind(
    fleet: Night, slots: int, count: int, delay: float
) -> None:
    """What the first look leaves is claimed as slots come free, not at the timer's next turn."""
    fleet.outbox.fake.answer_delay = delay
    await fleet.fleet(1, slots=slots)
    await fleet.asleep()

    await enqueue_many(fleet.outbox.pool, emails(keys(count)))

    await fleet.outbox.until_statuses({"sent": count}, seconds=SOON)
    assert fleet.found_by_timer() == 0


async def test_always_rings_though_nobody_sleeps(fleet: Night) -> None:
    """For who wants the plain bell."""
    pool = await fleet.pool(1, **{"notifyq.bell": "always"})

    await enqueue(pool, an_email())

    assert await fleet.ear.rings() == 1


async def test_off_is_left_to_the_timer_and_no_holder_is_suspected(
    fleet: Night, caplog: pytest.LogCaptureFixture
) -> None:
    """The others' timer finds rows that nobody rang for: that is not the fault of the one who listens."""
    await fleet.fleet(2, poll=1.5, quiet_poll=60.0)
    holder = await fleet.asleep()
    session = bell(holder)._link.session
    await fleet.ear.rings()
    pool = await fleet.pool(1, **{"notifyq.bell": "off"})

    async with pool.acquire() as conn, conn.transaction():
        await enqueue(conn, an_email())
        await conn.execute(
            "update notifyq.emails set run_after = run_after - interval '1 minute', "
            "created_at = created_at - interval '1 minute'"
        )

    await fleet.outbox.until("sent", seconds=SOON)
    assert await fleet.ear.rings() == 0
    assert fleet.found_by_timer() == 1
    await fleet.settled()
    assert (bell(holder)._link.session, bell(holder)._asleep) == (session, True)
    assert "did not hear" not in caplog.text


async def test_an_enqueueing_transaction_can_be_prepared_while_nobody_sleeps(
    fake_postmark: FakePostmark,
) -> None:
    """A transaction that rang cannot; and while a prepared one is there, nobody falls asleep on its row."""
    settings = {"max_prepared_transactions": "5"}
    async with (
        embedded.server(throwaway=True, settings=settings) as server,
        asyncpg.create_pool(server.dsn, min_size=0, max_size=10) as pool,
    ):
        async with pool.acquire() as conn:
            await migrate(conn)
        outbox = Outbox(pool, fake_postmark)
        async with night(outbox, server.dsn) as made, pool.acquire() as conn:
            await outbox.put("first of its kind")
            await conn.execute("begin")
            await enqueue(conn, an_email("prepared"))
            await conn.execute("prepare transaction 'one'")
            await made.start()
            await outbox.put("meanwhile")
            await outbox.until("sent", "meanwhile", seconds=SOON)
            assert made.sleeper() is None

            await conn.execute("commit prepared 'one'")

            await outbox.until("sent", "prepared", seconds=SOON)
            await made.asleep()
            assert made.found_by_timer() == 0
