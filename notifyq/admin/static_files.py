"""The page's own style sheet, script and icon, read once."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final

from aiohttp import web

from notifyq.admin.safety import PAGE_HEADERS

__all__ = ["DIGEST", "static_file"]

_TYPES: Final = {
    "notifyq.css": "text/css",
    "notifyq.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_FILES: Final = {name: (files("notifyq.admin") / "static" / name).read_bytes() for name in _TYPES}
DIGEST: Final = hashlib.sha256(b"".join(_FILES.values())).hexdigest()[:12]
"""Part of each address, so that a browser may keep the files for ever."""


async def static_file(request: web.Request) -> web.Response:
    """One of our own files."""
    name = request.match_info["name"]
    if name not in _FILES:
        raise web.HTTPNotFound
    age = "max-age=31536000, immutable" if request.query.get("v") == DIGEST else "no-cache"
    headers = {**PAGE_HEADERS, "Cache-Control": age}
    return web.Response(body=_FILES[name], content_type=_TYPES[name], charset="utf-8", headers=headers)
