"""Builder previews: every builder of this process with its sample, in the browser before anything is sent.

A builder is called in a transaction that can only read, and nothing is enqueued. With ``reload`` its module
is read again when its file has changed: while a template is written, the page follows.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import inspect
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from aiohttp import web

from notifyq.admin.guard import shown
from notifyq.admin.message_view import MessageView, payload_of_email, read_message, tame
from notifyq.admin.safety import BODY_HEADERS, BODY_POLICY, BODY_POLICY_WITH_IMAGES
from notifyq.admin.state import STATE, State
from notifyq.builders import Builder, registered
from notifyq.cleaning import clean
from notifyq.message import Email

__all__ = ["preview_body", "previews"]

BUILD_LIMIT: Final = 10.0
VIEWS: Final = ("text", "html", "phone", "payload")

_read_at: dict[str, float] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a builder made of its sample, or why it made nothing."""

    email: Email | None = None
    error: str = ""

    @property
    def message(self) -> MessageView:
        """For the reading pane."""
        return read_message("{}" if self.email is None else json.dumps(self.email.message()))


async def previews(request: web.Request) -> web.Response:
    """All builders, and one of them made."""
    state = request.app[STATE]
    if state.reload:
        _reload_changed()
    builder = registered.get(request.query.get("name", ""))
    made = None if builder is None else await _made(state, builder)
    message = MessageView() if made is None else made.message
    view = request.query.get("view", "")
    if view not in VIEWS:
        view = "html" if message.html_size and not message.text else "text"
    payload, no_payload = "", ""
    if made is not None and made.email is not None and view == "payload":
        payload, no_payload = payload_of_email(made.email, state.env)
    html = "" if made is None or made.email is None else made.email.html or ""
    return await shown(
        request,
        "previews.html",
        builders=[registered[name] for name in sorted(registered)],
        builder=builder,
        made=made,
        message=message,
        view=view,
        payload=payload,
        no_payload=no_payload,
        digest=hashlib.sha256(html.encode()).hexdigest()[:12],
        reload=state.reload,
        pulse=await state.hub.pulse(),
    )


async def preview_body(request: web.Request) -> web.Response:
    """The HTML that a builder makes of its sample, locked up like any other body."""
    builder = registered.get(request.query.get("name", ""))
    if builder is None:
        raise web.HTTPNotFound
    made = await _made(request.app[STATE], builder)
    if made.email is None or made.email.html is None:
        raise web.HTTPNotFound
    policy = BODY_POLICY_WITH_IMAGES if request.query.get("images") == "1" else BODY_POLICY
    attachments = json.dumps(made.email.message().get("attachments"))
    return web.Response(
        text=tame(made.email.html, attachments),
        content_type="text/html",
        headers={**BODY_HEADERS, "Content-Security-Policy": policy},
    )


async def _made(state: State, builder: Builder[Any]) -> Preview:
    if builder.sample is None:
        return Preview(error="It has no sample: declare one, notifyq.email(name, sample={...}).")
    try:
        # The same way as a stored call: through JSON and back.
        arguments = builder.parameters.unpack(builder.parameters.pack((), dict(builder.sample)))
        async with asyncio.timeout(BUILD_LIMIT):
            email = await _build(state, builder, arguments)
        return Preview(email=email)
    except Exception as error:  # the user's own code may raise anything
        return Preview(error=clean(f"{type(error).__name__}: {error}"))


async def _build(state: State, builder: Builder[Any], arguments: Mapping[str, Any]) -> Email:
    if builder.connection:
        async with state.pool.acquire(timeout=BUILD_LIMIT) as conn, conn.transaction(readonly=True):
            made = builder.function(conn, **arguments)
            made = await made if inspect.isawaitable(made) else made
    else:
        made = builder.function(**arguments)
        made = await made if inspect.isawaitable(made) else made
    if not isinstance(made, Email):
        raise TypeError(f"the builder returned {type(made).__name__}, not an Email")
    return made


def _reload_changed() -> None:
    """Read the modules of builders again whose files have changed since they were last looked at."""
    for name in {builder.function.__module__ for builder in registered.values()}:
        module = sys.modules.get(name)
        file = None if module is None else getattr(module, "__file__", None)
        if module is None or file is None or name == "__main__":
            continue
        changed_at = Path(file).stat().st_mtime
        if _read_at.setdefault(name, changed_at) != changed_at:
            _read_at[name] = changed_at
            _reload(module)


def _reload(module: ModuleType) -> None:
    try:
        importlib.reload(module)
    except Exception:  # half-written code: the preview stays as it was until it can be read
        return
