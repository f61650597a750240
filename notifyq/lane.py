"""One lane: claim as much as there are free slots, run it, sleep until there is more.

The loop knows nothing of emails or tasks: what a row is, how it is claimed and what an attempt does is
the lane's `Work`. A claim never takes more rows than there are free slots, so a claim *is* the intent to
start now.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

import anyio

from notifyq import backoff
from notifyq.db import DATABASE_FAULTS, Complaints
from notifyq.settings import WorkerSettings

__all__ = ["Batch", "Lane", "Room", "Work"]

log = logging.getLogger("notifyq")

RECORD_LIMIT: Final = 0.8
"""How long the end of a cancelled attempt may take to be written, in seconds."""

UNEXPECTED: Final = 0.5
"""The timer found a row that had been due for longer than this: no ring told of it."""

EMPTY_HANDED: Final = 0.05
"""The first wait after a claim that came back empty although something is due."""

Job = TypeVar("Job")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Free slots: *slots* in all, at most *bulk* of them for rows that are not urgent."""

    slots: int
    bulk: int


@dataclass(slots=True, kw_only=True)
class Batch(Generic[Job]):
    """What a claim brought, and when to come again (*wake_in* seconds; None: nothing is known to be due).

    *waited* is the longest that one of the rows had been due, in seconds. *held_back*: more may be due that
    only a freed slot can take. *first*: it was only a first look, and nothing but its jobs means anything.
    """

    jobs: list[Job] = field(default_factory=list)
    wake_in: float | None = None
    waited: float = 0.0
    held_back: bool = False
    others_at_work: bool = False
    first: bool = False


class Work(Protocol[Job]):
    """What a lane works on."""

    async def claim(self, room: Room, *, rung: bool) -> Batch[Job]:
        """Claim as many rows as there is *room* for. Raises one of `DATABASE_FAULTS`.

        *rung*: the bell woke an idle lane. A first look that is quicker than a whole claim is welcome; a
        whole one follows it at once.
        """

    async def release_lost(self) -> None:
        """Give back what was claimed by an earlier `claim` whose answer never came."""

    def is_urgent(self, job: Job) -> bool:
        """True if it may use the slots kept for urgent rows."""

    def name_of(self, job: Job) -> int:
        """The row's id."""

    async def run(self, job: Job) -> Any:
        """Make the attempt and decide. Never raises, except for cancellation."""

    def interrupted(self, job: Job) -> Any:
        """Decide about an attempt that was cancelled."""

    def hand_over(self, decision: Any, job: Job) -> asyncio.Event:
        """Have the decision written; the event is set when it is in the database."""

    def comes_again(self, decision: Any) -> bool:
        """True if the row will be due again."""

    def ended(self, job: Job) -> None:
        """The attempt is over and its end written, as far as it could be."""


