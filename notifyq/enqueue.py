"""The way in: put an email, or a call of a task, into the outbox, in the caller's own transaction.

The row commits with whatever the caller did, or not at all. A key that is known already is an answer,
not an error: nothing is sent twice and the transaction goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, overload
from uuid import uuid4

import msgspec

from notifyq import message_rules as rules
from notifyq.builders import DeferredEmail
from notifyq.db import Connection
from notifyq.errors import InvalidEmail
from notifyq.message import Email
from notifyq.sqlfiles import query
from notifyq.tasks import Call

__all__ = ["Enqueued", "enqueue", "enqueue_many"]


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The row's *id*, and whether this call made it. ``created=False``: the key was there already.

    Example: ``Enqueued(id=7, created=True)``
    """

    id: int
    created: bool


@overload
async def enqueue(conn: Connection, item: Email) -> Enqueued: ...


@overload
async def enqueue(
    conn: Connection,
    item: DeferredEmail,
    *,
    key: str,
    run_after: datetime | None = None,
    send_before: datetime | None = None,
) -> Enqueued: ...


@overload
async def enqueue(
    conn: Connection, item: Call, *, key: str | None = None, run_after: datetime | None = None
) -> Enqueued: ...


async def enqueue(
    conn: Connection,
    item: Email | DeferredEmail | Call,
    *,
    key: str | None = None,
    run_after: datetime | None = None,
    send_before: datetime | None = None,
) -> Enqueued:
    """Put *item* into the outbox on *conn*, an asyncpg connection or one from a pool.

    It goes out, or runs, when the caller's transaction commits, and never if it rolls back. (A pool is taken
    as well, and commits by itself: whatever transaction the caller has, it is on another connection.) Two
    transactions that race on one key give one row; above READ COMMITTED the loser gets SQLSTATE 40001, as
    with any insert.

    An `Email` brings its own key and times. A deferred email (`Builder.deferred`) needs a *key*: it is
    sent at most once, ever. A call (`Task.call`) may have one: unique among active calls of its task.
    *run_after* and *send_before* are aware datetimes.

    Raises `InvalidEmail` for a key or a time that cannot be.

    Example::

        async with pool.acquire() as conn, conn.transaction():
            order = await confirm(conn, order_id)
            await notifyq.enqueue(conn, order_confirmation(order))
            await notifyq.enqueue(conn, make_invoice.call(order_id=7), key="invoice:7")
    """
    rules.aware("run_after", run_after)
    rules.aware("send_before", send_before)
    match item:
        case Email():
            if key is not None or run_after is not None or send_before is not None:
                raise InvalidEmail("key", "an Email brings its own key, run_after and send_before")
            return await _put(conn, _email_row(item))
        case DeferredEmail():
            message = _json(item.message())
            return await _put(
                conn, (rules.key(key or ""), message, run_after, send_before, item.priority, item.on_doubt)
            )
        case Call():
            rows = await conn.fetch(
                query("enqueue_task"),
                item.name,
                _json(item.args),
                None if key is None else rules.key(key),
                run_after,
                item.priority,
                item.max_attempts,
            )
        case _:
            raise TypeError(
                f"cannot enqueue a {type(item).__name__}: make an Email, or use .deferred(...) or .call(...)"
            )
    return Enqueued(rows[0]["id"], rows[0]["created"])


async def _put(conn: Connection, row: tuple[Any, ...]) -> Enqueued:
    if made := await conn.fetch(query("insert_email"), str(uuid4()), *row):
        return Enqueued(made[0]["id"], created=True)
    (known,) = await conn.fetch(query("enqueue_email"), *row)
    return Enqueued(known["id"], known["created"])


async def enqueue_many(conn: Connection, emails: Iterable[Email]) -> list[Enqueued]:
    """Put many emails into the outbox with one statement and one notification.

    Answers in the order of *emails*. A key that occurs twice is created by its first email.

    Example: ``await notifyq.enqueue_many(conn, [newsletter(user) for user in users])``
    """
    batch = list(emails)
    if not batch:
        return []
    columns = zip(*(_email_row(email) for email in batch), strict=True)
    rows = await conn.fetch(query("enqueue_emails"), *map(list, columns))
    return [Enqueued(row["id"], row["created"]) for row in rows]


def _email_row(email: Email) -> tuple[Any, ...]:
    return (
        email.key,
        _json(email.message()),
        email.run_after,
        email.send_before,
        email.priority,
        email.on_doubt,
    )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
