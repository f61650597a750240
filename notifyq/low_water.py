"""When may a claim leave out the oldest part of its index? Pure: times are handed in.

A held snapshot (a dump, a forgotten transaction) keeps the index entries of rows that are long sent. A
claim walks over all of them before it finds a row. A worker that sees its claims grow slow leaves out
what was due well before a moment up to which it had claimed everything, and looks at everything again every
few seconds: it finds what a long transaction commits with an old time, or what waits at a lower priority.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

__all__ = ["LowWater"]

SLOW: Final = 0.01
"""Whole claims that take longer than this, in seconds, are followed by partial ones."""

IN_A_ROW: Final = 2
"""So many of them. One may have waited for the disk, or be the first of its session, whose plans are made."""

MARGIN: Final = timedelta(seconds=2)
"""Left between the mark and the moment it stands for: what is sent in it is walked over by every claim."""

WHOLE_EVERY: Final = 5.0
"""Seconds between two looks at everything, at least."""

WHOLE_SHARE: Final = 0.05
"""They take no more than this share of the time, for an email may wait for one, but come once a minute."""

WHOLE_AT_LEAST_EVERY: Final = 60.0


class LowWater:
    """The mark of one worker."""

    def __init__(self) -> None:
        self._mark: datetime | None = None
        self._slow = False
        self._slow_claims = 0
        self._slow_firsts = 0
        self._whole_at = float("-inf")
        self._rest = 0.0
        self._partial = False

    @property
    def slow(self) -> bool:
        """True while claims are slow: no first look then goes before one at everything."""
        return self._slow

    def since(self, now: float) -> datetime | None:
        """From when on the next claim has to look; None: at everything. *now* is the steady clock."""
        self._partial = self._slow and self._mark is not None and now - self._whole_at < self._whole_every
        return self._mark if self._partial else None

    @property
    def _whole_every(self) -> float:
        return min(max(WHOLE_EVERY, self._rest), WHOLE_AT_LEAST_EVERY)

    @property
    def look_again_in(self) -> float | None:
        """After a claim that left out a part: look at everything in so many seconds, due or not."""
        return self._whole_every if self._partial else None

    def rung_in_vain(self, now: float) -> bool:
        """The bell rang, and the claim brought nothing: True if it left out a part and the next one will not.

        What was rung for may be old: a transaction that took seconds. But whole looks keep to their share.
        """
        if not self._partial or now - self._whole_at < self._rest:
            return False
        self._whole_at = float("-inf")
        return True

    def note_first(self, *, started: float, ended: float) -> None:
        """Note a first look: it walks over the same dead entries, and more often than a whole claim does."""
        self._slow_firsts = self._slow_firsts + 1 if ended - started > SLOW else 0
        if self._slow_firsts >= IN_A_ROW:
            self._slow = True

    def note(
        self,
        clock: datetime,
        *,
        started: float,
        ended: float,
        everything: bool,
        last_waited: float | None = None,
    ) -> None:
        """Note a claim: the database's *clock*, when it began and ended, and whether it left nothing due.

        If it did leave something, *last_waited* is how long the last row that it took had been due, in
        seconds: rows are taken by age, so that what is left is younger. Without this a claim that is too slow
        to keep up would begin at the same old mark each time, and never catch up. And a whole look that left
        something puts the mark back to it: a long transaction's rows, say, which no partial claim would see.
        """
        if not self._partial:
            self._slow_claims = self._slow_claims + 1 if ended - started > SLOW else 0
            self._slow = self._slow_claims >= IN_A_ROW
            self._whole_at = ended
            self._rest = (ended - started) / WHOLE_SHARE
        if everything:
            self._mark = clock - MARGIN
        elif last_waited is not None and (self._slow or self._mark is not None):
            reached = clock - timedelta(seconds=last_waited) - MARGIN
            later = self._partial and self._mark is not None and self._mark > reached
            self._mark = self._mark if later else reached
