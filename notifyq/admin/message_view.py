"""A stored message as the page shows it: addresses, bodies, attachments, and what Postmark gets. Pure."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from notifyq.address import Address
from notifyq.errors import InvalidEmail, InvalidSettings, MissingSender
from notifyq.message import Email
from notifyq.postmark_payload import build_postmark_payload

__all__ = ["File", "MessageView", "decoded", "payload_of", "payload_of_email", "read_message", "tame"]

TEXT_SHOWN: Final = 100_000
HTML_SHOWN: Final = 1_000_000
"""HTML above this is shown when it is asked for: a browser may take seconds over it."""
LONG: Final = 2_000
INLINE_IMAGES: Final = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
INLINE_LIMIT: Final = 5_000_000
_REACHES_OUT: Final = re.compile(
    r"<(link|meta|base|i?frame|frameset|fencedframe|portal|object|embed|applet)(?=[\s/>])", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One attachment; *size* in bytes."""

    number: int
    name: str
    content_type: str
    size: int
    inline: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageView:
    """What there is to show. *builder* and *args*: the message is made when it is sent."""

    purged: bool = False
    builder: str = ""
    args: str = ""
    subject: str = ""
    addresses: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    text: str = ""
    text_left: int = 0
    html_size: int = 0
    files: tuple[File, ...] = ()

    @property
    def html_is_large(self) -> bool:
        """True if the browser should be asked before it is shown."""
        return self.html_size > HTML_SHOWN


def read_message(stored: str | None) -> MessageView:
    """Read ``emails.message``. Whoever wrote it: nothing in it is taken for granted."""
    if stored is None:
        return MessageView(purged=True)
    message = json.loads(stored)
    if "builder" in message:
        args = json.dumps(message.get("args", {}), indent=2, ensure_ascii=False)
        return MessageView(builder=str(message["builder"]), args=args)
    text = _string(message.get("text"))
    return MessageView(
        subject=_string(message.get("subject")),
        addresses=_addresses(message),
        headers=_headers(message),
        text=text[:TEXT_SHOWN],
        text_left=max(0, len(text) - TEXT_SHOWN),
        html_size=len(_string(message.get("html"))),
        files=tuple(_file(index, one) for index, one in enumerate(_list(message.get("attachments")))),
    )


def payload_of(
    row: Mapping[str, Any], env: Mapping[str, str] | None, *, whole: bool = False
) -> tuple[str, str]:
    """The JSON that was or will be sent, and why there is none. Long texts are cut unless *whole*.

    An email that waits is sent under its next claim.
    """
    claim = row["claim_seq"] + (row["status"] in ("pending", "held", "dead"))
    try:
        email = Email.from_message(row["key"], json.loads(row["message"]))
    except InvalidEmail as error:
        return "", str(error)
    return payload_of_email(email, env, uid=UUID(str(row["uid"])), claim=claim, whole=whole)


def payload_of_email(
    email: Email,
    env: Mapping[str, str] | None,
    *,
    uid: UUID | None = None,
    claim: int | None = None,
    whole: bool = False,
) -> tuple[str, str]:
    """The JSON of an email, and why there is none."""
    try:
        payload = build_postmark_payload(email, env, uid=uid, claim=claim)
    except (InvalidSettings, MissingSender) as error:
        return "", str(error)
    shown = payload if whole else _shortened(payload)
    return json.dumps(shown, indent=2, ensure_ascii=False), ""


def tame(html: str, attachments: str | None) -> str:
    """The HTML body for the frame. The frame and its headers are the lock; here two things are helped:

    Some elements make a browser open a connection before it asks the policy (``link`` for a preconnect,
    frames and objects for where they would go), so they are none any more; ``cid:`` names an attachment,
    which a frame cannot fetch, so images are put in its place.
    """
    html = _REACHES_OUT.sub(r"<x-\1", html)
    for one in _list(json.loads(attachments) if attachments else None):
        if not isinstance(one, dict) or _string(one.get("content_type")).lower() not in INLINE_IMAGES:
            continue
        name, content = _string(one.get("content_id")), _string(one.get("content"))
        if name and len(content) < INLINE_LIMIT and re.fullmatch(r"[A-Za-z0-9+/=\s]*", content):
            html = html.replace(f"cid:{name}", f"data:{one['content_type'].lower()};base64,{content}")
    return html


def _addresses(message: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """From, To, Cc … as they would stand in a header."""
    names = (("From", "from"), ("To", "to"), ("Cc", "cc"), ("Bcc", "bcc"), ("Reply-To", "reply_to"))
    shown = []
    for name, field in names:
        given = message.get(field)
        listed = [given] if isinstance(given, dict) else _list(given)
        if listed:
            shown.append((name, ", ".join(_address(one) for one in listed)))
    return tuple(shown)


def _address(given: Any) -> str:
    if not isinstance(given, dict):
        return str(given)
    email, name = _string(given.get("email")), _string(given.get("name"))
    try:
        return Address(email, name).formatted()
    except InvalidEmail:
        return f"{name} <{email}>" if name else email


def _headers(message: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    said = [("Tag", message.get("tag")), ("Stream", message.get("stream"))]
    for field in ("headers", "metadata"):
        given = message.get(field)
        said += [(f"{name}", value) for name, value in given.items()] if isinstance(given, dict) else []
    return tuple((name, _string(value)) for name, value in said if value is not None)


def _file(number: int, given: Any) -> File:
    one = given if isinstance(given, dict) else {}
    return File(
        number=number,
        name=_string(one.get("name")) or f"attachment {number + 1}",
        content_type=_string(one.get("content_type")),
        size=len(_string(one.get("content"))) * 3 // 4,
        inline=bool(one.get("content_id")),
    )


def decoded(content: Any) -> bytes | None:
    """An attachment's bytes; None if it is not base64."""
    try:
        return base64.b64decode(_string(content), validate=False)
    except (binascii.Error, ValueError):
        return None


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shortened(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_shortened(one) for one in value]
    if isinstance(value, str) and len(value) > LONG:
        return f"{value[:LONG]} … ({len(value) - LONG:,} more characters)"
    return value


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ("" if value is None else str(value))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
