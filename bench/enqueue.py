"""How fast can a program enqueue: in bulk on one connection, and one by one beside a bare INSERT?

In bulk with all checks: making each `Email` (Python's checks), and the SQL function's. One by one against
the same row put into the same table by a plain INSERT; the two take turns.
"""

from __future__ import annotations

import json
import time
from typing import Any

from harness.contestants import NOTIFYQ
from harness.report import Bar, Options, Result, answer
from harness.server import database
from harness.stats import median, ratio_of_pairs
from notifyq_system import email

import notifyq

BARE = """
insert into notifyq.emails (key, message) values ($1, $2::text::jsonb) on conflict do nothing returning id
"""
BULK = 1000


async def enqueue(options: Options) -> Result:
    """Ask it."""
    batches, rounds, run = options.pick(50, 8), options.pick(40, 10), 100
    async with database(options.dsn, "enqueue") as where:
        NOTIFYQ.do("setup", where.dsn)
        async with where.connect() as conn:
            bulk, made = await _bulk(conn, batches)
            ours, bare = await _one_by_one(conn, rounds, run)
    ratio = ratio_of_pairs(ours, bare)
    rows: list[dict[str, Any]] = [
        {"way": "bulk, emails made and enqueued", "rows/s": median(bulk)},
        {"way": "bulk, emails made before", "rows/s": median(made)},
        {"way": "one by one, notifyq.enqueue", "rows/s": median(ours), "times bare": str(ratio)},
        {"way": "one by one, a bare INSERT of the same row", "rows/s": median(bare)},
    ]
    bars = [
        Bar(
            name="bulk enqueue on one connection, all checks",
            measured=median(bulk),
            limit=15_000,
            at_most=False,
            unit="rows/s",
        ),
        Bar(name="one by one, times a bare INSERT", measured=ratio.median, limit=0.85, at_most=False),
    ]
    return Result(question="enqueue", rows=rows, bars=bars, data={"bulk": bulk, "ours": ours, "bare": bare})


async def _bulk(conn: Any, batches: int) -> tuple[list[float], list[float]]:
    """Rows a second of each batch: with and without the making of the emails."""
    whole, alone = [], []
    for batch in range(batches):
        start = time.perf_counter()
        emails = [email(f"bulk-{batch}-{number}") for number in range(BULK)]
        made = time.perf_counter()
        await notifyq.enqueue_many(conn, emails)
        end = time.perf_counter()
        whole.append(BULK / (end - start))
        alone.append(BULK / (end - made))
    return whole, alone


async def _one_by_one(conn: Any, rounds: int, run: int) -> tuple[list[float], list[float]]:
    ours, bare = [], []
    for number in range(rounds):
        emails = [email(f"one-{number}-{place}") for place in range(run)]
        start = time.perf_counter()
        for one in emails:
            await notifyq.enqueue(conn, one)
        ours.append(run / (time.perf_counter() - start))
        rows = [(f"bare-{number}-{place}", json.dumps(one.message())) for place, one in enumerate(emails)]
        start = time.perf_counter()
        for key, message in rows:
            await conn.fetch(BARE, key, message)
        bare.append(run / (time.perf_counter() - start))
    return ours, bare


if __name__ == "__main__":
    answer(enqueue)
