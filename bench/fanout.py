"""Does one email wake one worker, or all of them?

20 idle workers, one email: the claim statements that it causes. Then 1,000 a second over the 20: claims an
email. Counted by the server (pg_stat_statements), so that nothing of ours can be forgotten.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from harness.contestants import NOTIFYQ
from harness.report import Bar, Options, Result, answer
from harness.server import database
from harness.sink import SinkProcess
from harness.stats import percentile
from harness.traffic import write
from notifyq_system import email

import notifyq

WORKERS = 20
PROCESSES = 4
SETTLE = 0.25
CLAIMS = """
select coalesce(sum(calls), 0)::int from pg_stat_statements s join pg_database d on d.oid = s.dbid
where d.datname = current_database() and s.toplevel
  and s.query ~ 'notifyq\\.claim_emails|update notifyq\\.emails.*claimed_by'
"""


async def fanout(options: Options) -> Result:
    """Ask it."""
    system = replace(NOTIFYQ, variant=f"workers={WORKERS // PROCESSES}", slots=20)
    async with database(options.dsn, "fanout") as where:
        system.do("setup", where.dsn)
        await where.count_statements()
        with ExitStack() as open_things:
            sink = open_things.enter_context(SinkProcess())
            for _ in range(PROCESSES):
                open_things.enter_context(system.work(where.dsn, sink.url))
            await asyncio.sleep(2.0)
            async with where.connect() as conn:
                one = [await _claims_of_one(conn, sink, f"one{n}") for n in range(options.pick(40, 10))]
                quiet = await _claims_in(conn, 3.0)
                before = await conn.fetchval(CLAIMS)
                written = write(where, prefix="many", rate=1000.0, seconds=options.pick(20.0, 3.0))
                sink.wait_for(len(written.sent) + len(one))
                busy = (await conn.fetchval(CLAIMS) - before) / len(written.sent)
    rows: list[dict[str, Any]] = [
        {"what": "one email, claims in all: median", "claims": percentile(one, 0.5)},
        {"what": "one email, claims in all: most", "claims": max(one)},
        {"what": f"no email, claims of all 20 in {SETTLE} s", "claims": quiet / 3.0 * SETTLE},
        {"what": f"{written.rate:,.0f}/s, claims an email", "claims": busy},
    ]
    bars = [
        Bar(name="20 idle workers, one email: claim statements", measured=percentile(one, 0.5), limit=2),
        Bar(name="1,000/s over 20 workers: claims an email", measured=busy, limit=1.2),
    ]
    return Result(question="fanout", rows=rows, bars=bars, data={"one": one})


async def _claims_of_one(conn: Any, sink: SinkProcess, key: str) -> int:
    arrived, before = sink.count(), await conn.fetchval(CLAIMS)
    await notifyq.enqueue(conn, email(key))
    sink.wait_for(arrived + 1)
    await asyncio.sleep(SETTLE)
    return int(await conn.fetchval(CLAIMS) - before)


async def _claims_in(conn: Any, seconds: float) -> int:
    before = await conn.fetchval(CLAIMS)
    await asyncio.sleep(seconds)
    return int(await conn.fetchval(CLAIMS) - before)


if __name__ == "__main__":
    answer(fanout)
