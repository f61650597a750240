"""One migrated database a server; each test in a transaction of its own, rolled back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
from sqlclient import Outbox

from notifyq.testing.database import Databases


@pytest.fixture(scope="session")
def sql_dsn(notifyq_server: Databases) -> Iterator[str]:
    """The database that all tests of a server share."""
    with notifyq_server.fresh() as dsn:
        yield dsn


@pytest.fixture
async def conn(sql_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection in a transaction that never commits."""
    conn = await asyncpg.connect(sql_dsn)
    transaction = conn.transaction()
    await transaction.start()
    yield conn
    await transaction.rollback()
    await conn.close()


@pytest.fixture
def db(conn: asyncpg.Connection) -> Outbox:
    """The functions, on that connection."""
    return Outbox(conn)
