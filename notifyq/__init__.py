"""Transactional email from a Postgres outbox, woken by LISTEN/NOTIFY, sent through Postmark, once.

Put an email into the outbox in your own transaction::

    async with pool.acquire() as conn, conn.transaction():
        order = await confirm(conn, order_id)
        await notifyq.enqueue(conn, order_confirmation(order))  # commits with the order, or not at all

and run a worker, here inside your app, or as ``notifyq worker`` on its own::

    async with anyio.create_task_group() as app:
        await app.start(notifyq.Worker(pool, provider=notifyq.Postmark()).run)  # listening when this returns

`notifyq.provider` holds the protocol of a provider, `notifyq.testing` a Postmark to test against.
"""

from notifyq.attachment import Attachment
from notifyq.builders import Unrenderable, email
from notifyq.enqueue import Enqueued, enqueue, enqueue_many
from notifyq.errors import (
    EmbeddedUnavailable,
    InvalidEmail,
    InvalidSettings,
    MissingSender,
    NotifyqError,
    SchemaMismatch,
    UnsafeDatabase,
)
from notifyq.message import Address, Email
from notifyq.migrate import migrate
from notifyq.postmark import Postmark
from notifyq.postmark_payload import build_postmark_payload
from notifyq.settings import WorkerSettings
from notifyq.tasks import TaskContext, periodic, task
from notifyq.worker import Worker

__all__ = [
    "Address",
    "Attachment",
    "Email",
    "EmbeddedUnavailable",
    "Enqueued",
    "InvalidEmail",
    "InvalidSettings",
    "MissingSender",
    "NotifyqError",
    "Postmark",
    "SchemaMismatch",
    "TaskContext",
    "Unrenderable",
    "UnsafeDatabase",
    "Worker",
    "WorkerSettings",
    "build_postmark_payload",
    "email",
    "enqueue",
    "enqueue_many",
    "migrate",
    "periodic",
    "task",
]
