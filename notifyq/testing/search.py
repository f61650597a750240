"""``GET /messages/outbound``: the rules of Postmark's message search, over the fake's ledger.

Two rules are stricter than what is known: a second metadata filter and an unknown parameter are
refused, since the real answer to them is not known and guessing wrong would be silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from notifyq.testing.addresses import Mailbox, parse_addresses
from notifyq.testing.eastern import parse_moment, stamp
from notifyq.testing.ledger import Message
from notifyq.testing.rules import Refusal

__all__ = ["describe", "detail", "find_messages", "page_of"]

MAX_COUNT = 500
MAX_REACH = 10_000

_Filter = Callable[[Message, str], bool]


def _same(left: str | None, right: str) -> bool:
    return (left or "").lower() == right.lower()


_FILTERS: dict[str, _Filter] = {
    "recipient": lambda message, value: value.lower() in {box.lower() for box in message.recipients},
    "fromemail": lambda message, value: _same(parse_addresses(message.payload["From"])[0].address, value),
    "tag": lambda message, value: message.tag == value,
    "subject": lambda message, value: _same(message.payload.get("Subject"), value),
    "status": lambda _message, value: value.lower() in ("sent", "processed"),
    "fromdate": lambda message, value: message.accepted_epoch >= parse_moment(value)[0],
    "todate": lambda message, value: message.accepted_epoch < parse_moment(value)[1],
}
_STATUSES = {"queued", "sent", "processed"}


def page_of(query: Mapping[str, str]) -> tuple[int, int] | Refusal:
    """Read ``count`` and ``offset`` out of a query with lower-case names, or refuse the query.

    Example: ``page_of({"count": "1", "offset": "0"})`` is ``(1, 0)``; without either it is a refusal (700).
    """
    try:
        count, offset = int(query["count"]), int(query["offset"])
    except (KeyError, ValueError):
        return Refusal(700, "The 'count' and 'offset' parameters are required.")
    if not 1 <= count <= MAX_COUNT or offset < 0 or count + offset > MAX_REACH:
        return Refusal(700, f"'count' is 1 to {MAX_COUNT}, and 'count' + 'offset' at most {MAX_REACH}.")
    return _bad_filter(query) or (count, offset)


def _bad_filter(query: Mapping[str, str]) -> Refusal | None:
    metadata = [name for name in query if name.startswith("metadata_")]
    if len(metadata) > 1:
        return Refusal(700, "Only one metadata field can be searched at a time.")
    unknown = set(query) - set(metadata) - set(_FILTERS) - {"count", "offset", "messagestream"}
    if unknown:
        return Refusal(700, f"The parameter '{min(unknown)}' is not known.")
    if query.get("status", "sent").lower() not in _STATUSES:
        return Refusal(700, "The 'status' is queued, sent or processed.")
    try:
        for name in {"fromdate", "todate"} & set(query):
            parse_moment(query[name])
    except ValueError:
        return Refusal(700, "A date is written as 2021-01-01 or 2021-01-01T12:00:00.")
    return None


def find_messages(
    messages: Iterable[Message], query: Mapping[str, str], *, ignore_filters: bool = False
) -> list[Message]:
    """The messages that a good query asks for, newest first, all pages.

    With *ignore_filters* only the stream counts: a search whose filter was ignored.
    """
    stream = query.get("messagestream", "outbound")
    found = [message for message in messages if message.stream.lower() == stream.lower()]
    if not ignore_filters:
        found = [message for message in found if _matches(message, query)]
    return sorted(found, key=lambda message: message.accepted_epoch, reverse=True)


def _matches(message: Message, query: Mapping[str, str]) -> bool:
    for name, value in query.items():
        if name in _FILTERS and not _FILTERS[name](message, value):
            return False
        if name.startswith("metadata_"):
            key = name.removeprefix("metadata_")
            if message.metadata.get(key, value) != value or not _holds(message, key, value):
                return False
    return True


def _holds(message: Message, key: str, value: str) -> bool:
    """Names of metadata are compared without case, values as they are."""
    return any(own.lower() == key and held == value for own, held in message.metadata.items())


def describe(message: Message) -> dict[str, Any]:
    """One item of the list that a search answers."""
    payload = message.payload
    return {
        "Tag": message.tag or "",
        "MessageID": message.message_id,
        "MessageStream": message.stream,
        **{name: _people(parse_addresses(payload.get(name) or "")) for name in ("To", "Cc", "Bcc")},
        "Recipients": list(message.recipients),
        "ReceivedAt": stamp(message.accepted_epoch),
        "From": payload["From"],
        "Subject": payload.get("Subject") or "",
        "Attachments": [item["Name"] for item in payload.get("Attachments") or []],
        "Status": "Sent",
        "TrackOpens": bool(payload.get("TrackOpens")),
        "TrackLinks": payload.get("TrackLinks") or "None",
        "Metadata": dict(message.metadata),
        "Sandboxed": False,
    }


def detail(message: Message) -> dict[str, Any]:
    """The answer of ``/messages/outbound/{id}/details``."""
    payload = message.payload
    event = {"Type": "Delivered", "ReceivedAt": stamp(message.accepted_epoch)}
    return {
        **describe(message),
        "TextBody": payload.get("TextBody") or "",
        "HtmlBody": payload.get("HtmlBody") or "",
        "Body": "",
        "MessageEvents": [{**event, "Recipient": address, "Details": {}} for address in message.recipients],
    }


def _people(boxes: tuple[Mailbox, ...]) -> list[dict[str, str]]:
    return [{"Email": box.address, "Name": box.name} for box in boxes]
