"""A TCP proxy that breaks connections where a test says: after a byte, at a message, or now.

A *tap* sees every chunk on its way and answers what may pass; it may end or freeze the connection.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

Way: TypeAlias = Literal["up", "down"]
"""*up* is from our code to the server behind the proxy, *down* is back."""

How: TypeAlias = Literal["reset", "fin", "blackhole"]

NO_LINGER = struct.pack("ii", 1, 0)


class Tap(Protocol):
    """Looks at what passes."""

    def see(self, tunnel: Tunnel, way: Way, data: bytes) -> bytes:
        """Answer the bytes that may pass now."""


class Tunnel:
    """One connection through the proxy: two transports. *frozen* ways swallow what comes."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.ends: dict[Way, asyncio.Transport] = {}
        self.waiting: list[bytes] = []
        self.frozen: set[Way] = set()
        self.ended = False

    def carry(self, way: Way, data: bytes) -> None:
        """Pass *data* on, as far as the tap lets it."""
        if self.proxy.tap is not None and not self.ended:
            data = self.proxy.tap.see(self, way, data)
        if data and way not in self.frozen and not self.ended:
            self._write(way, data)

    def _write(self, way: Way, data: bytes) -> None:
        if way in self.ends:
            self.ends[way].write(data)
        else:
            self.waiting.append(data)

    def opened(self, way: Way, transport: asyncio.Transport) -> None:
        """The transport towards which *way* leads is there."""
        if self.ended:
            transport.abort()
            return
        self.ends[way] = transport
        if way == "up":
            for data in self.waiting:
                transport.write(data)
            self.waiting.clear()

    def break_off(self, how: How, data: bytes = b"", way: Way = "down") -> None:
        """Let *data* pass on its *way* as the last, then break the connection."""
        if data:
            self._write(way, data)
        if how == "blackhole":
            self.frozen |= {"up", "down"}
            return
        self.ended = True
        for transport in self.ends.values():
            if how == "reset" and not transport.is_closing():
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
                transport.abort()
            else:
                transport.close()
        self.proxy.tunnels.discard(self)

    def lost(self) -> None:
        """One side has gone: so does the other, in order."""
        if not self.ended:
            self.break_off("fin")


class _End(asyncio.Protocol):
    """One transport of a tunnel. What it receives travels *way*; it is where the other way leads."""

    def __init__(self, tunnel: Tunnel, way: Way) -> None:
        self._tunnel = tunnel
        self._way: Way = way

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._tunnel.opened("down" if self._way == "up" else "up", transport)
        if self._way == "up":
            self._tunnel.proxy.connect(self._tunnel)

    def data_received(self, data: bytes) -> None:
        self._tunnel.carry(self._way, data)

    def connection_lost(self, _error: Exception | None) -> None:
        self._tunnel.lost()


class Proxy:
    """Listens on *port* and connects to *target*. *tap* sees all tunnels, and may be changed at any time."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.tap: Tap | None = None
        self.tunnels: set[Tunnel] = set()
        self.port = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    def connect(self, tunnel: Tunnel) -> None:
        """Open the far side of *tunnel*."""
        self.tunnels.add(tunnel)
        task = asyncio.get_running_loop().create_task(self._connect(tunnel))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, tunnel: Tunnel) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: _End(tunnel, "down"), *self.target)
        except OSError:
            tunnel.break_off("reset")

    def break_all(self, how: How) -> None:
        """Break every connection now."""
        for tunnel in list(self.tunnels):
            tunnel.break_off(how)

    async def wait_idle(self) -> None:
        """Wait until the far sides that are being opened are there."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))


@asynccontextmanager
async def proxy(host: str, port: int) -> AsyncIterator[Proxy]:
    """Run a proxy before *host*:*port*."""
    made = Proxy((host, port))
    server = await asyncio.get_running_loop().create_server(lambda: _End(Tunnel(made), "up"), "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        made.tap = None
        made.break_all("reset")
        server.close()
        await made.wait_idle()
        await server.wait_closed()


@dataclass(slots=True)
class CutAfter:
    """Break the connection once *count* bytes have passed on *way*, counted over all tunnels."""

    way: Way
    count: int
    how: How
    seen: int = 0
    done: bool = False

    def see(self, tunnel: Tunnel, way: Way, data: bytes) -> bytes:
        if way != self.way or self.done:
            return data
        left = self.count - self.seen
        self.seen += len(data)
        if len(data) < left:
            return data
        self.done = True
        tunnel.break_off(self.how, data[:left], way)
        return b""


@dataclass(slots=True)
class CutAtMessage:
    """Break a Postgres connection at a message boundary of one exchange.

    The exchange begins with the message that holds *trigger*, on its way up, and ends with "ready for
    query". The *number*-th message on *way* is the last that passes (0: none).
    """

    trigger: bytes
    way: Way
    number: int
    how: How
    began: bool = False
    done: bool = False
    over: bool = False
    passed: int = 0
    _tunnel: Tunnel | None = None

    def see(self, tunnel: Tunnel, way: Way, data: bytes) -> bytes:
        if self.done or (self._tunnel is not None and tunnel is not self._tunnel):
            return data
        begins = way == "up" and self.trigger in data and not self.began
        if begins:
            self.began, self._tunnel = True, tunnel
        if not self.began or way != self.way or self.over:
            self.over = self.over or (self.began and way == "down" and _is_ready(data))
            return data
        let = 0
        for _kind, end in _messages(data):
            if self.passed == self.number:
                break
            self.passed += 1
            let = end
        self.over = self.over or (way == "down" and _is_ready(data))
        if self.passed < self.number or (self.over and let == len(data)):
            return data
        self.done = True
        tunnel.break_off(self.how, data[:let], way)
        return b""


def _is_ready(data: bytes) -> bool:
    return any(kind == "Z" for kind, _ in _messages(data))


def _messages(data: bytes) -> list[tuple[str, int]]:
    """The whole messages in *data*: each one's type, and where it ends. A chunk begins at a boundary."""
    found = []
    at = 0
    while at + 5 <= len(data):
        kind, length = struct.unpack_from("!ci", data, at)
        at += 1 + length
        found.append((kind.decode("latin-1"), min(at, len(data))))
    return found
