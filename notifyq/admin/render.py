"""Templates: every value is escaped, every link is relative to where the page is mounted."""

from __future__ import annotations

from typing import Any, Final

import jinja2
from aiohttp import web

from notifyq.admin import words
from notifyq.admin.safety import PAGE_HEADERS
from notifyq.admin.static_files import DIGEST

__all__ = ["environment", "page", "root"]

TONES: Final = {
    "pending": "wait",
    "processing": "busy",
    "doubt": "doubt",
    "sent": "good",
    "done": "good",
    "held": "person",
    "dead": "bad",
}


def environment() -> jinja2.Environment:
    """The templates. A name that a template misspells is an error, not an empty text."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("notifyq.admin", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update({name: getattr(words, name) for name in words.__all__})
    made.globals["tones"] = TONES
    return made


def root(request: web.Request) -> str:
    """The relative way from this address to the page's own root: works under any mount and any proxy.

    Example: ``"../"`` at ``/admin/emails/7`` of a page that is mounted at ``/admin``.
    """
    mount = request.app.router["overview"].url_for().path
    below = request.path.removeprefix(mount)
    return "../" * below.count("/") or "./"


def page(
    request: web.Request, templates: jinja2.Environment, template: str, *, status: int = 200, **values: Any
) -> web.Response:
    """Render *template* with *values* and the way to the root."""
    html = templates.get_template(template).render(
        root=root(request), theme=_theme(request), query=request.query, static=DIGEST, **values
    )
    return web.Response(text=html, content_type="text/html", status=status, headers=PAGE_HEADERS)


def _theme(request: web.Request) -> str:
    chosen = request.cookies.get("notifyq_theme", "")
    return chosen if chosen in ("light", "dark") else ""
