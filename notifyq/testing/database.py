"""Databases for tests: each one a fresh copy of a migrated template, on a server of your choice.

Everything here is synchronous and works in a thread of its own, so that it does not matter which event
loop, if any, the caller's test runs in.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg

from notifyq.migrate import migrate
from notifyq.sqlfiles import query

__all__ = ["Databases"]

T = TypeVar("T")

LIMIT = 60.0
"""Seconds for one statement: a copy waits for a checkpoint, which takes its time on a busy disk."""


class Databases:
    """Hands out migrated databases on the server of *dsn*, whose role may create databases.

    *dsn* names any existing database of that server. The names begin with ``notifyq_test_`` and a random
    part, so that any number of test runs can share a server.

    Example::

        databases = Databases(server.dsn)
        with databases.fresh() as dsn:
            conn = await asyncpg.connect(dsn)
        databases.close()
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._run = f"notifyq_test_{secrets.token_hex(4)}"
        self._made = 0
        self._template: str | None = None

    def __repr__(self) -> str:  # without the password
        return f"<Databases {self._run}>"

    @contextmanager
    def fresh(self, *, migrated: bool = True) -> Iterator[str]:
        """Give the URL of a new database, which is dropped at the end of the block.

        Example: ``with databases.fresh() as dsn: ...``
        """
        self._made += 1
        name = f"{self._run}_{self._made}"
        if migrated:
            self._execute("test_database_statement", name, self._ready_template())
        else:
            self._execute("empty_database_statement", name)
        try:
            yield at_database(self.dsn, name)
        finally:
            self._execute("drop_database_statement", name)

    def close(self) -> None:
        """Drop the template. May be called twice."""
        template, self._template = self._template, None
        if template is not None:
            self._execute("drop_database_statement", template)

    def _ready_template(self) -> str:
        if self._template is None:
            name = f"{self._run}_template"
            self._execute("empty_database_statement", name)
            self._template = name
            apart(lambda: connected(at_database(self.dsn, name), migrate))
        return self._template

    def _execute(self, statement: str, *names: str) -> None:
        async def execute(conn: Any) -> None:
            # A DDL statement takes no parameters: the server quotes the names into it.
            await conn.execute(await conn.fetchval(query(statement), *names), timeout=LIMIT)

        apart(lambda: connected(self.dsn, execute))


async def connected(dsn: str, use: Callable[[Any], Awaitable[T]]) -> T:
    """Call *use* with a connection, and close it."""
    conn = await asyncpg.connect(dsn, timeout=LIMIT)
    try:
        return await use(conn)
    finally:
        await conn.close(timeout=LIMIT)


def apart(start: Callable[[], Awaitable[T]]) -> T:
    """Run what *start* begins in an event loop of its own, in a thread of its own."""

    async def main() -> T:
        return await start()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(main())).result()


def at_database(dsn: str, name: str) -> str:
    """The same server, another database.

    Example: ``at_database("postgresql://u@h/a?x=1", "b") == "postgresql://u@h/b?x=1"``
    """
    parts = urlsplit(dsn)
    # urlunsplit drops the empty host of "postgresql:///name?host=/run".
    url = urlunsplit(("postgresql", parts.netloc or "", f"/{quote(name)}", parts.query, ""))
    return url if parts.netloc else url.replace("postgresql:/", "postgresql:///", 1)
