"""From the stored message to the email: as it stands, or made now by its builder."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import msgspec

from notifyq.blame import log_traceback, place_of
from notifyq.builders import Builder, Unrenderable
from notifyq.cancellation import being_cancelled
from notifyq.db import Pool
from notifyq.errors import InvalidEmail
from notifyq.lifecycle import Claim
from notifyq.message import Email

__all__ = ["BuilderFailed", "Renderer"]


class BuilderFailed(Exception):
    """A builder failed: a bug, which may be mended. Its text is fit to be stored and logged.

    It says what was raised and where, never the raised text: a deferred email is one whose secrets lie
    in no table, and a text made while it is rendered may quote them.
    """

    @classmethod
    def by(cls, error: BaseException, function: Callable[..., Any]) -> BuilderFailed:
        """Because *error* was raised by the builder's *function*."""
        where = f"{type(error).__name__} in {place_of(error, function)}"
        return cls(f"the builder failed: {where}; its text is withheld: it may quote the email")


class Renderer:
    """Makes emails of stored messages; builders that want a connection get one of *pool*.

    A builder that has not ended after *limit* seconds has failed: it holds a claim and a slot meanwhile.
    """

    def __init__(self, builders: Mapping[str, Builder[Any]], pool: Pool, *, limit: float = 10.0) -> None:
        self._builders = builders
        self._pool = pool
        self._limit = limit
        self.names = sorted(builders)

    async def render(self, claim: Claim, message: str) -> Email:
        """Raises `InvalidEmail` or `Unrenderable` for what can never be sent, `BuilderFailed` for a bug."""
        try:
            stored = msgspec.json.decode(message)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Unrenderable(f"the stored message cannot be read ({type(error).__name__})") from None
        if "builder" not in stored:
            return Email.from_message(claim.key, stored)
        if stored["builder"] not in self._builders:  # what is claimed is served, but for a name that is none
            raise Unrenderable("builder: must be the name of a builder")
        builder = self._builders[stored["builder"]]
        try:
            arguments = builder.parameters.unpack(stored.get("args", {}))
        except TypeError as error:
            raise BuilderFailed(f"the stored arguments do not fit the builder: {error}") from None
        return _checked(claim, await self._made(claim, builder, arguments))

    async def _made(self, claim: Claim, builder: Builder[Any], arguments: Mapping[str, Any]) -> Any:
        try:
            with anyio.move_on_after(self._limit) as scope:
                return await self._build(builder, arguments)
        except (InvalidEmail, Unrenderable):
            raise
        except anyio.get_cancelled_exc_class() as error:
            if being_cancelled():
                raise
            raise _failed(claim, builder, error) from None
        except BaseException as error:  # user code: whatever it raises, never the end of the worker
            raise _failed(claim, builder, error) from None
        assert scope.cancelled_caught  # noqa: S101 (for the type checker)
        raise BuilderFailed(f"the builder did not end within {self._limit:g} s")

    async def _build(self, builder: Builder[Any], arguments: Mapping[str, Any]) -> Any:
        if not builder.connection:
            made = builder.function(**arguments)
            return await made if inspect.isawaitable(made) else made
        async with self._pool.acquire() as conn:
            made = builder.function(conn, **arguments)
            return await made if inspect.isawaitable(made) else made


def _failed(claim: Claim, builder: Builder[Any], error: BaseException) -> BuilderFailed:
    failed = BuilderFailed.by(error, builder.function)
    log_traceback(f"email {claim.id}", error, str(failed))
    return failed


def _checked(claim: Claim, email: Any) -> Email:
    """What the row was claimed for is what is sent: its key, and the stream that would be asked."""
    if not isinstance(email, Email):
        raise BuilderFailed(f"the builder returned {type(email).__name__}, not an Email")
    if email.key != claim.key:
        raise BuilderFailed(
            "the builder made an email with another key than the one that it was enqueued with"
        )
    if (email.stream or "outbound") != claim.stream:
        raise BuilderFailed(
            f"the email goes to stream {email.stream or 'outbound'!r}, "
            f"its builder is declared with {claim.stream!r}"
        )
    return email
