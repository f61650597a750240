"""Ask the provider whether a doubtful email was sent: few searches for many doubts.

* A hit is proof at any time.
* A miss counts only if the search is up to date. Where a message of ours accepted *after* the doubt can
  be found in the database, the provider's search must show that one first (the positive control, one
  search shared by all doubts).
* A burst of doubts after an outage is answered from one listing of the newest messages instead of
  one search each: single searches have a budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Final
from uuid import UUID

import anyio

from notifyq.db import DATABASE_FAULTS, Link, describe
from notifyq.provider import Finding, Found, Inconclusive, Listed, Missing, Provider
from notifyq.settings import WorkerSettings

__all__ = ["Asker", "Budget"]

LISTING_FRESH: Final = 2.0
CLOCK_DOUBT: Final = 3600.0
"""How far the provider's clock and ours may be apart, when a listing is cut off by time."""


class Budget:
    """A bucket of single searches: *burst* at once, *per_second* afterwards."""

    def __init__(
        self, *, burst: float, per_second: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._burst, self._per_second, self._clock = burst, per_second, clock
        self._left, self._at = burst, clock()

    def take(self) -> bool:
        """True if one more may go now."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Asker:
    """Answers one claimed doubt at a time, sharing what it learns."""

    def __init__(self, provider: Provider, settings: WorkerSettings, link: Link) -> None:
        self._provider = provider
        self._settings = settings
        self._link = link
        self._budget = Budget(burst=10, per_second=2)
        self._listings: dict[str, tuple[float, float, Listed | Inconclusive]] = {}
        self._listing_turn = anyio.Lock()
        self._controlled: dict[str, datetime] = {}
        self._control_turn = anyio.Lock()

    async def ask(self, uid: UUID, *, stream: str, doubt_since: datetime, settled: bool) -> Finding:
        """Look for *uid*. *settled*: a miss would count, so it must be sound."""
        finding = await self._look(uid, stream, doubt_since)
        if not (settled and isinstance(finding, Missing)):
            return finding
        return await self._control(finding, stream, doubt_since)

    async def _look(self, uid: UUID, stream: str, doubt_since: datetime) -> Finding:
        if self._budget.take():
            return await self._provider.find(uid, stream=stream, budget=self._settings.post_budget)
        listed = await self._listing(stream, doubt_since)
        if isinstance(listed, Inconclusive):
            return listed
        if uid in listed.messages:
            return Found(listed.messages[uid])
        began = doubt_since.timestamp() - self._settings.lease
        if listed.since is None or listed.since + CLOCK_DOUBT <= began:
            return Missing()
        return Inconclusive("too many messages to look through at once")

    async def _listing(self, stream: str, doubt_since: datetime) -> Listed | Inconclusive:
        since = doubt_since.timestamp() - self._settings.lease - 2 * CLOCK_DOUBT
        async with self._listing_turn:
            now = time.monotonic()
            taken_at, reaches, listed = self._listings.get(stream, (now - 10, 0.0, Inconclusive("")))
            # One listing must not serve two misses of one doubt, which are half a settle apart.
            if now - taken_at < min(LISTING_FRESH, self._settings.settle / 8) and reaches <= since:
                return listed
            asked_at = now
            listed = await self._provider.listing(
                stream=stream, since=since, budget=self._settings.post_budget
            )
            self._listings[stream] = (asked_at, since, listed)
            return listed

    async def _control(self, missing: Missing, stream: str, doubt_since: datetime) -> Finding:
        async with self._control_turn:
            if self._controlled.get(stream, datetime.min.replace(tzinfo=doubt_since.tzinfo)) >= doubt_since:
                return missing
            try:
                rows = await self._link.fetch("control_uid", doubt_since, stream, self._provider.account)
            except DATABASE_FAULTS as error:
                return Inconclusive(
                    f"the positive control could not be chosen ({describe(error)})", failed=True
                )
            if not rows:
                return missing
            shown = await self._provider.find(
                rows[0]["uid"], stream=stream, budget=self._settings.post_budget
            )
            if isinstance(shown, Found):
                self._controlled[stream] = rows[0]["at"]
                return missing
            if isinstance(shown, Inconclusive):
                return shown
            return Inconclusive("the search is behind: it does not show a message that was accepted later")
