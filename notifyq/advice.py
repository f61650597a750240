"""What to do about a gate that is blocked: pure words, by the provider's reason."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["advice"]

_CODE: Final = re.compile(r"HTTP (\d{3})(?:, ErrorCode (\d+))?")

_LOOK_AT_IT: Final = "look at POSTMARK_SERVER_TOKEN"
_BY_STATUS: Final = {
    "401": _LOOK_AT_IT,
    "404": "look at POSTMARK_API_URL",
    "405": "look at POSTMARK_API_URL",
}
_BY_CODE: Final = {
    "10": _LOOK_AT_IT,
    "405": "the account is out of credits: look at it at Postmark",
    "422": _LOOK_AT_IT,
    "1480": "allow this machine's address in the server's settings at Postmark",
}
_ELSE: Final = "look at the account at Postmark"


def advice(reason: str | None) -> str:
    """What a person does about *reason*, as the gate keeps it.

    Example: ``advice("HTTP 401, ErrorCode 10: No token") == "look at POSTMARK_SERVER_TOKEN"``
    """
    found = _CODE.match(reason or "")
    if found is None:
        return _ELSE
    status, code = found.groups()
    return _BY_CODE.get(code or "") or _BY_STATUS.get(status, _ELSE)
