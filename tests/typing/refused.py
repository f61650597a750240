"""What users must not write: mypy --strict refuses each line that says so, and no other. Never run."""

from __future__ import annotations

import asyncpg
from accepted import make_invoice, nightly_report, order_shipped, shrink, welcome

import notifyq
from notifyq import TaskContext

make_invoice.call(order_id="7")  # error: arg-type
make_invoice.call(order=7)  # error: call-arg
make_invoice.call()  # error: call-arg
make_invoice.call(7)  # error: call-arg
make_invoice.call(order_id=7, total=1.5)  # error: arg-type
make_invoice.call(order_id=None)  # error: arg-type
shrink.call(7, [1])  # error: arg-type
nightly_report.call(1)  # error: call-arg
order_shipped.deferred(order_id="7")  # error: arg-type
order_shipped.deferred(number=7)  # error: call-arg
welcome.deferred()  # error: call-arg
welcome(nme="ann")  # error: call-arg
order_shipped(order_id=7)  # error: call-arg, unused-coroutine


async def enqueues(conn: asyncpg.Connection) -> None:
    """What cannot be put into the outbox, or not in this way."""
    await notifyq.enqueue(conn, make_invoice)  # error: call-overload
    await notifyq.enqueue(conn, make_invoice.call(order_id=7), send_before=None)  # error: call-overload
    await notifyq.enqueue(conn, welcome.deferred(name="ann"))  # error: call-overload
    await notifyq.enqueue(conn, welcome(name="ann"), key="k")  # error: call-overload
    await notifyq.enqueue(conn, welcome)  # error: call-overload


@notifyq.task("no-context")  # error: arg-type
async def no_context() -> None:
    """A task is given its context."""


@notifyq.task("answers")  # error: arg-type
async def answers(ctx: TaskContext) -> int:
    """Nobody would get the answer."""
    return 7


@notifyq.email("no-email")  # error: type-var
def no_email() -> str:
    """A builder makes an Email."""
    return ""


@notifyq.periodic("0 3 * * *")  # error: arg-type
async def not_a_task(ctx: TaskContext) -> None:
    """Only a task can be planned."""
