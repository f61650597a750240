"""What ended in the last day, minute by minute: kept in the process, so that each minute is counted once.

A minute that is over never changes (rows end at the clock's time), so only the newest ones are read again.
How long emails took is kept as a histogram in steps of a quarter: histograms add up, percentiles do not.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

__all__ = ["Bar", "Minute", "Timeline", "Window", "percentile"]

DAY: Final = timedelta(hours=24)
HOUR: Final = timedelta(hours=1)
MINUTE: Final = timedelta(minutes=1)
UNSETTLED: Final = timedelta(minutes=2)
"""A commit may come later than the time that it carries: minutes as young as this are read again."""
FRESH: Final = timedelta(seconds=1)
"""However many pages are open, the newest minutes are read once in this time."""
BIN_RATIO: Final = 1.25
BIN_ZERO: Final = 0.001

Fetch = Callable[..., Awaitable[Iterable[Mapping[str, Any]]]]


@dataclass(slots=True)
class Minute:
    """How many were sent and how many died in one minute, and how long the sent ones took, by bin."""

    sent: int = 0
    dead: int = 0
    bins: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of a chart: a minute or an hour. Percentiles are seconds, None where nothing was sent."""

    at: datetime
    sent: int
    dead: int
    p50: float | None
    p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch as its bars, and as one."""

    bars: tuple[Bar, ...]
    whole: Bar


class Timeline:
    """The last day. *fetch* runs ``page_timeline`` for a stretch.

    Example: ``await timeline.refresh(now)``, then ``timeline.hour(now)`` and ``timeline.day(now)``.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._minutes: dict[datetime, Minute] = {}
        self._read_to: datetime | None = None
        self._past: deque[datetime] = deque()
        self._turn = asyncio.Lock()
        self._changes = 0
        self._windows: dict[str, tuple[tuple[int, datetime], Window]] = {}
        self._refreshed = datetime.min.replace(tzinfo=UTC)

    @property
    def complete(self) -> bool:
        """True once the whole day has been read."""
        return self._read_to is not None and not self._past

    async def refresh(self, now: datetime) -> None:
        """Read what is new, and, the first time, the hours before it, the newest first."""
        async with self._turn:
            if self.complete and now - self._refreshed < FRESH:
                return
            if self._read_to is None:
                this_hour = _minute(now) - HOUR
                self._past.extend(this_hour - i * HOUR for i in range(1, 24))
                self._read_to = this_hour
            await self._read(min(self._read_to, _minute(now)), now + MINUTE)
            self._read_to = _minute(now) - UNSETTLED
            while self._past:
                await self._read(self._past[0], self._past[0] + HOUR)
                self._past.popleft()
            self._forget(now)
            self._refreshed = now

    def hour(self, now: datetime) -> Window:
        """The last sixty minutes."""
        return self._kept("hour", now, lambda: [[_minute(now) - i * MINUTE] for i in reversed(range(60))])

    def day(self, now: datetime) -> Window:
        """The last twenty-four hours, ending with this minute."""
        starts = [_minute(now) - i * HOUR + MINUTE for i in range(24, 0, -1)]
        return self._kept("day", now, lambda: [[start + i * MINUTE for i in range(60)] for start in starts])

    def _kept(self, name: str, now: datetime, groups: Callable[[], list[list[datetime]]]) -> Window:
        """A window as it was made for another page a moment ago, or made now."""
        version = (self._changes, _minute(now))
        if name not in self._windows or self._windows[name][0] != version:
            self._windows[name] = (version, self._window(groups()))
        return self._windows[name][1]

    async def _read(self, start: datetime, end: datetime) -> None:
        rows = await self._fetch("page_timeline", start, end)
        self._changes += 1
        for at in [at for at in self._minutes if start <= at < end]:
            del self._minutes[at]
        for row in rows:
            minute = self._minutes.setdefault(row["minute"].astimezone(UTC), Minute())
            if row["sent"]:
                minute.sent += row["count"]
                minute.bins[row["bin"]] += row["count"]
            else:
                minute.dead += row["count"]

    def _forget(self, now: datetime) -> None:
        for at in [at for at in self._minutes if at < now - DAY - HOUR]:
            del self._minutes[at]

    def _window(self, groups: list[list[datetime]]) -> Window:
        bars = tuple(self._bar(group) for group in groups)
        return Window(bars=bars, whole=self._bar([at for group in groups for at in group]))

    def _bar(self, minutes: list[datetime]) -> Bar:
        found = [self._minutes[at] for at in minutes if at in self._minutes]
        bins: Counter[int] = Counter()
        for minute in found:
            bins.update(minute.bins)
        return Bar(
            at=minutes[0],
            sent=sum(minute.sent for minute in found),
            dead=sum(minute.dead for minute in found),
            p50=percentile(bins, 0.50),
            p99=percentile(bins, 0.99),
        )


def percentile(bins: Mapping[int, int], share: float) -> float | None:
    """The upper end of the bin that holds the *share*, in seconds.

    Example: ``percentile({0: 99, 10: 1}, 0.5) == 0.001``
    """
    total = sum(bins.values())
    if not total:
        return None
    seen = 0
    for number in sorted(bins):
        seen += bins[number]
        if seen >= share * total:
            break
    return float(BIN_ZERO * BIN_RATIO**number)


def _minute(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(second=0, microsecond=0)
