"""The page's reads: named queries on the user's pool, each with a limit in time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from notifyq.admin.filters import LAST, Filters, moment
from notifyq.db import Pool
from notifyq.sqlfiles import query

__all__ = ["Listing", "Reads"]

PAGE: Final = 50
WALK: Final = 10_000
"""Rows that a list looks at, where a filter has no index."""
SCATTERED: Final = 5_000
"""The same where the rows do not lie side by side, so that each costs more."""
READ_LIMIT: Final = 10.0
FEW: Final = 5_000
"""Up to so many rows under way are sorted; beyond it the newest rows are walked, which are mostly these."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One page of a list. *older* is the next cursor, *reach* the id where the walk had to stop."""

    rows: tuple[Row, ...]
    older: int | None = None
    reach: int | None = None
    looked: int = WALK
    wrong_time: str = ""


class Reads:
    """Reads from *pool*. Raises one of `notifyq.db.DATABASE_FAULTS`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def rows(self, name: str, *args: Any) -> list[Row]:
        """All rows of a named query."""
        async with self._pool.acquire(timeout=READ_LIMIT) as conn:
            found: list[Any] = await conn.fetch(query(name), *args, timeout=READ_LIMIT)
            return found

    async def row(self, name: str, *args: Any) -> Row | None:
        """The first row, or None."""
        found = await self.rows(name, *args)
        return found[0] if found else None

    async def value(self, name: str, *args: Any) -> Any:
        """The first column of the first row, or None."""
        found = await self.row(name, *args)
        return None if found is None else next(iter(found.values()))

    async def emails(self, filters: Filters, now: datetime, *, limit: int = PAGE) -> Listing:
        """One page of emails."""
        low, high, wrong = await self._bounds("page_email_at", filters, now)
        args = _nulls(high, low, filters.status, filters.reason, filters.key, filters.recipient, filters.tag)
        if filters.key and (found := await self.row("page_emails_key", filters.key)) is not None:
            return Listing(rows=(found,) if self._fits(found, filters) else (), wrong_time=wrong)
        name = await self._email_route(filters)
        walk = SCATTERED if name == "page_emails_failed" else WALK
        rows = await self.rows(name, *args, limit + 1, walk)
        reach = None
        if len(rows) <= limit and name == "page_emails_failed":
            reach = await self.value("page_emails_failed_reach", high, low, walk - 1, filters.status)
        elif len(rows) <= limit and name == "page_emails_newest" and filters.narrow:
            reach = await self.value("page_emails_reach", high, low, walk - 1)
        return replace(_listing(rows, limit, reach, wrong), looked=walk)

    async def tasks(self, filters: Filters, now: datetime, *, limit: int = PAGE) -> Listing:
        """One page of calls of tasks."""
        low, high, wrong = await self._bounds("page_task_at", filters, now)
        args = _nulls(high, low, filters.status, filters.reason, filters.key, filters.name)
        indexed = filters.status in ("pending", "processing", "dead") and not await self.value(
            "page_task_many", filters.status, FEW
        )
        name = "page_tasks_indexed" if indexed else "page_tasks_newest"
        rows = await self.rows(name, *args, limit + 1, WALK)
        if name == "page_tasks_newest" and len(rows) <= limit and filters.narrow:
            reach = await self.value("page_tasks_reach", high, low, WALK - 1)
            return _listing(rows, limit, reach, wrong)
        return _listing(rows, limit, None, wrong)

    async def _email_route(self, filters: Filters) -> str:
        """The query that finds these emails with the least to look at."""
        if filters.status in ("held", "dead"):
            return "page_emails_failed"
        if filters.status in ("pending", "processing", "doubt"):
            many = await self.value("page_email_many", filters.status, FEW)
            return "page_emails_newest" if many else "page_emails_under_way"
        return "page_emails_under_way" if filters.recipient else "page_emails_newest"

    async def _bounds(self, name: str, filters: Filters, now: datetime) -> tuple[int, int, str]:
        """The ids between which the times of *filters* lie."""
        low, high, wrong = 0, filters.before, ""
        for text, side in ((filters.since, "since"), (filters.until, "until")):
            at = moment(text, now) if text else None
            if text and at is None:
                wrong = text
            if at is None:
                continue
            found = await self.value(name, at)
            found = 0 if found is None else int(found)
            if side == "since":
                low = found
            else:
                high = min(high, found)
        return low, high, wrong

    @staticmethod
    def _fits(row: Row, filters: Filters) -> bool:
        wanted = {
            "status": filters.status,
            "reason": filters.reason,
            "recipient": filters.recipient,
            "tag": filters.tag,
        }
        return row["id"] < filters.before and all(
            row[name] == value for name, value in wanted.items() if value
        )


def _nulls(high: int, low: int, *words: str) -> tuple[int | str | None, ...]:
    return (min(high, LAST), low, *(word or None for word in words))


def _listing(rows: list[Row], limit: int, reach: int | None, wrong: str) -> Listing:
    shown = tuple(rows[:limit])
    if len(rows) > limit:
        return Listing(rows=shown, older=shown[-1]["id"], wrong_time=wrong)
    return Listing(rows=shown, older=reach, reach=reach, wrong_time=wrong)
