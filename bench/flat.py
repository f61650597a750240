"""Does a claim cost more when the table is full, and does a long snapshot hurt?

First 10 million finished rows, a million future rows and 100,000 rows of builders that no worker knows,
beside an almost empty table, in turns. Then 800 emails a second while a snapshot is held for ten minutes
(an analyst's query, a forgotten transaction): vacuum can remove nothing meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from harness.contestants import NOTIFYQ
from harness.plot import lines
from harness.report import Bar, Options, Result, answer
from harness.server import Database, database
from harness.sink import SinkProcess
from harness.stats import percentile, ratio_of_pairs
from harness.traffic import Claim, traced_worker, writers_command

RATE = 800.0
FINISHED = """
insert into notifyq.emails
    (key, message, status, attempts, provider_message_id, sent_at, finished_at, created_at)
select 'done-' || n, null, 'sent', 1, 'm' || n, t, t, t
from generate_series($1::int, $2::int) n, lateral (select now() - n * interval '100 ms' as t) as x
"""
FUTURE = """
insert into notifyq.emails (key, message, run_after)
select 'later-' || n, '{"to": [{"email": "ann@example.com"}], "subject": "s", "text": "t"}',
       now() + interval '1 day' + n * interval '1 s'
from generate_series(1, $1::int) n
"""
UNKNOWN = """
insert into notifyq.emails (key, message)
select 'unknown-' || n, jsonb_build_object('builder', 'nobody.knows.' || n % 10, 'args', '{}'::jsonb)
from generate_series(1, $1::int) n
"""
CHUNK = 500_000
KINDS = ("the claim of a rung email", "the whole claim after it")


async def flat(options: Options) -> Result:
    """Ask it."""
    tables = await full_table(options)
    held = await held_snapshot(options)
    ratios = {kind: ratio_of_pairs(tables["full", kind], tables["empty", kind]) for kind in KINDS}
    before, during, after = (held[name] for name in ("before", "during", "after"))
    rows: list[dict[str, Any]] = [
        *(
            {
                "table": f"{name}: {kind}",
                "claim p50 ms": percentile(tables[name, kind], 0.5),
                "times empty": str(ratios[kind]) if name == "full" else None,
            }
            for kind in KINDS
            for name in ("empty", "full")
        ),
        *(
            {"table": f"held snapshot: {name}", **numbers}
            for name, numbers in held.items()
            if name != "series"
        ),
    ]
    bars = [
        *(
            Bar(name=f"{kind}, from a full table, times an empty one", measured=ratio.median, limit=1.2)
            for kind, ratio in ratios.items()
        ),
        Bar(
            name="held snapshot: rate, times the rate before",
            measured=during["emails/s"] / before["emails/s"],
            limit=0.9,
            at_most=False,
        ),
        Bar(name="held snapshot: claim p99", measured=during["claim p99 ms"], limit=20, unit="ms"),
        Bar(
            name="claim p50 at the end of two minutes after release, times before",
            measured=after["claim p50 ms"] / before["claim p50 ms"],
            limit=1.5,
        ),
    ]
    svg = lines("Claim while a snapshot is held: p50 and p99 a second", held["series"], "s", "ms")
    return Result(
        question="flat",
        rows=rows,
        bars=bars,
        svg=svg,
        data={f"{name}, {kind}": medians for (name, kind), medians in tables.items()},
    )


async def full_table(options: Options) -> dict[tuple[str, str], list[float]]:
    """Median milliseconds of a claim, round by round: of an almost empty and of a full table.

    An email that the bell rang for is brought by a first look; a whole claim, which finds nothing, follows.
    """
    finished = options.pick(10_000_000, 1_000_000)
    other = options.pick((1_000_000, 100_000), (100_000, 20_000))
    medians: dict[tuple[str, str], list[float]] = {
        (name, kind): [] for name in ("empty", "full") for kind in KINDS
    }
    with SinkProcess() as sink:
        async with (
            database(options.dsn, "flat_empty") as empty,
            database(options.dsn, "flat_full") as full,
        ):
            NOTIFYQ.do("setup", empty.dsn)
            NOTIFYQ.do("setup", full.dsn)
            await _fill(full, finished, *other)
            for number in range(options.pick(15, 3)):
                for name, where in (("empty", empty), ("full", full)):
                    with traced_worker(where, sink.url) as (_, trace):
                        sink.reset()
                        count = options.pick(200, 80)
                        NOTIFYQ.do("produce", where.dsn, prefix=f"r{number}", count=count, gap=0.012)
                        sink.wait_for(count)
                    for kind, brought in zip(KINDS, (True, False), strict=True):
                        times = [claim.ms for claim in trace.claims if bool(claim.uids) == brought]
                        medians[name, kind].append(percentile(times, 0.5))
    return medians


async def _fill(where: Database, finished: int, future: int, unknown: int) -> None:
    async with where.connect() as conn:
        await conn.execute("set synchronous_commit = off")
        for begin in range(1, finished + 1, CHUNK):
            await conn.execute(FINISHED, begin, min(begin + CHUNK - 1, finished))
        await conn.execute(FUTURE, future)
        await conn.execute(UNKNOWN, unknown)
        await conn.execute("vacuum analyze notifyq.emails")
        await conn.execute("checkpoint")


async def held_snapshot(options: Options) -> dict[str, Any]:
    """What the claims and the rate were before, during and after a snapshot was held."""
    phases = options.pick((30.0, 600.0, 120.0), (6.0, 30.0, 8.0))
    with SinkProcess() as sink:
        async with database(options.dsn, "flat_held") as where:
            NOTIFYQ.do("setup", where.dsn)
            command = writers_command(where, prefix="h", writers=16, rate=RATE, seconds=sum(phases) + 3.0)
            with traced_worker(where, sink.url) as (_, trace):
                writing = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: ASYNC220
                sink.wait_for(1)
                marks = await _phases(where, phases)
                output = await asyncio.to_thread(writing.communicate)
                written = len(json.loads(output[0])["sent"])
                sink.wait_for(written)
                arrivals = sink.times()
    return _phase_rows(trace.claims, arrivals, marks)


async def _phases(where: Database, phases: Sequence[float]) -> list[float]:
    """Live through the phases; the monotonic second at which each began, and the end."""
    before, during, after = phases
    marks = [time.monotonic()]
    await asyncio.sleep(before)
    async with where.connect() as conn:
        transaction = conn.transaction(isolation="repeatable_read")
        await transaction.start()
        await conn.fetchval("select count(*) from notifyq.gates")
        marks.append(time.monotonic())
        await asyncio.sleep(during)
        await transaction.rollback()
    marks.append(time.monotonic())
    await asyncio.sleep(after)
    return [*marks, time.monotonic()]


def _phase_rows(claims: list[Claim], arrivals: list[float], marks: list[float]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, name in enumerate(("before", "during", "after")):
        begin, end = marks[number], marks[number + 1]
        since = end - 10 if name == "after" else begin  # "back to normal" is judged at the end
        times = [claim.ms for claim in claims if max(begin, since) <= claim.start < end and claim.uids]
        found[name] = {
            "emails/s": sum(begin <= at < end for at in arrivals) / (end - begin),
            "claim p50 ms": percentile(times, 0.5),
            "claim p99 ms": percentile(times, 0.99),
        }
    by_second: dict[int, list[float]] = {}
    for claim in claims:
        by_second.setdefault(int(claim.start - marks[0]), []).append(claim.ms)
    found["series"] = {
        name: [(float(second), percentile(ms, share)) for second, ms in sorted(by_second.items())]
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }
    return found


if __name__ == "__main__":
    answer(flat)
