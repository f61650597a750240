"""What a list shows: the filters of its address, read into a value. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlencode

__all__ = ["EMAIL_REASONS", "EMAIL_STATUSES", "Filters", "TASK_REASONS", "TASK_STATUSES", "moment"]

EMAIL_STATUSES: Final = ("pending", "processing", "doubt", "sent", "held", "dead")
EMAIL_REASONS: Final = {
    "failed": "any failure",
    "rejected": "rejected",
    "suppressed": "suppressed",
    "exhausted": "exhausted",
    "expired": "expired",
    "cancelled": "cancelled",
    "unrenderable": "unrenderable",
    "setup": "not set up",
}
"""As the page says them. Two stand in no row: *failed* (dead, but for suppressions and cancellations) and
*setup* (pending, and put off until somebody sets up its sender or stream)."""
TASK_STATUSES: Final = ("pending", "processing", "done", "dead")
TASK_REASONS: Final = {
    "failed": "any failure",
    "exhausted": "exhausted",
    "gave_up": "gave up",
    "cancelled": "cancelled",
    "invalid": "invalid",
}

LAST: Final = 2**63 - 1
_SPAN: Final = re.compile(r"(\d{1,6})\s*(m|min|h|d)")
_SPANS: Final = {"m": 60, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """One list. *before* is the id that this page begins below; *since* and *until* are as typed.

    Example: ``Filters.read({"status": "dead", "before": "100"})``
    """

    status: str = ""
    reason: str = ""
    key: str = ""
    recipient: str = ""
    tag: str = ""
    builder: str = ""
    name: str = ""
    since: str = ""
    until: str = ""
    before: int = LAST

    @classmethod
    def read(cls, query: Mapping[str, str]) -> Filters:
        """Read an address. What cannot be meant (an unknown status, a cursor of letters) counts as absent."""
        words = {
            field.name: query.get(field.name, "").strip().replace("\x00", "")[:500]
            for field in fields(cls)
            if field.name != "before"
        }
        words["recipient"] = words["recipient"].lower()
        if words["status"] not in (*EMAIL_STATUSES, *TASK_STATUSES):
            words["status"] = ""
        if words["reason"] not in (*EMAIL_REASONS, *TASK_REASONS):
            words["reason"] = ""
        if words["reason"] and not words["status"]:
            words["status"] = "pending" if words["reason"] == "setup" else "dead"
        cursor = query.get("before", "")
        before = int(cursor) if cursor.isascii() and cursor.isdigit() and len(cursor) < 19 else LAST
        return cls(**words, before=before)

    def query(self, **changes: object) -> str:
        """The address of this list, with *changes*; a changed filter begins at the newest row again.

        Example: ``Filters(status="dead").query(status="held") == "?status=held"``
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if "before" not in changes:
            values["before"] = LAST
        values.update(changes)
        said = {name: value for name, value in values.items() if value and value != LAST}
        return f"?{urlencode(said)}" if said else "?"

    @property
    def narrow(self) -> bool:
        """True if any filter is set."""
        return self.query() != "?"

    @property
    def first(self) -> bool:
        """True on the newest page, the one that live updates change."""
        return self.before == LAST


def moment(text: str, now: datetime) -> datetime | None:
    """A time as typed: ``15m``, ``2h``, ``3d`` back from *now*, or ISO 8601, in UTC unless it says otherwise.

    Example: ``moment("2h", now) == now - timedelta(hours=2)``; None for what is no time.
    """
    if span := _SPAN.fullmatch(text.lower()):
        return now - timedelta(seconds=int(span[1]) * _SPANS[span[2]])
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
