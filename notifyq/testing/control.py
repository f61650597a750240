"""The fake's remote control, for tests and benches in another process: JSON under ``/_fake/``.

=========================  =================================================================
GET ``/_fake/ledger``      ``accepted``, ``posts``, ``searches``, ``in_flight``
GET ``/_fake/counts``      ``accepted``, ``posts``, ``searches``, ``in_flight``, ``connections`` as
                           numbers, ``accepted_by_uid`` and ``posts_by_uid``
GET ``/_fake/wait``        the counts, once ``?accepted=n&posts=m&searches=k`` have come; 408 after
                           ``timeout`` seconds (default 10)
POST ``/_fake/faults``     ``{"fault": "Hang", "with": {"record": true}, "times": 1, "uid": null,
                           "match": {"Subject": "x"}, "on": "send"}``; only ``fault`` is required
DELETE ``/_fake/faults``   forget them
POST ``/_fake/set``        any of ``token search_lag retention_days answer_delay senders zulu partial
                           rate_limit suppress unsuppress account_fault``
POST ``/_fake/release``    let go of what hangs
POST ``/_fake/down``       ``{"seconds": 2}``: refuse connections for so long
POST ``/_fake/reset``      forget messages, POSTs, searches and faults
=========================  =================================================================

It asks for no token: the fake listens on 127.0.0.1 alone and knows no secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from aiohttp import web

from notifyq.testing.faults import fault_named

if TYPE_CHECKING:
    from notifyq.testing.fake import FakePostmark

__all__ = ["add_control"]

_ATTRIBUTES = ("token", "search_lag", "retention_days", "answer_delay", "senders", "zulu", "partial")
_REOPENINGS: web.AppKey[set[asyncio.Task[None]]] = web.AppKey("reopenings", set[asyncio.Task[None]])


def add_control(app: web.Application, fake: FakePostmark) -> None:
    """Add the routes to the fake's own app."""

    async def ledger(_request: web.Request) -> web.Response:
        return web.json_response(_ledger(fake))

    async def counts(_request: web.Request) -> web.Response:
        return web.json_response(_counts(fake))

    async def release(_request: web.Request) -> web.Response:
        fake.release()
        return web.json_response({})

    async def reset(_request: web.Request) -> web.Response:
        fake.reset()
        return web.json_response({})

    async def forget(_request: web.Request) -> web.Response:
        fake.clear_faults()
        return web.json_response({})

    app[_REOPENINGS] = set()
    app.on_shutdown.append(_stop_reopening)
    app.add_routes(
        [
            web.get("/_fake/ledger", ledger),
            web.get("/_fake/counts", counts),
            web.get("/_fake/wait", _with(fake, _wait)),
            web.post("/_fake/faults", _with(fake, _fault)),
            web.delete("/_fake/faults", forget),
            web.post("/_fake/set", _with(fake, _set)),
            web.post("/_fake/release", release),
            web.post("/_fake/down", _with(fake, _down)),
            web.post("/_fake/reset", reset),
        ]
    )


_Verb = Callable[["FakePostmark", web.Request], Awaitable[web.Response]]


def _with(fake: FakePostmark, verb: _Verb) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Bind a verb to the fake; what the caller got wrong is a 400 that says so."""

    async def handler(request: web.Request) -> web.Response:
        try:
            return await verb(fake, request)
        except (ValueError, TypeError, KeyError) as error:
            return web.json_response({"error": f"{type(error).__name__}: {error}"}, status=400)

    return handler


def _ledger(fake: FakePostmark) -> dict[str, Any]:
    return {
        "accepted": [asdict(message) for message in fake.accepted],
        "posts": [asdict(post) for post in fake.posts],
        "searches": [asdict(search) for search in fake.searches],
        "in_flight": fake.requests_in_flight,
    }


def _counts(fake: FakePostmark) -> dict[str, Any]:
    return {
        "accepted": len(fake.accepted),
        "posts": len(fake.posts),
        "searches": len(fake.searches),
        "in_flight": fake.requests_in_flight,
        "connections": fake.connections_made,
        "accepted_by_uid": fake.accepted_by_uid(),
        "posts_by_uid": fake.posts_by_uid(),
    }


async def _wait(fake: FakePostmark, request: web.Request) -> web.Response:
    wanted = {name: int(request.query.get(name, 0)) for name in ("accepted", "posts", "searches")}
    timeout = float(request.query.get("timeout", 10))

    def come() -> bool:
        return all(len(getattr(fake, name)) >= number for name, number in wanted.items())

    try:
        await fake.wait_for(come, timeout=timeout)
    except TimeoutError:
        return web.json_response(_counts(fake), status=408)
    return web.json_response(_counts(fake))


async def _fault(fake: FakePostmark, request: web.Request) -> web.Response:
    order = await request.json()
    match = order.get("match")
    fake.fault(
        fault_named(order["fault"], order.get("with", {})),
        times=order.get("times", 1),
        uid=order.get("uid"),
        on=order.get("on"),
        when=None if match is None else lambda body: match.items() <= body.items(),
    )
    return web.json_response({})


async def _set(fake: FakePostmark, request: web.Request) -> web.Response:
    verbs: dict[str, Callable[[Any], None]] = {
        "rate_limit": fake.rate_limit,
        "suppress": fake.suppress,
        "unsuppress": fake.unsuppress,
        "account_fault": fake.account_fault,
    }
    orders = await request.json()
    unknown = set(orders) - set(verbs) - set(_ATTRIBUTES)
    if unknown:
        raise ValueError(f"no setting is called {min(unknown)!r}")
    for name, value in orders.items():
        if name in verbs:
            verbs[name](value)
        else:
            setattr(fake, name, value)
    return web.json_response({})


async def _down(fake: FakePostmark, request: web.Request) -> web.Response:
    """Answer first, then shut the door: the caller could not open it again."""
    seconds = float((await request.json())["seconds"])

    async def away() -> None:
        await fake.down()
        await asyncio.sleep(seconds)
        await fake.up()

    response = web.json_response({})
    response.force_close()
    await response.prepare(request)
    await response.write_eof()
    task = asyncio.get_running_loop().create_task(away())
    request.app[_REOPENINGS].add(task)
    task.add_done_callback(request.app[_REOPENINGS].discard)
    return response


async def _stop_reopening(app: web.Application) -> None:
    reopenings = app[_REOPENINGS]
    tasks = list(reopenings)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
