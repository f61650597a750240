"""Does the operator's page slow the worker that it shares a process with?

One worker with its page; emails one by one, as in ``latency.py``, in short rounds that take turns: with ten
pages open (in a process of their own, doing what the page's script does) and with none. The two of a pair
run one after the other and change places from pair to pair.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace

from harness import SYSTEMS
from harness.child import Child
from harness.contestants import NOTIFYQ
from harness.report import Bar, Options, Result, answer
from harness.server import Database, database
from harness.sink import SinkProcess
from harness.stats import Ratio, median, percentile, ratio_of_pairs, summary
from latency import GAP, WARM_UP, wait_for

WORKER = replace(NOTIFYQ, name="page", program="page_worker.py")
OPEN, NONE = "ten pages open", "no page open"


@dataclass(frozen=True, slots=True)
class Setting:
    """The database, the sink and the URL of the page."""

    where: Database
    sink: SinkProcess
    page: str


async def page(options: Options) -> Result:
    """Ask it."""
    rounds, count = options.pick(24, 5), options.pick(240, 120)
    samples: dict[str, list[list[float]]] = {NONE: [], OPEN: []}
    spent: dict[str, list[float]] = {NONE: [], OPEN: []}
    with SinkProcess() as sink:
        async with database(options.dsn, WORKER.database) as where:
            NOTIFYQ.do("setup", where.dsn)
            with WORKER.work(where.dsn, sink.url) as worker:
                setting = Setting(where, sink, worker.ready["page"])
                one_round(setting, "warm", count, is_open=True)
                for number in range(rounds):
                    for is_open in (number % 2 == 1, number % 2 == 0):
                        name = OPEN if is_open else NONE
                        prefix = f"r{number}-{int(is_open)}"
                        before = worker.cpu_seconds()
                        samples[name].append(one_round(setting, prefix, count, is_open=is_open))
                        spent[name].append((worker.cpu_seconds() - before) * 1000 / (WARM_UP + count))
    return _result(samples, spent)


def one_round(setting: Setting, prefix: str, count: int, *, is_open: bool) -> list[float]:
    """Milliseconds from enqueue to arrival, of *count* emails after a few that warm up."""
    setting.sink.reset()
    with ExitStack() as people:
        if is_open:
            people.enter_context(Child([sys.executable, SYSTEMS / "readers.py", setting.page]))
        made = NOTIFYQ.do("produce", setting.where.dsn, prefix=prefix, count=WARM_UP + count, gap=GAP)
        sent = made[WARM_UP:]
        arrivals = wait_for(setting.sink, [key for key, _, _ in sent])
    return [(arrivals[key] - start) * 1000 for key, start, _ in sent]


def _ratio(samples: dict[str, list[list[float]]], share: float) -> Ratio:
    with_, without = ([percentile(one, share) for one in samples[name]] for name in (OPEN, NONE))
    return ratio_of_pairs(with_, without)


def _result(samples: dict[str, list[list[float]]], spent: dict[str, list[float]]) -> Result:
    rows: list[dict[str, object]] = []
    for name, rounds in samples.items():
        flat = [value for one in rounds for value in one]
        found = summary(flat)
        times = {"p50 ms": found.p50, "p90 ms": percentile(flat, 0.9), "p99 ms": found.p99, "n": found.n}
        rows.append({"what": name, **times, "processor ms an email": median(spent[name])})
    rows[1] |= {f"ratio p{share * 100:.0f}": str(_ratio(samples, share)) for share in (0.5, 0.9)}
    bars = [
        Bar(
            name=f"latency with ten open pages, p{share * 100:.0f}, times that with none",
            measured=_ratio(samples, share).median,
            limit=1.2,
        )
        for share in (0.5, 0.9)
    ]
    return Result(question="page", rows=rows, bars=bars, data={"samples_ms": samples})


if __name__ == "__main__":
    answer(page)