class Lane(Generic[Job]):
    """Drives one `Work`. `ring` wakes it, `drain` makes it stop claiming.

    *nap* is the longest that it may sleep while nothing is known to be due, in seconds.
    """

    def __init__(
        self,
        name: str,
        work: Work[Job],
        settings: WorkerSettings,
        *,
        nap: Callable[[], float],
        others_seen: Callable[[], None],
    ) -> None:
        self.name = name
        self._work = work
        self._settings = settings
        self._nap = nap
        self._others_seen = others_seen
        # By attempt, not by row: a row whose lease was lost may be claimed again while its old attempt ends.
        self._under_way: dict[Job, int] = {}
        self._bulk_under_way = 0
        self._only_to_write = 0
        self._wake = asyncio.Event()
        self._rung = False
        self._complaints = Complaints()
        self._unanswered = False
        self._empty_handed = EMPTY_HANDED
        self._by_timer = False
        self._changed: Callable[[], None] = lambda: None
        self._forgotten: Callable[[float], Awaitable[None]] | None = None
        self.draining = False
        self.ended = anyio.Event()
        self.resting = False
        self.backlog = False
        self._held_back = False
        self.turns = 0
        self.first_looks = 0
        self.empty_turns = 0
        self.claimed = 0
        self.found_by_timer = 0

    def report_to(self, changed: Callable[[], None], forgotten: Callable[[float], Awaitable[None]]) -> None:
        """Call *changed* after every turn and before every rest, *forgotten* when the timer found a row."""
        self._changed, self._forgotten = changed, forgotten

    @property
    def under_way(self) -> list[int]:
        """The ids of the rows that this lane works on now."""
        return list(self._under_way.values())

    @property
    def room(self) -> Room:
        """The free slots.

        An attempt that is over and whose end is only to be written has left its slot, so that attempts and
        records overlap; where a slow database lets more of them pile up than there are slots, they count.
        """
        most = self._settings.slots
        late = max(0, self._only_to_write - most)
        slots = most + self._settings.urgent_slots - (len(self._under_way) - self._only_to_write) - late
        return Room(slots=max(0, slots), bulk=max(0, min(slots, most - self._bulk_under_way - late)))

    def ring(self, *, fresh: bool = False) -> None:
        """Something may be due. *fresh*: somebody has enqueued it just now."""
        self._rung = self._rung or (fresh and self.resting)
        self._wake.set()

    def drain(self) -> None:
        """Claim no more; what is under way goes on."""
        self.draining = True
        self._wake.set()

    async def run(self) -> None:
        """Work until `drain`, and then until what was under way has ended."""
        # asyncio's own group: it costs a third of anyio's for each child, and a child is made for each row.
        async with asyncio.TaskGroup() as attempts:
            failures = 0
            while not self.draining:
                self._wake = asyncio.Event()
                try:
                    pause = await self._turn(attempts)
                    failures = 0
                    self._complaints.over(f"claim {self.name}")
                except DATABASE_FAULTS as error:
                    self._complaints.about(f"claim {self.name}", error)
                    failures += 1
                    pause = backoff.reconnect(failures, random.random())  # noqa: S311
                await self._sleep(pause)
        self.ended.set()

    async def _turn(self, attempts: asyncio.TaskGroup) -> float:
        """One claim. Answers how long to sleep at most."""
        room = self.room
        if room.slots == 0:
            return self._nap()
        by_timer, self._by_timer = self._by_timer, False
        rung, self._rung = self._rung and not (self.backlog or self._held_back), False
        if self._unanswered:
            await self._work.release_lost()
        self._unanswered = True
        batch = await self._work.claim(room, rung=rung)
        self._unanswered = False
        for job in batch.jobs:
            self._under_way[job] = self._work.name_of(job)
            self._bulk_under_way += not self._work.is_urgent(job)
            attempts.create_task(self._attempt(job))
        self._count(batch, room)
        if batch.jobs and (rung or not self.backlog):
            # Their bytes leave before anybody else is told: in one turn of the loop they are written, and
            # uvloop sends what was written at the turn's end. With a backlog the next claim comes first:
            # the database works on it meanwhile.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        if batch.first:
            return 0.0
        self._changed()
        if batch.others_at_work:
            self._others_seen()
        if by_timer and batch.jobs and batch.waited > UNEXPECTED:
            self.found_by_timer += 1
            if self._forgotten is not None:
                await self._forgotten(batch.waited)
        return self._pause(batch)

    def _count(self, batch: Batch[Job], room: Room) -> None:
        self.claimed += len(batch.jobs)
        if batch.first:
            self.first_looks += 1
        else:
            self.turns += 1
            self._held_back = batch.held_back
            self.empty_turns = 0 if batch.jobs else self.empty_turns + 1
        if room.bulk > 0:
            # A claim that took all it could may have left more; a freed slot is then claimed for at once.
            bulk = sum(not self._work.is_urgent(job) for job in batch.jobs)
            self.backlog = bulk >= room.bulk or len(batch.jobs) == room.slots

    def _pause(self, batch: Batch[Job]) -> float:
        longest = self._nap()
        if self.backlog and self.room.bulk > 0:
            return 0.0
        if batch.wake_in is None or batch.jobs or batch.wake_in > 0:
            self._empty_handed = EMPTY_HANDED
            soonest = EMPTY_HANDED if batch.jobs else 0.001
            return longest if batch.wake_in is None else min(max(batch.wake_in, soonest), longest)
        # Something is due but was locked by somebody else: never a hot loop.
        wait, self._empty_handed = self._empty_handed, min(self._empty_handed * 2, self._settings.poll)
        return wait

    async def _sleep(self, seconds: float) -> None:
        if seconds <= 0:
            return
        self.resting = True
        self._changed()
        alarm = asyncio.get_running_loop().call_later(seconds, self._alarm, seconds)
        try:
            await self._wake.wait()
        finally:
            alarm.cancel()
            self.resting = False

    def _alarm(self, slept: float) -> None:
        # By day a lane looks every few milliseconds: what waited for longer did not wait for a ring.
        self._by_timer = slept > UNEXPECTED and not self._wake.is_set()
        self._wake.set()

    async def _attempt(self, job: Job) -> None:
        written: asyncio.Event | None = None
        bulk = not self._work.is_urgent(job)
        left_slot = False
        try:
            decision = await self._work.run(job)
            written = self._work.hand_over(decision, job)
            if not self._work.comes_again(decision):
                # What comes again may have shut the gate: nothing is claimed for it before that is written.
                left_slot = True
                self._only_to_write += 1
                self._bulk_under_way -= bulk
                self._slot_freed()
            await written.wait()
            if not left_slot:
                # Due again, perhaps before the time that this lane sleeps until.
                self._wake.set()
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(RECORD_LIMIT, shield=True):
                await (written or self._work.hand_over(self._work.interrupted(job), job)).wait()
            raise
        finally:
            self._only_to_write -= left_slot
            self._bulk_under_way -= bulk and not left_slot
            del self._under_way[job]
            self._work.ended(job)
            self._slot_freed()

    def _slot_freed(self) -> None:
        if self.backlog or self._held_back:
            self._wake.set()
