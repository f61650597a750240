"""What every Python system of the bench shares: the job (one POST of a 2 KB email) and the command line.

This runs in the environment of the system that is measured, so it needs nothing but the standard library
and, where they are installed, uvloop and aiohttp. A system is a program with four verbs:

``setup``    make its tables
``work``     run one worker; prints ``{"ready": true}`` once it waits for jobs
``produce``  enqueue *count* jobs one by one, *gap* seconds apart on average; prints ``[[key, t0, t1], ...]``
``fill``     enqueue *count* jobs as fast as it knows

Times are CLOCK_MONOTONIC seconds, which all processes of a machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

HTML = "<html><body>" + "<p>Your order is on its way to you.</p>" * 38 + "</body></html>"
TEXT = "Your order is on its way to you. " * 12
TOKEN = "bench-token"
HEADERS = {
    "X-Postmark-Server-Token": TOKEN,
    "Accept": "application/json",
    "Content-Type": "application/json",
}


class System(Protocol):
    """One system under test."""

    async def setup(self) -> None: ...

    async def work(self) -> None: ...

    async def producer(self) -> Callable[[str], Awaitable[None]]: ...

    async def fill(self, keys: list[str]) -> None: ...


def payload(key: str) -> dict[str, Any]:
    """The email as Postmark takes it, about 2 KB; *key* is what the sink remembers of it."""
    return {
        "From": "shop@example.com",
        "To": "ann@example.com",
        "Subject": "Your order",
        "HtmlBody": HTML,
        "TextBody": TEXT,
        "MessageStream": "outbound",
        "Metadata": {"notifyq": key},
    }


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["setup", "work", "produce", "fill"])
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--url", default="")
    parser.add_argument("--slots", type=int, default=100)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--gap", type=float, default=0.0)
    parser.add_argument("--prefix", default="k")
    parser.add_argument("--variant", default="")
    return parser.parse_args()


def run(main: Awaitable[None]) -> None:
    """Run on uvloop if it is installed and not switched off with BENCH_UVLOOP=0."""
    if os.environ.get("BENCH_UVLOOP", "1") != "0":
        try:
            import uvloop
        except ImportError:
            pass
        else:
            uvloop.run(main)  # type: ignore[arg-type]
            return
    asyncio.run(main)  # type: ignore[arg-type]


def say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def told_to_stop() -> asyncio.Event:
    """An event that SIGTERM sets."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    return stop


async def until_stopped(working: Awaitable[Any]) -> None:
    """Say that the worker is ready, and run it until SIGTERM."""
    stop = told_to_stop()
    task = asyncio.ensure_future(working)
    await asyncio.sleep(0.3)
    say({"ready": True})
    await stop.wait()
    task.cancel()
    os._exit(0)


async def produce(enqueue: Callable[[str], Awaitable[None]], given: argparse.Namespace) -> list[list[Any]]:
    """Enqueue one by one with a jittered gap; answer key, start and end of each."""
    draw = random.Random(given.prefix)
    sent: list[list[Any]] = []
    for number in range(given.count):
        key = f"{given.prefix}-{number}"
        await asyncio.sleep(given.gap * draw.uniform(0.7, 1.3))
        start = time.monotonic()
        await enqueue(key)
        sent.append([key, start, time.monotonic()])
    return sent


async def carry_out(system: System, given: argparse.Namespace) -> None:
    """Do what the command line says."""
    match given.verb:
        case "setup":
            await system.setup()
        case "work":
            await system.work()
        case "produce":
            say(await produce(await system.producer(), given))
        case "fill":
            await system.fill([f"{given.prefix}-{number}" for number in range(given.count)])


class Poster:
    """The job: one POST on a keep-alive aiohttp session, as every Python peer makes it."""

    def __init__(self, url: str, connections: int) -> None:
        import aiohttp

        self._url = url + "/email"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=HEADERS,
        )

    async def __call__(self, email: dict[str, Any] | str | bytes) -> None:
        body = json.dumps(email) if isinstance(email, dict) else email
        async with self._session.post(self._url, data=body) as response:
            await response.read()
            if response.status != 200:
                raise RuntimeError(f"the sink answered {response.status}")
