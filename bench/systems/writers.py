"""Many writers at once: each on its own connection enqueues one email a transaction, at a rate or flat out.

``python writers.py --dsn … --writers 32 --rate 1000 --seconds 5 --bell asleep|always|off`` prints
``{"sent": [[uid, start, end], …], "seconds": s}``. Rate 0: as fast as they can.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import asyncpg
from common import run, say
from notifyq_system import email, uids_of

import notifyq


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--writers", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--bell", default="")
    parser.add_argument("--prefix", default="w")
    given = parser.parse_args()
    settings = {"notifyq.bell": given.bell} if given.bell else {}
    conns = [await asyncpg.connect(given.dsn, server_settings=settings) for _ in range(given.writers)]
    begin = time.monotonic() + 0.2
    found = await asyncio.gather(*(write(conn, number, given, begin) for number, conn in enumerate(conns)))
    took = time.monotonic() - begin
    sent = [one for some in found for one in some]
    uids = await uids_of(conns[0], [key for key, _, _ in sent])
    say({"sent": [[uids[key], start, end] for key, start, end in sent], "seconds": took})


async def write(
    conn: Any, number: int, given: argparse.Namespace, begin: float
) -> list[tuple[str, float, float]]:
    """What one writer does; the writers' turns are spread evenly over time."""
    sent: list[tuple[str, float, float]] = []
    gap = given.writers / given.rate if given.rate else 0.0
    turn = begin + (gap * number / given.writers)
    while True:
        await asyncio.sleep(max(0.0, turn - time.monotonic()))
        start = time.monotonic()
        if start >= begin + given.seconds:
            return sent
        made = email(f"{given.prefix}-{number}-{len(sent)}")
        start = time.monotonic()
        await notifyq.enqueue(conn, made)
        sent.append((made.key, start, time.monotonic()))
        turn += gap


if __name__ == "__main__":
    run(main())
