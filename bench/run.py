"""Ask all questions, or some: ``python bench/run.py [--quick] [--json FILE] [--dsn DSN] [QUESTION ...]``.

Each question is a file beside this one and runs alone, too. ``--quick`` stays under about four minutes where
nothing else runs; a full run takes hours, most of it ten minutes of a held snapshot and a million emails.
"""

from __future__ import annotations

import argparse
import time

from bell import bell
from enqueue import enqueue
from fanout import fanout
from flame import flame
from flat import flat
from harness.loop import run
from harness.report import Options, Question, Result, ask
from harness.server import server
from idle import idle
from latency import latency
from page import page
from recovery import recovery
from throughput import throughput
from urgent import urgent

QUESTIONS: dict[str, Question] = {
    "latency": latency,
    "throughput": throughput,
    "bell": bell,
    "urgent": urgent,
    "flat": flat,
    "recovery": recovery,
    "idle": idle,
    "enqueue": enqueue,
    "fanout": fanout,
    "page": page,
    "flame": flame,
}


async def main(given: argparse.Namespace) -> None:
    """Ask them, on one server, and show all bars at the end."""
    begun = time.monotonic()
    results: list[Result] = []
    async with server(given.dsn) as dsn:
        options = Options(dsn=dsn, quick=given.quick, peers=not given.no_peers)
        for name in given.questions or QUESTIONS:
            try:
                results.append(await ask(QUESTIONS[name], options, given))
            except Exception as error:  # one question that fails must not cost the others
                print(f"\n== {name} FAILED: {type(error).__name__}: {error}")
    print(f"\n== all ({time.monotonic() - begun:.0f} s)")
    for result in results:
        for bar in result.bars:
            print(f"  {bar}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", nargs="*", choices=[*QUESTIONS, []], metavar="QUESTION")
    parser.add_argument("--quick", action="store_true", help="fewer samples, smaller tables")
    parser.add_argument("--json", metavar="FILE", help="append a JSON line for each question")
    parser.add_argument("--dsn", help="a Postgres to use, as a superuser; else an embedded one")
    parser.add_argument("--no-peers", action="store_true", help="leave other queues out")
    parser.add_argument("--keep", action="store_true", help="replace the committed plots in bench/plots")
    run(main(parser.parse_args()))
