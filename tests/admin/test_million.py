"""A million rows are as quick as a thousand: no list and no count walks the table."""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from outbox import until
from visitor import Rows, Visitor

from notifyq.sqlfiles import query

MANY = Path(__file__).with_name("many.sql").read_text(encoding="utf-8")
TOP = 2**63 - 1
NOTHING = (None, None, None, None, None)
FIRST_BYTE = 0.100

# Every statement that a list or the overview makes, with arguments that make it work hard.
STATEMENTS: list[tuple[str, tuple[Any, ...]]] = [
    ("page_pulse", ()),
    ("page_to_mend", ()),
    ("page_to_set_up", ()),
    ("page_kept", ()),
    ("page_changed", (1,)),
    ("page_emails_newest", (TOP, 0, *NOTHING, 51, 10000)),
    ("page_emails_newest", (TOP, 0, None, None, None, None, "nothing", 51, 10000)),
    ("page_emails_newest", (TOP, 0, None, None, "nothing", None, None, 51, 10000)),
    ("page_emails_newest", (TOP, 0, "sent", None, None, None, None, 51, 10000)),
    ("page_emails_reach", (TOP, 0, 9999)),
    ("page_emails_failed", (TOP, 0, "dead", None, None, None, None, 51, 10000)),
    ("page_emails_failed", (TOP, 0, "dead", "expired", None, None, None, 51, 10000)),
    ("page_emails_failed_reach", (TOP, 0, 9999, "dead")),
    ("page_emails_failed", (TOP, 0, "held", None, None, None, None, 51, 10000)),
    ("page_emails_under_way", (TOP, 0, "pending", None, None, None, None, 51, 10000)),
    ("page_emails_under_way", (TOP, 0, "pending", "setup", None, None, None, 51, 10000)),
    ("page_emails_to", (TOP, 0, *NOTHING, 51, 10000, "user7@example.com", 2000)),
    ("page_emails_to", (TOP, 0, *NOTHING, 51, 10000, "nobody@example.com", 2000)),
    ("page_emails_to", (TOP, 0, "dead", "failed", None, None, None, 51, 10000, "a@example.com", 2000)),
    ("page_emails_failed", (TOP, 0, "dead", "failed", None, None, None, 51, 10000)),
    ("page_email_many", ("pending", 5000)),
    ("page_email_many", ("doubt", 5000)),
    ("page_emails_under_way", (TOP, 0, "doubt", None, None, None, None, 51, 10000)),
    ("page_emails_key", ("order:7", None)),
    ("page_email", (7,)),
    ("page_history", (7, "email")),
    ("page_tasks_newest", (TOP, 0, None, None, None, None, 51, 10000)),
    ("page_tasks_indexed", (TOP, 0, "dead", None, None, None, 51, 10000)),
]

PATHS = [
    "",
    "emails",
    "emails?status=sent",
    "emails?status=dead",
    "emails?status=dead&reason=exhausted",
    "emails?status=dead&reason=expired",
    "emails?status=pending",
    "emails?status=pending&reason=setup",
    "emails?status=pending&builder=nothing",
    "emails?status=dead&reason=failed",
    "emails?status=dead&recipient=nobody@example.com",
    "emails?status=held",
    "emails?recipient=user7@example.com",
    "emails?recipient=nobody@example.com",
    "emails?key=order:500000",
    "emails?key=nothing",
    "emails?tag=invoice",
    "emails?tag=nothing",
    "emails?since=10h&until=9h",
    "emails?before=500000",
    "emails/500000",
    "tasks",
    "badge.json",
]


async def filled(rows: Rows, count: int) -> None:
    """*count* emails, and statistics as autovacuum would have them."""
    await rows.pool.execute(MANY.replace("$1", str(count)), timeout=300)
    await rows.pool.execute("vacuum analyze notifyq.emails", timeout=120)
    await rows.pool.execute("vacuum analyze notifyq.history", timeout=120)


async def test_no_statement_of_the_page_walks_a_table(rows: Rows) -> None:
    """With the plan that is kept for any arguments, which is what a pool comes to after a while."""
    await filled(rows, 100_000)

    for name, arguments in STATEMENTS:
        plan, nodes = await planned(rows, name, arguments)
        walked = [node for node in nodes if node["Node Type"] == "Seq Scan"]
        walked = [node for node in walked if node["Relation Name"] in ("emails", "tasks", "history")]
        # A table of no rows is not worth an index; the tasks are empty here.
        assert [node for node in walked if node["Relation Name"] != "tasks"] == [], (name, arguments, plan)
        read = sum(node["Actual Rows"] * node["Actual Loops"] for node in nodes if "Relation Name" in node)
        assert read <= 45_000, (name, arguments, read)


async def planned(rows: Rows, name: str, arguments: tuple[Any, ...]) -> tuple[str, list[dict[str, Any]]]:
    """The plan of a statement as it was carried out, and all its nodes."""
    async with rows.pool.acquire() as conn:
        await conn.execute("set plan_cache_mode = force_generic_plan")
        text = await conn.fetchval(f"explain (analyze, format json) {query(name)}", *arguments)
        await conn.execute("reset plan_cache_mode")

    def below(node: dict[str, Any]) -> list[dict[str, Any]]:
        return [node, *(one for child in node.get("Plans", ()) for one in below(child))]

    return text, below(json.loads(text)[0]["Plan"])


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_the_first_byte_of_a_million_rows_comes_within_100_ms(
    rows: Rows, visitor: Visitor, record_property: Any
) -> None:
    """The median of each list and of the overview, once the charts have been counted."""
    await filled(rows, 1_000_000)
    await until(lambda: charts_are_counted(visitor), seconds=60, what="the charts are counted")
    took = {path: await first_byte(visitor, path) for path in PATHS}

    for path, seconds in took.items():
        print(f"{seconds * 1000:7.1f} ms  /{path}")
        record_property(path or "/", seconds)
    assert {path: seconds for path, seconds in took.items() if seconds > FIRST_BYTE} == {}


async def charts_are_counted(visitor: Visitor) -> bool:
    """The first page of a process counts a day, behind the page."""
    return "still counting" not in (await visitor.get("")).text


async def first_byte(visitor: Visitor, path: str) -> float:
    """The median of nine."""
    times = []
    for _ in range(9):
        started = time.perf_counter()
        async with visitor.session.get(visitor.url + path) as answer:
            await answer.content.readany()
            times.append(time.perf_counter() - started)
            await answer.read()
        assert answer.status == 200
    return median(times)
