"""What a worker does beside its lanes: dead workers' leases, a blocked account, expiry, retention, audit.

A lease's end is judged by this process's own clock: the very same lease, seen unchanged for its whole
length, is over. How old it was when it was first seen says the database's clock, as far as that cannot have
been set since the look before (`believed_age`). So a step of that clock ends no lease (H3), a worker that
renews or records in time is never taken over, and a look in every lease is enough to know each end in time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple, TypeVar

import anyio

from notifyq.attempt import steady_clock
from notifyq.auditor import audit
from notifyq.db import DATABASE_FAULTS, Complaints, Link, seconds
from notifyq.listener import CALL
from notifyq.provider import Health, Provider
from notifyq.settings import WorkerSettings

__all__ = ["Lease", "LeaseWatch", "Look", "Term", "Upkeep", "believed_age"]

log = logging.getLogger("notifyq")

T = TypeVar("T")

LOOKS: Final = 4
"""Looks at the leases of others in one lease, while there are any."""

SWEEP_EVERY: Final = 60.0
AUDIT_EVERY: Final = 86400.0
AUDIT_ASKED_EVERY: Final = 600.0
LEARN_EVERY: Final = 600.0
FOREIGN_GRACE: Final = 900.0
"""How long the doubts of another account wait for a worker that has it: longer than a deploy takes."""

OLDEST_DOUBT: Final = 6 * 86400.0
"""Below the shortest retention that Postmark offers (7 days): older doubts cannot be answered."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One lease as it was seen: any change of it makes another one."""

    lane: str
    id: int
    claim_seq: int
    lease_until: datetime


class Term(NamedTuple):
    """How long a lease is, and how old it is by the database's clock, in seconds."""

    length: float
    age: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """When the database was looked at: *asked* and *answered* by our clock, *database* by its own."""

    asked: float
    answered: float
    database: float


def believed_age(age: float, before: Look | None, now: Look) -> float:
    """How old a lease is at the least that the look *before* did not show and the look *now* does.

    Between the two, the database's clock may have been set forward by as much as it ran ahead of ours; an
    *age* (seconds, by that clock) is believed less that much, and never beyond the look before.

    Example: ``believed_age(8.0, None, now) == 0.0``
    """
    if before is None:
        return 0.0
    passed = now.asked - before.answered
    set_forward = max(0.0, now.database - before.database - passed)
    return max(0.0, min(age - set_forward, passed))


class LeaseWatch:
    """Remembers since when each foreign lease has been unchanged. Pure: all times are handed in."""

    def __init__(self) -> None:
        self._since: dict[Lease, float] = {}
        self._before: Look | None = None

    def __len__(self) -> int:
        return len(self._since)

    def observe(self, leases: Mapping[Lease, Term], now: Look) -> list[Lease]:
        """Note the *leases* that run at the look *now*; answer those that are over."""
        before, self._before = self._before, now
        self._since = {
            lease: self._since.get(lease, now.answered - believed_age(term.age, before, now))
            for lease, term in leases.items()
        }
        return [lease for lease, (length, _) in leases.items() if now.answered - self._since[lease] >= length]

    def next_end(self, leases: Mapping[Lease, Term], now: float) -> float | None:
        """Seconds until the first of *leases* will be over, if it stays as it is."""
        ends = [self._since[lease] + term.length - now for lease, term in leases.items()]
        return min(ends, default=None)


