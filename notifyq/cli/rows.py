"""``notifyq list`` and ``notifyq show``: the rows, and the story of one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import click

from notifyq.cli.database import connected
from notifyq.cli.display import STYLES, clean, say, show_json, stamp, table
from notifyq.cli.options import REASONS, STATUSES, RowId, check_word, one_of, row_id
from notifyq.cli.runner import Failed, note, run
from notifyq.cli.story import event_words, now_words, when_words
from notifyq.sqlfiles import query

__all__ = ["list_rows", "show"]

# What `show` prints of a row, beside its state.
_EMAIL_FACTS: Final = (
    ("key", "key"),
    ("stream", "stream"),
    ("sender account", "account"),
    ("message id", "provider_message_id"),
    ("on doubt", "on_doubt"),
    ("priority", "priority"),
    ("not before", "run_after"),
    ("not after", "send_before"),
    ("last error", "last_error"),
    ("uid", "uid"),
)
_TASK_FACTS: Final = (
    ("name", "name"),
    ("key", "key"),
    ("arguments", "args"),
    ("priority", "priority"),
    ("not before", "run_after"),
    ("last error", "last_error"),
)


@click.command("list", short_help="List emails or tasks, newest first.")
@click.argument("lane", type=click.Choice(["emails", "tasks"]), default="emails", required=False)
@click.option("--status", type=one_of(STATUSES))
@click.option("--reason", type=one_of(REASONS), help="Why they are dead.")
@click.option("--key", help="Exactly this key.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@click.option("--before", type=click.IntRange(1), help="Older than this id: the next page.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def list_rows(
    lane: str,
    status: str | None,
    reason: str | None,
    key: str | None,
    limit: int,
    before: int | None,
    as_json: bool,
) -> None:
    """List emails (or tasks), the newest first, a page at a time.

    \b
    Example:
      notifyq list --status held
      notifyq list tasks --reason exhausted --limit 100 --json
    """
    check_word("--status", status, lane.removesuffix("s"), STATUSES)
    check_word("--reason", reason, lane.removesuffix("s"), REASONS)
    run(lambda: _list(lane, as_json, status, reason, key, before, limit))


@click.command(short_help="Show one row and its story.")
@click.argument("named", metavar="ID|KEY")
@click.option("--body", is_flag=True, help="The bodies too.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def show(named: str, body: bool, as_json: bool) -> None:
    """Show one email (or task:7), how it stands, and what happened to it, in order.

    What is no ID is a key: that of an email, else that of the newest call of a task.

    \b
    Example:
      notifyq show 7
      notifyq show order-confirmed:1001
      notifyq show task:7 --json
    """
    run(lambda: _show(named, body, as_json))


async def _list(lane: str, as_json: bool, *conditions: Any) -> None:
    async with connected() as conn:
        name = "read_emails" if lane == "emails" else "read_task_calls"
        rows = [dict(row) for row in await conn.fetch(query(name), *conditions)]
    if as_json:
        show_json([{name: value for name, value in row.items() if name != "seen_at"} for row in rows])
        return
    if lane == "emails":
        table(("id", "status", "when", "tries", "key", "why"), [(row["id"], *_line(row)) for row in rows])
    else:
        table(
            ("id", "name", "status", "when", "tries", "key", "why"),
            [(f"task:{row['id']}", row["name"], *_line(row)) for row in rows],
        )
    if len(rows) == conditions[-1]:
        note(f"there may be more: --before {rows[-1]['id']}")


def _line(row: Mapping[str, Any]) -> tuple[object, ...]:
    why = row["last_error"] if row["status"] not in ("sent", "done") else None
    reason = f"{row['reason']}: {why}" if row["reason"] and why else row["reason"] or why
    return row["status"], when_words(row), f"{row['attempts']}/{row['max_attempts']}", row["key"], reason


async def _show(named: str, body: bool, as_json: bool) -> None:
    async with connected() as conn:
        row, found = await _find(conn, named)
        history = [dict(one) for one in await conn.fetch(query("read_story"), row.lane, row.id)]
    facts = dict(found)
    message = _message(facts.pop("message", None), body)
    if as_json:
        del facts["seen_at"]
        if row.lane == "task":
            facts["args"] = json.loads(facts["args"])
        told = {"message": message} if row.lane == "email" else {}
        show_json({row.lane: facts, **told, "history": history})
        return
    say(f"{row}: {now_words(facts)}", STYLES.get(facts["status"], ""))
    _show_facts(_EMAIL_FACTS if row.lane == "email" else _TASK_FACTS, facts)
    if row.lane == "email":
        _show_message(message)
    _show_story(row.lane, facts, history)


async def _find(conn: Any, named: str) -> tuple[RowId, Any]:
    """The row that *named* means: an ID first, else a key. Raises `Failed`, with where to look."""
    ids = _as_id(named)
    for lane, by_key in (("email", "read_emails"), ("task", "read_task_calls")):
        calls = await conn.fetch(query(by_key), None, None, named, None, 2)
        ids += [RowId(lane, call["id"]) for call in calls[:1]]
        if len(calls) > 1:
            note(f"more calls had this key: `notifyq list tasks --key '{clean(named)}'`")
    for row in ids:
        found = await conn.fetchrow(query("read_email" if row.lane == "email" else "read_task_call"), row.id)
        if found is not None:
            return row, found
    no_id = f"there is no {ids[0]}, and " if ids else ""
    raise Failed(
        f"{no_id}no email and no task has the key {clean(named)!r}: `notifyq list` and `notifyq list tasks` "
        "show the newest"
    )


def _as_id(named: str) -> list[RowId]:
    try:
        return [row_id(named)]
    except ValueError:
        return []


def _show_facts(wanted: tuple[tuple[str, str], ...], facts: Mapping[str, Any]) -> None:
    for label, column in wanted:
        value = facts[column]
        if value is not None:
            say(f"  {label:<14} {stamp(value) if hasattr(value, 'astimezone') else value}")


def _message(stored: str | None, body: bool) -> dict[str, Any] | None:
    """The stored message; its bodies and files as sizes, unless they are asked for."""
    if stored is None:
        return None
    message: dict[str, Any] = json.loads(stored)
    if body:
        return message
    for field in ("text", "html"):
        if isinstance(message.get(field), str):
            message[field] = f"{len(message[field])} characters (--body shows them)"
    if isinstance(message.get("attachments"), list):
        message["attachments"] = [_without_content(one) for one in message["attachments"]]
    return message


def _without_content(attachment: object) -> object:
    if not isinstance(attachment, dict):
        return attachment
    return {name: value for name, value in attachment.items() if name != "content"}


def _show_message(message: dict[str, Any] | None) -> None:
    if message is None:
        say("  message        gone (retention)")
        return
    for field, value in message.items():
        if value in (None, [], {}, ""):
            continue
        lines = _spelt(field, value).splitlines() or [""]
        say(f"  {field:<14} {lines[0]}")
        for line in lines[1:]:
            say(f"  {'':<14} {line}")


def _spelt(field: str, value: Any) -> str:
    if field in ("to", "cc", "bcc", "reply_to") and isinstance(value, list):
        return ", ".join(_mailbox(one) for one in value)
    if field == "from":
        return _mailbox(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _mailbox(address: Any) -> str:
    if not isinstance(address, dict):  # plain SQL can store what can never be sent
        return json.dumps(address)
    name, email = address.get("name"), address.get("email")
    return f"{name} <{email}>" if name else str(email)


def _show_story(lane: str, facts: Mapping[str, Any], history: list[dict[str, Any]]) -> None:
    say("Story", "bold")
    say(f"  {stamp(facts['created_at'])}  enqueued")
    for one in history:
        say(f"  {stamp(one['at'])}  {event_words(lane, one['event'], one['detail'], one['actor'])}")
