"""Does the database's clock run as ours does? Pure: both times are handed in.

How old a doubt is says the database's clock. If that clock is set forward, or a failover leads to a
server whose clock is ahead, a doubt looks settled before it is, and a miss would be believed too early.
"""

from __future__ import annotations

from typing import Final

__all__ = ["ClockWatch"]

STEP: Final = 2.0
"""Clocks that part by more than this between two looks did not drift: one was set."""


class ClockWatch:
    """Remembers the last step. For *distrust* seconds after it, ages are not believed.

    Example: ``watch.note(database=now, steady=clock())`` … ``watch.trusted(clock())``
    """

    def __init__(self, *, distrust: float) -> None:
        self._distrust = distrust
        self._offset: float | None = None
        self._stepped_at: float | None = None

    def note(self, *, database: float, steady: float) -> float | None:
        """Note what both clocks say. Answers by how much the database's was set, if it was."""
        offset, last = database - steady, self._offset
        self._offset = offset
        if last is None or abs(offset - last) <= STEP:
            return None
        self._stepped_at = steady
        return offset - last

    def trusted(self, steady: float) -> bool:
        """True unless a step was seen within the last *distrust* seconds."""
        return self._stepped_at is None or steady - self._stepped_at >= self._distrust
