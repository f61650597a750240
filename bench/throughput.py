"""How fast is a backlog drained, one POST an email, and what does an email cost the worker's processor?

Each system is given a backlog for a few seconds while no worker runs; then one worker starts. The rate is
between the first and the last arrival. notifyq runs between every two of the others: each has it as its
neighbour, and what is compared is the ratio of the two.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from harness.child import Child, ChildFailed
from harness.contestants import FLOORS, NOTIFYQ, OFTEN_COLLECTED, PLAIN_LOOP, Contestant, installed_peers
from harness.plot import bars as plot_bars
from harness.report import Bar, Options, Result, answer
from harness.server import Database, database
from harness.sink import SinkProcess
from harness.stats import median, ratio_of_pairs
from harness.turns import turns

WATCH = 0.02
GIVE_UP = 30.0
DEFAULT_SLOTS = replace(NOTIFYQ, name="notifyq, 20 slots (default)", slots=20, per_second=3500)


@dataclass(frozen=True, slots=True)
class Drain:
    """One drained backlog: emails a second, and processor time of worker and sink, µs an email."""

    rate: float
    worker_us: float
    sink_us: float


async def throughput(options: Options) -> Result:
    """Ask it."""
    rounds = options.pick(7, 2)
    seconds = options.pick(4.0, 0.8)
    others = [*FLOORS, DEFAULT_SLOTS, PLAIN_LOOP, OFTEN_COLLECTED]
    others += installed_peers() if options.peers else []
    drains: dict[str, list[Drain]] = {NOTIFYQ.name: []}
    pairs: dict[str, list[tuple[float, float]]] = {}
    notes: list[str] = []
    async with AsyncExitStack() as open_things:
        sink = open_things.enter_context(SinkProcess())
        for number in range(rounds):
            for group in turns(NOTIFYQ, list(others)):
                done: dict[str, Drain] = {}
                for system in group:
                    async with database(options.dsn, system.database) as where:
                        try:
                            done[system.name] = one_drain(system, where, sink, f"r{number}", seconds)
                        except ChildFailed as error:
                            notes.append(f"{system.name} is left out: {error}")
                            others.remove(system)
                for name, drained in done.items():
                    drains.setdefault(name, []).append(drained)
                    pairs.setdefault(name, []).append((done[NOTIFYQ.name].rate, drained.rate))
    return _result(drains, pairs, notes)


def one_drain(system: Contestant, where: Database, sink: SinkProcess, prefix: str, seconds: float) -> Drain:
    """Fill a fresh database with work for about *seconds*, and drain it."""
    count = max(300, int(system.per_second * seconds))
    system.do("setup", where.dsn)
    system.do("fill", where.dsn, prefix=prefix, count=count)
    sink.reset()
    with system.work(where.dsn, sink.url) as worker:
        return watch(worker, sink, count)


def watch(worker: Child, sink: SinkProcess, count: int) -> Drain:
    """Wait until *count* emails have arrived, or for `GIVE_UP` seconds, and say how it went."""
    until = time.monotonic() + GIVE_UP
    while (begun := sink.count()) == 0 and time.monotonic() < until:
        time.sleep(WATCH)
    worker_before, sink_before = worker.cpu_seconds(), sink.child.cpu_seconds()
    while (done := sink.count()) < count and time.monotonic() < until:
        time.sleep(WATCH)
    worker_after, sink_after = worker.cpu_seconds(), sink.child.cpu_seconds()
    if done < 2:
        raise ChildFailed(f"it sent {done} emails in {GIVE_UP:.0f} s")
    first, last = sink.span()
    counted = max(1, done - begun)
    return Drain(
        rate=(done - 1) / (last - first),
        worker_us=(worker_after - worker_before) / counted * 1e6,
        sink_us=(sink_after - sink_before) / counted * 1e6,
    )


def _result(
    drains: dict[str, list[Drain]], pairs: dict[str, list[tuple[float, float]]], notes: list[str]
) -> Result:
    ratios = {name: ratio_of_pairs(*zip(*found, strict=True)) for name, found in pairs.items()}
    rows: list[dict[str, Any]] = []
    rates: dict[str, float] = {}
    for name, found in drains.items():
        rates[name] = median([one.rate for one in found])
        row: dict[str, Any] = {
            "system": name,
            "emails/s": rates[name],
            "worker µs": median([one.worker_us for one in found]),
            "sink µs": median([one.sink_us for one in found]),
            "drains": len(found),
        }
        if name != NOTIFYQ.name:
            row["notifyq / it"] = str(ratios[name])
        rows.append(row)
    bars = [
        Bar(
            name="drained backlog, times the aiohttp floor",
            measured=ratios[FLOORS[1].name].median,
            limit=0.6,
            at_most=False,
        )
    ]
    python = {
        peer.name: rates[peer.name]
        for peer in installed_peers()
        if peer.name in rates and peer.program.endswith(".py")
    }
    if python:
        best = max(python, key=lambda name: python[name])
        bars.append(
            Bar(
                name=f"drained backlog, times the fastest Python peer ({best})",
                measured=ratios[best].median,
                limit=1.0,
                at_most=False,
            )
        )
    fastest = max(rates.values())
    ceiling = 1e6 / median([one.sink_us for one in drains[FLOORS[0].name]] or [1.0])
    notes.append(
        f"the sink's ceiling, by its processor time: about {ceiling:,.0f}/s "
        f"(the fastest system: {fastest:,.0f}/s)"
    )
    return Result(
        question="throughput",
        rows=rows,
        bars=bars,
        notes=notes,
        svg=plot_bars("Backlog drained, one POST an email", rates, "emails/s"),
        data={"drains": drains, "pairs": pairs},
    )


if __name__ == "__main__":
    answer(throughput)
