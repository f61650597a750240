"""The overview, the badge, the health, and the stream of live updates."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from aiohttp import web

from notifyq.admin import charts
from notifyq.admin.flow import Verdict, gate_words, illness, judge, needs
from notifyq.admin.guard import drawn, shown
from notifyq.admin.live import Pulse
from notifyq.admin.render import root
from notifyq.admin.safety import PAGE_HEADERS
from notifyq.admin.state import STATE, State
from notifyq.admin.words import COUNTED_TO
from notifyq.db import DATABASE_FAULTS

__all__ = ["badge", "badge_json", "healthz", "live", "overview"]

CHART_WAIT: Final = 0.05
"""The page does not wait longer for its charts: the first time they count a whole day, behind the page."""
HEALTH_WAIT: Final = 5.0
STREAM_SECONDS: Final = 600.0
"""A stream ends after this; the browser comes again, and passes the door again."""
HEARTBEAT: Final = 15.0


async def overview(request: web.Request) -> web.Response:
    """Whether mail flows, what failed, how fast it goes."""
    state = request.app[STATE]
    pulse = await state.hub.pulse()
    now = pulse.row["now"]
    await _charts_soon(state, now)
    verdict, ready = judge(pulse), state.timeline.complete
    main = await drawn(request, "overview_main.html", ready, **await _told(state, pulse, verdict))
    return await shown(request, "overview.html", pulse=pulse, verdict=verdict, charts_ready=ready, main=main)


async def badge(request: web.Request) -> web.Response:
    """A snippet for a page that people visit anyway: one link, with a class and no style of its own."""
    count = _badge(await request.app[STATE].hub.pulse())["failed"]
    return await shown(request, "badge.html", count=count)


async def badge_json(request: web.Request) -> web.Response:
    """The same as JSON."""
    said = _badge(await request.app[STATE].hub.pulse())
    return web.json_response({**said, "href": root(request)}, headers=PAGE_HEADERS)


async def healthz(request: web.Request) -> web.Response:
    """200 while a listener is proven and the gate is open, else 503 with the reason. Tells no data."""
    state = request.app[STATE]
    try:
        async with asyncio.timeout(HEALTH_WAIT):
            account = state.provider.account if state.provider is not None else None
            reason = illness(await state.hub.pulse(), account=account)
    except DATABASE_FAULTS:
        reason = "the database does not answer"
    said = {"status": "unhealthy", "reason": reason} if reason else {"status": "ok"}
    return web.json_response(said, status=503 if reason else 200, headers=PAGE_HEADERS)


async def live(request: web.Request) -> web.StreamResponse:
    """Server-sent events: what changed, for an open page."""
    hub = request.app[STATE].hub
    if hub.full:
        raise web.HTTPTooManyRequests
    headers = {**PAGE_HEADERS, "Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(STREAM_SECONDS), hub.watching() as changes:
            await response.write(b"retry: 2000\nevent: hello\ndata: {}\n\n")
            while await _pass_on(response, changes):
                pass
    return response


async def _pass_on(response: web.StreamResponse, changes: asyncio.Queue[Any]) -> bool:
    """One change, or a heartbeat that shows whether anybody still listens."""
    try:
        change = await asyncio.wait_for(changes.get(), HEARTBEAT)
    except TimeoutError:
        await response.write(b": still here\n\n")
        return True
    if change is None:
        return False
    await response.write(change.event())
    return True


async def _told(state: State, pulse: Pulse, verdict: Verdict) -> dict[str, Any]:
    """All that the overview tells."""
    now = pulse.row["now"]
    return {
        "pulse": pulse,
        "now": now,
        "verdict": verdict,
        "needs": needs(pulse, await _why_not_set_up(state, pulse)),
        "gates": [(gate, gate_words(gate, now)) for gate in pulse.gates],
        "failed": await state.reads.rows_once("page_to_mend") if pulse.failed else [],
        "kept": (await state.reads.rows_once("page_kept"))[0],
        "hour": state.timeline.hour(now),
        "day": state.timeline.day(now),
        "charts_ready": state.timeline.complete,
        "throughput": charts.throughput,
        "latency": charts.latency,
    }


async def _why_not_set_up(state: State, pulse: Pulse) -> str:
    if not pulse.facts.to_set_up:
        return ""
    rows = await state.reads.rows_once("page_to_set_up")
    return "; ".join(row["error"] for row in rows if row["error"])


async def _charts_soon(state: State, now: Any) -> None:
    """Bring the charts up to date, but let nobody wait for a whole day to be counted."""
    if state.refreshing is None or state.refreshing.done():
        state.refreshing = asyncio.create_task(_refresh(state, now), name="notifyq admin charts")
    await asyncio.wait([state.refreshing], timeout=CHART_WAIT)


async def _refresh(state: State, now: Any) -> None:
    with contextlib.suppress(*DATABASE_FAULTS):
        await state.timeline.refresh(now)


def _badge(pulse: Pulse) -> dict[str, Any]:
    row = pulse.row
    return {
        "failed": pulse.failed,
        "held": row["held"],
        "dead": row["dead"],
        "dead_this_week": row["failed"],
        "tasks_dead": row["tasks_dead"],
        "tasks_dead_this_week": row["tasks_failed"],
        "more": max(row[name] for name in ("held", "dead", "tasks_dead")) > COUNTED_TO,
    }
