"""What Postmark refuses, and with which code: pure functions over one message.

The order of the checks is not documented; this one is fixed: fields, stream, addresses, body, limits,
metadata, headers, attachments, sender, account. (The token, the HTTP headers, the size and the JSON
come before, in `notifyq.testing.desk`; suppressed recipients come after.) Where the real answer is
not known the fake refuses, so that a mistake is seen in a test rather than in production.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from notifyq.testing.addresses import BadAddress, Mailbox, parse_addresses

__all__ = [
    "TYPICAL_STREAMS",
    "Account",
    "Payload",
    "Refusal",
    "check_message",
    "inactive_recipients",
    "mailboxes",
    "stream_of",
]

Payload: TypeAlias = dict[str, Any]
"""A message as it came: the JSON object of ``POST /email``."""

TYPICAL_STREAMS = {"outbound": True, "broadcast": True, "inbound": False}
"""The streams of a new server, and whether each can send."""

MAX_RECIPIENTS = 50
MAX_BODY_BYTES = 5 * 1024 * 1024
MAX_METADATA = (10, 20, 80)  # fields, characters of a key, characters of a value

_TEXT_LIMITS = {"From": 255, "Subject": 2000, "Tag": 1000}  # UTF-16 units
_TRACK_LINKS = {"None", "HtmlAndText", "HtmlOnly", "TextOnly"}
_FORBIDDEN = re.compile(
    "vbs|exe|bin|bat|chm|com|cpl|crt|hlp|hta|inf|ins|isp|jse|lnk|mdb|pcd|pif|reg|scr|sct|shs|vbe|vba|wsf|wsh"
    "|wsl|msc|msi|msp|mst",
    re.IGNORECASE,
)
_FIELDS: dict[str, type] = {
    "From": str,
    "To": str,
    "Cc": str,
    "Bcc": str,
    "ReplyTo": str,
    "Subject": str,
    "HtmlBody": str,
    "TextBody": str,
    "Tag": str,
    "Metadata": dict,
    "Headers": list,
    "Attachments": list,
    "MessageStream": str,
    "TrackOpens": bool,
    "TrackLinks": str,
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Postmark's "no": an ErrorCode, its text and the HTTP status."""

    code: int
    message: str
    status: int = 422


@dataclass(slots=True, kw_only=True)
class Account:
    """What the fake account is set up for. Change it at any time.

    *senders* holds addresses and whole domains that may send, None for any. *streams* says which can
    send. *suppressed* holds lower-case addresses by stream. *refusal* refuses every message (an
    account fault). *known_fields_only* answers 403 to fields that Postmark does not document.
    """

    senders: Collection[str] | None = None
    streams: dict[str, bool] = field(default_factory=lambda: dict(TYPICAL_STREAMS))
    suppressed: dict[str, set[str]] = field(default_factory=dict)
    refusal: Refusal | None = None
    known_fields_only: bool = True


def check_message(payload: Payload, account: Account) -> Refusal | None:
    """Say why a message is refused, or None when it is good.

    Example: ``check_message({"From": "a@example.com"}, Account())`` refuses with code 300.
    """
    return next((refusal for check in _CHECKS if (refusal := check(payload, account))), None)


def mailboxes(payload: Payload) -> tuple[Mailbox, ...]:
    """All recipients over To, Cc and Bcc, in this order."""
    return tuple(box for name in ("To", "Cc", "Bcc") for box in parse_addresses(payload.get(name) or ""))


def stream_of(payload: Payload) -> str:
    """The stream a message goes through; ``outbound`` unless it names one."""
    return str(payload.get("MessageStream") or "outbound")


def inactive_recipients(payload: Payload, account: Account) -> tuple[str, ...]:
    """The recipients of a good message that are suppressed on its stream, lower-cased."""
    suppressed = account.suppressed.get(stream_of(payload), set())
    addresses = dict.fromkeys(box.address.lower() for box in mailboxes(payload))
    return tuple(address for address in addresses if address in suppressed)


def _check_fields(payload: Payload, account: Account) -> Refusal | None:
    for name, value in payload.items():
        kind = _FIELDS.get(name)
        if kind is None and account.known_fields_only:
            return Refusal(403, f"Invalid request field(s): '{name}' is not known.")
        if kind is not None and value is not None and not isinstance(value, kind):
            return Refusal(403, f"Invalid request field(s): '{name}' has the wrong type.")
    if (payload.get("TrackLinks") or "None") not in _TRACK_LINKS:
        return Refusal(300, "Invalid 'TrackLinks' value.")
    return None


def _check_stream(payload: Payload, account: Account) -> Refusal | None:
    stream = stream_of(payload)
    sends = account.streams.get(stream)
    if sends is None:
        return Refusal(1235, f"The 'MessageStream' '{stream}' does not exist on this server.")
    return None if sends else Refusal(1236, f"The 'MessageStream' '{stream}' cannot be used for sending.")


