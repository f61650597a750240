"""The outside of a question: its command line, its table, its JSON line and its plot."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import asyncpg

from harness import PLOTS, RESULTS
from harness.loop import run
from harness.server import server

__all__ = ["Bar", "Options", "Result", "answer", "table"]

PACKAGES = ("notifyq", "asyncpg", "aiohttp", "anyio", "uvloop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a question is asked: *dsn* is the server that it may use, *quick* the short form."""

    dsn: str
    quick: bool
    peers: bool

    def pick(self, full: Any, quick: Any) -> Any:
        """The one of the two that this run wants."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One thing that must hold: what was *measured* against its *limit*."""

    name: str
    measured: float
    limit: float
    at_most: bool = True
    unit: str = ""

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return self.measured <= self.limit if self.at_most else self.measured >= self.limit

    def __str__(self) -> str:
        sign = "≤" if self.at_most else "≥"
        verdict = "holds" if self.holds else "MISSED"
        return f"{verdict:6}  {self.name}: {self.measured:.4g} {self.unit} ({sign} {self.limit:.4g})"


@dataclass(slots=True, kw_only=True)
class Result:
    """What a question found: *rows* for the table, *bars*, notes, and *svg* for the README."""

    question: str
    rows: Sequence[Mapping[str, Any]]
    bars: Sequence[Bar] = ()
    notes: Sequence[str] = ()
    svg: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


Question = Callable[[Options], Awaitable[Result]]


def answer(question: Question) -> None:
    """Run one question from the command line."""
    parser = argparse.ArgumentParser(description=question.__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer samples, smaller tables")
    parser.add_argument("--json", metavar="FILE", help="append the JSON line here; - for stdout")
    parser.add_argument("--dsn", help="a Postgres to use, as a superuser; else an embedded one")
    parser.add_argument("--no-peers", action="store_true", help="leave other queues out")
    parser.add_argument("--keep", action="store_true", help="replace the committed plot in bench/plots")
    given = parser.parse_args()
    run(_answer(question, given))


async def _answer(question: Question, given: argparse.Namespace) -> None:
    async with server(given.dsn) as dsn:
        await ask(question, Options(dsn=dsn, quick=given.quick, peers=not given.no_peers), given)


async def ask(question: Question, options: Options, given: argparse.Namespace) -> Result:
    """Ask one question, print its table, and keep its JSON and its plot."""
    before, started = os.getloadavg()[0], time.monotonic()
    result = await question(options)
    about = await _about(options)
    about |= {"load_before": before, "load_after": os.getloadavg()[0], "seconds": time.monotonic() - started}
    human = sys.stderr if given.json == "-" else sys.stdout
    print(f"\n== {result.question} ({about['seconds']:.0f} s, load {before:.1f})", file=human)
    print(table(result.rows), file=human)
    for line in (*map(str, result.bars), *result.notes):
        print(f"  {line}", file=human)
    _keep(result, about, given)
    return result


def _keep(result: Result, about: dict[str, Any], given: argparse.Namespace) -> None:
    line = json.dumps(
        {
            "question": result.question,
            "about": about,
            "rows": [dict(row) for row in result.rows],
            "bars": [{**asdict(bar), "holds": bar.holds} for bar in result.bars],
            "notes": list(result.notes),
            "data": result.data,
        },
        default=lambda value: asdict(value) if is_dataclass(value) else str(value),  # type: ignore[arg-type]
    )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{result.question}.json").write_text(line + "\n")
    if result.svg is not None:
        (RESULTS / f"{result.question}.svg").write_text(result.svg)
        if given.keep:
            (PLOTS / f"{result.question}.svg").write_text(result.svg)
    if given.json == "-":
        print(line)
    elif given.json:
        with Path(given.json).open("a") as file:
            file.write(line + "\n")


async def _about(options: Options) -> dict[str, Any]:
    conn = await asyncpg.connect(options.dsn)
    settings = {
        name: await conn.fetchval(f"show {name}")
        for name in ("server_version", "fsync", "synchronous_commit", "shared_buffers", "max_wal_size")
    }
    await conn.close()
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "quick": options.quick,
        "machine": {"system": platform.platform(), "cores": os.cpu_count(), "processor": _processor()},
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "postgres": settings,
        "loop": type(asyncio.get_running_loop()).__module__.split(".")[0],
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as aligned text; the columns are those of the first row that has them.

    Example: ``print(table([{"system": "notifyq", "p50 ms": 1.234}]))``
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    return "\n".join(
        "  "
        + "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
