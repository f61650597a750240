"""The page's reads: named queries on the user's pool, each with a limit in time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from notifyq.admin.filters import LAST, Filters, moment
from notifyq.db import Pool
from notifyq.sqlfiles import query

__all__ = ["Listing", "Reads", "a_page"]

PAGE: Final = 50
WALK: Final = 10_000
"""Rows that a list looks at, where a filter has no index."""
SCATTERED: Final = 5_000
"""The same where the rows do not lie side by side, so that each costs more."""
READ_LIMIT: Final = 10.0
BODIES: Final = 2_000
"""The same where the message has to be read, which lies outside the row."""
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
    """Reads from *pool*. Raises one of `notifyq.db.DATABASE_FAULTS`.

    *shared* holds what open pages have read since the hub last looked: they look again all at once, and
    most of them at the same lists. None while nobody watches: then every read is made.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.shared: dict[tuple[Any, ...], list[Row]] | None = None

    def forget(self) -> None:
        """Read everything anew: the hub has looked again, or an operator has changed something."""
        if self.shared is not None:
            self.shared = {}

    async def rows(self, name: str, *args: Any) -> list[Row]:
        """All rows of a named query."""
        async with self._pool.acquire(timeout=READ_LIMIT) as conn:
            found: list[Any] = await conn.fetch(query(name), *args, timeout=READ_LIMIT)
            return found

    async def rows_once(self, name: str, *args: Any) -> list[Row]:
        """The same, read once for all pages that are open."""
        shared = self.shared
        if shared is None:
            return await self.rows(name, *args)
        if (name, args) not in shared:
            shared[name, args] = await self.rows(name, *args)
        return shared[name, args]

    async def row(self, name: str, *args: Any) -> Row | None:
        """The first row, or None."""
        found = await self.rows(name, *args)
        return found[0] if found else None

    async def value(self, name: str, *args: Any) -> Any:
        """The first column of the first row, or None; read once for all pages that are open."""
        found = await self.rows_once(name, *args)
        return next(iter(found[0].values())) if found else None

    async def emails(self, filters: Filters, now: datetime, *, limit: int = PAGE) -> Listing:
        """One page of emails."""
        low, high, wrong = await self._bounds("page_email_at", filters, now)
        args = _nulls(high, low, filters.status, filters.reason, filters.key, filters.builder, filters.tag)
        if filters.key and (
            found := await self.row("page_emails_key", filters.key, filters.recipient or None)
        ):
            return Listing(rows=(found,) if _fits(found, filters) else (), wrong_time=wrong)
        if filters.recipient:
            rows = await self.rows_once("page_emails_to", *args, limit + 1, WALK, filters.recipient, BODIES)
            reach = await self._reach("page_emails_to", BODIES, high, low, filters.status)
            return a_page(rows, limit, reach, wrong, looked=BODIES)
        name = await self._email_route(filters)
        walk = SCATTERED if name == "page_emails_failed" else WALK
        rows = await self.rows_once(name, *args, limit + 1, walk)
        walked = len(rows) <= limit and filters.narrow
        reach = await self._reach(name, walk, high, low, filters.status) if walked else None
        return a_page(rows, limit, reach, wrong, looked=walk)

    async def tasks(self, filters: Filters, now: datetime, *, limit: int = PAGE) -> Listing:
        """One page of calls of tasks."""
        low, high, wrong = await self._bounds("page_task_at", filters, now)
        args = _nulls(high, low, filters.status, filters.reason, filters.key, filters.name)
        indexed = filters.status in ("pending", "processing", "dead") and not await self.value(
            "page_task_many", filters.status, FEW
        )
        name = "page_tasks_indexed" if indexed else "page_tasks_newest"
        rows = await self.rows_once(name, *args, limit + 1, WALK)
        reach = None
        if name == "page_tasks_newest" and len(rows) <= limit and filters.narrow:
            reach = await self.value("page_tasks_reach", high, low, WALK - 1)
        return a_page(rows, limit, reach, wrong, looked=WALK)

    async def _email_route(self, filters: Filters) -> str:
        """The query that finds these emails with the least to look at."""
        if filters.status in ("held", "dead"):
            return "page_emails_failed"
        if filters.status in ("pending", "processing", "doubt"):
            few = filters.reason == "setup" or not await self.value("page_email_many", filters.status, FEW)
            return "page_emails_under_way" if few else "page_emails_newest"
        return "page_emails_newest"

    async def _reach(self, name: str, walk: int, high: int, low: int, status: str) -> int | None:
        """The id where a walk had to stop; None if it came to the end."""
        if name == "page_emails_under_way":
            return None
        if status in ("held", "dead"):
            reach = await self.value("page_emails_failed_reach", high, low, walk - 1, status)
        else:
            reach = await self.value("page_emails_reach", high, low, walk - 1)
        return None if reach is None else int(reach)

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


def _fits(row: Row, filters: Filters) -> bool:
    """Whether the row of a key is one that the other filters want, too."""
    wanted = {
        "status": filters.status,
        "reason": "" if filters.reason in ("failed", "setup") else filters.reason,
        "builder": filters.builder,
        "tag": filters.tag,
    }
    if filters.reason == "failed" and row["reason"] in (None, "suppressed", "cancelled"):
        return False
    if filters.reason == "setup" and not row["waits"]:
        return False
    alike = all(row[name] == value for name, value in wanted.items() if value)
    return bool(row["id"] < filters.before and row["addressed"] and alike)


def _nulls(high: int, low: int, *words: str) -> tuple[int | str | None, ...]:
    return (min(high, LAST), low, *(word or None for word in words))


def a_page(rows: list[Row], limit: int, reach: int | None, wrong: str, *, looked: int) -> Listing:
    """*rows* as a page. What a walk has not come to begins at *reach*: no cursor may pass over it."""
    shown = tuple(rows[:limit])
    if len(rows) > limit and (reach is None or shown[-1]["id"] >= reach):
        return Listing(rows=shown, older=shown[-1]["id"], looked=looked, wrong_time=wrong)
    return Listing(rows=shown, older=reach, reach=reach, looked=looked, wrong_time=wrong)
