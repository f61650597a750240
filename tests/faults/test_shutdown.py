"""SIGTERM at random moments of a busy run: a prompt, clean end that costs no row an attempt."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from pathlib import Path

import asyncpg
import pytest
from canary_email import an_email
from checker import CANARY_TOKEN, canaries_in, check, watch
from processes import zygote

from notifyq import enqueue_many
from notifyq.testing import FakePostmark

GRACE = 2.0
SETTINGS = {"slots": 20, "post_budget": 1.0, "lease": 4.0, "settle": 2.0, "grace": GRACE, "poll": 0.5}
RATE = 200


@pytest.mark.timeout(120)
async def test_ten_terminations_in_a_busy_run_are_prompt_and_cost_nothing(
    notifyq_dsn: str, tmp_path: Path
) -> None:
    """The short form of the long run: a deploy may come at any moment."""
    await _terminate(notifyq_dsn, tmp_path, times=10)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_hundred_terminations_in_a_busy_run_are_prompt_and_cost_nothing(
    notifyq_dsn: str, tmp_path: Path
) -> None:
    """The same, a hundred times."""
    await _terminate(notifyq_dsn, tmp_path, times=100)


async def _terminate(dsn: str, folder: Path, *, times: int) -> None:
    seed = random.randrange(10**9)
    chance = random.Random(seed)
    conn = await asyncpg.connect(dsn)
    await watch(conn)
    slowest, unsent, given_back = 0.0, 0, 0
    async with FakePostmark(token=CANARY_TOKEN, answer_delay=0.08) as fake, zygote(folder) as children:
        for turn in range(times):
            # Enough for as long as the worker lives: 20 slots at 80 ms are 250 a second.
            await enqueue_many(conn, [an_email(f"{turn}-{n}") for n in range(int(0.9 * RATE))])
            seen = len(fake.accepted)
            worker = await children.fork("worker", dsn=dsn, env=fake.env(), settings=SETTINGS)
            await fake.wait_accepted(seen + 1, timeout=15)
            await asyncio.sleep(chance.uniform(0, 0.6))
            worker.signal(signal.SIGTERM)
            told = time.monotonic()
            await asyncio.wait_for(worker.ended.wait(), GRACE + 5)
            slowest = max(slowest, time.monotonic() - told)
            assert worker.code == 0, children.logged[-2000:]
            # Unstarted rows are due at once and unchanged; nothing is left in the dead worker's hands.
            left = await conn.fetch("select * from notifyq.emails where status <> 'sent'")
            assert {(row["status"], row["attempts"]) for row in left} <= {("pending", 0)}, f"seed {seed}"
            unsent += len(left)
            given_back += sum(row["claim_seq"] > 0 for row in left)
            assert all(row["run_after"] <= row["created_at"] or row["claim_seq"] > 0 for row in left)
            assert not await conn.fetchval(
                "select count(*) from notifyq.emails where status <> 'sent' and run_after > clock_timestamp()"
            )
        worker = await children.fork("worker", dsn=dsn, env=fake.env(), settings=SETTINGS)
        while await conn.fetchval("select count(*) from notifyq.emails where status <> 'sent'"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        worker.signal(signal.SIGTERM)
        await worker.ended.wait()
        tally = await check(conn, fake.accepted)
        await conn.close()
        spilt = canaries_in([children.logged])
    print(
        f"\n{times} terminations, slowest {slowest:.2f} s, {unsent} rows left to the next worker, "
        f"{given_back} of them claimed before; {tally}"
    )
    assert slowest <= GRACE + 1
    assert tally.wrong == []
    assert spilt == []
