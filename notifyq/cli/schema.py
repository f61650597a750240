"""``notifyq migrate`` and ``notifyq sql``: the schema, applied or printed."""

from __future__ import annotations

from typing import Any

import anyio
import click
from asyncpg.exceptions import LockNotAvailableError

from notifyq import sqlfiles
from notifyq.cli.database import connected
from notifyq.cli.runner import note, run
from notifyq.migrate import migrate as apply_migrations
from notifyq.sqlfiles import query

__all__ = ["migrate", "sql"]

LOCK_WAIT = "3s"
"""A migration that waits for a lock holds up everybody behind it, so it waits briefly and comes again."""


@click.command(short_help="Make the schema, or bring it up to date.")
def migrate() -> None:
    """Make the schema "notifyq" in the database, or bring it up to date.

    Safe to run twice, at once from two processes, and beside running workers. It never waits long for a
    lock, so nobody queues up behind it.

    \b
    Example:
      DATABASE_URL=postgresql://app@db/app notifyq migrate
    """
    run(_migrate)


@click.command(short_help="Print the schema as SQL.")
def sql() -> None:
    """Print the whole schema as SQL, for a migration tool of your own. No database is needed.

    \b
    Example:
      notifyq sql > migrations/0042_notifyq.sql
      notifyq sql | psql "$DATABASE_URL"
    """
    click.echo(sqlfiles.everything())


async def _migrate() -> None:
    async with connected(migrated=False) as conn:
        done = await _apply(conn)
        for name in done:
            click.echo(f"applied {name}")
        if not done:
            version = (await conn.fetchrow(query("versions")))["version"]
            click.echo(f"nothing to do: the schema is at version {version}")


async def _apply(conn: Any) -> list[str]:
    waited = False
    await conn.fetch(query("act_wait_briefly"), LOCK_WAIT)
    while True:
        try:
            return await apply_migrations(conn)
        except LockNotAvailableError:
            if not waited:
                note("another transaction or migration holds a lock: waiting for it")
            waited = True
            await anyio.sleep(1)
