"""The fake provider's desk, with an index: it answers a search as the fake does, from any number of messages.

`FakePostmark` goes through all that it has accepted for each search. In the kill loop that would be 20,000
messages a hundred times a minute, and a provider that slow makes doubts faster than it settles them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from notifyq.testing import FakePostmark, Fault
from notifyq.testing.desk import Desk, Reply, refuse
from notifyq.testing.ledger import Message
from notifyq.testing.rules import Refusal
from notifyq.testing.search import describe, page_of

BY_UID = "metadata_notifyq"
QUICK = {"count", "offset", "messagestream", BY_UID}


@dataclass(slots=True, kw_only=True)
class QuickDesk(Desk):
    """Searches by uid, and lists; whatever else is asked, it asks the slow way."""

    positions: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    items: list[dict[str, Any]] = field(default_factory=list)
    one_stream: bool = True

    def search(self, query: Mapping[str, str], fault: Fault | None = None) -> Reply:
        """``GET /messages/outbound``, as `Desk.search` answers it."""
        page = page_of(query)
        if isinstance(page, Refusal):
            return refuse(page)
        self._catch_up()
        elsewhere = not self.one_stream or query.get("messagestream", "outbound") != "outbound"
        if fault is not None or query.keys() - QUICK or elsewhere or self.search_lag is None:
            return Desk.search(self, query, fault)
        now, (count, offset) = self.clock(), page
        first = bisect_left(self.ledger.accepted, now - self.retention_days * 86_400, key=_epoch)
        end = bisect_right(self.ledger.accepted, now - self.search_lag, key=_epoch)
        found: Sequence[int] = range(end - 1, first - 1, -1)
        if BY_UID in query:
            found = [at for at in reversed(self.positions[query[BY_UID]]) if first <= at < end]
        items = [self.items[at] for at in found[offset : offset + count]]
        return Reply(200, {"TotalCount": len(found), "Messages": items})

    def _catch_up(self) -> None:
        for message in self.ledger.accepted[len(self.items) :]:
            self.positions[message.metadata.get("notifyq", "")].append(len(self.items))
            self.items.append(describe(message))
            self.one_stream = self.one_stream and message.stream == "outbound"


def make_quick(fake: FakePostmark) -> None:
    """Give *fake* a quick desk."""
    slow = fake._desk
    fake._desk = fake._service._desk = QuickDesk(
        **{known.name: getattr(slow, known.name) for known in fields(slow)}
    )


def _epoch(message: Message) -> float:
    return message.accepted_epoch
