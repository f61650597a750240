"""Bring the schema up to date, and say whether a worker and a schema go together.

Each migration states the oldest worker that may run beside it. A worker's age is the newest migration
that its package ships: a worker is refused only if some applied migration asks for a newer one, so a
deploy (migrate first, restart later) never stops the mail.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from notifyq import sqlfiles
from notifyq.errors import SchemaMismatch
from notifyq.sqlfiles import Migration, query

__all__ = ["WORKER_AGE", "check_schema", "migrate"]

log = logging.getLogger("notifyq")

WORKER_AGE: Final = sqlfiles.migrations()[-1].version
"""The schema version that this package was made for."""


async def migrate(conn: Any) -> list[str]:
    """Apply what is missing, in one transaction; answer the names of what was applied.

    Safe to run twice, at once from two processes, and beside running workers. *conn* is an asyncpg
    connection (or one from a pool) with no transaction open. A database newer than this package is left
    alone.

    Raises `SchemaMismatch` if the schema ``notifyq`` exists but is not ours.

    Example: ``await notifyq.migrate(conn)`` → ``["001_tables", "002_page", "functions"]``, then ``[]``.
    """
    # READ COMMITTED whatever the role's default: who waited for the lock must see what the other has applied.
    async with conn.transaction(isolation="read_committed"):
        await conn.execute(query("take_the_time"))
        await conn.execute(query("lock_migrations"))
        known = await _applied(conn)
        if known and max(known) > WORKER_AGE:
            log.info("the schema is at version %d, newer than this package: left alone", max(known))
            return []
        done = [await _apply(conn, m) for m in sqlfiles.migrations() if m.version not in known]
        if await conn.fetchval(query("functions_digest")) != sqlfiles.functions_digest():
            for text in sqlfiles.functions():
                await conn.execute(text)
            await conn.execute(query("drop_older_signatures"))
            await conn.execute(query("record_functions"), sqlfiles.functions_digest())
            done.append("functions")
        return done


async def check_schema(conn: Any) -> None:
    """Raise `SchemaMismatch`, with what to run, if this package cannot work with the schema as it is."""
    if not await conn.fetchval(query("installed")):
        raise SchemaMismatch("the database has no notifyq schema: run `notifyq migrate`")
    found = await conn.fetchrow(query("versions"))
    if found["version"] < WORKER_AGE:
        raise SchemaMismatch(
            f"the notifyq schema is at version {found['version']}, this package needs {WORKER_AGE}: "
            "run `notifyq migrate`"
        )
    if found["oldest_worker"] > WORKER_AGE:
        raise SchemaMismatch(
            f"the notifyq schema is at version {found['version']} and asks for workers of version "
            f"{found['oldest_worker']} or newer, this package is of version {WORKER_AGE}: "
            "upgrade the package (`pip install --upgrade notifyq`) and start again"
        )


async def _applied(conn: Any) -> set[int]:
    if not await conn.fetchval(query("installed")):
        return set()
    return {row["version"] for row in await conn.fetch(query("applied"))}


async def _apply(conn: Any, migration: Migration) -> str:
    await conn.execute(migration.sql)
    await conn.execute(query("record_migration"), migration.version, migration.name, migration.oldest_worker)
    return f"{migration.version:03d}_{migration.name}"
