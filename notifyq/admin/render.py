"""Templates: every value is escaped, every link is relative to where the page is mounted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Mapping
from typing import Any, Final

import jinja2
from aiohttp import web
from markupsafe import Markup

from notifyq.admin import words
from notifyq.admin.safety import PAGE_HEADERS
from notifyq.admin.static_files import DIGEST

__all__ = ["Canvas", "page", "root"]

SLICE: Final = 0.001

TONES: Final = {
    "pending": "wait",
    "processing": "busy",
    "doubt": "doubt",
    "sent": "good",
    "done": "good",
    "held": "person",
    "dead": "bad",
}


class Canvas:
    """Draws templates in slices of a millisecond, one page at a time; what is alike for all readers once.

    The page may share its process with a worker: ten pages that are drawn at once must not keep an email
    waiting.

    Example: ``html = await canvas.draw("email.html", {"root": "../", ...})``
    """

    def __init__(self) -> None:
        self._templates = _environment()
        self._turn = asyncio.Lock()

    async def draw(self, template: str, values: Mapping[str, Any]) -> str:
        """The page as text."""
        async with self._turn:
            return await self._drawn(template, values)

    async def draw_once(
        self, kept: dict[Any, Any] | None, place: Hashable, template: str, values: Mapping[str, Any]
    ) -> Markup:
        """A part of a page, from *kept* if another page has had it drawn already."""
        async with self._turn:
            if kept is not None and place in kept:
                return Markup(kept[place])  # noqa: S704 (it was drawn here, with autoescape)
            part = Markup(await self._drawn(template, values))  # noqa: S704 (the same)
            if kept is not None:
                kept[place] = part
            return part

    async def _drawn(self, template: str, values: Mapping[str, Any]) -> str:
        pieces = []
        slice_ends = time.perf_counter() + SLICE
        for piece in self._templates.get_template(template).generate(values):
            pieces.append(piece)
            if time.perf_counter() > slice_ends:
                await asyncio.sleep(0)
                slice_ends = time.perf_counter() + SLICE
        return "".join(pieces)


def root(request: web.Request) -> str:
    """The relative way from this address to the page's own root: works under any mount and any proxy.

    Example: ``"../"`` at ``/admin/emails/7`` of a page that is mounted at ``/admin``.
    """
    mount = request.app.router["overview"].url_for().path
    below = request.path.removeprefix(mount)
    return "../" * below.count("/") or "./"


async def page(
    request: web.Request, canvas: Canvas, template: str, *, status: int = 200, **values: Any
) -> web.Response:
    """Render *template* with *values* and the way to the root."""
    common = {"root": root(request), "theme": _theme(request), "query": request.query, "static": DIGEST}
    html = await canvas.draw(template, {**common, **values})
    return web.Response(text=html, content_type="text/html", status=status, headers=PAGE_HEADERS)


def _theme(request: web.Request) -> str:
    chosen = request.cookies.get("notifyq_theme", "")
    return chosen if chosen in ("light", "dark") else ""


def _environment() -> jinja2.Environment:
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
