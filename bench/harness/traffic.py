"""Writers and traced workers: what several questions need of notifyq."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness import SYSTEMS
from harness.child import Child, answer_of
from harness.contestants import NOTIFYQ
from harness.server import Database

__all__ = ["Claim", "Trace", "Written", "traced_worker", "write"]


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim statement: monotonic seconds, and the uids that it brought."""

    start: float
    end: float
    uids: list[str]

    @property
    def ms(self) -> float:
        """How long it took."""
        return (self.end - self.start) * 1000


@dataclass(slots=True)
class Trace:
    """What a traced worker did; complete once it has ended."""

    claims: list[Claim] = field(default_factory=list)

    def claimed_at(self) -> dict[str, float]:
        """When each email's (first) claim was answered."""
        times: dict[str, float] = {}
        for claim in self.claims:
            for uid in claim.uids:
                times.setdefault(uid, claim.end)
        return times


@contextmanager
def traced_worker(where: Database, url: str, *, slots: int = 100) -> Iterator[tuple[Child, Trace]]:
    """A worker that writes its claims down; the trace is filled when the block ends."""
    trace = Trace()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "claims"
        system = replace(NOTIFYQ, slots=slots, env={"BENCH_TRACE": str(path)})
        with system.work(where.dsn, url) as child:
            yield child, trace
        if path.exists():
            trace.claims += [Claim(*json.loads(line)) for line in path.read_text().splitlines()]


@dataclass(frozen=True, slots=True)
class Written:
    """What writers did: (uid, start, end) of each enqueue, and for how many *seconds*."""

    sent: list[tuple[str, float, float]]
    seconds: float

    @property
    def rate(self) -> float:
        """Enqueues a second."""
        return len(self.sent) / self.seconds


def writers_command(
    where: Database, *, prefix: str, writers: int = 32, rate: float = 0.0, seconds: float, bell: str = ""
) -> list[str]:
    """The command line of ``systems/writers.py``."""
    options = {
        "dsn": where.dsn,
        "prefix": prefix,
        "writers": writers,
        "rate": rate,
        "seconds": seconds,
        "bell": bell,
    }
    flat = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    return [sys.executable, str(SYSTEMS / "writers.py"), *flat]


def write(
    where: Database, *, prefix: str, writers: int = 32, rate: float = 0.0, seconds: float, bell: str = ""
) -> Written:
    """Have *writers* enqueue for *seconds*, at *rate* a second in all or (0) as fast as they can."""
    answer = answer_of(
        writers_command(where, prefix=prefix, writers=writers, rate=rate, seconds=seconds, bell=bell)
    )
    return Written([tuple(one) for one in answer["sent"]], answer["seconds"])
