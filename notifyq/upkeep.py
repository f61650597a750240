"""What a worker does beside its lanes: dead workers' leases, a blocked account, expiry, retention, audit.

A lease's end is judged by this process's own clock: the very same lease, seen unchanged for its whole
length from first sight on, is over. A step of the database's clock therefore ends no lease (H3), and a
worker that renews or records in time is never taken over.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

import anyio

from notifyq.attempt import steady_clock
from notifyq.auditor import audit
from notifyq.db import DATABASE_FAULTS, Complaints, Link, seconds
from notifyq.provider import Health, Provider
from notifyq.settings import WorkerSettings

__all__ = ["LeaseWatch", "Upkeep"]

log = logging.getLogger("notifyq")

T = TypeVar("T")

SWEEP_EVERY: Final = 60.0
AUDIT_EVERY: Final = 86400.0
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


class LeaseWatch:
    """Remembers since when each foreign lease has been seen unchanged. Pure: the time is handed in."""

    def __init__(self) -> None:
        self._first_seen: dict[Lease, float] = {}

    def __len__(self) -> int:
        return len(self._first_seen)

    def observe(self, leases: dict[Lease, float], now: float) -> list[Lease]:
        """Note the *leases* that run (each with its length in seconds); answer those that are over."""
        self._first_seen = {lease: self._first_seen.get(lease, now) for lease in leases}
        return [lease for lease, length in leases.items() if now - self._first_seen[lease] >= length]

    def next_end(self, leases: dict[Lease, float], now: float) -> float | None:
        """Seconds until the first of *leases* will be over, if it stays as it is."""
        ends = [self._first_seen[lease] + length - now for lease, length in leases.items()]
        return min(ends, default=None)


class Upkeep:
    """Runs beside the lanes until it is cancelled. `look` makes it watch other processes' leases now.

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
        self._others = anyio.Event()
        self._complaints = Complaints()
        self._learn_server_at = 0.0

    def look(self) -> None:
        """There are leases that nobody here works under: watch them."""
        self._others.set()

    async def run(self) -> None:
        """All duties, each in its own loop."""
        async with anyio.create_task_group() as tg:
            tg.start_soon(self._watch_leases)
            tg.start_soon(self._mend_gate)
            tg.start_soon(self._sweep)

    async def _watch_leases(self) -> None:
        while True:
            if not len(self._watch):
                await self._others.wait()
            self._others = anyio.Event()
            pause = await self._quietly("leases", self._one_look)
            await anyio.sleep(pause or 1.0)

    async def _one_look(self) -> float:
        rows = await self._link.fetch(
            "running_leases", self._worker, self._under_way("emails"), self._under_way("tasks")
        )
        leases = {
            Lease(row["lane"], row["id"], row["claim_seq"], row["lease_until"]): row["length"] for row in rows
        }
        now = steady_clock()
        over = self._watch.observe(leases, now)
        for lane in ("email", "task"):
            await self._end(lane, [lease for lease in over if lease.lane == lane])
        left = self._watch.next_end({k: v for k, v in leases.items() if k not in over}, now)
        # Often enough to be within a second of an end, seldom enough not to be felt.
        return min(max(0.05, left if left is not None else 1.0), 1.0)

    async def _end(self, lane: str, over: list[Lease]) -> None:
        if not over:
            return
        ended = await self._link.fetch(
            f"{lane}_leases_ended",
            [lease.id for lease in over],
            [lease.claim_seq for lease in over],
            [lease.lease_until for lease in over],
        )
        if ended:
            ids = ", ".join(str(row[0]) for row in ended[:20])
            then = "in doubt" if lane == "email" else "to be run again"
            log.warning("%d %ss of a lost worker are %s now: %s", len(ended), lane, then, ids)

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
        self.look()  # claims tell of leases that run, not of those that nobody watched
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
        await self._link.fetch("worker_seen", self._worker, self._listening(), *self._serves)
        if rows[0]["held"]:
            log.warning("%d emails are held: nobody can ask about them", rows[0]["held"])
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
