"""What does a worker cost that has nothing to do, and does its memory grow with what it has done?

Statements a minute, counted by the server; memory as the proportional set size. Then emails are sent, and
memory is looked at after a tenth of them and after all.
"""

from __future__ import annotations

import asyncio
from typing import Any

from harness.child import Child
from harness.contestants import NOTIFYQ
from harness.report import Bar, Options, Result, answer
from harness.server import Database, database
from harness.sink import SinkProcess

STATEMENTS = """
select coalesce(sum(calls), 0)::int from pg_stat_statements s join pg_database d on d.oid = s.dbid
where d.datname = current_database() and s.query !~ 'pg_stat_statements' and s.toplevel
"""
BATCH = 20_000


async def idle(options: Options) -> Result:
    """Ask it."""
    some, all_of_it = options.pick((100_000, 1_000_000), (3_000, 12_000))
    watched = options.pick(120.0, 20.0)
    with SinkProcess() as sink:
        async with database(options.dsn, "idle") as where:
            NOTIFYQ.do("setup", where.dsn)
            await where.count_statements()
            with NOTIFYQ.work(where.dsn, sink.url) as worker:
                await asyncio.sleep(5.0)
                async with where.connect() as conn:
                    before = await conn.fetchval(STATEMENTS)
                    await asyncio.sleep(watched)
                    statements = (await conn.fetchval(STATEMENTS) - before) * 60 / watched
                at_rest = worker.memory_mb()
                early = await send(worker, where, sink, 0, some)
                late = await send(worker, where, sink, some, all_of_it)
    rows: list[dict[str, Any]] = [
        {"what": "statements a minute, idle", "value": statements},
        {"what": "memory at rest, MB", "value": at_rest},
        {"what": f"memory after {some:,} emails, MB", "value": early},
        {"what": f"memory after {all_of_it:,} emails, MB", "value": late},
    ]
    bars = [
        Bar(name="idle statements a minute", measured=statements, limit=24),
        Bar(name="idle memory (PSS)", measured=at_rest, limit=60, unit="MB"),
        Bar(
            name=f"memory after {all_of_it:,} emails, over that after {some:,}",
            measured=late - early,
            limit=10,
            unit="MB",
        ),
    ]
    return Result(question="idle", rows=rows, bars=bars)


async def send(worker: Child, where: Database, sink: SinkProcess, begin: int, end: int) -> float:
    """Have emails *begin* to *end* sent, and say how much memory the worker uses then."""
    for place in range(begin, end, BATCH):
        count = min(BATCH, end - place)
        sink.reset()
        NOTIFYQ.do("fill", where.dsn, count=count, prefix=f"m{place}")
        sink.wait_for(count)
    await asyncio.sleep(1.0)
    return worker.memory_mb()


if __name__ == "__main__":
    answer(idle)
