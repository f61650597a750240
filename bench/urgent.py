"""How long does a password reset take when a newsletter is in front of it and the provider is slow?

100,000 bulk emails wait, every slot is busy with a server that answers after 200 ms, and resets (priority
-1) come in one by one. Beside it: the same resets when nothing else is going on. The arrival is noted when
the request has come in, before the 200 ms.
"""

from __future__ import annotations

from dataclasses import replace

from harness.contestants import NOTIFYQ
from harness.plot import ranges
from harness.report import Bar, Options, Result, answer
from harness.server import database
from harness.sink import SinkProcess
from harness.stats import percentile, summary
from harness.traffic import traced_worker

DELAY = 0.2
SLOTS = 20
RESETS = replace(NOTIFYQ, name="reset", variant="urgent", slots=SLOTS)


async def urgent(options: Options) -> Result:
    """Ask it."""
    count, gap = options.pick(600, 60), 0.06
    bulk = options.pick(100_000, 20_000)
    times: dict[str, list[float]] = {}
    claims: dict[str, list[float]] = {}
    with SinkProcess(delay=DELAY) as sink:
        async with database(options.dsn, "urgent") as where:
            RESETS.do("setup", where.dsn)
            for name in ("idle", "behind the bulk"):
                if name != "idle":
                    RESETS.do("fill", where.dsn, count=bulk, prefix="bulk")
                sink.reset()
                with traced_worker(where, sink.url, slots=SLOTS) as (_, trace):
                    sent = RESETS.do("produce", where.dsn, count=count, gap=gap, prefix=name[:4])
                    arrivals: dict[str, float] = {}
                    while not all(uid in arrivals for uid, _, _ in sent):
                        arrivals = sink.arrivals()
                times[name] = [(arrivals[uid] - start) * 1000 for uid, start, _ in sent]
                claims[name] = [claim.ms for claim in trace.claims]
    rows = [
        {"resets": name, "p50 ms": s.p50, "p95 ms": s.p95, "p99 ms": s.p99, "claim p50 ms": c.p50, "n": s.n}
        for name, values in times.items()
        for s, c in [(summary(values), summary(claims[name]))]
    ]
    limit = 2 * percentile(times["idle"], 0.99) + percentile(claims["behind the bulk"], 0.5)
    return Result(
        question="urgent",
        rows=rows,
        bars=[
            Bar(
                name="reset behind the bulk, p99, against 2 x idle + one claim",
                measured=percentile(times["behind the bulk"], 0.99),
                limit=limit,
                unit="ms",
            )
        ],
        notes=[f"{bulk:,} bulk emails, {SLOTS} slots, the server answers after {DELAY * 1000:.0f} ms"],
        svg=ranges(
            "A password reset",
            {f"notifyq, {n}": (s.p50, s.p95, s.p99) for n, v in times.items() for s in [summary(v)]},
            "ms",
        ),
        data={"times_ms": times},
    )


if __name__ == "__main__":
    answer(urgent)
