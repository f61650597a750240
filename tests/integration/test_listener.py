"""The bell: heard again after whatever happens to its connection; where it cannot be, the worker polls.

Every wait here is for the email itself. The workers' polling is set to a minute, so that an email which
arrives has been rung for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import asyncpg
import pytest
from outbox import Outbox, an_email, emails, keys, until
from proxy import Proxy

from notifyq import Worker, embedded, enqueue, enqueue_many, migrate
from notifyq.testing import FakePostmark

NO_POLLING = {"poll": 60.0, "quiet_poll": 60.0}
SOON = 15.0
"""Far below a minute; it takes milliseconds."""


async def until_heard(worker: Worker) -> None:
    """Wait until the bell has proven that it is heard."""

    async def heard() -> bool:
        return worker.listening

    await until(heard, what="the bell is heard")


async def test_an_idle_worker_is_woken_by_the_commit(outbox: Outbox) -> None:
    """The main job: no poll could be as quick."""
    worker = await outbox.start(**NO_POLLING)
    await until_heard(worker)

    for key in keys(5):
        await outbox.put(key)
        await outbox.until("sent", key, seconds=SOON)


async def test_a_worker_is_ready_once_its_bell_is_heard(outbox: Outbox) -> None:
    """A lost wake-up in the start made every start as long as its limit of 5 s."""
    began = time.monotonic()

    worker = await outbox.start()

    assert worker.listening
    assert time.monotonic() - began < 4


async def test_a_row_due_later_is_sent_when_it_is_due(outbox: Outbox) -> None:
    """Nobody rings then: the timer knows."""
    await outbox.start(**NO_POLLING)
    due = await outbox.pool.fetchval("select clock_timestamp() + interval '1 second'")

    await outbox.put(run_after=due)

    row = await outbox.until("sent", seconds=SOON)
    assert row["sent_at"] >= due


async def test_the_bell_is_heard_again_after_its_session_was_ended(outbox: Outbox) -> None:
    """An administrator, a failover or a timeout ends sessions at any time."""
    worker = await outbox.start(**NO_POLLING)
    await until_heard(worker)

    ended = await outbox.pool.fetchval(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid()"
    )
    await outbox.put()

    assert ended >= 1
    await outbox.until("sent", seconds=SOON)
    assert outbox.is_running(worker)


async def test_a_half_open_connection_is_noticed_and_replaced(outbox: Outbox, notifyq_dsn: str) -> None:
    """The kernel takes every byte and nothing comes back: only a proof of its own finds that out."""
    async with Proxy(notifyq_dsn) as proxy:
        worker = await outbox.start(listen_url=proxy.url, **NO_POLLING)
        await until_heard(worker)
        before = proxy.connections
        proxy.freeze()

        async def replaced() -> bool:
            return proxy.connections > before and worker.listening

        await until(replaced, what="another connection listens", seconds=40)
        await outbox.put()
        await outbox.until("sent", seconds=SOON)
        await outbox.stop()


async def test_behind_a_pooler_the_worker_says_so_and_polls(
    outbox: Outbox, notifyq_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """LISTEN succeeds there and nothing ever arrives: silence is the symptom."""
    caplog.set_level(logging.WARNING, "notifyq")
    async with Proxy(notifyq_dsn, deaf=True) as proxy:
        worker = await outbox.start(listen_url=proxy.url, poll=0.2)

        async def said() -> bool:
            return "NOTIFYQ_LISTEN_URL" in caplog.text

        await until(said, what="the pooler is complained of")
        await outbox.put()
        await outbox.until("sent", seconds=SOON)
        assert not worker.listening
        await outbox.stop()


async def test_without_listening_the_worker_polls(outbox: Outbox) -> None:
    """`--no-listen` is for databases where LISTEN is impossible."""
    await outbox.start(listen=False, poll=0.1)

    await outbox.put()

    await outbox.until("sent", seconds=SOON)


@pytest.fixture
async def own_server(fake_postmark: FakePostmark) -> AsyncIterator[tuple[embedded.Server, Outbox]]:
    """A server that may be stopped, and an outbox on it."""
    async with (
        embedded.server(throwaway=True) as server,
        asyncpg.create_pool(server.dsn, min_size=0, max_size=10) as pool,
    ):
        async with pool.acquire() as conn:
            await migrate(conn)
        outbox = Outbox(pool, fake_postmark)
        yield server, outbox
        await outbox.stop()


@pytest.mark.parametrize("immediate", [False, True])
async def test_a_restart_of_postgres_loses_nothing_and_ends_no_worker(
    own_server: tuple[embedded.Server, Outbox], immediate: bool
) -> None:
    """In the middle of a backlog: the process lives on and sends the rest, each email once."""
    server, outbox = own_server
    outbox.fake.answer_delay = 0.02
    worker = await outbox.start(slots=5)
    await enqueue_many(outbox.pool, emails(keys(150)))
    await outbox.fake.wait_accepted(20)

    await asyncio.to_thread(server.restart, immediate=immediate)

    assert outbox.is_running(worker)
    await until(lambda: enqueued_after(outbox), what="the database answers again")
    await outbox.until_statuses({"sent": 151}, seconds=40)
    assert set(outbox.fake.accepted_by_uid().values()) == {1}


async def enqueued_after(outbox: Outbox) -> bool:
    """Enqueue one more; False while the pool still holds connections to the past."""
    try:
        await enqueue(outbox.pool, an_email("after"))
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False
    return True


async def test_a_worker_waits_for_a_database_that_is_away_at_its_start(
    own_server: tuple[embedded.Server, Outbox],
) -> None:
    """After a power cut both start at the same time, and Postgres takes longer."""
    server, outbox = own_server
    await asyncio.to_thread(server.kill)
    starting = asyncio.create_task(outbox.start())

    await asyncio.to_thread(server.restart)

    await asyncio.wait_for(starting, 40)
    await outbox.put()
    await outbox.until("sent")
