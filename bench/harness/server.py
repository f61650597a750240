"""The Postgres of a run: an embedded one that is thrown away, or one that was given."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from notifyq import embedded

__all__ = ["Database", "server"]

SETTINGS = {
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "max_connections": "300",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "none",
}


@dataclass(frozen=True, slots=True)
class Database:
    """One database of the server, and the server's own *maintenance* DSN."""

    dsn: str
    maintenance: str
    name: str

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        """Open a connection for the length of a block."""
        conn = await asyncpg.connect(self.dsn)
        try:
            yield conn
        finally:
            await conn.close()

    async def fetchval(self, sql: str, *args: Any) -> Any:
        """Run one statement and give its first value."""
        async with self.connect() as conn:
            return await conn.fetchval(sql, *args)

    async def count_statements(self) -> None:
        """Have every statement of this database's new sessions counted from now on."""
        async with self.connect() as conn:
            await conn.execute("create extension if not exists pg_stat_statements")
            await conn.execute(f'alter database "{self.name}" set pg_stat_statements.track = top')


@asynccontextmanager
async def server(dsn: str | None) -> AsyncIterator[str]:
    """Give the DSN of a server: *dsn* itself, or that of an embedded one that ends with the block."""
    if dsn is not None:
        yield dsn
        return
    async with embedded.server(throwaway=True, settings=SETTINGS) as own:
        yield own.dsn


@asynccontextmanager
async def database(dsn: str, name: str, settings: Sequence[str] = ()) -> AsyncIterator[Database]:
    """Make the database ``notifyq_bench_<name>`` with *settings* (``"a = 1"``), and drop it at the end."""
    full = f"notifyq_bench_{name}"
    conn = await asyncpg.connect(dsn)
    try:
        await conn.execute(f'drop database if exists "{full}" with (force)')
        await conn.execute(f'create database "{full}"')
        for setting in settings:
            await conn.execute(f'alter database "{full}" set {setting}')
    finally:
        await conn.close()
    parts = urlsplit(dsn)
    try:
        yield Database(urlunsplit(parts._replace(path=f"/{full}")), dsn, full)
    finally:
        conn = await asyncpg.connect(dsn)
        await conn.execute(f'drop database if exists "{full}" with (force)')
        await conn.close()
