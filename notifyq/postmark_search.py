"""What a page of ``GET /messages/outbound`` proves: pure.

A hit is proved by our uid in the hit's own metadata. A filter that was mistyped or ignored shows other
messages, and proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from notifyq.postmark_answers import describe, message_id, parse_json
from notifyq.provider import Finding, Found, Health, Inconclusive, Missing

__all__ = ["Page", "find_params", "page_params", "read_finding", "read_health", "read_page"]

FIND_COUNT: Final = 50
PAGE_COUNT: Final = 500


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a listing: *ours* are (uid, message id), newest first; *oldest* is an epoch second."""

    ours: tuple[tuple[UUID, str], ...]
    oldest: float | None
    full: bool


def find_params(uid: UUID, stream: str) -> dict[str, str]:
    """The query that searches for one message of ours."""
    return {"count": str(FIND_COUNT), "offset": "0", "metadata_notifyq": str(uid), "messagestream": stream}


def page_params(stream: str, offset: int) -> dict[str, str]:
    """The query for one page of all messages, newest first."""
    return {"count": str(PAGE_COUNT), "offset": str(offset), "messagestream": stream}


def read_finding(status: int, body: bytes, uid: UUID) -> Finding:
    """Say what the answer to a search for *uid* proves.

    Example: ``read_finding(200, b'{"TotalCount": 0, "Messages": []}', uid) == Missing()``.
    """
    hits = _messages(status, body)
    if isinstance(hits, Inconclusive):
        return hits
    proved = [message_id(hit.get("MessageID")) for hit in hits if _uid(hit) == uid]
    if proved:
        found = tuple(dict.fromkeys(one for one in proved if one is not None))
        return Found(found) if found else Inconclusive("a hit without a message id", failed=True)
    if len(hits) >= FIND_COUNT:
        return Inconclusive("a full page without our message: the rest was not seen")
    if hits:
        return Inconclusive("the search shows other messages: its filter was ignored")
    total = _total(body)
    if total != 0:
        return Inconclusive("the search counts messages that it does not show")
    return Missing()


def read_page(status: int, body: bytes) -> Page | Inconclusive:
    """Read one page of a listing; one message that cannot be read makes all of it inconclusive."""
    hits = _messages(status, body)
    if isinstance(hits, Inconclusive):
        return hits
    ours: list[tuple[UUID, str]] = []
    times: list[float] = []
    for hit in hits:
        received, named, uid = _received(hit), message_id(hit.get("MessageID")), _uid(hit)
        if received is None or (uid is not None and named is None):
            return Inconclusive("a message without a readable time or id", failed=True)
        times.append(received)
        if uid is not None and named is not None:
            ours.append((uid, named))
    return Page(tuple(ours), min(times, default=None), len(hits) >= PAGE_COUNT)


def read_health(status: int, body: bytes) -> Health | Inconclusive:
    """Say what ``GET /server`` tells of the account.

    Example: ``read_health(200, b'{"ID": 7}') == Health(server="postmark:7")``.
    """
    if status in (401, 403):
        return Health(blocked=describe(status, body))
    answer = parse_json(body)
    server = answer.get("ID") if status == 200 and isinstance(answer, dict) else None
    if not isinstance(server, int) or isinstance(server, bool):
        return Inconclusive(describe(status, body), failed=True)
    return Health(server=f"postmark:{server}")


def _messages(status: int, body: bytes) -> list[Mapping[str, Any]] | Inconclusive:
    answer = parse_json(body) if status == 200 else None
    hits = answer.get("Messages") if isinstance(answer, dict) else None
    if not isinstance(hits, list) or not all(isinstance(hit, dict) for hit in hits):
        return Inconclusive(describe(status, body), failed=True)
    return hits


def _total(body: bytes) -> object:
    return parse_json(body).get("TotalCount", 0)


def _uid(hit: Mapping[str, Any]) -> UUID | None:
    metadata = hit.get("Metadata")
    value = metadata.get("notifyq") if isinstance(metadata, dict) else None
    try:
        return UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _received(hit: Mapping[str, Any]) -> float | None:
    """An epoch second, from ISO 8601 with an offset or ``Z`` and any number of fraction digits."""
    try:
        moment = datetime.fromisoformat(hit["ReceivedAt"])
        return None if moment.utcoffset() is None else moment.timestamp()
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
