"""When a periodic task runs. Pure: the last tick and the present come in, ticks come out.

Daylight saving is that of Debian's cron, as the library cronsim implements it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from notifyq.errors import InvalidSettings

__all__ = ["Due", "Missed", "Schedule"]

Missed: TypeAlias = Literal["skip", "one"]

LATE: Final = timedelta(minutes=1)
"""A tick seen later than this was missed."""

LOOKS_BACK: Final = tuple(timedelta(hours=hours) for hours in (0.05, 2, 48, 24 * 32, 24 * 366, 24 * 366 * 8))


@dataclass(frozen=True, slots=True)
class Due:
    """The newest tick that has passed, and whether it is to be run."""

    tick: datetime
    run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A cron expression in a time zone, with what becomes of missed ticks.

    Raises `InvalidSettings` if it means nothing, or without the extra ``periodic``.

    Example: ``Schedule(expression="0 3 * * *", timezone="Europe/Paris", missed="skip")``
    """

    expression: str
    timezone: str = "UTC"
    missed: Missed = "skip"

    def __post_init__(self) -> None:
        if self.missed not in ("skip", "one"):
            raise InvalidSettings("missed", "must be 'skip' or 'one'")
        try:
            zone = ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError):
            raise InvalidSettings("timezone", f"{self.timezone!r} is no time zone") from None
        if next(self._ticks(datetime(2026, 1, 1, tzinfo=zone)), None) is None:
            raise InvalidSettings("periodic", f"{self.expression!r} never comes")

    def next_tick(self, after: datetime) -> datetime:
        """The first tick after *after* (an aware time), in UTC terms equal to a wall clock time here."""
        tick: datetime = next(self._ticks(after.astimezone(ZoneInfo(self.timezone))))
        return tick

    def due(self, last: datetime, now: datetime) -> Due | None:
        """The newest tick in (*last*, *now*]; None if there is none.

        A tick that is late by more than a minute was missed: it runs only under ``missed="one"``.
        """
        newest = self._newest(last, now)
        if newest is None:
            return None
        return Due(newest, run=self.missed == "one" or now - newest <= LATE)

    def _newest(self, last: datetime, now: datetime) -> datetime | None:
        # Years of rest hold millions of ticks, and only the newest counts: short looks back come first.
        for look in LOOKS_BACK:
            newest = None
            start = max(last, now - look)
            for tick in self._ticks(start.astimezone(ZoneInfo(self.timezone))):
                if tick > now:
                    break
                newest = tick
            if newest is not None or start == last:
                return newest
        return None

    def _ticks(self, after: datetime) -> Any:
        try:
            from cronsim import CronSim, CronSimError
        except ImportError:
            raise InvalidSettings("periodic", 'needs an extra: pip install "notifyq[periodic]"') from None
        try:
            return CronSim(self.expression, after)
        except CronSimError:
            raise InvalidSettings("periodic", f"{self.expression!r} is no cron expression") from None
