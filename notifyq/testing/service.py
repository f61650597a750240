"""Requests as they come in: each is read, noted, perhaps met by a fault, and answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from aiohttp import web

from notifyq.testing.answers import Scene, cut, perform, respond
from notifyq.testing.desk import TEST_TOKEN, Desk, Reply, read_json, refuse
from notifyq.testing.faultbook import FaultBook
from notifyq.testing.faults import CloseUnread, Fault, Target
from notifyq.testing.ledger import Ledger, uid_of
from notifyq.testing.rules import Refusal

__all__ = ["Service"]


class Service:
    """The handler of every request to the fake account. *under_way* holds a transport for each."""

    def __init__(self, desk: Desk, ledger: Ledger, faults: FaultBook, *, answer_delay: float) -> None:
        self._desk = desk
        self._ledger = ledger
        self._faults = faults
        self._released = asyncio.Event()
        self._outliving: set[asyncio.Task[Reply]] = set()
        self.under_way: list[object] = []
        self.answer_delay = answer_delay

    def release(self) -> None:
        """Let go of everything that hangs."""
        self._released.set()
        self._released = asyncio.Event()

    async def stop_outliving(self) -> None:
        """End what goes on for clients that have left."""
        for task in self._outliving:
            task.cancel()
        await asyncio.gather(*self._outliving, return_exceptions=True)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        place = request.transport
        self.under_way.append(place)
        try:
            return await self._route(request)
        finally:
            self.under_way.remove(place)
            self._ledger.changed()

    async def _route(self, request: web.Request) -> web.StreamResponse:
        path = "/" + request.path.strip("/").lower()
        if request.method == "POST" and path in ("/email", "/email/batch"):
            return await self._take_post(request, path)
        if request.method != "GET" or not path.startswith(("/server", "/messages/outbound")):
            return respond(refuse(Refusal(12, "The requested resource was not found.", 404)))
        if refusal := self._desk.check_token(request.headers):
            return respond(refuse(refusal))
        query = {name.lower(): value for name, value in request.query.items()}
        if path == "/server":
            return await self._meet("server", request, query, lambda _fault: self._desk.server())
        if path == "/messages/outbound":
            number = self._ledger.look(query)
            return await self._meet(
                "search", request, query, lambda fault: self._desk.search(query, fault), number
            )
        message_id = path.removeprefix("/messages/outbound/").removesuffix("/details")
        return await self._meet("search", request, query, lambda _fault: self._desk.details(message_id))

    async def _meet(
        self,
        on: Target,
        request: web.Request,
        query: dict[str, str],
        judge: Callable[[Fault | None], Reply],
        number: int = 0,
    ) -> web.StreamResponse:
        """Answer a GET, through a fault if one fits."""
        fault = self._faults.take(on, [dict(query)], [query.get("metadata_notifyq", "")])
        return await self._play(fault, request, lambda: judge(fault), number)

    async def _take_post(self, request: web.Request, path: str) -> web.StreamResponse:
        """Answer a POST of email, through a fault if one fits."""
        number = self._ledger.arrive(path)
        if self._faults.take_early(CloseUnread):
            self._ledger.note(number, answer="close unread")
            return cut(request)
        if refusal := self._desk.check_head(request.headers):
            return await self._play(None, request, lambda: refuse(refusal), number)
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            too_large = Refusal(300, "The request is too large.", 413)
            return await self._play(None, request, lambda: refuse(too_large), number)
        bodies = _messages_in(body)
        uids = tuple(uid for uid in map(uid_of, bodies) if uid is not None)
        self._ledger.note(number, uids=uids)
        if limited := self._desk.over_rate():
            return await self._play(None, request, lambda: limited, number)
        fault = self._faults.take("send", bodies, uids)
        return await self._play(fault, request, self._judge(request, path, body, number), number)

    def _judge(self, request: web.Request, path: str, body: bytes, number: int) -> Callable[[], Reply]:
        test = request.headers.get("X-Postmark-Server-Token") == TEST_TOKEN
        verb = self._desk.send if path == "/email" else self._desk.send_batch

        def judge() -> Reply:
            reply = verb(body, test=test)
            self._ledger.note(number, message_ids=reply.message_ids)
            return reply

        return judge

    async def _play(
        self, fault: Fault | None, request: web.Request, judge: Callable[[], Reply], number: int
    ) -> web.StreamResponse:
        """Answer as Postmark would (after *answer_delay*), or let the fault answer."""

        def conclude(answer: str) -> None:
            self._ledger.note(number, answer=answer)

        try:
            if fault is not None:
                scene = Scene(
                    request=request, judge=judge, conclude=conclude, pause=self._pause, outlive=self._outlive
                )
                return await perform(fault, scene)
            reply = judge()
            if self.answer_delay:
                await asyncio.sleep(self.answer_delay)
        except asyncio.CancelledError:
            conclude("the client left")
            raise
        conclude(reply.label)
        return respond(reply)

    async def _pause(self, seconds: float | None) -> None:
        if seconds is None:
            await self._released.wait()
        else:
            await asyncio.sleep(seconds)

    async def _outlive(self, work: Coroutine[Any, Any, Reply]) -> Reply:
        task = asyncio.get_running_loop().create_task(work)
        self._outliving.add(task)
        task.add_done_callback(self._outliving.discard)
        return await asyncio.shield(task)


def _messages_in(body: bytes) -> list[dict[str, Any]]:
    """The messages of a request, as far as they can be read, for choosing a fault."""
    try:
        content = read_json(body)
    except ValueError:
        return []
    items = content if isinstance(content, list) else [content]
    return [item for item in items if isinstance(item, dict)]
