"""Where does the worker's time go while it drains a backlog? A flame picture, by py-spy.

``python bench/peers.py --install`` brings py-spy. The picture is drawn here from its folded stacks.
"""

from __future__ import annotations

import signal
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from harness import ENVIRONMENT
from harness.contestants import NOTIFYQ
from harness.flames import draw, fold
from harness.report import Options, Result, answer
from harness.server import database
from harness.sink import SinkProcess
from throughput import watch

SPY = ENVIRONMENT / "tools" / "bin" / "py-spy"
SHOWN = (
    ("the POST: aiohttp", "aiohttp/"),
    ("notifyq's own code", "notifyq/"),
    ("the event loop and asyncio", "asyncio/"),
    ("anyio", "anyio/"),
    ("json", "json/"),
    ("asyncpg", "asyncpg/"),
    ("msgspec", "msgspec/"),
)


async def flame(options: Options) -> Result:
    """Ask it."""
    if not SPY.exists():
        return Result(question="flame", rows=[], notes=["py-spy is not installed: bench/peers.py --install"])
    count = options.pick(40_000, 6_000)
    with SinkProcess() as sink, tempfile.TemporaryDirectory() as folder:
        async with database(options.dsn, "flame") as where:
            NOTIFYQ.do("setup", where.dsn)
            NOTIFYQ.do("fill", where.dsn, count=count, prefix="f")
            stacks = Path(folder) / "stacks"
            with NOTIFYQ.work(where.dsn, sink.url) as worker:
                command = [SPY, "record", "--pid", str(worker.pid), "--rate", "400", "--format", "raw"]
                spy = subprocess.Popen(  # noqa: ASYNC220
                    [*map(str, command), "--output", str(stacks)],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                drained = watch(worker, sink, count)
                spy.send_signal(signal.SIGINT)
                spy.wait()
            text = stacks.read_text()
    samples = fold(text)
    return Result(
        question="flame",
        rows=_shares(samples),
        notes=[f"{drained.rate:,.0f} emails/s under the profiler, {drained.worker_us:,.0f} µs an email"],
        svg=draw("The drain: where the worker's time goes", samples),
    )


def _shares(samples: Counter[tuple[str, ...]]) -> list[dict[str, Any]]:
    """How much of the time was spent in whose code (the innermost frame)."""
    total = sum(samples.values()) or 1
    spent: Counter[str] = Counter()
    for stack, count in samples.items():
        spent[next((name for name, part in SHOWN if f"({part}" in stack[-1]), "other")] += count
    return [{"whose code": name, "% of samples": 100.0 * n / total} for name, n in spent.most_common()]


if __name__ == "__main__":
    answer(flame)
