"""Whose cancellation is it: ours (a shutdown, a lost lease), or one that user code let escape?"""

from __future__ import annotations

import asyncio
import math

import anyio

__all__ = ["being_cancelled"]


def being_cancelled() -> bool:
    """True if a scope around the caller, or its asyncio task, is cancelled: then a cancellation must go on.

    False for one that user code caused itself, by awaiting what it had cancelled: that is a failure of
    the user's code, and let through it would end the whole worker.

    Example: ``except anyio.get_cancelled_exc_class(): if being_cancelled(): raise``
    """
    task = asyncio.current_task()
    asked_to_end = task is not None and task.cancelling() > 0
    return asked_to_end or anyio.current_effective_deadline() == -math.inf
