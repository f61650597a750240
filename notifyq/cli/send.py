"""``notifyq send`` and ``notifyq enqueue``: put one email, or one call of a task, into the outbox."""

from __future__ import annotations

import json
import mimetypes
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import anyio
import click

from notifyq.address import Address
from notifyq.attachment import Attachment
from notifyq.builders import DeferredEmail
from notifyq.cli.database import connected
from notifyq.cli.display import clean, say, show_json
from notifyq.cli.options import DURATION, PAIR, TIME, json_or_text, pairs
from notifyq.cli.runner import note, run
from notifyq.enqueue import Enqueued
from notifyq.enqueue import enqueue as enqueue_email
from notifyq.errors import InvalidEmail
from notifyq.headline import read_facts
from notifyq.message import Email
from notifyq.sqlfiles import query

__all__ = ["enqueue", "send"]

ENDED: Final = ("sent", "dead", "held")
FIRST_LOOK, LAST_LOOK = 0.02, 1.0
# What belongs to the row, not to the message, in JSON as in the flags.
_ROW_FIELDS: Final = ("key", "run_after", "send_before", "priority", "on_doubt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """How the answer is given: as JSON, and after how long a wait for the end."""

    as_json: bool
    wait: bool
    timeout: float


@dataclass(frozen=True, slots=True)
class Order:
    """What to enqueue, and what goes beside it (a finished email brings its own key and times)."""

    email: Any
    row: Mapping[str, Any] = field(default_factory=dict)


@click.command(short_help="Enqueue one email, from flags or JSON.")
@click.argument("source", type=click.Choice(["-"]), required=False, metavar="[-]")
@click.option("--to", multiple=True, metavar="ADDRESS", help='"ann@example.com" or "Ann <ann@example.com>".')
@click.option("--from", "sender", metavar="ADDRESS", help="Default: EMAIL_FROM of the worker.")
@click.option("--subject", help="One line.")
@click.option("--text", help="The plain text.")
@click.option("--html", help="The HTML.")
@click.option("--key", help="Which email this is: one key is sent once, ever.")
@click.option("--cc", multiple=True, metavar="ADDRESS")
@click.option("--bcc", multiple=True, metavar="ADDRESS")
@click.option("--reply-to", multiple=True, metavar="ADDRESS")
@click.option("--tag", help="Postmark's tag.")
@click.option("--stream", help="Postmark's message stream; default: outbound.")
@click.option("--metadata", multiple=True, type=PAIR)
@click.option("--header", multiple=True, type=PAIR)
@click.option("--attach", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--priority", type=int, help="Lower goes first; below 0 is urgent.")
@click.option("--run-after", type=TIME, help="Not earlier: +10m, or 2030-01-31T09:00+01:00.")
@click.option("--send-before", type=TIME, help="Not later.")
@click.option("--on-doubt", type=click.Choice(["ask", "resend", "hold"]), help="When its fate is unknown.")
@click.option("--wait", is_flag=True, help="Wait until it has ended; exit 1 if it was not sent.")
@click.option("--timeout", type=DURATION, default=60.0, show_default=True, help="The longest --wait.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def send(source: str | None, wait: bool, timeout: float, as_json: bool, **flags: Any) -> None:
    """Enqueue one email. With "-", the message is JSON on stdin: that of the SQL function, with "key".

    The key is the business rule. An email with a known key is not enqueued again: the answer then names
    the row that exists, with created = false.

    \b
    Example:
      notifyq send --key welcome:42 --to ann@example.com --from shop@example.com \\
          --subject Welcome --text "Hello Ann" --wait
      echo '{"key": "k1", "to": [{"email": "a@example.com"}], "subject": "s", "text": "t"}' \\
          | notifyq send --json -
    """
    try:
        order = _from_flags(flags) if source is None else _from_json(sys.stdin.read(), flags)
    except InvalidEmail as error:
        raise click.UsageError(str(error)) from None
    answering = Answering(as_json=as_json, wait=wait, timeout=timeout)
    run(lambda: _send(order, answering))


@click.command(short_help="Enqueue one call of a task.")
@click.argument("name")
@click.option("--arg", multiple=True, type=PAIR, help="An argument. What parses as JSON is JSON, else text.")
@click.option("--key", help="One active call at a time with this key.")
@click.option("--run-after", type=TIME, help="Not earlier: +10m, or 2030-01-31T09:00+01:00.")
@click.option("--priority", type=int, default=0, show_default=True, help="Lower goes first.")
@click.option(
    "--max-attempts",
    type=click.IntRange(1),
    help="Default: the task's own.",
)
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def enqueue(
    name: str,
    arg: tuple[tuple[str, str], ...],
    key: str | None,
    run_after: datetime | None,
    priority: int,
    max_attempts: int | None,
    as_json: bool,
) -> None:
    """Enqueue one call of the task NAME. With a key that an active call has, that call is the answer.

    \b
    Example:
      notifyq enqueue resize --arg photo_id=7 --arg size=large --key resize:7
    """
    args = json.dumps({k: json_or_text(v) for k, v in pairs("--arg", arg).items()}, ensure_ascii=False)
    run(lambda: _enqueue(as_json, name, args, key, run_after, priority, max_attempts))


def _from_flags(flags: Mapping[str, Any]) -> Order:
    email = Email(
        key=flags["key"] or "",
        to=_addresses("to", flags["to"]),
        subject=flags["subject"] if flags["subject"] is not None else _required("--subject"),
        text=flags["text"],
        html=flags["html"],
        from_=None if flags["sender"] is None else _address("from", flags["sender"]),
        cc=_addresses("cc", flags["cc"]),
        bcc=_addresses("bcc", flags["bcc"]),
        reply_to=_addresses("reply_to", flags["reply_to"]),
        headers=pairs("--header", flags["header"]),
        tag=flags["tag"],
        metadata=pairs("--metadata", flags["metadata"]),
        stream=flags["stream"],
        attachments=[_attachment(path) for path in flags["attach"]],
        **{name: flags[name] for name in _ROW_FIELDS[1:] if flags[name] is not None},
    )
    return Order(email)


def _required(flag: str) -> Any:
    raise click.UsageError(f"{flag} is required (or the whole message as JSON on stdin, with -)")


def _address(field: str, text: str) -> Address:
    try:
        return Address.parse(text)
    except InvalidEmail as error:
        raise InvalidEmail(field, error.rule) from None


def _addresses(field: str, texts: tuple[str, ...]) -> list[Address]:
    return [_address(f"{field}[{index}]", text) for index, text in enumerate(texts)]


def _attachment(path: Path) -> Attachment:
    kind, encoding = mimetypes.guess_type(path.name)
    return Attachment(
        path.name, kind if kind and not encoding else "application/octet-stream", path.read_bytes()
    )


def _from_json(text: str, flags: Mapping[str, Any]) -> Order:
    """The message of the SQL function, with the row's fields beside it; of the flags only those count."""
    surplus = [name for name, given in flags.items() if given not in (None, ()) and name not in _ROW_FIELDS]
    if surplus:
        raise click.UsageError(f"the message comes from stdin: leave out --{surplus[0].replace('_', '-')}")
    try:
        message = json.loads(text)
    except ValueError:
        raise click.UsageError("stdin is not JSON") from None
    if not isinstance(message, dict):
        raise click.UsageError("stdin must hold one JSON object")
    row = {name: message.pop(name) for name in _ROW_FIELDS if name in message}
    row |= {name: flags[name] for name in _ROW_FIELDS if flags[name] is not None}
    for name in ("run_after", "send_before"):
        if isinstance(row.get(name), str):
            row[name] = TIME.convert(row[name], None, None)
    if "builder" in message:
        return _deferred(message, row)
    return Order(Email.from_message(row.pop("key", ""), message, **row))


def _deferred(message: dict[str, Any], row: dict[str, Any]) -> Order:
    """A builder's call. The database checks it, since the builder is known to the workers only."""
    email = DeferredEmail(
        builder=message["builder"],
        args=message.get("args", {}),
        stream=message.get("stream"),
        priority=row.pop("priority", 0),
        on_doubt=row.pop("on_doubt", "ask"),
    )
    return Order(email, {"key": "", **row})


async def _send(order: Order, answering: Answering) -> int:
    async with connected() as conn:
        enqueued = await enqueue_email(conn, order.email, **order.row)
        if not answering.wait:
            _answer("email", enqueued, answering.as_json)
            return 0
        if not read_facts(await conn.fetchrow(query("page_pulse"))).workers:
            note("no worker is running, so nothing is sent: start `notifyq worker` (or `notifyq dev`)")
        end = await _wait_for_end(conn, enqueued.id, answering.timeout)
    facts = {"id": enqueued.id, "created": enqueued.created, **end}
    if answering.as_json:
        show_json(facts)
    else:
        _answer("email", enqueued, as_json=False)
        ended = end["status"] + (f" ({end['reason']})" if end["reason"] else "")
        if end["status"] in ENDED:
            say(f"{ended}: {end['provider_message_id'] or end['last_error'] or ''}".rstrip(": "))
        else:
            say(f"still {ended} after {answering.timeout:g} s")
    return 0 if end["status"] == "sent" else 1


async def _wait_for_end(conn: Any, email_id: int, timeout: float) -> dict[str, Any]:
    """Look at the row until it has ended. The bell tells of work, not of ends, so it is looked at."""
    deadline = time.monotonic() + timeout
    pause = FIRST_LOOK
    while True:
        row = await conn.fetchrow(query("read_email_end"), email_id)
        if row is None or row["status"] in ENDED or time.monotonic() >= deadline:
            return dict(row) if row else {"status": "gone", "reason": None}
        await anyio.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(LAST_LOOK, 1.5 * pause)


async def _enqueue(as_json: bool, *call: Any) -> None:
    async with connected() as conn:
        name, args, key, run_after, priority, max_attempts = call
        row = await conn.fetchrow(query("enqueue_task"), name, args, key, run_after, priority, max_attempts)
        _answer("task", Enqueued(row["id"], row["created"]), as_json)


def _answer(lane: str, enqueued: Enqueued, as_json: bool) -> None:
    if as_json:
        show_json({"id": enqueued.id, "created": enqueued.created})
        return
    name = f"task:{enqueued.id}" if lane == "task" else f"{enqueued.id}"
    created = str(enqueued.created).lower()
    why = "" if enqueued.created else "  (the key is known: nothing was enqueued)"
    click.echo(clean(f"id {name}  created {created}{why}"))
