"""The rules for each field of an `Email`: a value passes, made plain, or raises `InvalidEmail`.

The limits are Postmark's own. Lengths count UTF-16 units where Postmark does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from notifyq.address import header_text, utf16_length
from notifyq.errors import InvalidEmail

MAX_KEY: Final = 500
MAX_SUBJECT: Final = 2_000
MAX_FROM: Final = 255
MAX_TAG: Final = 1_000
MAX_RECIPIENTS: Final = 50
MAX_BODY: Final = 5 * 1024 * 1024
MAX_METADATA_FIELDS: Final = 8  # of Postmark's ten, two are ours
MAX_METADATA_KEY: Final = 20
MAX_METADATA_VALUE: Final = 80
MAX_REQUEST: Final = 10_485_760
WORKER_ADDS: Final = 4_096
"""Bytes kept free for what joins the message late: a default sender, our metadata, ``X-Original-To``."""
MAX_MESSAGE: Final = MAX_REQUEST - WORKER_ADDS


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


RESERVED_METADATA: Final = frozenset(("notifyq", "notifyq_claim"))
ON_DOUBT: Final = frozenset(("ask", "resend", "hold"))
FORBIDDEN_HEADERS: Final = _words(
    "from sender to cc bcc reply-to return-path subject date message-id received content-type "
    "content-transfer-encoding mime-version x-original-to"
)
FORBIDDEN_EXTENSIONS: Final = _words(
    "vbs exe bin bat chm com cpl crt hlp hta inf ins isp jse lnk mdb pcd pif reg scr sct shs vbe vba wsf wsh "
    "wsl msc msi msp mst"
)

NO_KEY: Final = (
    "is required: it says which emails are the same one, and one key is sent once, ever. Two mistakes are "
    "common. A key with a random part or the time in it (or none at all) is new at every click, so every "
    'click sends again. A key without what changes ("invitation:" and the address, say) means that a second '
    "invitation silently never goes out. Name the event, for example "
    'key=f"invitation:{invitation.id}" or key=f"password-reset:{user.id}:{token_id}"'
)
TOO_LARGE: Final = (
    f"the whole message, with attachments in base64, must be at most {MAX_MESSAGE:,} bytes of JSON "
    f"(Postmark takes {MAX_REQUEST:,}, and the worker adds a little)"
)

_NOT_IN_A_BODY = re.compile("[\x00\ud800-\udfff]")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_STREAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_CONTENT_TYPE = re.compile(r"[!#$&^_.+A-Za-z0-9-]+/[!#$&^_.+A-Za-z0-9-]+(?:\s*;[\x20-\x7e]*)?")
_CONTENT_ID = re.compile(r"[!-;=?-~]{1,200}")


def key(value: object) -> str:
    """Check the key: a text of 1 to 500 characters."""
    if value is None or value == "" or (isinstance(value, str) and value.isspace()):
        raise InvalidEmail("key", NO_KEY)
    return _short("key", value, MAX_KEY, length=len)


def subject(value: object) -> str:
    """Check the subject: one line of at most 2,000 UTF-16 units; it may be empty."""
    return _short("subject", value, MAX_SUBJECT)


def tag(value: object) -> str | None:
    """Check the tag; an empty one is none."""
    return _short("tag", value, MAX_TAG) or None if value is not None else None


def body(field: str, value: object) -> str | None:
    """Check a body: no NUL, no lone surrogate, at most 5 MB of UTF-8; an empty one is none."""
    if value is None or value == "":
        return None
    value = text(field, value)
    if value.isascii():
        size = len(value)
        broken = "\x00" in value
    else:
        broken = _NOT_IN_A_BODY.search(value) is not None
        size = 0 if broken else len(value.encode())
    if broken:
        raise InvalidEmail(field, "must not contain NUL or a lone surrogate")
    if size > MAX_BODY:
        raise InvalidEmail(field, f"must be at most {MAX_BODY:,} bytes of UTF-8")
    return value


def text(field: str, value: object) -> str:
    """Check that a value is a text."""
    if not isinstance(value, str):
        raise InvalidEmail(field, "must be a text")
    return value


def headers(given: object) -> dict[str, str]:
    """Check extra headers: RFC 5322 names that are free to set, one-line values."""
    checked = _text_fields("headers", given)
    for name in checked:
        lowered = name.lower()
        if _TOKEN.fullmatch(name) is None:
            raise InvalidEmail("headers", "a header's name must be letters, digits and hyphens")
        if lowered in FORBIDDEN_HEADERS or lowered.startswith("x-pm-"):
            raise InvalidEmail(
                f"headers[{name!r}]", "may not be set; use the email's own field, if it has one"
            )
    return checked


def metadata(given: object) -> dict[str, str]:
    """Check the user's metadata: at most eight short fields."""
    checked = _text_fields("metadata", given)
    if len(checked) > MAX_METADATA_FIELDS:
        raise InvalidEmail("metadata", f"at most {MAX_METADATA_FIELDS} fields")
    for name, value in checked.items():
        if not name or utf16_length(name) > MAX_METADATA_KEY:
            raise InvalidEmail("metadata", f"a name must be 1 to {MAX_METADATA_KEY} characters")
        if name.lower() in RESERVED_METADATA:
            raise InvalidEmail(f"metadata[{name!r}]", "is notifyq's own")
        if utf16_length(value) > MAX_METADATA_VALUE:
            raise InvalidEmail(f"metadata[{name!r}]", f"must be at most {MAX_METADATA_VALUE} characters")
    return checked


