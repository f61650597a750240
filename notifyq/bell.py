"""The bell: how a fleet of workers sleeps and is woken, one worker per ring, without a lost wake-up.

One worker sleeps for all. It takes the SEAT, a lock; its holder alone LISTENs. It takes SLEEP, another
lock, which is granted only when every enqueue that did not ring has ended, rings its lanes *once more
after the grant*, and from then on relies on being rung: while SLEEP is held or waited for, every enqueue
rings (``notifyq.ring()``). When rings come fast it is day: it gives SLEEP back, so that enqueues pay for
no NOTIFY, and its lanes look every few milliseconds until they look in vain. A ring that it cannot serve
(its slots are taken, the name is unknown to it) makes it leave the SEAT, so that the next worker takes
over; Postgres frees both locks when their holder dies.

A holder that is frozen hears nothing while the fleet stays silent. The others look every few seconds; one
that finds a row which was due for longer than that ends the holder's session.

The timer stays behind all of it. Model: tests/model.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import anyio

from notifyq import backoff
from notifyq.db import DATABASE_FAULTS, Complaints, Link, Pool, seconds
from notifyq.lane import Lane
from notifyq.listener import Listener
from notifyq.settings import WorkerSettings

__all__ = ["Bell"]

log = logging.getLogger("notifyq")

SLEEP_LOCK: Final = 1
SEAT_LOCK: Final = 2
SEAT_WAIT: Final = 20.0
SLEEP_WAIT: Final = 1.0
FAST: Final = (8, 0.04)
"""So many rings within so many seconds: it is day. Below that, a NOTIFY costs less than going to sleep."""

SHORTEST_DAY: Final = 0.05
LONGEST_DAY: Final = 1.0
SHORT_NIGHT: Final = 0.5
"""A night shorter than this makes the next day twice as long, in seconds."""

DAY_LOOK: Final = 0.005
FULL_DAY_LOOK: Final = 0.01
"""How often the lanes look by day; a lane whose slots are taken looks for urgent rows only."""

QUIET_TURNS: Final = 3
"""So many looks of every lane in vain end the day."""

FORGOTTEN: Final = 2.0
"""A row that was due for longer than this, found by the timer: the holder of the seat does not hear."""

PASS_AT_MOST_EVERY: Final = 0.05


class Bell:
    """Wakes *lanes* when work may be due, and lets them sleep long while that can be relied on."""

    def __init__(
        self, pool: Pool, lanes: Sequence[Lane[Any]], claims: Link, *, listen_url: str | None = None
    ) -> None:
        self._lanes = lanes
        self._claims = claims
        self._link = Link(pool, "worker bell", timeout=SEAT_WAIT + 5, on_end=self._stir)
        self._session = 0
        self._listener = Listener(
            pool,
            heard=self._on_ring,
            changed=self._stir,
            prover=lambda: self._link if self._asleep else None,
            quiet=lambda: not self._seated,
            listen_url=listen_url,
        )
        self._stirred = anyio.Event()
        self._complaints = Complaints()
        self._seated = False
        self._asleep = False
        self._rings: deque[float] = deque(maxlen=FAST[0])
        self._fast = False
        self._awake = False
        self._day = SHORTEST_DAY
        self._passed_at = 0.0
        self._at_ring: list[tuple[int, int]] | None = None

    def nap(self, lane: Lane[Any], settings: WorkerSettings) -> float:
        """How long *lane* may sleep: long while every enqueue rings and the ring is heard, short by day."""
        if self._awake:
            return FULL_DAY_LOOK if lane.backlog else DAY_LOOK
        return settings.quiet_poll if self._asleep and self._may_sit() else settings.poll

    @property
    def proven(self) -> bool:
        """True while the connection that listens has proven that it hears."""
        return self._listener.proven

    async def run(self) -> None:
        """Take the seat, sleep, wake, until cancelled."""
        try:
            async with anyio.create_task_group() as tg:
                tg.start_soon(self._listener.run)
                await self._sit_for_ever()
        finally:
            await self._link.close()

    async def wait_heard(self, limit: float) -> bool:
        """Wait until the connection has proven for the first time that it hears."""
        with anyio.move_on_after(limit):
            await self._until(lambda: self._listener.proven)
            return True
        return False

    def lanes_changed(self) -> None:
        """A lane has claimed, filled up, or has room again."""
        self._stir()

    async def forgotten(self, waited: float) -> None:
        """A lane's timer found a row that had been due for *waited* seconds: does the seat's holder hear?"""
        if waited < FORGOTTEN or self._seated or not self._listener.proven:
            return
        if await self._claims.value("unseat"):
            log.warning("the worker that listened did not hear; its session was ended")

    async def _sit_for_ever(self) -> None:
        failures = 0
        while True:
            try:
                await self._until(lambda: self._room() and self._listener.proven)
                if await self._link.value("take_bell_lock", SEAT_LOCK, seconds(SEAT_WAIT)):
                    self._session = self._link.session
                    await self._sit()
                failures = 0
                self._complaints.over("bell")
            except DATABASE_FAULTS as error:
                self._complaints.about("bell", error)
                failures += 1
                await anyio.sleep(backoff.reconnect(failures, random.random()))  # noqa: S311

    async def _sit(self) -> None:
        """Listen for all, until a lane is full, the bell cannot be heard, or others should try."""
        self._seated = True
        try:
            if not await self._listener.subscribe():
                return
            self._ring_lanes()
            while await self._sleep():
                pass
        finally:
            self._seated = self._asleep = False
            with anyio.move_on_after(1, shield=True):
                await self._stand_up()

    async def _stand_up(self) -> None:
        try:
            await self._listener.unsubscribe()
            await self._link.fetch("leave_bell_lock", SLEEP_LOCK)
            await self._link.fetch("leave_bell_lock", SEAT_LOCK)
        except DATABASE_FAULTS:
            # The session is gone or will be, and its locks with it.
            await self._link.close()

    async def _sleep(self) -> bool:
        """Fall asleep, sleep, wake up. False: leave the seat."""
        await self._until(lambda: self._rested() or not self._may_sit())
        if not self._may_sit():
            return False
        if not await self._link.value("take_bell_lock", SLEEP_LOCK, seconds(SLEEP_WAIT)):
            return self._may_sit()
        self._asleep = True
        self._rings.clear()
        self._fast = False
        slept_from = time.monotonic()
        # Once more after the grant: what was enqueued without a ring is visible now.
        self._ring_lanes()
        await self._until(lambda: self._fast or not self._may_sit() or self._must_pass_on())
        self._asleep = False
        if not self._fast:
            return False
        await self._link.fetch("leave_bell_lock", SLEEP_LOCK)
        await self._stay_up(short_night=time.monotonic() - slept_from < SHORT_NIGHT)
        return True

    async def _stay_up(self, *, short_night: bool) -> None:
        """Day: nobody rings, so the lanes look often, until there is nothing to see or the day is over."""
        self._day = min(self._day * 2, LONGEST_DAY) if short_night else SHORTEST_DAY
        self._awake = True
        self._ring_lanes()
        with anyio.move_on_after(self._day):
            await self._until(lambda: not self._may_sit() or self._quiet())
        self._awake = False

    def _on_ring(self) -> None:
        now = time.monotonic()
        self._rings.append(now)
        self._fast = self._fast or (len(self._rings) == FAST[0] and now - self._rings[0] < FAST[1])
        self._at_ring = [(lane.turns, lane.claimed) for lane in self._lanes]
        self._ring_lanes()
        if self._fast:
            self._stir()

    def _ring_lanes(self) -> None:
        for lane in self._lanes:
            lane.ring()

    def _stir(self) -> None:
        self._stirred.set()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._stirred.is_set():  # one event for all who wait: a new one would forget the others
                self._stirred = anyio.Event()
            await self._stirred.wait()

    def _room(self) -> bool:
        return all(lane.room.slots > 0 for lane in self._lanes)

    def _rested(self) -> bool:
        return all(lane.resting for lane in self._lanes)

    def _quiet(self) -> bool:
        return all(lane.empty_turns >= QUIET_TURNS for lane in self._lanes)

    def _may_sit(self) -> bool:
        # The locks live as long as the session that took them.
        return self._room() and self._listener.proven and self._link.is_session(self._session)

    def _must_pass_on(self) -> bool:
        """A ring that this worker could not serve: it has no room for it, or does not know its name."""
        if self._at_ring is None:
            return False
        pairs = list(zip(self._lanes, self._at_ring, strict=True))
        if not all(lane.turns > turns for lane, (turns, _) in pairs):
            return False
        served = any(lane.claimed > claimed for lane, (_, claimed) in pairs)
        self._at_ring = None
        now = time.monotonic()
        if served or now - self._passed_at < PASS_AT_MOST_EVERY:
            return False
        self._passed_at = now
        return True
