"""A worker as a process of its own: what is left after kill -9, and how it ends on SIGTERM."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import pytest
from outbox import PATIENCE, Outbox, emails, keys

from notifyq import enqueue_many
from notifyq.testing import faults

HERE = Path(__file__).parent
QUICK = ("post_budget=1", "lease=2.5", "settle=1", "grace=5")

Start: TypeAlias = Callable[..., Awaitable[Process]]


@pytest.fixture
async def process(outbox: Outbox, notifyq_dsn: str) -> AsyncIterator[Start]:
    """Start worker processes; those that still run at the end are killed."""
    started: list[Process] = []
    env = {**os.environ, **outbox.fake.env(), "PYTHONPATH": str(HERE.parents[1])}

    async def start(*settings: str) -> Process:
        command = [sys.executable, str(HERE / "worker_process.py"), notifyq_dsn, *QUICK, *settings]
        process = await asyncio.create_subprocess_exec(*command, env=env, stdout=PIPE)
        started.append(process)
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE) == b"ready\n"
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("recorded", [True, False])
async def test_a_worker_killed_during_its_post_leaves_a_doubt_that_another_settles(
    outbox: Outbox, process: Start, recorded: bool
) -> None:
    """One message whichever side of the kill the provider accepted on, and nobody is needed."""
    outbox.fake.fault(faults.Hang(record=recorded))
    first = await process("post_budget=8", "lease=16")
    await outbox.put()
    await outbox.fake.wait_posts(1)
    await outbox.fake.wait_for(lambda: len(outbox.fake.accepted) == recorded)

    first.kill()
    await first.wait()
    # Its lease is for 16 s; the twin of that wait is a lease that began 15 s ago.
    await outbox.pool.execute(
        "update notifyq.emails set leased_at = clock_timestamp() - interval '0.1 s', "
        "lease_until = clock_timestamp()"
    )
    outbox.fake.release()
    await process()

    await outbox.until("sent")
    assert (len(outbox.fake.accepted), len(outbox.fake.posts)) == (1, 1 if recorded else 2)
    assert (await outbox.events())[:1] == ["lease ended"]


async def test_a_lease_that_runs_out_by_itself_is_taken_over(outbox: Outbox, process: Start) -> None:
    """The same without any help: the next worker watches the dead one's lease to its end."""
    outbox.fake.fault(faults.Hang(record=True))
    first = await process()
    await outbox.put()
    await outbox.fake.wait_for(lambda: len(outbox.fake.accepted) == 1)
    first.kill()
    await first.wait()
    outbox.fake.release()

    await process()

    await outbox.until("sent")
    assert (len(outbox.fake.accepted), len(outbox.fake.posts)) == (1, 1)


async def test_sigterm_finishes_what_is_under_way_and_ends_with_0(outbox: Outbox, process: Start) -> None:
    """Every deploy does this; each one that lost a mail would be one too many."""
    outbox.fake.fault(faults.Hang(record=True))
    worker = await process("post_budget=8", "lease=16", "grace=10")
    await outbox.put()
    await outbox.fake.wait_posts(1)

    worker.terminate()
    await outbox.put("late")
    outbox.fake.release()

    assert await asyncio.wait_for(worker.wait(), PATIENCE) == 0
    assert ((await outbox.row())["status"], (await outbox.row("late"))["status"]) == ("sent", "pending")


async def test_two_processes_share_a_backlog_and_send_each_email_once(outbox: Outbox, process: Start) -> None:
    """Claims never overlap, whoever is rung first."""
    await enqueue_many(outbox.pool, emails(keys(300)))

    await process()
    await process()

    await outbox.until_statuses({"sent": 300})
    assert set(outbox.fake.posts_by_uid().values()) == {1}
