"""The way in: put an email into the outbox, in the caller's own transaction.

The row commits with whatever the caller did, or not at all. A key that is known already is an answer,
not an error: nothing is sent twice and the transaction goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from notifyq.db import Connection
from notifyq.message import Email
from notifyq.sqlfiles import query

__all__ = ["Enqueued", "enqueue", "enqueue_many"]


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The row's *id*, and whether this call made it. ``created=False``: the key was there already."""

    id: int
    created: bool


async def enqueue(conn: Connection, email: Email) -> Enqueued:
    """Put *email* into the outbox on *conn*, an asyncpg connection or one from a pool.

    The email goes out when the caller's transaction commits, and never if it rolls back. Two
    transactions that race on one key give one row; above READ COMMITTED the loser gets SQLSTATE 40001, as
    with any insert.

    Example::

        async with pool.acquire() as conn, conn.transaction():
            order = await confirm(conn, order_id)
            await notifyq.enqueue(conn, order_confirmation(order))
    """
    rows = await conn.fetch(
        query("enqueue_email"),
        email.key,
        _message(email),
        email.run_after,
        email.send_before,
        email.priority,
        email.on_doubt,
    )
    return Enqueued(rows[0]["id"], rows[0]["created"])


async def enqueue_many(conn: Connection, emails: Iterable[Email]) -> list[Enqueued]:
    """Put many emails into the outbox with one statement and one notification.

    Answers in the order of *emails*. A key that occurs twice is created by its first email.

    Example: ``await notifyq.enqueue_many(conn, [newsletter(user) for user in users])``
    """
    batch = list(emails)
    if not batch:
        return []
    rows = await conn.fetch(
        query("enqueue_emails"),
        [email.key for email in batch],
        [_message(email) for email in batch],
        [email.run_after for email in batch],
        [email.send_before for email in batch],
        [email.priority for email in batch],
        [email.on_doubt for email in batch],
    )
    return [Enqueued(row["id"], row["created"]) for row in rows]


def _message(email: Email) -> str:
    return json.dumps(email.message(), ensure_ascii=False, separators=(",", ":"))
