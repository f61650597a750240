"""What the page's views share: one value in the application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from aiohttp import web

from notifyq.admin.live import Hub
from notifyq.admin.reads import Reads
from notifyq.admin.render import Canvas
from notifyq.admin.safety import Limiter, Sessions
from notifyq.admin.timeline import Timeline
from notifyq.db import Pool
from notifyq.provider import Provider
from notifyq.worker import Worker

__all__ = ["Authorise", "STATE", "State"]

Allowed: TypeAlias = bool | str | None
Authorise: TypeAlias = Callable[[web.Request], Allowed | Awaitable[Allowed]]
"""Says of a request whether it may see the page and act: False or None, True, or the operator's name."""


@dataclass(slots=True, kw_only=True)
class State:
    """*local*: served on loopback without a password, so only loopback names are answered.

    *reload*: previews follow the files of their builders.
    """

    pool: Pool
    password: str | None
    authorise: Authorise | None
    provider: Provider | None
    worker: Worker | None
    env: Mapping[str, str] | None
    local: bool
    reload: bool
    reads: Reads = field(init=False)
    hub: Hub = field(init=False)
    timeline: Timeline = field(init=False)
    sessions: Sessions = field(default_factory=Sessions)
    canvas: Canvas = field(default_factory=Canvas)
    logins: Limiter = field(default_factory=lambda: Limiter(5, 60.0))
    sends: Limiter = field(default_factory=lambda: Limiter(20, 60.0))
    refreshing: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.reads = Reads(self.pool)
        self.hub = Hub(self.reads, self.worker)
        self.timeline = Timeline(self.reads.rows)


STATE: Final = web.AppKey("notifyq", State)
