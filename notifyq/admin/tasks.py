"""The pages of tasks: the list, and one call."""

from __future__ import annotations

import json
from typing import Final

from aiohttp import web

from notifyq.admin.filters import TASK_REASONS, TASK_STATUSES, Filters
from notifyq.admin.guard import drawn, shown
from notifyq.admin.state import STATE
from notifyq.admin.story import tell_task

__all__ = ["task", "tasks"]

ACTS: Final[dict[str, tuple[str, ...]]] = {
    "pending": ("cancel",),
    "processing": (),
    "done": (),
    "dead": ("retry",),
}
ARGS_SHOWN: Final = 100_000


async def tasks(request: web.Request) -> web.Response:
    """The list."""
    state = request.app[STATE]
    filters = Filters.read(request.query)
    pulse = await state.hub.pulse()
    now = pulse.row["now"]
    listing = await state.reads.tasks(filters, now)
    return await shown(
        request,
        "tasks.html",
        filters=filters,
        listing=listing,
        table=await drawn(request, "tasks_rows.html", filters, filters=filters, listing=listing, now=now),
        pulse=pulse,
        statuses=TASK_STATUSES,
        reasons=TASK_REASONS,
    )


async def task(request: web.Request) -> web.Response:
    """One call and its story."""
    state = request.app[STATE]
    row = await state.reads.row("page_task", int(request.match_info["id"]))
    if row is None:
        raise web.HTTPNotFound
    history = await state.reads.rows("page_history", row["id"], "task")
    args = json.dumps(json.loads(row["args"]), indent=2, ensure_ascii=False)
    pulse = await state.hub.pulse()
    return await shown(
        request,
        "task.html",
        task=row,
        story=tell_task(row, history),
        args=args[:ARGS_SHOWN],
        args_left=max(0, len(args) - ARGS_SHOWN),
        acts=ACTS[row["status"]],
        now=row["now"],
        pulse=pulse,
    )
