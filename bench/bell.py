"""What does the bell cost the writers, and does it wake the worker soon enough, always?

32 writers, one email a transaction, a flush of 1 ms (``commit_delay = 1000, commit_siblings = 0``), a live
worker. First flat out with ``notifyq.bell`` unset, ``always`` and ``off`` in turn, the worker busy with a
backlog in all three alike (pgbench where there is one, since 32 writers in Python are slower than the
database); then 1,000 a second in all and a trickle, from enqueue to claimed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from bisect import bisect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.contestants import NOTIFYQ
from harness.plot import bars as plot_bars
from harness.report import Bar, Options, Result, answer
from harness.server import Database, database
from harness.sink import SinkProcess
from harness.stats import median, ratio_of_pairs, summary
from harness.traffic import traced_worker, write

from notifyq.embedded_binaries import bin_folders

FLUSH = ("commit_delay = 1000", "commit_siblings = 0")
WRITERS = 32
BACKLOG = 15_000
BELLS = ("asleep", "always", "off")
ASLEEP = 0.5
"""Seconds. A bell is heard within milliseconds: when an email was there for longer than this while no claim
was even begun, the worker slept, and the timer found it."""

SCRIPT = """\\set n random(1, 9000000000000000000)
select notifyq.enqueue_email('b' || :n || '-' || random(), '{"to": [{"email": "ann@example.com"}],
"from": {"email": "shop@example.com"}, "subject": "Your order", "text": "TEXT"}');
"""


async def bell(options: Options) -> Result:
    """Ask it."""
    rounds, seconds = options.pick(10, 3), options.pick(4.0, 1.5)
    rates: dict[str, list[float]] = {name: [] for name in BELLS}
    with SinkProcess() as sink:
        async with database(options.dsn, "bell", FLUSH) as where:
            NOTIFYQ.do("setup", where.dsn)
            with NOTIFYQ.work(where.dsn, sink.url):
                for number in range(rounds):
                    for name in BELLS:
                        await keep_busy(where, f"b{number}{name}")
                        rates[name].append(flat_out(where, f"r{number}{name}", seconds, name))
        async with database(options.dsn, "bell_pace", FLUSH) as where:
            NOTIFYQ.do("setup", where.dsn)
            found = {
                "1,000/s in all": paced(where, sink, 1000.0, options.pick(30.0, 4.0), "paced"),
                "20/s in all": paced(where, sink, 20.0, options.pick(60.0, 6.0), "trickle"),
            }
    return _result(rates, found)


async def keep_busy(where: Database, prefix: str) -> None:
    """Give the worker a backlog that outlasts the next run, so that all three share the machine with it."""
    waiting = await where.fetchval("select count(*) from notifyq.emails where status = 'pending'")
    if waiting < BACKLOG:
        NOTIFYQ.do("fill", where.dsn, count=BACKLOG, prefix=prefix)


def flat_out(where: Database, prefix: str, seconds: float, name: str) -> float:
    """Enqueues a second of 32 writers."""
    program = _pgbench()
    if program is None:
        return write(where, prefix=prefix, seconds=seconds, bell=name).rate
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(SCRIPT.replace("TEXT", "x" * 1800))
        script.flush()
        command = [program, "-n", "-c", str(WRITERS), "-j", "2", "-T", str(max(1, round(seconds)))]
        done = subprocess.run(
            [*command, "-M", "prepared", "-f", script.name, where.dsn],
            env={**os.environ, "PGOPTIONS": f"-c notifyq.bell={name}"},
            capture_output=True,
            text=True,
            check=True,
        )
    found = re.search(r"tps = ([\d.]+)", done.stdout)
    assert found is not None
    return float(found[1])


def _pgbench() -> str | None:
    if found := shutil.which("pgbench"):
        return found
    return next(
        (str(f / "pgbench") for f in map(Path, bin_folders(os.environ)) if (f / "pgbench").exists()), None
    )


@dataclass(frozen=True, slots=True)
class Paced:
    """Milliseconds from the start of the enqueue to the claim's answer, and how many the timer found."""

    ms: list[float]
    by_timer: int


def paced(where: Database, sink: SinkProcess, rate: float, seconds: float, prefix: str) -> Paced:
    """Enqueue at *rate* a second in all."""
    with traced_worker(where, sink.url) as (_, trace):
        sink.reset()
        written = write(where, prefix=prefix, rate=rate, seconds=seconds)
        sink.wait_for(len(written.sent))
    claimed = trace.claimed_at()
    starts = [claim.start for claim in trace.claims]
    by_timer = 0
    for uid, _, committed in written.sent:
        # The first claim that was begun after the commit: until then the email lay there unlooked for.
        place = bisect(starts, committed)
        by_timer += place < len(starts) and min(starts[place], claimed[uid]) - committed > ASLEEP
    return Paced([(claimed[uid] - start) * 1000 for uid, start, _ in written.sent], by_timer)


def _result(rates: dict[str, list[float]], paces: dict[str, Paced]) -> Result:
    rows: list[dict[str, Any]] = [
        {
            "bell": name,
            "enqueues/s": median(found),
            "times off": str(ratio_of_pairs(found, rates["off"])),
        }
        for name, found in rates.items()
    ]
    for name, pace in paces.items():
        s = summary(pace.ms)
        row = {"bell": f"asleep, {name}", "to claimed p50 ms": s.p50, "p95": s.p95, "p99": s.p99, "n": s.n}
        rows.append({**row, "by the timer": pace.by_timer})
    bars = [
        Bar(
            name="32 writers, 1 ms flush: enqueue rate, times that of bell = off",
            measured=ratio_of_pairs(rates["asleep"], rates["off"]).median,
            limit=0.9,
            at_most=False,
        ),
        Bar(
            name="1,000/s in all: enqueue to claimed, p50",
            measured=median(paces["1,000/s in all"].ms),
            limit=10,
            unit="ms",
        ),
        Bar(name="found by the timer", measured=sum(pace.by_timer for pace in paces.values()), limit=0),
    ]
    return Result(
        question="bell",
        rows=rows,
        bars=bars,
        svg=plot_bars(
            "32 writers, 1 ms flush",
            {f"notifyq.bell = {n}": median(r) for n, r in rates.items()},
            "enqueues/s",
        ),
        data={"rates": rates, "paces": paces},
    )


if __name__ == "__main__":
    answer(bell)
