"""Connections to Postmark: the last look before bytes leave, and one spare that is open ahead of need.

`WarmConnector` is aiohttp's connector with two additions.

**The last look.** When a connection is ready, and before anything is written to it, the `LastLook` of the
attempt is taken: it may still say no, and then the server has seen nothing. After it, everything counts as
sent. An attempt that ends without its whole answer resets its connection, so that no byte outlives it.

**The spare.** `keep_spare` opens one connection, TLS and all, before it is needed, and replaces it when it
is used, closed by the other side, or 55 s old. So the first email after a quiet hour waits for no handshake,
and none goes out on a connection that the server is about to drop.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from notifyq.provider import StillOurs

__all__ = ["LastLook", "WarmConnector", "keep_spare", "taken_by"]

SPARE_SECONDS: Final = 55.0
KEEP_ALIVE_SECONDS: Final = 50.0
CONNECT_SECONDS: Final = 10.0
MAX_PAUSE: Final = 60.0
LIVED_WELL: Final = 5.0
"""A spare that the other side drops sooner than this is replaced after a pause that doubles."""
GIVE_UP_MILLISECONDS: Final = 10_000
"""How long the kernel may retry unacknowledged bytes: the default POST budget."""


class LastLook:
    """One attempt: may it still go out, did it, and what came back."""

    __slots__ = (
        "_still_ours",
        "answered",
        "body",
        "fresh",
        "headers",
        "objection",
        "passed",
        "status",
        "transport",
    )

    def __init__(self, still_ours: StillOurs) -> None:
        self._still_ours = still_ours
        self.objection: str | None = None
        self.passed = False
        self.answered = False
        self.fresh = False
        self.status: int | None = None
        self.headers: Mapping[str, str] = {}
        self.body = b""
        self.transport: asyncio.Transport | None = None

    def take(self, connection: Connection) -> None:
        """Decide on *connection*, which is ready; raises `Stopped` when nothing may leave."""
        self.objection = self._still_ours()
        if self.objection is not None:
            raise Stopped
        self.transport = connection.transport
        self.passed = True

    def end(self) -> None:
        """Make sure that no byte is still on its way from here, unless the whole answer was read."""
        if self.passed and not self.answered and self.transport is not None:
            self.transport.abort()


class Stopped(Exception):  # no error: the attempt was called off, or the spare is ready
    """Ends a request before it is written."""


_look: ContextVar[LastLook | None] = ContextVar("notifyq_last_look", default=None)
_warming: ContextVar[bool] = ContextVar("notifyq_warming", default=False)


@contextlib.contextmanager
def taken_by(look: LastLook) -> Any:
    """Take *look* for the request that is made in this block."""
    token = _look.set(look)
    try:
        yield
    finally:
        _look.reset(token)


class WarmConnector(aiohttp.TCPConnector):
    """A TCP connector that takes the last look and may hold one spare connection."""

    def __init__(self, *, limit: int) -> None:
        super().__init__(limit=limit, keepalive_timeout=KEEP_ALIVE_SECONDS, socket_factory=_make_socket)
        self._spare: ResponseHandler | None = None
        self._spare_key: object = None
        self._taken: asyncio.Future[None] | None = None

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        """Get a connection that nothing was written to, and take the last look on it."""
        if _warming.get():
            await self._open_spare(req, traces, timeout)
            raise Stopped
        look = _look.get()
        if look is None:
            return await super().connect(req, traces, timeout)
        connection = await self._quiet_connection(look, req, traces, timeout)
        try:
            look.take(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    async def spare_gone(self) -> bool:
        """Wait until the spare is used, lost or too old; True when it was used."""
        spare, taken = self._spare, self._taken
        if spare is None or taken is None:
            return taken is not None and taken.done()
        if (closed := spare.closed) is None:
            self._spare = None
            return False
        closed.add_done_callback(_look_at_error)
        await asyncio.wait((closed, taken), timeout=SPARE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not taken.done():
            await self.drop_spare()
        return taken.done()

    async def drop_spare(self) -> None:
        """Close the spare, if there is one."""
        spare, self._spare = self._spare, None
        if spare is None or spare.transport is None:
            return
        closed = spare.closed
        spare.transport.abort()
        if closed is not None:
            closed.add_done_callback(_look_at_error)
            await asyncio.wait((closed,), timeout=1)

    async def _quiet_connection(
        self, look: LastLook, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        while True:
            look.fresh = False
            connection = await super().connect(req, traces, timeout)
            if look.fresh or not _has_input(connection.transport):
                return connection
            connection.close()

    async def _create_connection(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        if (look := _look.get()) is not None:
            look.fresh = True
        spare = self._take_spare(req)
        # Not "or": an idle connection has a length, zero, and would count as false.
        return spare if spare is not None else await super()._create_connection(req, traces, timeout)

    async def _open_spare(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> None:
        spare = await super()._create_connection(req, traces, timeout)
        if self.closed:
            spare.close()
            return
        self._spare, self._spare_key = spare, req.connection_key
        self._taken = self._loop.create_future()

    def _take_spare(self, req: aiohttp.ClientRequest) -> ResponseHandler | None:
        spare, taken = self._spare, self._taken
        if spare is None or taken is None or self._spare_key != req.connection_key:
            return None
        if not spare.is_connected() or spare.should_close or _has_input(spare.transport):
            return None
        self._spare = None
        taken.set_result(None)
        return spare


async def keep_spare(
    connector: WarmConnector, warm: Callable[[], Awaitable[object]], tried: asyncio.Event
) -> None:
    """Keep one spare open, for ever; *warm* makes any request, *tried* is set after the first one.

    Failures are silent: the sends tell of them.
    """
    pause = 0.0
    while True:
        if pause:
            await asyncio.sleep(pause)
        started = asyncio.get_running_loop().time()
        warmed = await _warm(warm)
        tried.set()
        used = warmed and await connector.spare_gone()
        if used or asyncio.get_running_loop().time() - started > LIVED_WELL:
            pause = 0.0
        else:
            pause = min(MAX_PAUSE, max(0.25, pause * 2))


async def _warm(warm: Callable[[], Awaitable[object]]) -> bool:
    token = _warming.set(True)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await warm()
    except Stopped:
        return True
    except Exception:  # whatever it is, the next send meets it too and tells of it
        return False
    finally:
        _warming.reset(token)
    return False


def _make_socket(address: tuple[Any, ...]) -> socket.socket:
    """Make a socket that is quick, notices a dead peer, and drops unsent bytes when it is closed."""
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GIVE_UP_MILLISECONDS)
    return made


_NO_LINGER: Final = struct.pack("ii", 1, 0)


def _has_input(transport: asyncio.Transport | None) -> bool:
    """Tell whether the other side has spoken on an idle connection: it has closed it, or is about to."""
    peer = None if transport is None else transport.get_extra_info("socket")
    if peer is None or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(peer.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _look_at_error(closed: asyncio.Future[None]) -> None:
    """A reset spare is no news, and a future whose error nobody reads is reported by asyncio."""
    if not closed.cancelled():
        closed.exception()