def _check_addresses(payload: Payload, _account: Account) -> Refusal | None:
    count = 0
    for name in ("From", "To", "Cc", "Bcc", "ReplyTo"):
        try:
            boxes = parse_addresses(payload.get(name) or "")
        except BadAddress as bad:
            return Refusal(300, f"Invalid '{name}' address: '{bad.part}'.")
        if name == "From" and len(boxes) != 1:
            return Refusal(300, "Invalid 'From' address: exactly one is needed.")
        count += len(boxes) if name in ("To", "Cc", "Bcc") else 0
    if not count:
        return Refusal(300, "Zero recipients specified.")
    return Refusal(300, f"More than {MAX_RECIPIENTS} recipients.") if count > MAX_RECIPIENTS else None


def _check_body(payload: Payload, _account: Account) -> Refusal | None:
    bodies = {name: payload.get(name) or "" for name in ("HtmlBody", "TextBody")}
    if not any(bodies.values()):
        return Refusal(300, "Provide either email TextBody or HtmlBody or both.")
    for name, text in bodies.items():
        if len(text.encode("utf-8", "surrogatepass")) > MAX_BODY_BYTES:
            return Refusal(300, f"The '{name}' is longer than {MAX_BODY_BYTES} bytes.")
    return None


def _check_limits(payload: Payload, _account: Account) -> Refusal | None:
    for name, limit in _TEXT_LIMITS.items():
        if _utf16_units(payload.get(name) or "") > limit:
            return Refusal(300, f"The '{name}' is longer than {limit} characters.")
    if set(payload.get("Subject") or "") & {"\r", "\n"}:
        return Refusal(300, "Invalid 'Subject': it holds a line break.")
    return None


def _check_metadata(payload: Payload, _account: Account) -> Refusal | None:
    metadata = payload.get("Metadata") or {}
    fields, key_length, value_length = MAX_METADATA
    if len(metadata) > fields:
        return Refusal(300, f"Invalid metadata: more than {fields} fields.")
    if len({key.lower() for key in metadata}) < len(metadata):
        return Refusal(300, "Invalid metadata: the same name twice.")
    for key, value in metadata.items():
        if not key or _utf16_units(key) > key_length:
            return Refusal(300, f"Invalid metadata: names have 1 to {key_length} characters.")
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return Refusal(300, f"Invalid metadata: '{key}' is neither text nor a number.")
        if _utf16_units(str(value)) > value_length:
            return Refusal(300, f"Invalid metadata: '{key}' is longer than {value_length} characters.")
    return None


def _check_headers(payload: Payload, _account: Account) -> Refusal | None:
    for item in payload.get("Headers") or []:
        if not isinstance(item, dict) or not all(
            isinstance(item.get(part), str) for part in ("Name", "Value")
        ):
            return Refusal(403, "Invalid request field(s): 'Headers' holds Name and Value.")
        if set(item["Name"] + item["Value"]) & {"\r", "\n", "\0"} or not item["Name"]:
            return Refusal(300, "Invalid 'Headers': a line break, or no name.")
    return None


def _check_attachments(payload: Payload, _account: Account) -> Refusal | None:
    for item in payload.get("Attachments") or []:
        wanted = ("Name", "Content", "ContentType")
        if not isinstance(item, dict) or not all(isinstance(item.get(part), str) for part in wanted):
            return Refusal(
                403, "Invalid request field(s): 'Attachments' holds Name, Content and ContentType."
            )
        if _FORBIDDEN.fullmatch(item["Name"].rpartition(".")[2]):
            return Refusal(411, "An attachment has a file type that is not allowed.")
        try:
            base64.b64decode(item["Content"], validate=True)
        except (binascii.Error, ValueError):
            return Refusal(300, "Invalid 'Attachments': the content is not base64.")
    return None


def _check_sender(payload: Payload, account: Account) -> Refusal | None:
    if account.senders is None:
        return None
    address = parse_addresses(payload["From"])[0].address.lower()
    known = {sender.lower().removeprefix("@") for sender in account.senders}
    if {address, address.rpartition("@")[2]} & known:
        return None
    return Refusal(400, "The 'From' address is not a Sender Signature on your account.")


def _check_account(_payload: Payload, account: Account) -> Refusal | None:
    return account.refusal


def _utf16_units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


_CHECKS: tuple[Callable[[Payload, Account], Refusal | None], ...] = (
    _check_fields,
    _check_stream,
    _check_addresses,
    _check_body,
    _check_limits,
    _check_metadata,
    _check_headers,
    _check_attachments,
    _check_sender,
    _check_account,
)
