"""The bell: how a fleet of workers sleeps and is woken, one worker per ring, without a lost wake-up.

One worker sleeps for all. It takes the SEAT, a lock; its holder alone LISTENs. It takes SLEEP, another
lock, which is granted only when every enqueue that did not ring has ended, rings its lanes *once more
after the grant*, and from then on relies on being rung: while SLEEP is held or waited for, every enqueue
rings (``notifyq.ring()``). When rings come fast it is day: it gives SLEEP back, so that enqueues pay for
no NOTIFY, and its lanes look every few milliseconds until they look in vain. A worker without a free slot
leaves the SEAT; Postgres frees both locks when their holder dies.

What the holder may not be able to take (its bulk slots are taken, the name is unknown to it, its claims
fail), another may: after a ring that brought it nothing, and after each wait for SLEEP, it *calls*: every
worker looks once. If its bulk slots are taken, it leaves the SEAT as well.

A holder that is frozen hears nothing while the fleet stays silent. The others look every few seconds; one
that finds a row which was due for longer than that ends the holder's session, unless that session has
shown a sign of life (it proves itself every few seconds).

The timer stays behind all of it. Only the timer finds a row (model: tests/model/bell_model.py)

* that nobody rang for: ``notifyq.bell = off``;
* that was rung for while the holder of the SEAT was frozen or cut off, until the proof or the others
  find that out;
* that only other workers know, and that came in one breath with a row which the holder took;
* that only a worker knows which cannot listen.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

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
SLEEP_WAIT: Final = 0.25
"""Seconds. Short, since the lanes look after each wait in vain: enqueues between two waits do not ring."""

FAST: Final = (8, 0.04)
"""So many rings within so many seconds: it is day. Below that, a NOTIFY costs less than going to sleep."""

SHORTEST_DAY: Final = 0.05
LONGEST_DAY: Final = 1.0
SHORT_NIGHT: Final = 0.5
"""A night shorter than this makes the next day twice as long, in seconds."""

DAY_LOOK: Final = 0.003
FULL_DAY_LOOK: Final = 0.01
"""How often the lanes look by day; a lane whose slots are taken looks for urgent rows only."""

QUIET_TURNS: Final = 5
"""So many looks of every lane in vain end the day."""

FORGOTTEN: Final = 2.0
"""A row that was due for longer than this, found by the timer: the holder of the seat does not hear."""

CLAIMS_FIRST: Final = 0.005
"""Seconds after a ring until anything else is thought of."""

PASS_AT_MOST_EVERY: Final = 0.25
CALL_AT_MOST_EVERY: Final = 0.5
LOOK_LIMIT: Final = 1.0
"""Lanes that have not looked so many seconds after a ring cannot: their claims fail or hang."""


LooksDue: TypeAlias = tuple[tuple[int, int], ...]
"""For each lane: how many turns it will have made, and how many rows it had claimed before."""


@dataclass(frozen=True, slots=True)
class Look:
    """A look that the lanes owe. *rung*: a ring asked for it."""

    due: LooksDue
    rung: bool


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
            called=self._ring_lanes,
            changed=self._stir,
            prover=lambda: self._link if self._seated else None,
            quiet=lambda: not self._seated,
            listen_url=listen_url,
        )
        self._stirred = anyio.Event()
        self._complaints = Complaints()
        self._queued = False
        self._seated = False
        self._asleep = False
        self._holds_sleep = False
        self._rings: deque[float] = deque(maxlen=FAST[0])
        self._fast = False
        self._awake = False
        self._day = SHORTEST_DAY
        self._look: Look | None = None
        self._owes_call = False
        self._short = False
        self._passed_at = 0.0

    def nap(self, lane: Lane[Any], settings: WorkerSettings) -> float:
        """How long *lane* may sleep: long while every enqueue rings and the ring is heard, short by day."""
        if self._awake:
            return FULL_DAY_LOOK if lane.backlog else DAY_LOOK
        if self._asleep and self._may_sit():
            return settings.quiet_poll
        # In the queue for the seat: somebody else listens, and is looked after now and then.
        return settings.poll * (2 if self._queued and self._listener.proven else 1)

    @property
    def proven(self) -> bool:
        """True while the connection that listens has proven that it hears."""
        return self._listener.proven

    async def run(self) -> None:
        """Take the seat, sleep, wake, until cancelled."""
        try:
            async with anyio.create_task_group() as tg:
                tg.start_soon(self._listener.run)
                tg.start_soon(self._call_for_ever)
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
        self._judge_look()
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
                if await self._take_seat():
                    await self._sit()
                failures = 0
                self._complaints.over("bell")
            except DATABASE_FAULTS as error:
                self._complaints.about("bell", error)
                # A lock may have been granted although its statement failed.
                await self._link.close()
                failures += 1
                await anyio.sleep(backoff.reconnect(failures, random.random()))  # noqa: S311

    async def _take_seat(self) -> bool:
        self._queued = True
        try:
            taken = bool(await self._link.value("take_bell_lock", SEAT_LOCK, seconds(SEAT_WAIT)))
        finally:
            self._queued = False
        self._session = self._link.session
        return taken

    async def _sit(self) -> None:
        """Listen for all, until every lane is full, the bell cannot be heard, or others should try."""
        self._seated = True
        self._holds_sleep = self._short = False
        self._look = None
        try:
            if await self._listener.subscribe():
                self._ring_lanes()
                while await self._sleep():
                    pass
        finally:
            self._seated = self._asleep = False
            await self._stand_up()

    async def _stand_up(self) -> None:
        with anyio.move_on_after(1, shield=True), suppress(*DATABASE_FAULTS):
            if self._link.is_session(self._session):
                await self._leave_sleep()
                await self._link.fetch("leave_bell_lock", SEAT_LOCK)
            await self._listener.unsubscribe()
            return
        # The locks belong to the session: whatever went wrong, they end with it, and so does the ear.
        await self._link.close()
        self._listener.give_up()

    async def _leave_sleep(self) -> None:
        if self._holds_sleep:
            self._holds_sleep = False
            await self._link.fetch("leave_bell_lock", SLEEP_LOCK)

    async def _sleep(self) -> bool:
        """Fall asleep, sleep, wake up. False: leave the seat."""
        await self._until(lambda: self._rested() or not self._may_sit())
        if not self._may_sit():
            return False
        if not await self._link.value("take_bell_lock", SLEEP_LOCK, seconds(SLEEP_WAIT)):
            # What was enqueued before this wait, or comes before the next one, does not ring.
            self._owes_call = True
            self._ring_lanes()
            self._stir()
            return self._may_sit() and not self._must_pass_on()
        slept_from = time.monotonic()
        self._fall_asleep()
        await self._until(lambda: self._fast or not self._may_sit() or self._must_pass_on())
        self._asleep = False
        if not self._fast or not self._may_sit():
            return False
        await self._leave_sleep()
        await self._stay_up(short_night=time.monotonic() - slept_from < SHORT_NIGHT)
        return True

    def _fall_asleep(self) -> None:
        self._holds_sleep = self._asleep = True
        self._fast = False
        self._rings.clear()
        # Once more after the grant: what was enqueued without a ring is visible now. Others may know it.
        self._owes_call = True
        self._look = Look(self._looks_due(), rung=self._look is not None and self._look.rung)
        self._ring_lanes()
        self._stir()

    async def _stay_up(self, *, short_night: bool) -> None:
        """Day: nobody rings, so the lanes look often, until there is nothing to see or the day is over."""
        self._day = min(self._day * 2, LONGEST_DAY) if short_night else SHORTEST_DAY
        self._awake = True
        self._ring_lanes()
        with anyio.move_on_after(self._day):
            await self._until(lambda: not self._may_sit() or self._quiet())
        self._awake = False

    async def _call_for_ever(self) -> None:
        """Call the other workers when they are owed it, or when the lanes here do not look."""
        while True:
            await self._until(lambda: self._owes_call or self._look is not None)
            with anyio.move_on_after(LOOK_LIMIT) as limit:
                await self._until(lambda: self._owes_call or self._look is None)
            if limit.cancelled_caught:
                self._look, self._owes_call, self._short = None, True, True
                self._stir()
            if self._owes_call:
                await self._call()

    async def _call(self) -> None:
        self._owes_call = False
        try:
            await self._listener.call()
        except DATABASE_FAULTS as error:
            self._complaints.about("bell", error)
            self._owes_call = True
        await anyio.sleep(CALL_AT_MOST_EVERY)

    def _on_ring(self) -> None:
        # An email waits for the lanes' claims, and uvloop sends them when all that is ready has run: so
        # everything else comes later.
        due = self._looks_due()
        for lane in self._lanes:
            lane.ring(fresh=True)
        asyncio.get_running_loop().call_later(CLAIMS_FIRST, self._note_ring, time.monotonic(), due)

    def _note_ring(self, at: float, due: LooksDue) -> None:
        self._rings.append(at)
        dawn = len(self._rings) == FAST[0] and at - self._rings[0] < FAST[1]
        news = self._look is None or (dawn and not self._fast)
        self._fast = self._fast or dawn
        self._look = Look(due, rung=True)
        self._judge_look()
        if news:
            self._stir()

    def _looks_due(self) -> LooksDue:
        # A claim that is under way may be too early to see what is rung for.
        return tuple((lane.turns + (1 if lane.resting else 2), lane.claimed) for lane in self._lanes)

    def _judge_look(self) -> None:
        """Once all lanes have looked: was there something that another worker may have to take?"""
        look = self._look
        if look is None:
            return
        pairs = list(zip(self._lanes, look.due, strict=True))
        if not all(lane.turns >= turns or lane.room.slots == 0 for lane, (turns, _) in pairs):
            return
        self._look = None
        self._short = look.rung and any(lane.room.bulk == 0 for lane in self._lanes)
        served = any(lane.claimed > claimed for lane, (_, claimed) in pairs)
        if self._short or (look.rung and not served):
            self._owes_call = True

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
        return any(lane.room.slots > 0 for lane in self._lanes)

    def _rested(self) -> bool:
        return all(lane.resting for lane in self._lanes)

    def _quiet(self) -> bool:
        return all(lane.empty_turns >= QUIET_TURNS for lane in self._lanes)

    def _may_sit(self) -> bool:
        # The locks live as long as the session that took them.
        return self._room() and self._listener.hears and self._link.is_session(self._session)

    def _must_pass_on(self) -> bool:
        """What comes in may be for a worker that has more room, or whose claims work."""
        now = time.monotonic()
        if not self._short or now - self._passed_at < PASS_AT_MOST_EVERY:
            return False
        self._passed_at = now
        return True
