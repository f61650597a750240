"""Answers as bytes: the ordinary ones through aiohttp, the spoilt ones by hand on the transport."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, assert_never

from aiohttp import web

from notifyq.testing.desk import Reply
from notifyq.testing.faults import (
    Altered,
    Answer,
    Close,
    CloseOnAccept,
    CloseUnread,
    Drip,
    Fault,
    Hang,
    IgnoreFilter,
    LateAccept,
    Reset,
    ShowTwice,
    Truncated,
)

__all__ = ["Scene", "cut", "perform", "respond"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One request that meets a fault.

    *judge* does what Postmark would do, acceptance included. *conclude* notes what was answered.
    *pause* waits for seconds, or for ``fake.release()``. *outlive* runs something that goes on
    when the client has left.
    """

    request: web.Request
    judge: Callable[[], Reply]
    conclude: Callable[[str], None]
    pause: Callable[[float | None], Awaitable[None]]
    outlive: Callable[[Coroutine[Any, Any, Reply]], Awaitable[Reply]]


def respond(reply: Reply) -> web.Response:
    """The ordinary form of an answer."""
    return web.Response(
        status=reply.status,
        body=json.dumps(reply.body).encode(),
        headers=dict(reply.headers),
        content_type="application/json",
        charset="utf-8",
    )


async def perform(fault: Fault, scene: Scene) -> web.StreamResponse:
    """Play a fault that meets a request which has been read."""
    match fault:
        case Close() | Reset():
            return _lose(fault, scene)
        case Hang():
            return await _hang(fault, scene)
        case LateAccept():
            reply = await scene.outlive(_accept_late(fault, scene))
            return _answered(reply, scene)
        case Answer():
            return _answer(fault, scene)
        case Altered():
            return _altered(fault, scene)
        case Truncated():
            return _truncated(_judged(fault.record, scene), scene)
        case Drip():
            return await _drip(fault, _judged(fault.record, scene), scene)
        case CloseOnAccept() | CloseUnread():
            return cut(scene.request)
        case IgnoreFilter() | ShowTwice():
            return _answered(scene.judge(), scene)
        case _:
            assert_never(fault)


def cut(request: web.Request, *, reset: bool = False) -> web.StreamResponse:
    """End the connection without an answer: by FIN, or by RST."""
    transport = request.transport
    if transport is not None:
        if reset:
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    return _Written()


class _Written(web.StreamResponse):
    """Stands for bytes that were written by hand, or for none: aiohttp adds nothing to it."""

    def __init__(self) -> None:
        super().__init__()
        self.force_close()

    async def prepare(self, request: web.BaseRequest) -> None:
        """Write no head."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Write no body."""


def _lose(fault: Close | Reset, scene: Scene) -> web.StreamResponse:
    if fault.record:
        scene.judge()
    reset = isinstance(fault, Reset)
    scene.conclude("reset" if reset else "close")
    return cut(scene.request, reset=reset)


async def _hang(fault: Hang, scene: Scene) -> web.StreamResponse:
    reply = scene.judge() if fault.record else None
    await scene.pause(None)
    if reply is not None:
        return _answered(reply, scene)
    scene.conclude("close")
    return cut(scene.request)


async def _accept_late(fault: LateAccept, scene: Scene) -> Reply:
    await scene.pause(fault.after)
    return scene.judge()


def _answer(fault: Answer, scene: Scene) -> web.StreamResponse:
    if fault.record:
        scene.judge()
    scene.conclude(str(fault.status))
    response = web.Response(status=fault.status, body=fault.body.encode(), headers=dict(fault.headers))
    if fault.content_type is not None:
        response.headers["Content-Type"] = fault.content_type
    return response


def _altered(fault: Altered, scene: Scene) -> web.StreamResponse:
    reply = scene.judge()
    if reply.status == 200 and isinstance(reply.body, dict):
        body = {key: value for key, value in reply.body.items() if key not in fault.drop}
        reply = Reply(200, {**body, **fault.change}, message_ids=reply.message_ids)
    return _answered(reply, scene)


def _answered(reply: Reply, scene: Scene) -> web.Response:
    scene.conclude(reply.label)
    return respond(reply)


def _judged(record: bool, scene: Scene) -> Reply:
    """The real answer, or one that looks like an acceptance and is none."""
    if record:
        return scene.judge()
    return Reply(200, {"To": "", "SubmittedAt": "", "MessageID": "", "ErrorCode": 0, "Message": "OK"})


def _truncated(reply: Reply, scene: Scene) -> web.StreamResponse:
    head, body = _bytes(reply)
    scene.conclude("truncated")
    if scene.request.transport is not None:
        scene.request.transport.write(head + body[: len(body) // 2])
        scene.request.transport.close()
    return _Written()


async def _drip(fault: Drip, reply: Reply, scene: Scene) -> web.StreamResponse:
    head, body = _bytes(reply)
    scene.conclude(reply.label)
    for part, data in (("head", head), ("body", body)):
        slow = fault.part in ("all", part)
        for at in range(len(data)) if slow else ():
            _write(scene.request, data[at : at + 1])
            await scene.pause(fault.gap)
        if not slow:
            _write(scene.request, data)
    if scene.request.transport is not None:
        scene.request.transport.close()
    return _Written()


def _write(request: web.Request, data: bytes) -> None:
    if request.transport is not None and not request.transport.is_closing():
        request.transport.write(data)


def _bytes(reply: Reply) -> tuple[bytes, bytes]:
    body = json.dumps(reply.body).encode()
    lines = (
        f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}",
        "Content-Type: application/json; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode(), body
