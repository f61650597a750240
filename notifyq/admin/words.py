"""Times and amounts as a tired person reads them. Pure: *now* comes in."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

__all__ = ["absolute", "ago", "amount", "clock", "duration", "exact", "size"]

COUNTED_TO: Final = 10_000
"""Counts in the page's statements stop one above this."""

# The first unit that holds at least one whole is used: (seconds, one, short).
_UNITS: Final = ((86400.0, "day", "d"), (3600.0, "hour", "h"), (60.0, "minute", "min"))


def ago(at: datetime, now: datetime) -> str:
    """How far *at* lies from *now*.

    Example: ``ago(now - timedelta(minutes=3), now) == "3 min ago"``, or ``"in 3 min"`` for the future.
    """
    away = (now - at).total_seconds()
    if abs(away) < 1:
        return "just now"
    said = _short(abs(away))
    return f"{said} ago" if away > 0 else f"in {said}"


def duration(seconds: float) -> str:
    """A length of time, as fine as it matters.

    Example: ``duration(0.0042) == "4.2 ms"``, ``duration(150) == "2 min 30 s"``.
    """
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    for (size, _, name), (small, small_name) in zip(
        _UNITS, ((3600.0, "h"), (60.0, "min"), (1.0, "s")), strict=True
    ):
        if seconds >= size:
            rest = int(seconds % size // small)
            return f"{seconds // size:.0f} {name}" + (f" {rest} {small_name}" if rest else "")
    return f"{seconds:.0f} s"


def exact(at: datetime) -> str:
    """For a machine and a tooltip: ISO 8601 in UTC."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def absolute(at: datetime) -> str:
    """Example: ``"30 Nov 2026, 19:08:48 UTC"``."""
    return f"{at.astimezone(UTC):%-d %b %Y, %H:%M:%S} UTC"


def clock(at: datetime, now: datetime) -> str:
    """The time of day, with the date if it is another day than today (both in UTC)."""
    there, here = at.astimezone(UTC), now.astimezone(UTC)
    return f"{there:%H:%M:%S}" if there.date() == here.date() else f"{there:%-d %b %H:%M:%S}"


def amount(count: int) -> str:
    """A count with its thousands, or "10,000+" where counting stopped."""
    return f"{COUNTED_TO:,}+" if count > COUNTED_TO else f"{count:,}"


def size(count: int) -> str:
    """A number of bytes. Example: ``size(2048) == "2.0 KB"``."""
    if count < 1024:
        return f"{count} B"
    if count < 1024 * 1024:
        return f"{count / 1024:.1f} KB"
    return f"{count / 1024 / 1024:.1f} MB"


def _short(seconds: float) -> str:
    for unit, _, name in _UNITS:
        if seconds >= unit:
            return f"{seconds // unit:.0f} {name}"
    return f"{seconds:.0f} s"
