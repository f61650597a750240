"""The provider's side: `notifyq.testing.sink.Sink` as its own process, with a count that costs nothing.

``python harness/sink.py [--delay S]``. Beside the sink's own paths it answers ``GET /_fake/count``
(``{"count", "first", "last"}``, monotonic seconds), so that a drain can be watched without disturbing it.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: F401 (puts the checkout on the path)
from harness.child import Child
from notifyq.testing.sink import Sink

__all__ = ["SinkProcess"]

LOOK_AGAIN = 0.005


class CountingSink(Sink):
    """The sink, with a cheap answer to "how many so far?", and the times at which it was searched."""

    def __init__(self, *, delay: float) -> None:
        super().__init__(delay=delay)
        self.searches: list[float] = []

    def answer(self, line: bytes, body: bytes) -> bytes:
        """As `Sink.answer`."""
        if line.startswith(b"GET /messages/"):
            self.searches.append(time.monotonic())
        if line.startswith(b"GET /_fake/searches"):
            return json.dumps(self.searches).encode()
        if line.startswith(b"GET /_fake/count"):
            arrivals = self.arrivals
            first, last = (arrivals[0][0], arrivals[-1][0]) if arrivals else (None, None)
            return json.dumps({"count": len(arrivals), "first": first, "last": last}).encode()
        return super().answer(line, body)


class SinkProcess:
    """The sink's process, and questions to it.

    Example: ``with SinkProcess() as sink: sink.url; sink.count()``
    """

    def __init__(self, delay: float = 0.0) -> None:
        self.child = Child([sys.executable, Path(__file__), "--delay", str(delay)])
        self.url: str = self.child.ready["url"]
        self._client = http.client.HTTPConnection(urlsplit(self.url).netloc)

    def __enter__(self) -> SinkProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self.child.stop()

    def reset(self) -> None:
        """Forget all arrivals."""
        self._ask("POST", "/_fake/reset")

    def count(self) -> int:
        """How many emails have arrived."""
        return int(self._ask("GET", "/_fake/count")["count"])

    def wait_for(self, count: int) -> None:
        """Wait until *count* emails have arrived, however long it takes."""
        while self.count() < count:
            time.sleep(LOOK_AGAIN)

    def span(self) -> tuple[float, float]:
        """When the first and the last email arrived."""
        answer = self._ask("GET", "/_fake/count")
        return answer["first"], answer["last"]

    def arrivals(self) -> dict[str, float]:
        """When each email arrived (the first time)."""
        times: dict[str, float] = {}
        for at, name in self._ask("GET", "/_fake/ledger")["arrivals"]:
            times.setdefault(name, at)
        return times

    def times(self) -> list[float]:
        """When emails arrived, whichever they were, in order."""
        return [at for at, _ in self._ask("GET", "/_fake/ledger")["arrivals"]]

    def wait_for_searches(self, count: int) -> list[float]:
        """Wait until somebody has searched for messages *count* times; when each search came."""
        while len(found := self._ask("GET", "/_fake/searches")) < count:
            time.sleep(LOOK_AGAIN)
        return list(found)

    def _ask(self, method: str, path: str) -> Any:
        self._client.request(method, path)
        return json.loads(self._client.getresponse().read())


async def serve(delay: float) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with CountingSink(delay=delay) as sink:
        print(json.dumps({"url": sink.url}), flush=True)
        await stop.wait()


if __name__ == "__main__":
    from harness.loop import run

    parser = argparse.ArgumentParser()
    parser.add_argument("--delay", type=float, default=0.0)
    run(serve(parser.parse_args().delay))
