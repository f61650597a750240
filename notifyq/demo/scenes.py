"""The scenes: what each tells, what it plays, and the facts that prove it.

A scene speaks of one email (or two), by its key, so that the next one is not in its way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import anyio

import notifyq
from notifyq.demo.board import Row, milliseconds
from notifyq.demo.stage import Stage
from notifyq.demo.verdict import Fact
from notifyq.enqueue import Enqueued
from notifyq.message import Email
from notifyq.tasks import Task, TaskContext
from notifyq.testing import faults

__all__ = ["SCENES", "TASKS", "Scene", "Told"]

CUSTOMER: Final = notifyq.Address("ada@example.com", "Ada Example")
BY_BELL: Final = 1.0
"""Seconds. Without the bell, an email would wait for the next look at the table: up to 5 s."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a scene says at its end, and the facts behind it."""

    line: str
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """*title*, the sentence *why*, and *play*."""

    title: str
    why: str
    play: Callable[[Stage], Awaitable[Told]]


async def password_reset(stage: Stage) -> Told:
    """The plain case, and its speed."""
    await stage.commit(_email("reset:ada:1", "Reset your password", priority=-1, on_doubt="resend"))
    row = await stage.board.end_of("reset:ada:1")
    took = row.latency if row.latency is not None else float("inf")
    return Told(
        f"At the provider {milliseconds(took)} after the commit was issued.",
        (*_sent_once(row), Fact(f"it arrives within {BY_BELL:g} s of the commit", took < BY_BELL)),
    )


async def double_click(stage: Stage) -> Told:
    """Two transactions race on one key."""
    made: list[Enqueued] = []

    async def confirm() -> None:
        made.extend(await stage.commit(_email("order-confirmed:1001", "Thank you for your order")))

    async with anyio.create_task_group() as clicks:
        clicks.start_soon(confirm)
        clicks.start_soon(confirm)
    row = await stage.board.end_of("order-confirmed:1001")
    return Told(
        "Two clicks, two commits, one row, one email.",
        (
            Fact("one of the clicks makes the row", sum(one.created for one in made) == 1),
            Fact("both are told of the same row", {one.id for one in made} == {row.id}),
            *_sent_once(row),
        ),
    )


async def rolled_back(stage: Stage) -> Told:
    """The order fails after its email was enqueued."""
    with suppress(_OrderFailed):
        async with stage.pool.acquire() as conn, conn.transaction():
            await notifyq.enqueue(conn, _email("order-confirmed:1003", "Thank you for your order"))
            raise _OrderFailed
    await stage.commit(_email("order-failed:1003", "Your order failed"))
    row = await stage.board.end_of("order-failed:1003")
    names = {seen.name for seen in stage.board.rows}
    return Told(
        "Nothing to take back: only the apology, enqueued afterwards, went out.",
        (Fact("the rollback takes the email along", "order-confirmed:1003" not in names), *_sent_once(row)),
    )


class _OrderFailed(Exception):
    """The card was declined."""


async def refused(stage: Stage) -> Told:
    """422: the message's own fault."""
    refusal = faults.refused(300, "Invalid 'To' address: 'ada@example'.")
    _meet(stage, "welcome:ada", refusal)
    await stage.commit(_email("welcome:ada", "Welcome"))
    row = await stage.board.end_of("welcome:ada")
    return Told(
        "Dead after one POST, with the provider's words kept for whoever asks.",
        (
            Fact("the email is dead, as rejected", row.state == "dead: rejected"),
            Fact("it is POSTed once", row.posts == 1),
        ),
    )


async def outage(stage: Stage) -> Told:
    """503 twice, then well again."""
    _meet(stage, "receipt:1001", faults.maintenance(), times=2)
    await stage.commit(_email("receipt:1001", "Your receipt"))
    row = await stage.board.end_of("receipt:1001")
    return Told(
        f"Put off {row.events.count('deferred')} times, sent at attempt {row.attempts}.",
        (
            Fact("it is put off twice", row.events.count("deferred") == 2),
            Fact("the third attempt sends it", row.attempts == 3),
            *_sent_once(row),
        ),
    )


async def lost_answer(stage: Stage) -> Told:
    """Accepted, and the connection breaks before the answer comes."""
    _meet(stage, "ticket:1001", faults.Close(record=True))
    await stage.commit(_email("ticket:1001", "Your ticket"))
    row = await stage.board.end_of("ticket:1001")
    return Told(
        "In doubt, asked, found: one POST and one message, where a plain retry makes two.",
        (
            Fact("the lost answer puts it in doubt", "unknown" in row.events),
            Fact("the provider is asked and has it", "found" in row.events),
            Fact("it is POSTed once", row.posts == 1),
            *_sent_once(row),
        ),
    )


