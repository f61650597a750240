"""How long after kill -9 of the only worker is everything under way again? Defaults, a new worker at once.

Ten tasks that hang and ten emails whose answer never comes are in flight when the worker dies. Counted from
the kill: until the last of the tasks runs again, and until the provider has been asked about the last of
the emails (they are in doubt: they are not sent again before the provider has been asked).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from harness.contestants import NOTIFYQ
from harness.report import Bar, Options, Result, answer
from harness.server import database
from harness.sink import SinkProcess
from notifyq_system import email, nap

import notifyq
from notifyq.settings import WorkerSettings

EACH = 10
SYSTEM = replace(NOTIFYQ, variant="tasks", slots=20)
NEVER = 3600.0


async def recovery(options: Options) -> Result:
    """Ask it."""
    rounds = options.pick(3, 1)
    found = [await one_crash(options, number) for number in range(rounds)]
    tasks, emails = max(t for t, _ in found), max(e for _, e in found)
    limit = WorkerSettings().lease + 2
    return Result(
        question="recovery",
        rows=[
            {"round": number, "tasks run again after s": t, "emails asked about after s": e}
            for number, (t, e) in enumerate(found)
        ],
        bars=[
            Bar(name="ten tasks run again, lease + 2 s", measured=tasks, limit=limit, unit="s"),
            Bar(name="ten emails asked about, lease + 2 s", measured=emails, limit=limit, unit="s"),
        ],
    )


async def one_crash(options: Options, number: int) -> tuple[float, float]:
    """Seconds from the kill to the last task's second run, and to the last question."""
    async with database(options.dsn, "recovery") as where:
        SYSTEM.do("setup", where.dsn)
        with SinkProcess(delay=NEVER) as sink:
            doomed = SYSTEM.work(where.dsn, sink.url)
            async with where.connect() as conn:
                for place in range(EACH):
                    await notifyq.enqueue(conn, nap.call(number=place))
                    await notifyq.enqueue(conn, email(f"crash-{number}-{place}"))
            doomed.lines(EACH)
            sink.wait_for(EACH)
            killed = time.monotonic()
            doomed.kill()
            with SYSTEM.work(where.dsn, sink.url) as heir:
                runs = await asyncio.to_thread(heir.lines, EACH)
                searches = await asyncio.to_thread(sink.wait_for_searches, EACH)
            doomed.stop()
    return max(run["at"] for run in runs) - killed, sorted(searches)[EACH - 1] - killed


if __name__ == "__main__":
    answer(recovery)
