"""From the stored message to the email: as it stands, or made now by its builder."""

from __future__ import annotations

import inspect
import json
import traceback
from collections.abc import Mapping
from typing import Any

from notifyq.builders import Builder, Unrenderable
from notifyq.cleaning import clean
from notifyq.db import Pool
from notifyq.errors import InvalidEmail
from notifyq.lifecycle import Claim
from notifyq.message import Email

__all__ = ["BuilderFailed", "Renderer"]


class BuilderFailed(Exception):
    """A builder raised: a bug. *shown* is fit to be stored, *where* to be logged."""

    def __init__(self, error: Exception) -> None:
        place = traceback.extract_tb(error.__traceback__)[-1]
        self.where = f"{type(error).__name__} in {place.name} line {place.lineno}"
        self.shown = clean(f"the builder failed: {type(error).__name__}: {error}")
        super().__init__(self.where)


class Renderer:
    """Makes emails of stored messages; builders that want a connection get one of *pool*."""

    def __init__(self, builders: Mapping[str, Builder[Any]], pool: Pool) -> None:
        self._builders = builders
        self._pool = pool
        self.names = sorted(builders)

    async def render(self, claim: Claim, message: str) -> Email:
        """Raises `InvalidEmail` or `Unrenderable` for what can never be sent, `BuilderFailed` for a bug."""
        stored = json.loads(message)
        if "builder" not in stored:
            return Email.from_message(claim.key, stored)
        builder = self._builders[stored["builder"]]
        try:
            arguments = builder.parameters.unpack(stored.get("args", {}))
            return _checked(claim, await self._build(builder, arguments))
        except (InvalidEmail, Unrenderable):
            raise
        except Exception as error:
            raise BuilderFailed(error) from None

    async def _build(self, builder: Builder[Any], arguments: Mapping[str, Any]) -> Any:
        if not builder.connection:
            made = builder.function(**arguments)
            return await made if inspect.isawaitable(made) else made
        async with self._pool.acquire() as conn:
            made = builder.function(conn, **arguments)
            return await made if inspect.isawaitable(made) else made


def _checked(claim: Claim, email: Any) -> Email:
    """What the row was claimed for is what is sent: its key, and the stream that would be asked."""
    if not isinstance(email, Email):
        raise TypeError(f"the builder returned {type(email).__name__}, not an Email")
    if email.key != claim.key:
        raise ValueError("the builder made an email with another key than the one it was enqueued with")
    if (email.stream or "outbound") != claim.stream:
        raise ValueError(
            f"the email goes to stream {email.stream or 'outbound'!r}, "
            f"its builder is declared with {claim.stream!r}"
        )
    return email
