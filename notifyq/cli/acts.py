"""``notifyq retry``, ``cancel`` and ``resolve``: what a person may do, fenced by what the person saw."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

from notifyq.cli.database import connected
from notifyq.cli.display import say
from notifyq.cli.options import REASONS, ROW, RowId, check_word, one_of
from notifyq.cli.runner import Failed, note, run
from notifyq.sqlfiles import query

__all__ = ["cancel", "resolve", "retry"]

BATCH: Final = 500

# Why a row of this state did not move: (what was wanted, lane) → status → words.
_WHY: Final[Mapping[tuple[str, str], Mapping[str, str]]] = {
    ("retry", "email"): {
        "pending": "is pending already",
        "processing": "is under way at this moment",
        "doubt": "may have been sent; the provider is being asked, and it goes out if the answer is no",
        "sent": "is sent: to send it again, enqueue it with a new key",
    },
    ("retry", "task"): {
        "pending": "is pending already",
        "processing": "is running at this moment",
        "done": "is done: to run it again, enqueue it again",
    },
    ("cancel", "email"): {
        "processing": "is under way at this moment: try again in a few seconds",
        "doubt": "may have been sent already, and waits for a person whatever the answer is",
        "sent": "is sent: nothing can call it back",
        "dead": "is dead already",
    },
    ("cancel", "task"): {
        "processing": "is running at this moment",
        "done": "is done",
        "dead": "is dead already",
    },
    ("resolve", "email"): {
        "pending": "is pending: only a held email can be resolved",
        "processing": "is under way: only a held email can be resolved",
        "doubt": "is being asked about: only a held email can be resolved",
        "sent": "is sent already",
        "dead": "is dead: only a held email can be resolved",
    },
}


@click.command(short_help="Send or run again what is dead or held.")
@click.argument("rows", metavar="[ID]...", nargs=-1, type=ROW)
@click.option(
    "--reason",
    type=one_of(REASONS),
    help="All dead ones with this reason.",
)
@click.option("--tasks", is_flag=True, help="With --reason: tasks, not emails.")
@click.option("--yes", is_flag=True, help="With --reason: do not ask.")
def retry(rows: tuple[RowId, ...], reason: str | None, tasks: bool, yes: bool) -> None:
    """Send again what is dead or held, at once, whatever time it had been put off to.

    What may have been sent is asked about once more first.

    \b
    Example:
      notifyq retry 7 task:3
      notifyq retry --reason rejected      # all of them, after asking
    """
    if bool(rows) == bool(reason):
        raise click.UsageError("give IDs, or --reason")
    if reason is None:
        run(lambda: _act("retry", rows))
    lane = "task" if tasks or reason not in REASONS["email"] else "email"
    check_word("--reason", reason, lane, REASONS)
    run(lambda: _retry_all(lane, reason, yes))


@click.command(short_help="Do not send or run it.")
@click.argument("rows", metavar="ID...", nargs=-1, required=True, type=ROW)
def cancel(rows: tuple[RowId, ...]) -> None:
    """Do not send it. An email that may have been sent is not sent again: a person decides then.

    \b
    Example:
      notifyq cancel 7 task:3
    """
    run(lambda: _act("cancel", rows))


@click.command(short_help="A held email was sent: here is the proof.")
@click.argument("row", metavar="ID", type=ROW)
@click.argument("message_id")
def resolve(row: RowId, message_id: str) -> None:
    """Say that a held email was sent: MESSAGE_ID is the provider's, as its own pages show it.

    \b
    Example:
      notifyq resolve 7 0a129aee-e1cd-480d-b08d-4f48548ff48d
    """
    if row.lane != "email":
        raise click.UsageError("only an email can be resolved")
    run(lambda: _act("resolve", (row,), message_id))


async def _act(verb: str, rows: tuple[RowId, ...], *more: str) -> int:
    changed = 0
    async with connected() as conn:
        for row in dict.fromkeys(rows):
            changed += await _act_on(conn, verb, row, *more)
    return 0 if changed else 1


async def _act_on(conn: Any, verb: str, row: RowId, *more: str) -> bool:
    seen = await conn.fetchrow(query(f"read_{row.lane}_fence"), row.id)
    if seen is None:
        note(f"there is no {row}")
        return False
    answer = await _as_person(conn, f"act_{verb}_{row.lane}", row.id, *more, seen["claim_seq"])
    if not answer:
        note(f"there is no {row}")
    elif answer[0]["changed"]:
        say(_told(verb, row, seen["status"], answer[0]["status"]))
        return True
    else:
        note(f"{row} {_why(verb, row, seen, answer[0])}; nothing was changed")
    return False


async def _as_person(conn: Any, name: str, *args: Any) -> list[Any]:
    async with conn.transaction():
        await conn.fetch(query("act_as"), _person())
        rows: list[Any] = await conn.fetch(query(name), *args)
        return rows


def _person() -> str:
    """The user's name in the operating system."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"uid {os.getuid()}"


def _told(verb: str, row: RowId, before: str, after: str) -> str:
    if before == after == "doubt":
        return f"{row} may have been sent; it will not be sent again without a person"
    return f"{row} was {before}, is now {after}" + (" (cancelled)" if verb == "cancel" else "")


def _why(verb: str, row: RowId, seen: Any, answer: Any) -> str:
    if answer["id"] != row.id:
        return f"has a key that {row.lane}:{answer['id']} is active with ({answer['status']})"
    if answer["status"] != seen["status"]:
        return f"has moved on meanwhile and is {answer['status']}"
    if seen["purged"] and verb == "retry" and answer["status"] in ("dead", "held"):
        return "ended so long ago that its message is gone (retention)"
    return _WHY[verb, row.lane].get(answer["status"], f"is {answer['status']}, or has moved on meanwhile")


async def _retry_all(lane: str, reason: str, yes: bool) -> int:
    async with connected() as conn:
        found = await conn.fetchrow(query(f"read_dead_{lane}s_of"), reason)
        if not found["rows"]:
            raise Failed(f"no {lane} is dead because it is {reason} (or their messages are gone)")
        question = f"Retry {found['rows']} {lane}s that are dead ({reason})?"
        if not yes and sys.stdin.isatty() and not click.confirm(question, err=True):
            return 1
        changed = await _retry_in_batches(conn, lane, reason, found["last"], found["rows"])
    click.echo(f"{changed} of {found['rows']} {lane}s are pending again")
    return 0 if changed else 1


async def _retry_in_batches(conn: Any, lane: str, reason: str, last: int, total: int) -> int:
    """In the order of ids and up to the last that was seen, so that what dies again is not retried twice."""
    done = changed = position = 0
    while True:
        batch = await _as_person(conn, f"act_retry_dead_{lane}s", reason, position, last, BATCH)
        if not batch:
            return changed
        done += len(batch)
        changed += sum(row["changed"] for row in batch)
        position = max(row["id"] for row in batch)
        if total > BATCH:
            note(f"{done} of {total} looked at")
