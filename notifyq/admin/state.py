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

__all__ = ["STATE", "Allowed", "Authorise", "Operator", "State", "admitted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Who has been let in; *name* stands in the history beside each act.

    This is the one place for roles, when there are any: `authorise` gives an Operator for each request, the
    door (`notifyq.admin.guard`) keeps it, and every view and act asks `guard.operator()`. A role that may not
    act would be a field here, looked at in `guard.checked_form`, which all acts pass; one that may not read
    bodies, in `message_view.read_message` and the views of bodies and files in `emails`. Today all who are
    let in may see and do everything.

    Example: ``Operator(name="ann@example.com")``
    """

    name: str


Allowed: TypeAlias = Operator | bool | str | None
Authorise: TypeAlias = Callable[[web.Request], Allowed | Awaitable[Allowed]]
"""Says of a request whether it may see the page and act: False or None, True, the operator's name, or an
`Operator`."""


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


def admitted(said: Allowed) -> Operator | None:
    """The operator that an answer of `Authorise` means, None for nobody.

    Example: ``admitted("ann") == Operator(name="ann")``
    """
    if isinstance(said, Operator):
        return said if said.name else None
    if isinstance(said, str):
        return Operator(name=said) if said else None
    return Operator(name="page") if said is True else None


STATE: Final = web.AppKey("notifyq", State)
