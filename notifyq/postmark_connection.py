"""Connections to Postmark: the last look before bytes leave, and one spare that is open ahead of need.

`post` writes one request on a connection of aiohttp's, and has it read by aiohttp's parser. Its head is
always the same, so that it costs a fraction of what a session's request does; above all, nothing can come
between the last look and the bytes.

**The last look.** When a connection is ready, and before anything is written to it, the `LastLook` of the
attempt is taken: it may still say no, and then the server has seen nothing. After it, everything counts as
sent. An attempt that ends without its whole answer resets its connection, so that no byte outlives it.

**The spare.** `keep_spare` opens one connection, TLS and all, before it is needed, and replaces it when it
is used, closed by the other side, or 55 s old. So the first email after a quiet hour waits for no handshake,
and none goes out on a connection that the server is about to drop.
"""

from __future__ import annotations

import asyncio
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

__all__ = ["LastLook", "WarmConnector", "keep_spare", "post", "read_at_most"]

SPARE_SECONDS: Final = 55.0
KEEP_ALIVE_SECONDS: Final = 50.0
CONNECT_SECONDS: Final = 10.0
MAX_PAUSE: Final = 60.0
LIVED_WELL: Final = 5.0
"""A spare that the other side drops sooner than this is replaced after a pause that doubles."""
GIVE_UP_MILLISECONDS: Final = 10_000
"""How long the kernel may retry unacknowledged bytes: the default POST budget."""


_NO_TRACES: Final[list[Trace]] = []
_NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None)
_INPUT: Final = "_notifyq_input"
"""An attribute of aiohttp's protocol objects: what is known of a connection is found and ends with it."""


class LastLook:
    """One attempt: may it still go out, did it, and what came back."""

    __slots__ = (
        "_still_ours",
        "answered",
        "body",
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


_warming: ContextVar[bool] = ContextVar("notifyq_warming", default=False)


class WarmConnector(aiohttp.TCPConnector):
    """A TCP connector whose connections are quiet, and that may hold one spare connection."""

    def __init__(self, *, limit: int) -> None:
        super().__init__(limit=limit, keepalive_timeout=KEEP_ALIVE_SECONDS, socket_factory=_make_socket)
        self._spare: ResponseHandler | None = None
        self._spare_key: object = None
        self._taken: asyncio.Future[None] | None = None

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        """Get a connection, or make this one the spare."""
        if _warming.get():
            await self._open_spare(req, traces, timeout)
            raise Stopped
        return await super().connect(req, traces, timeout)

    async def quiet_connection(self, req: aiohttp.ClientRequest) -> Connection:
        """Get a connection that the other side has not closed, and on which it has not spoken since.

        What it says before it is asked is no answer, and would be taken for one. Raises
        ``aiohttp.ClientConnectionError`` for a server that speaks first.
        """
        while True:
            connection = await super().connect(req, _NO_TRACES, _NO_TIMEOUT)
            protocol, transport = connection.protocol, connection.transport
            if protocol is not None and transport is not None:
                known: Input | None = getattr(protocol, _INPUT, None)
                if known is None:  # new: what waits unread belongs to the handshake
                    setattr(protocol, _INPUT, Input(transport))
                    if not protocol.should_close:
                        return connection
                    connection.close()
                    raise aiohttp.ClientConnectionError("the server spoke before it was asked")
                if not (protocol.should_close or known.waits()):
                    return connection
            connection.close()

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

    async def _create_connection(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
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
        if not spare.is_connected() or spare.should_close or Input(spare.transport).waits():
            return None
        self._spare = None
        taken.set_result(None)
        return spare


async def post(
    connector: WarmConnector,
    request: aiohttp.ClientRequest,
    head: bytes,
    body: bytes,
    look: LastLook,
    most: int,
) -> None:
    """Take *look*, write *head*, the length and *body*, and read at most *most* bytes of answer into *look*.

    *request* says where to connect to. Raises `Stopped` for a look that says no, and whatever a network does.
    """
    connection = await connector.quiet_connection(request)
    try:
        look.take(connection)
        protocol, transport = connection.protocol, connection.transport
        assert protocol is not None and transport is not None  # noqa: S101 (it is ready: see quiet_connection)
        protocol.set_response_params(read_until_eof=True)
        transport.write(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
        message, content = await protocol.read()
        while 100 <= message.code < 200 and message.code != 101:
            message, content = await protocol.read()
        look.status, look.headers = message.code, message.headers
        look.body = await read_at_most(content, most)
        look.answered = True
        if transport.get_write_buffer_size() or not content.at_eof():
            # Answered before it had all been written, or at too great a length: no byte outlives the attempt.
            transport.abort()
            protocol.force_close()
    except BaseException:
        connection.close()
        raise
    connection.release()


async def read_at_most(content: aiohttp.StreamReader, most: int) -> bytes:
    """Read *content* to its end, or to *most* bytes if it has more."""
    first = await content.readany()
    if content.is_eof() and content.at_eof():
        return first[:most]
    body = bytearray(first)
    async for chunk in content.iter_any():
        body += chunk
        if len(body) >= most:
            break
    return bytes(body[:most])


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


class Input:
    """Tells whether the other side has spoken on an idle connection: it has closed it, or is about to."""

    __slots__ = ("_poll",)

    def __init__(self, transport: asyncio.BaseTransport | None) -> None:
        peer = None if transport is None else transport.get_extra_info("socket")
        self._poll = None
        if peer is not None and hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(peer.fileno(), select.POLLIN)

    def waits(self) -> bool:
        """True if there is something to read. Ask only while the connection is open: it knows a number."""
        return self._poll is not None and bool(self._poll.poll(0))


def _look_at_error(closed: asyncio.Future[None]) -> None:
    """A reset spare is no news, and a future whose error nobody reads is reported by asyncio."""
    if not closed.cancelled():
        closed.exception()