def stream(value: object) -> str | None:
    """Check the name of a message stream; none means Postmark's ``outbound``."""
    if value is None:
        return None
    if not isinstance(value, str) or _STREAM.fullmatch(value) is None:
        raise InvalidEmail("stream", "must be a stream's id: letters, digits, - and _")
    return value


def aware(field: str, value: object) -> datetime | None:
    """Check a time: it must say its offset from UTC."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidEmail(field, "must be a datetime")
    if value.utcoffset() is None:
        raise InvalidEmail(field, "must have a time zone, for example datetime.now(timezone.utc)")
    if not 1 < value.year < 9999:
        raise InvalidEmail(field, "must be a time before the year 9999; leave it out where there is no limit")
    return value


def priority(value: object) -> int:
    """Check the priority: an integer of 32 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**31) <= value < 2**31:
        raise InvalidEmail("priority", "must be an integer (32 bits)")
    return value


def on_doubt(value: object) -> str:
    """Check the policy for an email whose fate is unknown."""
    if not isinstance(value, str) or value not in ON_DOUBT:
        raise InvalidEmail("on_doubt", 'must be "ask", "resend" or "hold"')
    return value


def check_attachment_name(value: object) -> None:
    """Check a file's name: a short line with an extension that Postmark lets pass."""
    name = _short("name", value, 255)
    if not name.strip():
        raise InvalidEmail("name", "must not be empty")
    # "run.exe." and "run.exe " are run.exe again on the systems that these files aim at.
    if name.rstrip(". ").rpartition(".")[2].lower() in FORBIDDEN_EXTENSIONS and "." in name:
        raise InvalidEmail("name", "has an extension that Postmark forbids")


def check_content_type(value: object) -> None:
    """Check a MIME type such as ``application/pdf``."""
    if _CONTENT_TYPE.fullmatch(header_text("content_type", value)) is None:
        raise InvalidEmail("content_type", "must be a type such as application/pdf")


def content_id(value: object) -> str | None:
    """Check the id of an inline image, with or without its ``cid:``; none and empty mean "not inline"."""
    if value is None or value == "":
        return None
    plain = header_text("content_id", value).removeprefix("cid:")
    if _CONTENT_ID.fullmatch(plain) is None:
        raise InvalidEmail("content_id", "must be 1 to 200 visible ASCII characters without < and >")
    return plain


def most_of_the_rest(attachments: int) -> int:
    """Bytes of JSON that all but bodies, headers and contents of files can take at the very most."""
    return 262_144 + 4_096 * attachments


def base64_length(size: int) -> int:
    """How many characters *size* bytes take in base64."""
    return (size + 2) // 3 * 4


def known_fields(where: str, given: object, known: frozenset[str]) -> Mapping[str, Any]:
    """Check that a stored object has no member but *known* ones."""
    if type(given) is not dict and not isinstance(
        given, Mapping
    ):  # the first is quick and nearly always true
        raise InvalidEmail(where, "must be a JSON object")
    if not known.issuperset(given):
        # A misspelt field would otherwise be a part of the message that silently never goes out.
        raise InvalidEmail(where, f"has a field that is not one of: {', '.join(sorted(known))}")
    return given


def listed(where: str, given: object) -> list[Any]:
    """Check that a stored member is a list, or absent."""
    if given is None:
        return []
    if not isinstance(given, list | tuple):
        raise InvalidEmail(where, "must be a JSON array")
    return list(given)


def _short(field: str, value: object, most: int, *, length: object = None) -> str:
    text = header_text(field, value)
    if (len(text) if length is len else utf16_length(text)) > most:
        raise InvalidEmail(field, f"must be at most {most:,} characters")
    return text


def _text_fields(field: str, given: object) -> dict[str, str]:
    """Check that *given* maps one-line texts to one-line texts, and that names differ by more than case."""
    if not isinstance(given, Mapping):
        raise InvalidEmail(field, "must be a mapping of texts")
    checked: dict[str, str] = {}
    for name, value in given.items():
        header_text(field, name)
        checked[name] = header_text(f"{field}[{name[:40]!r}]", value)
    if len({name.lower() for name in checked}) < len(checked):
        raise InvalidEmail(field, "has a name twice (names do not differ by case)")
    return checked
