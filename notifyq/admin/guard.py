"""The door: every request passes here, before any view."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from markupsafe import Markup

from notifyq.admin.render import page, root
from notifyq.admin.safety import (
    COOKIE,
    PAGE_HEADERS,
    SESSION_SECONDS,
    Session,
    comes_from_here,
    is_loopback,
    same_secret,
)
from notifyq.admin.state import STATE, Allowed, Operator, State, admitted
from notifyq.builders import registered
from notifyq.db import DATABASE_FAULTS, describe

__all__ = ["checked_form", "drawn", "guard", "log_in", "log_out", "operator", "secure", "shown"]

log = logging.getLogger("notifyq.admin")


@dataclass(slots=True)
class Visit:
    """What is known of the request under way: its session, a new one for its cookie, and who it is."""

    session: Session | None = None
    new: Session | None = None
    operator: Operator | None = None


VISIT: Final[ContextVar[Visit]] = ContextVar("notifyq_admin_visit")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

OPEN: Final = frozenset(("healthz", "static"))
"""Routes that tell no data, so they need no login."""
LOGIN: Final = frozenset(("login", "log_in"))
MAX_TRAIL: Final = 500


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Who asks, from where, and may they? What goes wrong ends as a page, too."""
    VISIT.set(Visit())
    try:
        return await _admitted(request, handler)
    except web.HTTPException as answer:
        if answer.status < 400:
            raise
        return await shown(
            request, "error.html", status=answer.status, said=_SAID.get(answer.status, answer.reason)
        )
    except DATABASE_FAULTS as error:
        log.warning("the page could not be made: %s", describe(error))
        return await shown(request, "error.html", status=503, said="The database does not answer. Try again.")


_SAID: Final = {
    403: "This is not allowed: the form was not sent by this page, or it is too old. Go back and try again.",
    404: "There is nothing here.",
    405: "This address only takes what the page's own buttons send.",
    413: "That was too much at once.",
    421: "This page is only served under its own name: open it as 127.0.0.1 or localhost.",
    429: "Too many at once. Wait a minute and try again.",
}


async def secure(_request: web.Request, response: web.StreamResponse) -> None:
    """Every answer has the headers, whoever made it."""
    if "Content-Security-Policy" not in response.headers:
        response.headers.update(PAGE_HEADERS)


async def shown(request: web.Request, template: str, *, status: int = 200, **values: Any) -> web.Response:
    """Render a page for whoever asked."""
    state = request.app[STATE]
    visit = VISIT.get()
    session = visit.session
    return await page(
        request,
        state.canvas,
        template,
        status=status,
        token=lambda scope: state.sessions.token(session, scope) if session else "",
        may_leave=session is not None and session.inside,
        admitted=visit.operator is not None,
        previews=bool(registered),
        **values,
    )


async def drawn(request: web.Request, template: str, key: Hashable, **values: Any) -> Markup:
    """A part of a page that is alike for all readers: no token, no session. While pages are open it is drawn
    once for all of them, each time that the hub looks."""
    state, where = request.app[STATE], root(request)
    return await state.canvas.draw_once(
        state.reads.shared, (template, where, key), template, {"root": where, **values}
    )


def operator() -> Operator:
    """Who asks, as `authorise` said. Raises HTTPForbidden for nobody."""
    known = VISIT.get().operator
    if known is None:
        raise web.HTTPForbidden
    return known


async def checked_form(request: web.Request, scope: Callable[[Any], str]) -> Any:
    """The form of a POST, if it carries the token for its *scope*. Raises HTTPForbidden if not."""
    form = await request.post()
    session = VISIT.get().session
    token = form.get("token")
    if session is None:
        raise web.HTTPForbidden
    known = request.app[STATE].sessions.token(session, scope(form))
    if not isinstance(token, str) or not same_secret(token, known):
        raise web.HTTPForbidden
    return form


async def log_in(request: web.Request) -> web.StreamResponse:
    """The password, given in the form."""
    state = request.app[STATE]
    who = request.remote or ""
    form = await checked_form(request, lambda _form: "login")
    wait = state.logins.wait(who)
    if wait > 0:
        answer = await shown(
            request, "login.html", status=429, trail=_trail(form), wrong="", wait=int(wait) + 1
        )
        answer.headers["Retry-After"] = str(int(wait) + 1)
        return answer
    if state.password is None or not same_secret(str(form.get("password", "")), state.password):
        state.logins.count(who)
        return await shown(
            request, "login.html", status=401, trail=_trail(form), wrong="That is not the password.", wait=0
        )
    VISIT.get().new = state.sessions.start(inside=True)
    raise web.HTTPSeeOther(root(request) + _trail(form))


