"""The pages of emails: the list, one email, its body in a frame, its attachments, its payload."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote

from aiohttp import web

from notifyq.admin.filters import EMAIL_REASONS, EMAIL_STATUSES, Filters
from notifyq.admin.guard import drawn, shown
from notifyq.admin.message_view import decoded, payload_of, read_message, tame
from notifyq.admin.reads import Row
from notifyq.admin.safety import BODY_HEADERS, BODY_POLICY, BODY_POLICY_WITH_IMAGES, FILE_HEADERS
from notifyq.admin.state import STATE
from notifyq.admin.story import tell_email

__all__ = ["attachment", "body", "email", "emails", "payload", "may"]

VIEWS: Final = ("text", "html", "phone", "payload")

# status -> what a person may do with it.
ACTS: Final[dict[str, tuple[str, ...]]] = {
    "pending": ("cancel",),
    "processing": (),
    "doubt": ("cancel",),
    "sent": ("again",),
    "held": ("retry", "resolve", "cancel"),
    "dead": ("retry",),
}


async def emails(request: web.Request) -> web.Response:
    """The list."""
    state = request.app[STATE]
    filters = Filters.read(request.query)
    pulse = await state.hub.pulse()
    now = pulse.row["now"]
    listing = await state.reads.emails(filters, now)
    return await shown(
        request,
        "emails.html",
        filters=filters,
        listing=listing,
        table=await drawn(request, "emails_rows.html", filters, filters=filters, listing=listing, now=now),
        pulse=pulse,
        statuses=EMAIL_STATUSES,
        reasons=EMAIL_REASONS,
    )


async def email(request: web.Request) -> web.Response:
    """One email and its story."""
    state = request.app[STATE]
    row = await _found(request)
    history = await state.reads.rows("page_history", row["id"], "email")
    message = read_message(row["message"])
    view = request.query.get("view", "")
    if view not in VIEWS:
        view = "html" if message.html_size and not message.text else "text"
    sendable = not message.purged and not message.builder
    payload, no_payload = payload_of(row, state.env) if sendable and view == "payload" else ("", "")
    pulse = await state.hub.pulse()
    return await shown(
        request,
        "email.html",
        email=row,
        story=tell_email(row, history),
        message=message,
        view=view,
        payload=payload,
        no_payload=no_payload,
        acts=may(row),
        now=row["now"],
        pulse=pulse,
    )


async def body(request: web.Request) -> web.Response:
    """The HTML, as inert when it is opened by itself as in its frame. Fetches nothing, here or there."""
    found = await request.app[STATE].reads.row("page_email_html", int(request.match_info["id"]))
    if found is None or found["html"] is None:
        raise web.HTTPNotFound
    policy = BODY_POLICY_WITH_IMAGES if request.query.get("images") == "1" else BODY_POLICY
    return web.Response(
        text=tame(found["html"], found["attachments"]),
        content_type="text/html",
        headers={**BODY_HEADERS, "Content-Security-Policy": policy},
    )


async def attachment(request: web.Request) -> web.Response:
    """One attachment, to be saved and never shown, whatever it says it is."""
    id, number = int(request.match_info["id"]), int(request.match_info["number"])
    found = await request.app[STATE].reads.row("page_email_attachment", id, number)
    content = None if found is None else decoded(found["content"])
    if found is None or content is None:
        raise web.HTTPNotFound
    return _file(content, str(found["name"] or f"attachment-{number + 1}"))


async def payload(request: web.Request) -> web.Response:
    """The whole payload, as a file."""
    row = await _found(request)
    if row["message"] is None or row["builder"]:
        raise web.HTTPNotFound
    said, missing = payload_of(row, request.app[STATE].env, whole=True)
    if missing:
        raise web.HTTPNotFound
    return _file(said.encode("utf-8", "surrogatepass"), f"email-{row['id']}.json")


def may(row: Row) -> tuple[str, ...]:
    """What a person may do with this email now."""
    acts = ACTS[row["status"]]
    if row["message"] is None:
        acts = tuple(act for act in acts if act not in ("retry", "again"))
    elif not row["builder"]:
        acts = (*acts, "copy")
    if row["builder"]:
        acts = tuple(act for act in acts if act != "again")
    if row["status"] == "doubt" and row["on_doubt"] == "hold" and not row["ordered"]:
        acts = tuple(act for act in acts if act != "cancel")
    return acts


async def _found(request: web.Request) -> Row:
    row = await request.app[STATE].reads.row("page_email", int(request.match_info["id"]))
    if row is None:
        raise web.HTTPNotFound
    return row


def _file(content: bytes, name: str) -> web.Response:
    # For an old browser a plain name, for the others the whole one: no quote, no line break gets through.
    plain = re.sub(r"[^A-Za-z0-9._ -]", "_", name)[:100].strip(". ") or "file"
    whole: Any = quote(name.encode("utf-8", "replace")[:400], safe="")
    return web.Response(
        body=content,
        content_type="application/octet-stream",
        headers={
            **FILE_HEADERS,
            "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{whole}",
        },
    )
