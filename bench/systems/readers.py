"""People with the page open: ``readers.py URL``. Each does what the page's own script does.

It keeps the stream of live updates open and fetches its page at every change, one fetch at a time and with a
second between two. Says ``{"ready": true}`` once all of them have their page.
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
from common import run, say

PATHS = ("", "", "", "", "emails", "emails", "emails", "emails", "tasks", "emails?status=dead")
BREATH = 1.0


class Reader:
    """One open page."""

    def __init__(self, session: aiohttp.ClientSession, url: str, path: str) -> None:
        self._session = session
        self._live, self._page = f"{url}live", url + path
        self._changed = asyncio.Event()
        self.shown = asyncio.Event()

    async def listen(self) -> None:
        """Hear of changes."""
        async with self._session.get(self._live) as answer:
            async for line in answer.content:
                if line.startswith((b"event: hello", b"event: change")):
                    self._changed.set()

    async def look(self) -> None:
        """Fetch the page when something has changed."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            async with self._session.get(self._page) as answer:
                await answer.read()
            self.shown.set()
            await asyncio.sleep(BREATH if self._changed.is_set() else 0)


async def main() -> None:
    url = sys.argv[1]
    forever = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=forever) as session:
        readers = [Reader(session, url, path) for path in PATHS]
        async with asyncio.TaskGroup() as tg:
            for reader in readers:
                tg.create_task(reader.listen())
                tg.create_task(reader.look())
            for reader in readers:
                await reader.shown.wait()
            say({"ready": len(readers)})


if __name__ == "__main__":
    run(main())