async def log_out(request: web.Request) -> web.StreamResponse:
    """End the session, on the server too."""
    await checked_form(request, lambda _form: "logout")
    session = VISIT.get().session
    if session is not None:
        request.app[STATE].sessions.end(session)
    raise web.HTTPSeeOther(root(request))


async def _admitted(request: web.Request, handler: Handler) -> web.StreamResponse:
    state = request.app[STATE]
    if state.local and not is_loopback(request.headers.get("Host", "")):
        raise web.HTTPMisdirectedRequest
    name = request.match_info.route.name or ""
    if name in OPEN:
        return await handler(request)
    if request.method not in ("GET", "HEAD", "POST"):
        raise web.HTTPMethodNotAllowed(request.method, ["GET", "POST"])
    if request.method == "POST" and not comes_from_here(request.headers):
        raise web.HTTPForbidden
    known = state.sessions.read(request.cookies.get(COOKIE))
    if known is None and request.method == "GET" and request.headers.get("Sec-Fetch-Site") == "cross-site":
        # A link from elsewhere comes without our strict cookie. Asked again by our own page it comes along.
        return await shown(request, "again.html")
    visit = VISIT.get()
    visit.session = known or state.sessions.start(inside=False)
    if known is None:
        visit.new = visit.session
    return await _with_cookie(request, await _or_redirect(request, state, handler, name))


async def _or_redirect(request: web.Request, state: State, handler: Handler, name: str) -> web.StreamResponse:
    """The view's answer; a redirect is an answer like any other, and an error is shown to who was let in."""
    try:
        if name not in LOGIN:
            VISIT.get().operator = admitted(await _allowed(request, state))
            if VISIT.get().operator is None:
                return await _turned_away(request, state)
        return await handler(request)
    except web.HTTPRedirection as redirect:
        return web.Response(status=redirect.status, headers={"Location": redirect.headers["Location"]})


async def _allowed(request: web.Request, state: State) -> Allowed:
    """What the one who decides says: the host's callable, or the password, or the loopback."""
    if state.authorise is not None:
        said = state.authorise(request)
        return await said if inspect.isawaitable(said) else said
    session = VISIT.get().session
    return state.local or (session is not None and session.inside) or _bearer(request, state)


def _bearer(request: web.Request, state: State) -> bool:
    """A program may read the badge with the password as its bearer token. Reading is all it may do."""
    kind, _, given = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "bearer" or state.password is None or request.match_info.route.name != "badge_json":
        return False
    who = request.remote or ""
    if state.logins.wait(who) > 0:
        return False
    if same_secret(given.strip(), state.password):
        return True
    state.logins.count(who)
    return False


async def _turned_away(request: web.Request, state: State) -> web.Response:
    if state.authorise is not None:
        return await shown(request, "error.html", status=403, said="You may not see this page.")
    return await shown(request, "login.html", status=401, trail=_below(request), wrong="", wait=0)


def _below(request: web.Request) -> str:
    mount = request.app.router["overview"].url_for().path
    return request.path.removeprefix(mount)


def _trail(form: Any) -> str:
    """Where to go after the login: one of our own addresses, nothing else."""
    trail = str(form.get("trail", ""))[:MAX_TRAIL]
    place, _, number = trail.partition("/")
    known = place in ("", "emails", "tasks", "previews") and (not number or number.isdigit())
    return trail if known else ""


async def _with_cookie(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    new = VISIT.get().new
    if new is not None and not response.prepared:
        response.set_cookie(
            COOKIE,
            request.app[STATE].sessions.write(new),
            path=request.app.router["overview"].url_for().path,
            max_age=int(SESSION_SECONDS),
            httponly=True,
            samesite="Strict",
            # A proxy in front may have ended TLS; believing it can only make the cookie stricter.
            secure=request.secure or request.headers.get("X-Forwarded-Proto", "").lower() == "https",
        )
    return response
