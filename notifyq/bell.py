"""The bell: how a fleet of workers sleeps and is woken, one worker per ring, without a lost wake-up.

One worker sleeps for all. It takes the SEAT, a lock; its holder alone LISTENs. It takes SLEEP, another
lock, which is granted only when every enqueue that did not ring has ended, rings its lanes *once more
after the grant*, and from then on relies on being rung: while SLEEP is held or waited for, every enqueue
rings (``notifyq.ring()``). When rings come fast it is awake anyway: it gives SLEEP back, so that enqueues
pay for no NOTIFY, claims until nothing is due, and falls asleep again. It leaves the SEAT when a lane has
no free slot, so the next worker takes over; Postgres frees both locks when their holder dies.

A holder that is frozen hears nothing while the fleet stays silent. The others look every few seconds; one
that finds a row which was due for longer than that ends the holder's session.

The timer stays behind all of it. Model: tests/model.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import anyio

from notifyq import backoff
from notifyq.db import DATABASE_FAULTS, Complaints, Link, Pool, seconds
from notifyq.lane import Lane
from notifyq.listener import Listener

__all__ = ["Bell"]

log = logging.getLogger("notifyq")

SLEEP_LOCK: Final = 1
SEAT_LOCK: Final = 2
SEAT_WAIT: Final = 20.0
SLEEP_WAIT: Final = 1.0
FAST: Final = (8, 0.04)
"""So many rings within so many seconds: it is day. Below that, a NOTIFY costs less than going to sleep."""

FORGOTTEN: Final = 2.0
"""A row that was due for longer than this, found by the timer: the holder of the seat does not hear."""

PASS_AT_MOST_EVERY: Final = 1.0


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
        self._passed_at = 0.0
        self._turns_at_ring: list[int] | None = None

    @property
    def relied_on(self) -> bool:
        """True while every enqueue rings and the ring is heard: then a lane may sleep long."""
        return self._asleep and self._may_sit()

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
        if not self._asleep:
            await self._until(lambda: self._rested() or not self._may_sit())
            if not self._may_sit():
                return False
            self._asleep = bool(await self._link.value("take_bell_lock", SLEEP_LOCK, seconds(SLEEP_WAIT)))
            self._fast = False
            self._rings.clear()
            # Once more after the grant: what was enqueued without a ring is visible now.
            self._ring_lanes()
            return self._may_sit()
        await self._until(lambda: self._fast or not self._may_sit() or self._unserved())
        if not self._may_sit() or self._pass_on():
            return False
        if self._fast:
            self._fast = self._asleep = False
            await self._link.fetch("leave_bell_lock", SLEEP_LOCK)
            self._ring_lanes()
        return True

    def _on_ring(self) -> None:
        now = time.monotonic()
        self._rings.append(now)
        self._fast = len(self._rings) == FAST[0] and now - self._rings[0] < FAST[1]
        self._turns_at_ring = [lane.turns for lane in self._lanes]
        self._ring_lanes()
        if self._fast:
            self._stir()

    def _ring_lanes(self) -> None:
        for lane in self._lanes:
            lane.ring()

    def _stir(self) -> None:
        self._stirred.set()

    async def _until(self, condition: Any) -> None:
        while not condition():
            self._stirred = anyio.Event()
            await self._stirred.wait()

    def _room(self) -> bool:
        return not any(lane.full for lane in self._lanes)

    def _rested(self) -> bool:
        return all(lane.resting for lane in self._lanes)

    def _may_sit(self) -> bool:
        # The locks live as long as the session that took them.
        return self._room() and self._listener.proven and self._link.is_session(self._session)

    def _unserved(self) -> bool:
        """All lanes have claimed since the ring, and got nothing: it may be for a worker that knows more."""
        if self._turns_at_ring is None:
            return False
        turned = all(lane.turns > at for lane, at in zip(self._lanes, self._turns_at_ring, strict=True))
        if turned and any(lane.claimed_last for lane in self._lanes):
            self._turns_at_ring = None
        return turned and self._turns_at_ring is not None

    def _pass_on(self) -> bool:
        if not self._unserved():
            return False
        self._turns_at_ring = None
        if time.monotonic() - self._passed_at < PASS_AT_MOST_EVERY:
            return False
        self._passed_at = time.monotonic()
        return True
