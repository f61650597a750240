"""An email that gives itself away: its address and body may never be seen in a log."""

from __future__ import annotations

import zlib
from typing import Any

from notifyq import Email


def an_email(key: str, **parts: Any) -> Email:
    """One email whose address is its own and follows from *key*."""
    return Email(
        key=key,
        to=f"canary-address-{zlib.crc32(key.encode())}@example.com",
        from_="shop@example.com",
        subject="s",
        text="canary-body",
        **parts,
    )
