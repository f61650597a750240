"""`Attachment`: a file that travels with an email, and how one is stored."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final, cast

from notifyq import message_rules as rules
from notifyq.errors import InvalidEmail

__all__ = ["Attachment", "attachment_json", "attachments_from"]

_ATTACHMENT_FIELDS: Final = frozenset(("name", "content_type", "content", "content_id"))


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that travels with an email; with a *content_id* it is an image inside the HTML.

    The HTML shows it as ``src="cid:…"`` with that id. Raises `InvalidEmail`, also for the extensions that
    Postmark forbids.

    Example: ``Attachment("invoice.pdf", "application/pdf", pdf_bytes)``.
    """

    name: str
    content_type: str
    content: bytes
    content_id: str | None = None

    def __post_init__(self) -> None:
        rules.check_attachment_name(self.name)
        rules.check_content_type(self.content_type)
        if not isinstance(self.content, bytes | bytearray | memoryview):
            raise InvalidEmail("content", "must be bytes")
        object.__setattr__(self, "content", bytes(self.content))
        object.__setattr__(self, "content_id", rules.content_id(self.content_id))

    def __repr__(self) -> str:
        """Show the size only: a name may tell of a person."""
        return f"Attachment({len(self.content)} bytes)"


def attachment_json(attachment: Attachment, content: str | None = None) -> dict[str, str]:
    """Give it as it is stored; with *content* in the place of the file's own."""
    if content is None:
        content = base64.b64encode(attachment.content).decode("ascii")
    written = {"name": attachment.name, "content_type": attachment.content_type, "content": content}
    if attachment.content_id is not None:
        written["content_id"] = attachment.content_id
    return written


def attachments_from(given: object) -> tuple[Attachment, ...]:
    """Read stored ones. Raises `InvalidEmail`."""
    if given is None:
        return ()
    listed = rules.listed("attachments", given)
    return tuple(_attachment_from(f"attachments[{index}]", one) for index, one in enumerate(listed))


def _attachment_from(where: str, given: object) -> Attachment:
    fields = rules.known_fields(where, given, _ATTACHMENT_FIELDS)
    try:
        # Postgres' own encode() breaks its lines.
        written = "".join(rules.text("content", fields.get("content")).split())
        content = base64.b64decode(written, validate=True)
        name, content_type = fields.get("name"), fields.get("content_type")
        return Attachment(cast(str, name), cast(str, content_type), content, fields.get("content_id"))
    except InvalidEmail as error:
        raise InvalidEmail(f"{where}.{error.field}", error.rule) from None
    except (binascii.Error, ValueError):
        raise InvalidEmail(f"{where}.content", "must be base64") from None
