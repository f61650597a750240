"""The fake's door: a listening socket on a port that stays ours while nobody listens on it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Collection

from aiohttp import web

__all__ = ["Listener"]


class Listener:
    """A server on 127.0.0.1 whose door can be shut and opened again on the same port.

    *slam* is asked at each new connection; True closes it at once.
    """

    def __init__(self, app: web.Application, *, port: int, slam: Callable[[], bool]) -> None:
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1)
        self._slam = slam
        self._server: asyncio.Server | None = None
        self._holder: socket.socket | None = None
        self.port = port
        self.connections_made = 0

    async def open(self) -> None:
        """Bind the port (0: any) and listen. Raises OSError when it is taken."""
        await self._runner.setup()
        self._holder = _bound(self.port)
        self.port = self._holder.getsockname()[1]
        await self.up()

    async def up(self) -> None:
        """Listen; nothing happens when that is so already."""
        if self._holder is not None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self._protocol, sock=self._holder, backlog=1024)
            self._holder = None

    async def down(self, spare: Collection[object] | None = None) -> None:
        """Refuse new connections and end the old ones; those in *spare* may finish their request."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        self._holder = await _bound_again(self.port)
        self.end_connections(spare or ())
        for _ in range(5):  # a client on this same event loop sees the end of its connections, too
            await asyncio.sleep(0)

    def end_connections(self, spare: Collection[object] = ()) -> None:
        """End the open connections; those in *spare* close once their request is answered."""
        server = self._runner.server
        for connection in server.connections if server is not None else ():
            transport = connection.transport
            if transport is None:
                continue
            if transport in spare:
                connection.close()
            else:
                connection.force_close()
                transport.abort()

    async def close(self) -> None:
        """Let go of the port and of every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._holder is not None:
            self._holder.close()
            self._holder = None
        self.end_connections()
        await self._runner.cleanup()
        await asyncio.sleep(0)  # lets the aborted transports close their sockets

    def _protocol(self) -> asyncio.Protocol:
        self.connections_made += 1
        server = self._runner.server
        return _Slammed() if server is None or self._slam() else server()


class _Slammed(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _bound(port: int) -> socket.socket:
    """A bound socket that does not listen: connections are refused, and nobody else gets the port."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


async def _bound_again(port: int) -> socket.socket:
    """Some event loops close a listening socket only in their next turn."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            return _bound(port)
        await asyncio.sleep(0.01)
    return _bound(port)
