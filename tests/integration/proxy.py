"""A TCP proxy before Postgres that can stop forwarding, or lose every notification as a pooler does."""

from __future__ import annotations

import asyncio
from typing import Self
from urllib.parse import urlsplit

NOTIFICATION = b"A"
HEADER = 5  # a message of the server: one letter, and the length of the rest in four bytes, itself included


class Proxy:
    """Stands before the server of *dsn*; `url` leads through it.

    After `freeze` nothing is forwarded, though the kernel takes every byte: a half-open connection.
    With *deaf* the server's notifications are lost.
    """

    def __init__(self, dsn: str, *, deaf: bool = False) -> None:
        self._dsn = urlsplit(dsn)
        self._deaf = deaf
        self._frozen_up_to = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        login, at, _ = self._dsn.netloc.rpartition("@")
        self.url = self._dsn._replace(netloc=login + at + host).geturl()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def freeze(self) -> None:
        """Forward nothing more on the connections there are; new ones work."""
        self._frozen_up_to = self.connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        number = self.connections
        server_reader, server_writer = await asyncio.open_connection(self._dsn.hostname, self._dsn.port)
        ways = (
            asyncio.create_task(self._forward(number, reader, server_writer, by_message=False)),
            asyncio.create_task(self._forward(number, server_reader, writer, by_message=self._deaf)),
        )
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (writer, server_writer):
                end.transport.abort()

    async def _forward(
        self, number: int, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, by_message: bool
    ) -> None:
        while data := await (_message(source) if by_message else source.read(65536)):
            if number <= self._frozen_up_to:
                await asyncio.Event().wait()  # for ever
            if not (by_message and data.startswith(NOTIFICATION)):
                sink.write(data)
                await sink.drain()


async def _message(source: asyncio.StreamReader) -> bytes:
    try:
        head = await source.readexactly(HEADER)
        return head + await source.readexactly(int.from_bytes(head[1:]) - 4)
    except asyncio.IncompleteReadError:
        return b""
