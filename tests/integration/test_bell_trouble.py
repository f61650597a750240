"""The bell in trouble: sessions end, ears go deaf, holders freeze, transactions are long."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from bell_fleet import SOON, Night, bell, night, turns
from outbox import PATIENCE, Outbox, an_email, keys, until
from proxy import Proxy

from notifyq import enqueue
from notifyq.testing import faults

ONE_SERVER_IS_ENOUGH = True
HERE = Path(__file__).parent


@pytest.fixture
async def fleet(outbox: Outbox, notifyq_dsn: str) -> AsyncIterator[Night]:
    """Workers with pools of their own."""
    async with night(outbox, notifyq_dsn) as made:
        yield made


@pytest.mark.parametrize("sessions", ["^notifyq worker bell$", "^ear$", "^(ear|notifyq .*)$"])
@pytest.mark.parametrize("count", [1, 2])
async def test_after_its_sessions_were_ended_the_next_email_is_served(
    fleet: Night, sessions: str, count: int
) -> None:
    """The locks go with one session, the ear with another: either must be missed."""
    await fleet.fleet(count)

    assert await fleet.end(sessions) >= 1
    await fleet.outbox.put()

    await fleet.outbox.until("sent", seconds=SOON)
    assert fleet.found_by_timer() == 0


async def test_a_long_enqueueing_transaction_holds_nobody_up(fleet: Night) -> None:
    """It keeps everyone from falling asleep; those who enqueue meanwhile ring, or are looked for."""
    await fleet.outbox.put("first of its kind")
    async with fleet.outbox.pool.acquire() as conn:
        transaction = conn.transaction()
        await transaction.start()
        await enqueue(conn, an_email("long"))
        await fleet.start()

        for key in keys(30):
            await fleet.outbox.put(key)
            await fleet.outbox.until("sent", key, seconds=2)
        assert fleet.sleeper() is None
        await transaction.commit()

    await fleet.outbox.until("sent", "long", seconds=SOON)
    assert fleet.found_by_timer() == 0
    await fleet.asleep()


async def test_what_came_without_a_ring_does_not_wait_for_a_long_transaction(fleet: Night) -> None:
    """Both began while nobody slept; the short one rings nobody, and the long one keeps all awake."""
    await fleet.outbox.put("first of its kind")
    async with fleet.outbox.pool.acquire() as one, fleet.outbox.pool.acquire() as two:
        long, short = one.transaction(), two.transaction()
        await long.start()
        await enqueue(one, an_email("long"))
        await short.start()
        await enqueue(two, an_email("short"))
        await fleet.start()
        await until(lambda: _waits_for_sleep(fleet), what="the worker waits for SLEEP")

        await short.commit()

        await fleet.outbox.until("sent", "short", seconds=SOON)
        await long.rollback()
    assert fleet.found_by_timer() == 0


async def test_an_ear_that_was_replaced_is_not_taken_for_the_one_that_had_subscribed(fleet: Night) -> None:
    """The ear may be lost and back again while its worker waits for a lock."""
    await fleet.outbox.put("first of its kind")
    async with fleet.outbox.pool.acquire() as conn:
        transaction = conn.transaction()
        await transaction.start()
        await enqueue(conn, an_email("long"))
        worker = await fleet.start()
        await until(lambda: _waits_for_sleep(fleet), what="the worker waits for SLEEP")
        await fleet.end("^ear$")
        await until(lambda: _listens(worker), what="it has another ear")
        await transaction.commit()

    await fleet.asleep()
    await fleet.outbox.put()
    await fleet.outbox.until("sent", seconds=SOON)
    assert fleet.found_by_timer() == 0


async def _waits_for_sleep(fleet: Night) -> bool:
    return (1, False) in await fleet.locks()


async def _listens(worker: object) -> bool:
    return bool(bell(worker)._listener.proven)  # type: ignore[arg-type]


async def test_a_full_worker_whose_ear_is_half_open_gives_its_locks_back(
    fleet: Night, notifyq_dsn: str
) -> None:
    """It cannot unsubscribe; with the locks kept, nobody would listen until it had room again."""
    fleet.outbox.fake.fault(faults.Hang(record=True), times=3)
    async with Proxy(notifyq_dsn) as proxy:
        full = await fleet.start(slots=2, post_budget=8, lease=16, listen_url=proxy.url)
        await fleet.asleep()
        proxy.freeze()
        for key in keys(2):
            await fleet.outbox.put(key)
        await fleet.outbox.put("urgent", priority=-1)
        full._lanes[0].ring()
        await fleet.outbox.fake.wait_posts(3)

        await until(lambda: _unlocked(fleet), what="the locks are free", seconds=5)

        await fleet.start()
        await fleet.outbox.put("next")
        await fleet.outbox.until("sent", "next", seconds=SOON)
        fleet.outbox.fake.release()
        await fleet.outbox.stop()
    assert fleet.found_by_timer() == 0


async def _unlocked(fleet: Night) -> bool:
    return await fleet.locks() == []


async def test_a_frozen_holder_is_unseated_by_a_worker_whose_timer_finds_a_row(
    fleet: Night, notifyq_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGSTOP, a blocked loop, a suspended machine: Postgres cannot see it, the others can."""
    env = {**os.environ, **fleet.outbox.fake.env(), "PYTHONPATH": str(HERE.parents[1])}
    settings = ("post_budget=1", "lease=2.5", "settle=1", "grace=5")
    command = [sys.executable, str(HERE / "worker_process.py"), notifyq_dsn, *settings]
    frozen = await asyncio.create_subprocess_exec(*command, env=env, stdout=PIPE)
    try:
        assert frozen.stdout is not None
        assert await asyncio.wait_for(frozen.stdout.readline(), PATIENCE) == b"ready\n"
        await until(lambda: _locked(fleet), what="the process sleeps")
        worker = await fleet.start(poll=1.5, quiet_poll=60.0)
        frozen.send_signal(signal.SIGSTOP)

        async def unseated() -> bool:
            await fleet.outbox.put(f"found by {fleet.found_by_timer()} and {turns(worker)}")
            return fleet.sleeper() is worker

        await until(unseated, what="the other one sleeps for all", seconds=40)
        found = fleet.found_by_timer()
        await fleet.outbox.put("rung for")
        await fleet.outbox.until("sent", "rung for", seconds=SOON)

        assert found >= 1
        assert fleet.found_by_timer() == found
        assert "did not hear" in caplog.text
        frozen.send_signal(signal.SIGCONT)
        frozen.terminate()
        assert await asyncio.wait_for(frozen.wait(), PATIENCE) == 0
    finally:
        if frozen.returncode is None:
            frozen.kill()
        await frozen.communicate()


async def _locked(fleet: Night) -> bool:
    return await fleet.locks() == [(1, True), (2, True)]


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_an_idle_worker_says_little_whether_it_sits_or_not(
    fleet: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 24 statements a minute each: an outbox must not be heard in the database's load."""
    said = 0
    plain = asyncpg.Connection.fetch

    async def counted(conn: Any, *args: Any, **options: Any) -> Any:
        nonlocal said
        said += 1
        return await plain(conn, *args, **options)

    monkeypatch.setattr(asyncpg.Connection, "fetch", counted)
    minutes = []
    for _ in range(2):
        await fleet.start(poll=5.0, quiet_poll=30.0)
        await fleet.settled()
        said = 0
        await asyncio.sleep(60)
        minutes.append(said)
    seated, both = minutes
    print(f"{seated} statements a minute seated, {both - seated} not seated")

    assert 5 <= seated <= 24  # a count of nothing would prove nothing
    assert 5 <= both - seated <= 24