@notifyq.task("invoice-the-order")
async def invoice_the_order(ctx: TaskContext, *, order: int) -> None:
    """The story's task: its email commits with its own end."""
    async with ctx.transaction() as conn:
        await notifyq.enqueue(conn, _email(f"invoice:{order}", "Your invoice", on_doubt="hold"))


async def held_invoice(stage: Stage) -> Told:
    """A task makes an email that a person decides about."""
    _meet(stage, "invoice:1001", faults.Close(record=False))
    await stage.commit(invoice_the_order.call(order=1001), key="1001")
    call = await stage.board.end_of(f"{invoice_the_order.name} 1001")
    held = await stage.board.end_of("invoice:1001")
    ordered = await stage.retry(held)
    row = await stage.board.wait("invoice:1001", lambda row: row.is_over and row.events != held.events)
    return Told(
        "The task ran, its email was held with the evidence; a person said yes, and it went out.",
        (
            Fact("the task is done", call.status == "done"),
            Fact("the invoice is held, not sent again", held.status == "held" and held.posts == 1),
            Fact("nothing of it is at the provider", held.messages == 0),
            Fact("the person's order is taken", ordered),
            *_sent_once(row),
        ),
    )


async def killed_worker(stage: Stage) -> Told:
    """Another worker dies during its POST; this process's takes over."""
    key = "order-confirmed:1002"
    await stage.stop_worker()
    async with stage.second_worker() as kill:
        _meet(stage, key, faults.Hang(record=True))
        await stage.commit(_email(key, "Thank you for your order"))
        await stage.board.wait(key, lambda row: row.messages > 0)
        kill()
    stage.fake.release()
    await stage.start_worker(TASKS)
    row = await stage.board.end_of(key)
    return Told(
        "Its lease ran out, the other worker asked, and found it: sent, once.",
        (
            Fact("the row of the killed worker is noticed", "lease ended" in row.events),
            Fact("the provider is asked and has it", "found" in row.events),
            Fact("it is POSTed once", row.posts == 1),
            *_sent_once(row),
        ),
    )


TASKS: Final[tuple[Task[Any], ...]] = (invoice_the_order,)

SCENES: Final = (
    Scene(
        title="A password reset",
        why="Somebody sits and waits for it. The commit rings a bell, and the worker that sleeps wakes at"
        " once: no polling, no broker.",
        play=password_reset,
    ),
    Scene(
        title="A double click",
        why="An order is confirmed twice at the same moment, in two transactions. The email's key is the"
        " order, so the customer must get one email.",
        play=double_click,
    ),
    Scene(
        title="A rollback",
        why="The card is declined after the confirmation was enqueued. Both are in one transaction, so nobody"
        " may ever be thanked for an order that is not there.",
        play=rolled_back,
    ),
    Scene(
        title="A refusal (422)",
        why="The provider says that this message can never be sent. Trying again would only annoy it:"
        " one POST, and the reason is kept.",
        play=refused,
    ),
    Scene(
        title="An outage (503)",
        why="The provider is down for a moment and surely took nothing. The email waits, longer each time,"
        " and goes out when it can.",
        play=outage,
    ),
    Scene(
        title="A lost answer",
        why="The provider takes the email, and the connection breaks before it can say so. Sending again"
        " would send twice; giving up might send never. So it is asked.",
        play=lost_answer,
    ),
    Scene(
        title="A task, and an invoice that must not go twice",
        why="A background task makes an invoice whose policy is 'hold'. Its POST breaks too, but this time"
        " nothing was taken: the provider does not have it, and a person decides.",
        play=held_invoice,
    ),
    Scene(
        title="A killed worker (kill -9)",
        why="A second worker, a process of its own, is killed in the middle of its POST. Nobody is left who"
        " knows what became of the email.",
        play=killed_worker,
    ),
)


def _email(key: str, subject: str, **policy: Any) -> Email:
    return Email(key=key, to=CUSTOMER, subject=subject, text=f"{subject}.", metadata={"story": key}, **policy)


def _meet(stage: Stage, key: str, fault: faults.Fault, *, times: int = 1) -> None:
    """Let *fault* meet the email *key*, and no other."""
    stage.fake.fault(fault, times=times, when=lambda payload: payload.get("Metadata", {}).get("story") == key)


def _sent_once(row: Row) -> tuple[Fact, ...]:
    return (
        Fact("the email ends as sent", row.status == "sent"),
        Fact("the provider has one message of it", row.messages == 1),
    )
