"""How long from the start of an enqueue to the arrival of its POST, when nothing else is going on?

Beside notifyq: the same worker without LISTEN (its poll only), two floors (LISTEN, one claim UPDATE, a
bare socket or aiohttp) and the peers. Short rounds, each with a fresh worker; notifyq runs between every two
of the others, and what is compared is the ratio of the two of such a pair.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from harness.child import ChildFailed
from harness.contestants import FLOORS, NOTIFYQ, PLAIN_LOOP, POLLING, Contestant, installed_peers
from harness.plot import ranges
from harness.report import Bar, Options, Result, answer
from harness.server import Database, database
from harness.sink import SinkProcess
from harness.stats import Ratio, percentile, ratio_of_pairs, summary
from harness.turns import turns

GAP = 0.012
WARM_UP = 20


async def latency(options: Options) -> Result:
    """Ask it."""
    rounds = options.pick(15, 3)
    count = options.pick(210, 60)
    peers = installed_peers() if options.peers else []
    others = [*FLOORS, PLAIN_LOOP, *peers]
    samples: dict[str, list[list[float]]] = {NOTIFYQ.name: []}
    pairs: dict[str, list[tuple[list[float], list[float]]]] = {}
    notes: list[str] = []
    async with AsyncExitStack() as open_things:
        sink = open_things.enter_context(SinkProcess())
        databases: dict[str, Database] = {}
        for system in [NOTIFYQ, POLLING, *others]:
            held = await open_things.enter_async_context(database(options.dsn, system.database))
            try:
                system.do("setup", held.dsn)
            except ChildFailed as error:
                notes.append(f"{system.name} is left out: {error}")
                others.remove(system)
            databases[system.name] = held
        for number in range(rounds):
            for group in turns(NOTIFYQ, list(others)):
                done: dict[str, list[float]] = {}
                for system in group:
                    prefix = f"r{number}-{len(samples[NOTIFYQ.name])}"
                    try:
                        done[system.name] = one_round(system, databases[system.name], sink, prefix, count)
                    except ChildFailed as error:
                        notes.append(f"{system.name} is left out: {error}")
                        others.remove(system)
                for name, found in done.items():
                    samples.setdefault(name, []).append(found)
                    pairs.setdefault(name, []).append((done[NOTIFYQ.name], found))
        samples[POLLING.name] = [
            one_round(POLLING, databases[POLLING.name], sink, "poll", options.pick(1000, 300))
        ]
    return _result(samples, pairs, notes)


def one_round(system: Contestant, where: Database, sink: SinkProcess, prefix: str, count: int) -> list[float]:
    """Milliseconds from enqueue to arrival, of *count* emails after a few that warm up."""
    sink.reset()
    with system.work(where.dsn, sink.url):
        sent = system.do("produce", where.dsn, prefix=prefix, count=WARM_UP + count, gap=GAP)[WARM_UP:]
        arrivals = wait_for(sink, [key for key, _, _ in sent])
    return [(arrivals[key] - start) * 1000 for key, start, _ in sent]


def wait_for(sink: SinkProcess, keys: list[str]) -> dict[str, float]:
    """The arrivals, once all *keys* are among them."""
    while True:
        arrivals = sink.arrivals()
        if all(key in arrivals for key in keys):
            return arrivals


def _ratio(pairs: list[tuple[list[float], list[float]]], share: float) -> Ratio:
    """How many times the other's percentile is ours, pair by pair."""
    ours = [percentile(mine, share) for mine, _ in pairs]
    return ratio_of_pairs(ours, [percentile(theirs, share) for _, theirs in pairs])


def _result(
    samples: dict[str, list[list[float]]],
    pairs: dict[str, list[tuple[list[float], list[float]]]],
    notes: list[str],
) -> Result:
    rows: list[dict[str, Any]] = []
    flat = {name: [value for one in rounds for value in one] for name, rounds in samples.items()}
    for name, values in flat.items():
        found = summary(values)
        row = {"system": name, "p50 ms": found.p50, "p95 ms": found.p95, "p99 ms": found.p99, "n": found.n}
        if name in pairs and name != NOTIFYQ.name:
            for share in (0.5, 0.99):
                row[f"notifyq / it, p{share * 100:.0f}"] = str(_ratio(pairs[name], share))
        rows.append(row)
    bars = [
        Bar(
            name=f"idle enqueue to POST, p{share * 100:.0f}, times the raw floor",
            measured=_ratio(pairs[FLOORS[0].name], share).median,
            limit=limit,
        )
        for share, limit in ((0.5, 1.5), (0.99, 2.0))
    ]
    others = {name: percentile(values, 0.5) for name, values in flat.items() if name in _peer_names()}
    if others:
        fastest = min(others, key=lambda name: others[name])
        bars.append(
            Bar(
                name=f"idle enqueue to POST, p50, times the fastest peer ({fastest})",
                measured=_ratio(pairs[fastest], 0.5).median,
                limit=1.0,
            )
        )
    shown = {name: values for name, values in flat.items() if name != PLAIN_LOOP.name}
    svg = ranges(
        "Enqueue to POST, idle",
        {name: (s.p50, s.p95, s.p99) for name, values in shown.items() for s in [summary(values)]},
        "ms",
    )
    return Result(
        question="latency", rows=rows, bars=bars, notes=notes, svg=svg, data={"samples_ms": samples}
    )


def _peer_names() -> set[str]:
    return {peer.name for peer in installed_peers()}


if __name__ == "__main__":
    answer(latency)
