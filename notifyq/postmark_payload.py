"""The JSON that Postmark takes for one email: `build_postmark_payload`."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from notifyq.address import Address, utf16_length
from notifyq.attachment import Attachment
from notifyq.errors import InvalidEmail, InvalidSettings, MissingSender
from notifyq.message import Email
from notifyq.message_rules import MAX_FROM

__all__ = ["build_postmark_payload", "payload_for", "shunt"]

MAX_ORIGINAL_TO: Final = 900
"""A header's line may be 998 characters (RFC 5322); what does not fit is counted, not listed."""

ONE_ADDRESS: Final = "must be one address such as shop@example.com or Shop <shop@example.com>"
"""The rule for a variable: unlike a recipient's field, it may hold a name."""


def build_postmark_payload(
    email: Email, env: Mapping[str, str] | None = None, *, uid: UUID | None = None, claim: int | None = None
) -> dict[str, Any]:
    """Give the JSON object for ``POST /email``; nothing is sent.

    *env* is the environment, ``os.environ`` as it is now unless given: ``EMAIL_FROM`` sends an email that
    names no sender, and with ``EMAIL_SHUNT`` every message goes to that one address, with the original
    recipients in ``X-Original-To``. *uid* and *claim* go into the metadata, where a search finds them.

    Raises `MissingSender`, and `InvalidSettings` for a variable that cannot be an address.

    Example::

        email = Email(key="k", to="ann@example.com", subject="Hello", text="t", from_="shop@example.com")
        assert build_postmark_payload(email, env={})["To"] == "ann@example.com"
    """
    env = os.environ if env is None else env
    return payload_for(email, env, shunt(env), uid=uid, claim=claim)


def payload_for(
    email: Email, env: Mapping[str, str], only: Address | None, *, uid: UUID | None, claim: int | None
) -> dict[str, Any]:
    """As `build_postmark_payload`, for a caller that knows already whether everything goes to *only* one."""
    payload = {
        "From": _sender(email, env),
        "To": _joined(email.to) if only is None else only.formatted(),
        "Cc": _joined(email.cc) if only is None else None,
        "Bcc": _joined(email.bcc) if only is None else None,
        "Subject": email.subject or "",
        "ReplyTo": _joined(email.reply_to),
        "HtmlBody": email.html,
        "TextBody": email.text,
        "Tag": email.tag,
        "Headers": _headers(email, shunted=only is not None),
        "Metadata": _metadata(email, uid, claim),
        "MessageStream": email.stream,
        "Attachments": [_attachment(one) for one in email.attachments],
    }
    return {name: value for name, value in payload.items() if value or name == "Subject"}


def shunt(env: Mapping[str, str]) -> Address | None:
    """Give the one address that gets everything, or None. Set but malformed is an error, never "off".

    Raises `InvalidSettings`. Example: ``shunt({"EMAIL_SHUNT": "me@example.com"})``.
    """
    return _setting(env, "EMAIL_SHUNT")


def _sender(email: Email, env: Mapping[str, str]) -> str:
    sender = email.from_ or _setting(env, "EMAIL_FROM")
    if sender is None:
        raise MissingSender("no sender: give the email a from_, or set EMAIL_FROM")
    written = sender.formatted()
    if utf16_length(written) > MAX_FROM:  # an email's own sender was checked when it was made
        raise InvalidSettings("EMAIL_FROM", f"must be at most {MAX_FROM} characters")
    return written


def _headers(email: Email, *, shunted: bool) -> list[dict[str, str]]:
    headers = [{"Name": name, "Value": value} for name, value in email.headers.items()]
    if shunted:
        headers.append({"Name": "X-Original-To", "Value": _original_to(email)})
    return headers


def _original_to(email: Email) -> str:
    everyone = [address.email for address in (*email.to, *email.cc, *email.bcc)]
    listed: list[str] = []
    room = MAX_ORIGINAL_TO
    for address in everyone:
        room -= len(address) + 2
        if room < 0:
            return f"{', '.join(listed)} and {len(everyone) - len(listed)} more"
        listed.append(address)
    return ", ".join(listed)


def _metadata(email: Email, uid: UUID | None, claim: int | None) -> dict[str, str]:
    metadata = dict(email.metadata)
    if uid is not None:
        metadata["notifyq"] = str(uid)
    if claim is not None:
        metadata["notifyq_claim"] = str(claim)
    return metadata


def _attachment(attachment: Attachment) -> dict[str, str]:
    written = {
        "Name": attachment.name,
        "Content": base64.b64encode(attachment.content).decode("ascii"),
        "ContentType": attachment.content_type,
    }
    if attachment.content_id is not None:
        written["ContentID"] = f"cid:{attachment.content_id}"
    return written


def _joined(addresses: Sequence[Address]) -> str:
    if not addresses:
        return ""
    if len(addresses) == 1:
        return addresses[0].formatted()
    return ", ".join(address.formatted() for address in addresses)


def _setting(env: Mapping[str, str], name: str) -> Address | None:
    value = env.get(name, "")
    return _parsed(name, value) if value else None


@lru_cache(maxsize=16)
def _parsed(name: str, value: str) -> Address:
    try:
        return Address.parse(value)
    except InvalidEmail as error:
        rule = ONE_ADDRESS if error.rule.startswith("must be one address") else error.rule
        raise InvalidSettings(name, rule) from None
