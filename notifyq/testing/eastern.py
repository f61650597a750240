"""US Eastern time, in which Postmark reads search dates and writes times.

The rule of 2007 (daylight time from the second Sunday of March to the first Sunday of November, at
two in the morning) is written out here, so that the fake needs no time zone data on the machine.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

__all__ = ["parse_moment", "stamp"]

_STANDARD, _DAYLIGHT = timedelta(hours=-5), timedelta(hours=-4)


def stamp(epoch: float, *, zulu: bool = False) -> str:
    """Write an epoch second with seven fraction digits, in Eastern time or in UTC with ``Z``.

    Example: ``stamp(0.5, zulu=True)`` is ``"1970-01-01T00:00:00.5000000Z"``.
    """
    moment = datetime.fromtimestamp(epoch, UTC)
    if zulu:
        return f"{moment:%Y-%m-%dT%H:%M:%S.%f}0Z"
    offset = _offset_at(moment)
    return f"{moment + offset:%Y-%m-%dT%H:%M:%S.%f}0-{-offset // timedelta(hours=1):02d}:00"


def parse_moment(text: str) -> tuple[float, float]:
    """Read a search date or date-time as the epoch seconds [first, last) that it covers.

    Raises ValueError for anything else, an offset included.
    Example: ``parse_moment("2026-07-01")`` covers a whole day, ``"2026-07-01T12:00:00"`` one second.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        raise ValueError("an offset is not understood")
    length = timedelta(days=1) if "T" not in text else timedelta(seconds=1)
    return _epoch(moment), _epoch(moment + length)


def _epoch(wall: datetime) -> float:
    offset = _DAYLIGHT if _is_daylight(wall, wall) else _STANDARD
    return (wall - offset).replace(tzinfo=UTC).timestamp()


def _offset_at(moment: datetime) -> timedelta:
    wall = moment.replace(tzinfo=None)
    return _DAYLIGHT if _is_daylight(wall + _STANDARD, wall + _DAYLIGHT) else _STANDARD


def _is_daylight(start_wall: datetime, end_wall: datetime) -> bool:
    """True between the two changes; each is judged by the wall clock that was in force before it."""
    year = start_wall.year
    begins = datetime.combine(_sunday(year, 3, 2), datetime.min.time()) + timedelta(hours=2)
    ends = datetime.combine(_sunday(year, 11, 1), datetime.min.time()) + timedelta(hours=2)
    return begins <= start_wall and end_wall < ends


def _sunday(year: int, month: int, nth: int) -> date:
    first = date(year, month, 1)
    return first + timedelta(days=(6 - first.weekday()) % 7 + 7 * (nth - 1))
