"""Enqueues periodic tasks: each tick once, by whichever worker comes first."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import anyio

from notifyq.db import DATABASE_FAULTS, Complaints, Link
from notifyq.tasks import Task

__all__ = ["Ticker"]

log = logging.getLogger("notifyq")

LONGEST_SLEEP: Final = 60.0
"""Looks again this often at least: a wall clock may be set."""


class Ticker:
    """Watches the schedules of *tasks*."""

    def __init__(self, tasks: Mapping[str, Task[Any]], link: Link) -> None:
        self._planned = {name: task for name, task in tasks.items() if task.schedule is not None}
        self._link = link
        self._complaints = Complaints()

    async def run(self) -> None:
        """Tick until cancelled; returns at once if nothing is planned."""
        while self._planned:
            pause = 1.0
            try:
                pause = await self._turn()
                self._complaints.over("periodic tasks")
            except DATABASE_FAULTS as error:
                self._complaints.about("periodic tasks", error)
            await anyio.sleep(pause)

    async def _turn(self) -> float:
        """Enqueue what is due; answer the seconds until the next tick."""
        now = datetime.now(UTC)
        waits = [LONGEST_SLEEP]
        for task in self._planned.values():
            last = await self._link.value("last_tick", task.name)
            await self._tick(task, last, now)
            waits.append((task.schedule.next_tick(now) - now).total_seconds())  # type: ignore[union-attr]
        # A hair after the tick, never before it.
        return max(0.0, min(waits)) + 0.01

    async def _tick(self, task: Task[Any], last: datetime, now: datetime) -> None:
        due = task.schedule.due(last, now) if task.schedule is not None else None
        if due is None:
            return
        ran = await self._link.value(
            "enqueue_tick", task.name, due.tick, due.run, task.priority, task.max_attempts
        )
        if ran:
            log.info("periodic task %s: enqueued for %s", task.name, due.tick.isoformat())
        elif not due.run:
            log.warning("periodic task %s: missed its tick of %s, skipped", task.name, due.tick.isoformat())
