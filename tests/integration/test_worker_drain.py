"""How a worker in this process stops: what ends, what is given back, what stays in doubt."""

from __future__ import annotations

import logging

import pytest
from outbox import Outbox, emails, keys, until

from notifyq import enqueue_many
from notifyq.testing import faults


async def test_what_was_claimed_but_not_started_is_claimable_at_once(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    """One connection, five claims: four wait for it with no byte written, so they go back uncharged."""
    outbox.fake.fault(faults.Hang(record=True), times=None)
    worker = await outbox.start(connections=1, slots=5, post_budget=8, lease=16, grace=0.3)
    await enqueue_many(outbox.pool, emails(keys(5)))
    await outbox.fake.wait_posts(1)

    async def all_are_claimed() -> bool:
        return await outbox.statuses() == {"processing": 5}

    await until(all_are_claimed, what="five rows are claimed")
    with caplog.at_level(logging.WARNING, "notifyq"):
        await outbox.stop(worker)

    rows = await outbox.pool.fetch(
        "select status, attempts, run_after <= clock_timestamp() from notifyq.emails order by status, id"
    )
    assert [tuple(row) for row in rows] == [("doubt", 1, True), *[("pending", 0, True)] * 4]
    assert "left behind" in caplog.text


async def test_another_worker_goes_on_where_one_was_drained(outbox: Outbox) -> None:
    """The deploy: the old one stops in the middle of a backlog, the new one sends the rest."""
    outbox.fake.answer_delay = 0.02
    old = await outbox.start(slots=4)
    await enqueue_many(outbox.pool, emails(keys(60)))
    await outbox.fake.wait_accepted(10)

    await outbox.stop(old)
    assert (await outbox.statuses()).keys() <= {"sent", "pending"}
    assert 10 <= len(outbox.fake.accepted) < 60
    await outbox.start()

    await outbox.until_statuses({"sent": 60})
    assert set(outbox.fake.posts_by_uid().values()) == {1}


async def test_cancellation_leaves_no_row_in_a_working_state(outbox: Outbox) -> None:
    """An app that is torn down cancels everything; the last line must still be written."""
    outbox.fake.fault(faults.Hang(record=True), times=None)
    worker = await outbox.start(post_budget=8, lease=16)
    await enqueue_many(outbox.pool, emails(keys(3)))
    await outbox.fake.wait_for(lambda: len(outbox.fake.accepted) == 3)

    await outbox.crash(worker)

    assert await outbox.statuses() == {"doubt": 3}
    outbox.fake.release()
    outbox.fake.clear_faults()
    await outbox.start()
    await outbox.until_statuses({"sent": 3})
    assert len(outbox.fake.accepted) == 3


async def test_an_idle_worker_stops_at_once(outbox: Outbox) -> None:
    """Nothing is under way, so there is nothing to wait for: well within a long grace."""
    worker = await outbox.start(grace=3600)

    await outbox.stop(worker)

    assert outbox.fake.posts == []
