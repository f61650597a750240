"""The lane alone, with work that is a list: what it claims for, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from outbox import until

from notifyq.lane import Batch, Lane, Room
from notifyq.settings import WorkerSettings

SLOTS = 5


class Listed:
    """Rows 0, 1, 2 … that are due as soon as they are listed; each attempt lasts until `finish`."""

    def __init__(self) -> None:
        self.due: list[int] = []
        self.looks: list[str] = []
        self.done: list[int] = []
        self._finish = asyncio.Event()

    def finish(self) -> None:
        """End every attempt, those to come as well."""
        self._finish.set()

    async def claim(self, room: Room, *, rung: bool) -> Batch[int]:
        """Take what is due: bulk all of it. A rung look is a first look, as that of emails."""
        self.looks.append("first" if rung else "whole")
        taken, self.due = self.due[: room.bulk], self.due[room.bulk :]
        return Batch(jobs=taken, first=rung)

    async def release_lost(self) -> None:
        """Nothing is lost here."""

    def is_urgent(self, job: int) -> bool:
        """All is bulk."""
        return False

    def name_of(self, job: int) -> int:
        """Its number."""
        return job

    async def run(self, job: int) -> Any:
        """An attempt."""
        await self._finish.wait()
        return job

    def interrupted(self, job: int) -> Any:
        """Nobody interrupts."""
        raise AssertionError

    def hand_over(self, decision: Any, job: int) -> asyncio.Event:
        """Written at once."""
        written = asyncio.Event()
        written.set()
        return written

    def comes_again(self, decision: Any) -> bool:
        """Never."""
        return False

    def ended(self, job: int) -> None:
        """It is over."""
        self.done.append(job)


@asynccontextmanager
async def resting(work: Listed) -> AsyncIterator[Lane[int]]:
    """A lane of `SLOTS` slots that rests, and would for a minute."""
    lane = Lane("listed", work, WorkerSettings(slots=SLOTS), nap=lambda: 60.0, others_seen=lambda: None)
    running = asyncio.create_task(lane.run())
    await until(lambda: _is(lane.resting), what="the lane rests")
    work.looks.clear()
    try:
        yield lane
    finally:
        work.finish()
        lane.drain()
        await running


async def _is(condition: bool) -> bool:
    return condition


async def test_a_rung_lane_takes_a_first_look_and_then_a_whole_one() -> None:
    """However little the first one brought."""
    work = Listed()
    async with resting(work) as lane:
        lane.ring(fresh=True)
        await until(lambda: _is(len(work.looks) == 2 and lane.resting), what="it has looked")

    assert work.looks == ["first", "whole"]
    assert (lane.turns, lane.first_looks) == (2, 1)


async def test_a_lane_that_is_merely_woken_takes_a_whole_look() -> None:
    """A call to all workers, or a timer: nobody has enqueued just now."""
    work = Listed()
    async with resting(work) as lane:
        lane.ring()
        await until(lambda: _is(bool(work.looks) and lane.resting), what="it has looked")

    assert work.looks == ["whole"]


@pytest.mark.parametrize("count", [SLOTS - 1, SLOTS, SLOTS + 1, 3 * SLOTS + 1])
async def test_what_a_first_look_leaves_is_claimed_when_slots_come_free(count: int) -> None:
    """Not when the lane would have looked by itself, a minute later."""
    work = Listed()
    async with resting(work) as lane:
        work.due = list(range(count))
        lane.ring(fresh=True)
        await until(lambda: _is(len(lane.under_way) == min(count, SLOTS) and lane.resting), what="it is full")
        work.finish()
        await until(lambda: _is(len(work.done) == count), what="all is done")
