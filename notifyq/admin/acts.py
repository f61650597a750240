"""What an operator does. Every act is a POST with its token, goes through the SQL functions with the claim
that the operator saw, and leaves the operator's name in the history.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from aiohttp import web

from notifyq.address import Address
from notifyq.admin.filters import LAST, Filters
from notifyq.admin.guard import checked_form, operator, shown
from notifyq.admin.render import root
from notifyq.admin.state import STATE, State
from notifyq.errors import InvalidEmail
from notifyq.sqlfiles import query

__all__ = ["again", "bulk", "cancel", "copy", "resolve", "retry"]

BULK: Final = 1_000
"""Rows that one confirmation may change."""
ACT_LIMIT: Final = 30.0
_ROW: Final = re.compile(r"(\d{1,18}):(\d{1,18})")

Shown = tuple[int, int]
"""A row as it was shown: its id and its claim_seq."""


async def retry(request: web.Request) -> web.StreamResponse:
    """Send it after all; run it again."""
    return await _one(request, "retry")


async def cancel(request: web.Request) -> web.StreamResponse:
    """Do not send it; do not run it."""
    return await _one(request, "cancel")


async def resolve(request: web.Request) -> web.StreamResponse:
    """It was sent: here is the provider's message id."""
    id, claim_seq, form = await _asked(request, "resolve")
    message_id = str(form.get("message_id", "")).strip()
    if not message_id or len(message_id) > 200 or not message_id.isprintable():
        raise _back(request, id, "no-id")
    rows = await _act(request.app[STATE], operator().name, "page_resolve_email", id, message_id, claim_seq)
    raise _back(request, id, "resolved" if rows and rows[0]["changed"] else "stale")


async def copy(request: web.Request) -> web.StreamResponse:
    """A copy of it, as a new email, to one address."""
    id, _, form = await _asked(request, "copy")
    try:
        address = Address.parse(str(form.get("to", "")))
    except InvalidEmail:
        raise _back(request, id, "no-address") from None
    to = json.dumps([{"email": address.email, **({"name": address.name} if address.name else {})}])
    raise await _new(request, id, to, ("copied", "copy"))


async def again(request: web.Request) -> web.StreamResponse:
    """The same email to the same people, as a new email with a new key."""
    id, _, _ = await _asked(request, "again")
    raise await _new(request, id, None, ("sent again", "again"))


async def bulk(request: web.Request) -> web.StreamResponse:
    """Many rows: first a page that says how many, then the act, on the rows as that page knew them."""
    lane = _lane(request)
    form = await checked_form(request, lambda form: _bulk_scope(lane, form))
    act = str(form.get("act", ""))
    if act not in ("retry", "cancel"):
        raise web.HTTPBadRequest
    if form.get("confirmed") == "1":
        return await _bulk_act(request, lane, act, _chosen(form))
    state = request.app[STATE]
    filters = Filters.read({key: str(form[key]) for key in form if key not in ("token", "row", "act")})
    rows = await _matching(state, lane, filters) if form.get("all") else _chosen(form)
    return await shown(
        request,
        "confirm.html",
        lane=lane,
        act=act,
        rows=rows,
        scope=_confirmed_scope(lane, act, rows),
        everything=bool(form.get("all")),
        limit=BULK,
        back=filters.query(),
        pulse=await state.hub.pulse(),
    )


async def _one(request: web.Request, act: str) -> web.StreamResponse:
    id, claim_seq, _ = await _asked(request, act)
    lane = _lane(request)
    rows = await _act(request.app[STATE], operator().name, f"page_{act}_{lane}", [id], [claim_seq])
    if rows and rows[0]["id"] != id:
        raise _back(request, rows[0]["id"], "there-already")
    raise _back(request, id, _DONE[act] if rows and rows[0]["changed"] else "stale")


_DONE: Final = {"retry": "retried", "cancel": "cancelled"}


async def _asked(request: web.Request, act: str) -> tuple[int, int, Any]:
    """The row, the claim it was shown with, and the form: all three bound by the token."""
    id = int(request.match_info["id"])
    form = await checked_form(request, lambda form: f"{_lane(request)}/{id}/{form.get('claim_seq')}/{act}")
    return id, int(str(form["claim_seq"])), form


async def _act(state: State, who: str, name: str, *args: Any) -> list[Any]:
    """Run one of the acts, in the operator's name."""
    async with state.pool.acquire(timeout=ACT_LIMIT) as conn, conn.transaction():
        await conn.fetch(query("page_actor"), who)
        rows: list[Any] = await conn.fetch(query(name), *args, timeout=ACT_LIMIT)
    state.reads.forget()
    return rows


async def _new(request: web.Request, id: int, to: str | None, events: tuple[str, str]) -> web.HTTPSeeOther:
    """Enqueue the message of *id* under a new key, and note it on both emails."""
    state, who = request.app[STATE], operator().name
    if state.sends.wait(who) > 0:
        raise web.HTTPTooManyRequests
    state.sends.count(who)
    key = f"{events[1]}:{id}:{secrets.token_hex(6)}"
    async with state.pool.acquire(timeout=ACT_LIMIT) as conn, conn.transaction():
        await conn.fetch(query("page_actor"), who)
        rows = await conn.fetch(query("page_copy"), id, key, to, timeout=ACT_LIMIT)
        if not rows:
            return _back(request, id, "stale")
        new = rows[0]["id"]
        await conn.fetch(query("page_note"), id, events[0], f"as email {new}")
        await conn.fetch(query("page_note"), new, events[1], f"of email {id}")
    state.reads.forget()
    return _back(request, new, "enqueued")


async def _bulk_act(request: web.Request, lane: str, act: str, rows: Sequence[Shown]) -> web.StreamResponse:
    ids, seqs = [row[0] for row in rows], [row[1] for row in rows]
    done = await _act(request.app[STATE], operator().name, f"page_{act}_{lane}", ids, seqs)
    changed = sum(row["changed"] for row in done)
    raise web.HTTPSeeOther(f"{root(request)}{lane}?did={_DONE[act]}&n={changed}&of={len(rows)}")


async def _matching(state: State, lane: str, filters: Filters) -> list[Shown]:
    """The rows of a whole list, as they are now."""
    now = (await state.hub.pulse()).row["now"]
    whole = replace(filters, before=LAST)
    listing = await (state.reads.emails if lane == "emails" else state.reads.tasks)(whole, now, limit=BULK)
    return [(row["id"], row["claim_seq"]) for row in listing.rows]


def _chosen(form: Any) -> list[Shown]:
    found = [_ROW.fullmatch(str(value)) for value in form.getall("row", [])]
    return sorted({(int(row[1]), int(row[2])) for row in found if row})[:BULK]


def _bulk_scope(lane: str, form: Any) -> str:
    if form.get("confirmed") == "1":
        return _confirmed_scope(lane, str(form.get("act", "")), _chosen(form))
    return f"{lane}/bulk"


def _confirmed_scope(lane: str, act: str, rows: Sequence[Shown]) -> str:
    """The token of a confirmation holds for these very rows, in these very states."""
    said = ",".join(f"{id}:{claim_seq}" for id, claim_seq in sorted(rows))
    return f"{lane}/bulk/{act}/{hashlib.sha256(said.encode()).hexdigest()}"


def _lane(request: web.Request) -> str:
    return "tasks" if (request.match_info.route.name or "").startswith("task") else "emails"


def _back(request: web.Request, id: int, did: str) -> web.HTTPSeeOther:
    return web.HTTPSeeOther(f"{root(request)}{_lane(request)}/{id}?did={did}")
