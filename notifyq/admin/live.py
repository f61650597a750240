"""Live updates: one query a second for the whole process, and only while a page is open.

The hub asks for the *pulse* (counts, newest ids) and tells the open pages which rows changed; a page that
shows one of them fetches itself again. A notification is a hint for workers and no feed, so none is used.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from notifyq.admin.reads import Reads, Row
from notifyq.db import DATABASE_FAULTS, describe
from notifyq.headline import Facts, gates_of, headline, read_facts
from notifyq.worker import Worker

__all__ = ["Change", "Hub", "Pulse"]

log = logging.getLogger("notifyq.admin")

# A little less than a second, so that with the page's own fetch a change is seen within one.
EVERY: Final = 0.75
MAX_PAGES: Final = 100
APART: Final = 0.015
"""Open pages are told one after another: they would all fetch themselves at the same moment."""
ALL_TOLD: Final = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """What the hub saw: the row of ``page_pulse``, its gates, and what follows from them."""

    row: Row
    gates: tuple[Row, ...]
    facts: Facts

    @property
    def failed(self) -> int:
        """The badge: all that is held, and what died in the last days, emails and tasks."""
        return self.facts.held + self.facts.failed + self.facts.tasks_failed

    def beat(self) -> dict[str, Any]:
        """What differs when anything happened; the clock alone does not, unless the headline changes by it.

        How many sessions the workers keep says nothing that a page shows.
        """
        counts = {name: value for name, value in self.row.items() if isinstance(value, int)}
        counts.pop("sessions")
        names = (*self.row["unserved_builders"], None, *self.row["unserved_tasks"])
        gates = [[gate["account"], gate["state"]] for gate in self.gates]
        return {**counts, "gates": gates, "names": names, "headline": headline(self.facts)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something happened: *emails* and *tasks* name the rows with news; *new*: rows were added."""

    emails: tuple[int, ...] = ()
    tasks: tuple[int, ...] = ()
    failed: int = 0
    trouble: bool = False

    def event(self) -> bytes:
        """As server-sent event."""
        data = {
            "emails": self.emails,
            "tasks": self.tasks,
            "failed": self.failed,
            "trouble": self.trouble,
        }
        return f"event: change\ndata: {json.dumps(data)}\n\n".encode()


class Hub:
    """Watches the database for the open pages.

    Example::

        async with hub.watching() as changes:
            change = await changes.get()
    """

    def __init__(self, reads: Reads, worker: Worker | None = None) -> None:
        self._reads = reads
        self._worker = worker
        self._pages: set[asyncio.Queue[Change | None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._pulse: Pulse | None = None
        self._trouble = False

    @property
    def full(self) -> bool:
        """True if no further page may watch."""
        return len(self._pages) >= MAX_PAGES

    async def pulse(self) -> Pulse:
        """The newest pulse: the hub's own while it watches, else read now."""
        if self._task is not None and self._pulse is not None and not self._trouble:
            return self._pulse
        return await self._look()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[asyncio.Queue[Change | None]]:
        """A queue of changes, None at the end, for as long as the block lasts."""
        queue: asyncio.Queue[Change | None] = asyncio.Queue(maxsize=16)
        self._pages.add(queue)
        if self._task is None:
            self._reads.shared = {}
            self._task = asyncio.create_task(self._watch(), name="notifyq admin hub")
        try:
            yield queue
        finally:
            self._pages.discard(queue)
            if not self._pages:
                await self._rest()

    async def close(self) -> None:
        """Tell every open page that it is over, and stop."""
        self._tell(None)
        await self._rest()

    async def _rest(self) -> None:
        task, self._task, self._pulse = self._task, None, None
        self._reads.shared = None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            try:
                await self._tick()
            except DATABASE_FAULTS as error:
                if not self._trouble:
                    log.warning("the page's live updates pause: %s", describe(error))
                    self._trouble = True
                    self._tell(Change(trouble=True))
            await asyncio.sleep(max(0.0, started + EVERY - loop.time()))

    async def _tick(self) -> None:
        before, now = self._pulse, await self._look()
        self._pulse = now
        self._reads.forget()
        if before is not None and (self._trouble or now.beat() != before.beat()):
            self._trouble = False
            self._tell(await self._change(before.row, now))

    async def _look(self) -> Pulse:
        row = await self._reads.row("page_pulse")
        assert row is not None  # noqa: S101 (one row, whatever there is)
        beside = None if self._worker is None else self._worker.listening
        return Pulse(row=row, gates=gates_of(row), facts=read_facts(row, beside=beside))

    async def _change(self, before: Row, now: Pulse) -> Change:
        changed, newest = [], now.row["history"]
        if newest is not None and newest != before["history"]:
            changed = await self._reads.rows("page_changed", before["history"] or 0)
        return Change(
            emails=tuple({row["row_id"] for row in changed if row["lane"] == "email"}),
            tasks=tuple({row["row_id"] for row in changed if row["lane"] == "task"}),
            failed=now.failed,
        )

    def _tell(self, change: Change | None) -> None:
        loop = asyncio.get_running_loop()
        for number, queue in enumerate(self._pages):
            if number == 0 or change is None:
                _put(queue, change)
            else:
                loop.call_later(min(number * APART, ALL_TOLD), _put, queue, change)


def _put(queue: asyncio.Queue[Change | None], change: Change | None) -> None:
    if queue.full():
        queue.get_nowait()  # a page that does not keep up misses old news: each says "look again"
    queue.put_nowait(change)
