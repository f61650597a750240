"""A server for benches: the least HTTP/1.1 that lets a sender believe in it, and the time of each arrival.

Every request is answered 200 in Postmark's shape; nothing is checked and nothing is kept but the moment
and the uid. ``GET /_fake/ledger`` answers ``{"count": n, "arrivals": [[monotonic, uid], …]}``, and
``POST /_fake/reset`` empties it. Requests must carry Content-Length (no chunks).
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from types import TracebackType
from typing import Self, cast

__all__ = ["Sink"]

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_UID = re.compile(rb'"notifyq"\s*:\s*"([^"]*)"')
_ACCEPTED = (
    '{{"To":"","SubmittedAt":"2026-01-01T00:00:00.0000000Z","MessageID":"{}","ErrorCode":0,"Message":"OK"}}'
)


class Sink:
    """The server. *delay* is in seconds, before each answer to a POST.

    Example: ``async with Sink() as sink: ...; sink.arrivals`` holds (monotonic second, uid) pairs.
    """

    def __init__(self, *, port: int = 0, delay: float = 0.0) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.BaseTransport] = set()
        self.delay = delay
        self.arrivals: list[tuple[float, str | None]] = []

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), "127.0.0.1", self._port, backlog=1024
        )
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for transport in list(self._open):
            transport.close()
        await asyncio.sleep(0)

    def answer(self, line: bytes, body: bytes) -> bytes:
        """The JSON that answers one request; a POST of email is noted."""
        if line.startswith(b"POST /email"):
            found = _UID.search(body)
            self.arrivals.append((time.monotonic(), found[1].decode() if found else None))
            return _ACCEPTED.format(uuid.uuid4()).encode()
        if line.startswith(b"POST /_fake/reset"):
            self.arrivals.clear()
        if line.startswith(b"GET /_fake/"):
            return json.dumps({"count": len(self.arrivals), "arrivals": self.arrivals}).encode()
        if line.startswith(b"GET /messages/"):
            return b'{"TotalCount":0,"Messages":[]}'
        return b'{"ID":1,"Name":"sink"}'


class _Connection(asyncio.Protocol):
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._sink._open.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._sink._open.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end]
            length = _LENGTH.search(head)
            total = end + 4 + (int(length[1]) if length else 0)
            if len(self._buffer) < total:
                return
            body, self._buffer = self._buffer[end + 4 : total], self._buffer[total:]
            self._send(self._sink.answer(head, body), late=head.startswith(b"POST /email"))

    def _send(self, body: bytes, *, late: bool) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        if late and self._sink.delay:
            asyncio.get_running_loop().call_later(self._sink.delay, self._transport.write, head + body)
        else:
            self._transport.write(head + body)
