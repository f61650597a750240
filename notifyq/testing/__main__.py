"""``python -m notifyq.testing [--port N] [--token T] [--fast]``: the fake as a process of its own.

It prints one JSON line, ``{"url": …, "token": …}``, once it listens, and serves until SIGTERM or
SIGINT. ``--fast`` is the sink of the benches, which checks nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from notifyq.testing.fake import FakePostmark
from notifyq.testing.sink import Sink


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(
        prog="python -m notifyq.testing", description="A Postmark to test against, on 127.0.0.1."
    )
    parser.add_argument("--port", type=int, default=0, help="the port; 0 (the default) for any free one")
    parser.add_argument("--token", default="test-token", help="the server token that it accepts")
    parser.add_argument("--fast", action="store_true", help="the bench's sink: counts, checks nothing")
    given = parser.parse_args(arguments)
    asyncio.run(_serve(given.port, given.token, fast=given.fast))
    return 0


async def _serve(port: int, token: str, *, fast: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server: AbstractAsyncContextManager[FakePostmark | Sink]
    server = Sink(port=port) if fast else FakePostmark(port=port, token=token)
    async with server as fake:
        print(json.dumps({"url": fake.url, "token": token}), flush=True)
        await stop.wait()


if __name__ == "__main__":
    sys.exit(main())
