"""``notifyq status``: does mail flow, and does anything need a person?"""

from __future__ import annotations

from typing import Any

import click

from notifyq.cli.database import connected
from notifyq.cli.display import say, show_json
from notifyq.cli.runner import run
from notifyq.cli.verdict import Trouble, gate_words, needs_person, summary, troubles
from notifyq.headline import Facts, headline, read_facts
from notifyq.sqlfiles import query

__all__ = ["status"]


@click.command(short_help="Does mail flow?")
@click.option("--check", is_flag=True, help="Exit 1 if something needs a person (for monitoring).")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def status(check: bool, as_json: bool) -> None:
    """Say whether mail flows, what waits and why, and what needs a person: as the page does.

    Exit code 0 also when mail does not flow, unless --check is given: then 1 if something waits for a
    person (! below). Finished rows are not scanned, so it is quick whatever the size of the table.

    \b
    Example:
      notifyq status
      notifyq status --check || mail-the-person-on-call
    """
    run(lambda: _status(check, as_json))


async def _status(check: bool, as_json: bool) -> int:
    async with connected() as conn, conn.transaction(isolation="repeatable_read", readonly=True):
        facts = await read_status(conn)
        judged = read_facts(await conn.fetchrow(query("page_pulse")))
    found = troubles(facts, judged)
    if as_json:
        said = headline(judged)
        told = {"headline": said.words, "flows": said.flows, "needs_a_person": needs_person(found)}
        show_json(told | facts | _told(found))
    else:
        _show(facts, judged, found)
    return 1 if check and needs_person(found) else 0


async def read_status(conn: Any) -> dict[str, Any]:
    """Everything that `notifyq.cli.verdict` judges by, as it is printed with ``--json``.

    Durations are seconds. Example: ``(await read_status(conn))["emails"]["pending"]``
    """

    async def one(name: str) -> dict[str, Any]:
        return dict(await conn.fetchrow(query(name)))

    async def many(name: str) -> list[dict[str, Any]]:
        return [dict(row) for row in await conn.fetch(query(name))]

    emails = await one("read_pending_emails")
    for name in ("working", "doubtful", "held", "dead", "ended"):
        emails |= await one(f"read_{name}_emails")
    emails |= {
        "oldest_due": await conn.fetchval(query("read_oldest_due_email")),
        "dead_by_reason": {row["reason"]: row["emails"] for row in await many("read_dead_emails_by_reason")},
        "misconfigured_because": await many("read_misconfigured_emails") if emails["misconfigured"] else [],
        "sent_more_than_once": [row["id"] for row in await many("read_duplicates")],
    }
    dead_tasks = {row["reason"]: row["tasks"] for row in await many("read_dead_tasks")}
    tasks = await one("read_tasks") | await one("read_ended_tasks")
    return {
        "schema": (await one("versions"))["version"],
        "emails": emails,
        "tasks": tasks | {"dead": sum(dead_tasks.values()), "dead_by_reason": dead_tasks},
        "gates": await many("read_gates"),
        "workers": await many("read_workers"),
        "worker_connections": await conn.fetchval(query("read_worker_connections")),
        "unserved_names": await many("unserved_names"),
    }


def _told(found: list[Trouble]) -> dict[str, Any]:
    return {"troubles": [{"what": one.text, "person": one.person, "stops": one.stops} for one in found]}


_COLOURS = {"good": "bold green", "wait": "bold yellow", "person": "bold magenta", "bad": "bold red"}


def _show(facts: dict[str, Any], judged: Facts, found: list[Trouble]) -> None:
    said = headline(judged)
    say(f"{said.words}{':' if found else '.'}", _COLOURS[said.tone])
    for trouble in found:
        say(f"  {'!' if trouble.person else '-'} {trouble.text}", "bold red" if trouble.person else "yellow")
    for line in summary(facts, judged):
        say(line)
    for gate in facts["gates"]:
        say(gate_words(gate), "" if gate["state"] == "open" else "bold yellow")
