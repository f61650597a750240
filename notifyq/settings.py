"""The worker's settings: a value, valid once made. All durations are seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from notifyq.errors import InvalidSettings

__all__ = ["WorkerSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How a worker behaves. The defaults suit Postmark and a web application.

    Raises `InvalidSettings` for what cannot work: a lease shorter than twice the POST budget (a POST
    could outlive its claim), a settle of 0 (a miss would be believed before it can be true).

    Example: ``WorkerSettings(slots=50, grace=30)``
    """

    slots: int = 20
    """Emails, and calls, under way at once in this process; urgent ones have a few slots more."""
    post_budget: float = 10.0
    """The longest that one POST or one search may take."""
    lease: float = 20.0
    """How long a claim holds without being renewed; a dead worker's rows are taken over after this."""
    settle: float = 120.0
    """After this long, an accepted request is over and can be found by a search (README: the assumptions)."""
    grace: float = 15.0
    """How long a shutdown waits for what is under way."""
    poll: float = 5.0
    """How often to look for due rows while the listener is not proven."""
    quiet_poll: float = 30.0
    """The same while the listener is proven, when nothing is known to be due."""
    backoff: float = 60.0
    """A deferred email waits ``backoff × 2^attempts``, ± 20 %."""
    backoff_cap: float = 7200.0
    """The longest of these waits."""
    retention: float | None = 30 * 86400.0
    """Bodies of emails that ended longer ago than this are emptied; None keeps them for ever."""
    unsafe_durability: bool = False
    """Run although the server may forget commits (``fsync`` off). For tests."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not (math.isfinite(value) and value > 0):
                raise InvalidSettings(field.name, f"must be a number of seconds above 0, not {value}")
        if self.slots < 1:
            raise InvalidSettings("slots", f"must be at least 1, not {self.slots}")
        if self.lease < 2 * self.post_budget:
            raise InvalidSettings(
                "lease",
                f"{self.lease:g} s is less than twice the POST budget ({self.post_budget:g} s): "
                "a POST could outlive its claim. Raise --lease or lower --post-budget",
            )

    @property
    def urgent_slots(self) -> int:
        """Slots beside *slots*, for urgent rows (priority below 0) only."""
        return max(1, self.slots // 4)

    @property
    def ask_slots(self) -> int:
        """Searches under way at once: a part of the slots, so that a burst of doubts never stops the mail."""
        return max(1, self.slots // 4)

    def warnings(self) -> list[str]:
        """What may work but should be known.

        Example: ``WorkerSettings(settle=10).warnings()`` has one line.
        """
        if self.settle < 60:
            return [
                f"settle is {self.settle:g} s: a search that lags longer can make notifyq send twice. "
                "Use 60 s or more with the real provider"
            ]
        return []
