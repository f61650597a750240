"""The edge to Postgres: what a connection is to us, and what counts as the database being away.

A `Link` is one connection held for one purpose. The worker keeps three (the bell, claims, records),
because a pool's release costs a round trip and a claim must not wait behind somebody else's query.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Any, Final, Protocol, TypeAlias

import anyio
import asyncpg
from asyncpg.exceptions import (
    CannotConnectNowError,
    DataError,
    IntegrityConstraintViolationError,
    InterfaceError,
    InternalClientError,
    PostgresError,
    ProgramLimitExceededError,
)

from notifyq import sqlfiles

__all__ = ["DATABASE_FAULTS", "Connection", "Link", "Pool", "describe", "is_about_the_data", "seconds"]

log = logging.getLogger("notifyq")

# Whatever a statement can end with when the database is away, in trouble or told to stop. None of them
# says "not applied": the caller repeats what may be repeated, and looks again at the rest.
DATABASE_FAULTS: Final = (OSError, TimeoutError, PostgresError, InterfaceError, InternalClientError)

STATEMENT_TIMEOUT: Final = 5.0

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"


class Connection(Protocol):
    """What `notifyq.enqueue` asks of a connection: an asyncpg connection or one from its pool."""

    async def fetch(self, query: str, /, *args: Any, timeout: float | None = None) -> list[Any]: ...


class Link:
    """One connection, opened when it is needed, dropped when it failed, used by one caller at a time.

    *session* counts the connections it has had. *on_end* is called when one of them ended.

    Example: ``rows = await link.fetch("claim_emails", ...)``
    """

    def __init__(
        self,
        pool: Pool,
        purpose: str,
        *,
        timeout: float = STATEMENT_TIMEOUT,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self._pool = pool
        self._on_end = on_end
        self.session = 0
        self._purpose = purpose
        self._timeout = timeout
        self._held: Any = None
        self._turn = asyncio.Lock()

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]:
        """Run the named *query*. Raises one of `DATABASE_FAULTS`; the next call then starts afresh."""
        async with self._turn:
            conn = await self._connection()
            try:
                with lost_as_fault(conn):
                    rows: list[asyncpg.Record] = await conn.fetch(
                        sqlfiles.query(query), *args, timeout=self._timeout
                    )
                    return rows
            except PostgresError:
                # The server answered, so the connection is sound, unless it ended it.
                if is_lost(conn):
                    await self._drop()
                raise
            except BaseException:
                # A time-out or a cancellation leaves the connection in the middle of something.
                await self._drop()
                raise

    async def value(self, query: str, *args: Any) -> Any:
        """The first column of the first row, or None."""
        rows = await self.fetch(query, *args)
        return rows[0][0] if rows else None

    async def close(self) -> None:
        """Give the connection back. May be called twice."""
        if self._held is not None:
            conn, self._held = self._held, None
            with anyio.CancelScope(shield=True), anyio.move_on_after(1), suppress(*DATABASE_FAULTS):
                await self._pool.release(conn, timeout=1)

    def is_session(self, session: int) -> bool:
        """True while the session of that number lives: what it locked is still locked."""
        return session == self.session and self._held is not None and not is_lost(self._held)

    def _ended(self, _conn: object) -> None:
        if self._on_end is not None:
            self._on_end()

    async def _connection(self) -> Any:
        if self._held is not None and is_lost(self._held):
            await self._drop()
        if self._held is None:
            conn: Any = await self._pool.acquire(timeout=self._timeout)
            self._held = conn
            self.session += 1
            if self._on_end is not None:
                conn.add_termination_listener(self._ended)
            try:
                await conn.fetch(
                    sqlfiles.query("prepare_session"),
                    f"notifyq {self._purpose}",
                    f"{self._timeout * 900:.0f}ms",
                    timeout=self._timeout,
                )
            except BaseException:
                await self._drop()
                raise
        return self._held

    async def _drop(self) -> None:
        conn, self._held = self._held, None
        if conn is not None:
            await hang_up(self._pool, conn)


def is_lost(conn: Any) -> bool:
    """True once a pool's connection is closed. One that ended by itself is back in the pool and refuses."""
    try:
        return bool(conn.is_closed())
    except InterfaceError:
        return True


@contextmanager
def lost_as_fault(conn: Any) -> Iterator[None]:
    """asyncpg raises AttributeError where a connection ends between two of its own steps: a fault as any."""
    try:
        yield
    except AttributeError:
        if not is_lost(conn):
            raise
        raise InterfaceError("the connection was lost") from None


async def hang_up(pool: Pool, conn: Any) -> None:
    """Drop a connection of *pool*, not in order: that would wait for a server that may be gone."""
    with anyio.CancelScope(shield=True), anyio.move_on_after(1), suppress(InterfaceError):
        conn.terminate()
        await pool.release(conn, timeout=1)


@asynccontextmanager
async def linked(pool: Pool, purpose: str) -> AsyncIterator[Link]:
    """A `Link` for the length of a block."""
    link = Link(pool, purpose)
    try:
        yield link
    finally:
        await link.close()


def describe(error: BaseException) -> str:
    """An error for the log: its class and SQLSTATE, never its text, which may quote a row.

    Example: ``describe(error) == "UniqueViolationError 23505"``
    """
    state = getattr(error, "sqlstate", None)
    return f"{type(error).__name__} {state}" if state else type(error).__name__


def is_about_the_data(error: BaseException) -> bool:
    """True if repeating the very same statement can never succeed."""
    refused = isinstance(error, DataError | IntegrityConstraintViolationError | ProgramLimitExceededError)
    return refused and not isinstance(error, CannotConnectNowError)


_TROUBLE: Final = {
    "25006": "is read-only: a standby, or a role with default_transaction_read_only",
    "53300": "has no connection left for us: raise max_connections or the role's limit",
    "42501": "does not let this role do its work: run `notifyq migrate` as its owner, or grant it",
}


def seconds(value: float) -> timedelta:
    """A duration as Postgres' driver wants it."""
    return timedelta(seconds=value)


class Complaints:
    """At most one line a second for one kind of trouble, and one line when it is over.

    Example: ``complaints.about("claim", error)`` … ``complaints.over("claim")``
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, float] = {}

    def about(self, what: str, error: BaseException) -> None:
        """Tell of *error*, unless this was said within the last second."""
        now = self._clock()
        if now - self._last.get(what, -10.0) >= 1:
            self._last[what] = now
            trouble = _TROUBLE.get(getattr(error, "sqlstate", None) or "", "does not answer")
            log.warning("%s: the database %s (%s); trying again", what, trouble, describe(error))

    def over(self, what: str) -> None:
        """Tell that it is over, if it was ever told that it began."""
        if self._last.pop(what, None) is not None:
            log.info("%s: the database answers again", what)