class Upkeep:
    """Runs beside the lanes until it is cancelled. `look` tells it that other processes are at work.

    *serves* holds the names of the tasks and of the builders that this worker knows; *under_way* answers
    the ids that a lane works on now.
    """

    def __init__(
        self,
        *,
        worker: str,
        provider: Provider,
        settings: WorkerSettings,
        link: Link,
        gate: Callable[[], str],
        listening: Callable[[], bool],
        serves: tuple[list[str], list[str]],
        under_way: Callable[[str], list[int]],
    ) -> None:
        self._worker = worker
        self._provider = provider
        self._settings = settings
        self._link = link
        self._gate = gate
        self._listening = listening
        self._serves = serves
        self._under_way = under_way
        self._watch = LeaseWatch()
        self._told = anyio.Event()
        self._complaints = Complaints()
        self._learn_server_at = 0.0
        self._ask_for_audit_at = 0.0

    def look(self) -> None:
        """There are leases that nobody here works under: look at them soon."""
        self._told.set()

    async def run(self) -> None:
        """All duties, each in its own loop."""
        async with anyio.create_task_group() as tg:
            tg.start_soon(self._watch_leases)
            tg.start_soon(self._mend_gate)
            tg.start_soon(self._sweep)

    async def _watch_leases(self) -> None:
        """Look at each end, a few times in a lease while others work, and once in a lease while none does."""
        seldom, often = self._settings.lease, self._settings.lease / LOOKS
        while True:
            self._told = anyio.Event()
            end = await self._quietly("leases", self._one_look)
            pause = min(often, 1.0 if end is None else max(end, 0.02))
            await anyio.sleep(pause)
            if end == math.inf:
                with anyio.move_on_after(seldom - pause):
                    await self._told.wait()

    async def _one_look(self) -> float:
        """End what is over; answer the seconds until the next lease will be (infinite: none runs)."""
        asked = steady_clock()
        rows = await self._link.fetch(
            "running_leases", self._worker, self._under_way("emails"), self._under_way("tasks")
        )
        now = Look(asked=asked, answered=steady_clock(), database=rows[0]["clock"].timestamp())
        leases = {
            Lease(row["lane"], row["id"], row["claim_seq"], row["lease_until"]): Term(
                row["length"], row["age"]
            )
            for row in rows
            if row["id"] is not None
        }
        over = self._watch.observe(leases, now)
        for lane in ("email", "task"):
            await self._end(lane, [lease for lease in over if lease.lane == lane])
        for lease in over:
            del leases[lease]
        left = self._watch.next_end(leases, steady_clock())
        return math.inf if left is None else left

    async def _end(self, lane: str, over: list[Lease]) -> None:
        if not over:
            return
        ended = await self._link.fetch(
            f"{lane}_leases_ended",
            [lease.id for lease in over],
            [lease.claim_seq for lease in over],
            [lease.lease_until for lease in over],
        )
        if not ended:
            return
        ids = ", ".join(str(row[0]) for row in ended[:20])
        then = "in doubt" if lane == "email" else "to be run again"
        log.warning("%d %ss of a lost worker are %s now: %s", len(ended), lane, then, ids)
        # Whoever listened for all may be the one that was lost, with its session still open.
        await self._link.fetch("proof", CALL)

    async def _mend_gate(self) -> None:
        while True:
            await anyio.sleep(2.0)
            if steady_clock() >= self._learn_server_at:
                await self._learn_server()
            if self._gate() == "blocked" and await self._quietly("gate", self._may_look):
                await self._look_at_account()

    async def _may_look(self) -> bool:
        return bool(await self._link.value("gate_look", self._provider.account))

    async def _look_at_account(self) -> None:
        health = await self._provider.health(budget=self._settings.post_budget)
        if isinstance(health, Health) and health.blocked is not None:
            log.error("the account is still blocked: %s", health.blocked)
            return
        # Mended, or the provider cannot say: one email goes first and shows it.
        await self._quietly("gate", lambda: self._link.fetch("gate_mended", self._provider.account))

    async def _learn_server(self) -> None:
        """Ask for the provider's own name of the account until it is known: it outlives a change of token."""
        self._learn_server_at = steady_clock() + LEARN_EVERY
        health = await self._provider.health(budget=self._settings.post_budget)
        if isinstance(health, Health) and health.server is not None:
            server = health.server
            note = partial(self._link.fetch, "gate_server", self._provider.account, server)
            if await self._quietly("gate", note) is not None:
                self._learn_server_at = math.inf

    async def _sweep(self) -> None:
        await self._quietly("sweep", lambda: self._link.fetch("hurry_waiting"))
        while True:
            await self._quietly("sweep", self._one_sweep)
            await anyio.sleep(SWEEP_EVERY)

    async def _one_sweep(self) -> None:
        retention = self._settings.retention
        rows = await self._link.fetch(
            "sweep_emails",
            self._provider.account,
            seconds(max(self._settings.settle, FOREIGN_GRACE)),
            seconds(OLDEST_DOUBT),
            None if retention is None else seconds(retention),
        )
        if retention is not None:
            await self._link.fetch("purge_tasks", seconds(retention))
        account = self._provider.account
        await self._link.fetch("worker_seen", self._worker, self._listening(), *self._serves, account)
        if rows[0]["held"]:
            log.warning("%d emails are held: nobody can ask about them", rows[0]["held"])
        if steady_clock() < self._ask_for_audit_at:
            return
        self._ask_for_audit_at = steady_clock() + AUDIT_ASKED_EVERY
        if await self._link.value("take_chore", "audit", seconds(AUDIT_EVERY)):
            await audit(self._link, self._provider, budget=self._settings.post_budget)

    async def _quietly(self, what: str, duty: Callable[[], Awaitable[T]]) -> T | None:
        """Do *duty*; a database that is away is told of, and the duty is done another time."""
        try:
            result = await duty()
        except DATABASE_FAULTS as error:
            self._complaints.about(what, error)
            return None
        self._complaints.over(what)
        return result
