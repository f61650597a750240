"""Whose cancellation is it: ours (a shutdown, a lost lease), or one that user code let escape?"""

from __future__ import annotations

import asyncio
import math
from types import TracebackType

import anyio

__all__ = ["Budget", "being_cancelled"]


class Budget:
    """Ends its block with ``TimeoutError`` after *seconds*, as `asyncio.timeout` does.

    A deadline that never moves needs half of that one's work, and each email pays for it.

    Example: ``with Budget(10): await post(...)``
    """

    __slots__ = ("_alarm", "_before", "_over", "_seconds", "_task")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._over = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (an await is in a task)
        self._task = task
        self._before = task.cancelling()
        self._alarm = asyncio.get_running_loop().call_later(self._seconds, self._end)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _where: TracebackType | None
    ) -> None:
        self._alarm.cancel()
        if not self._over:
            return
        # Cancelled by somebody else as well: then that goes on.
        ours_alone = self._task.uncancel() <= self._before
        if ours_alone and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError from error

    def _end(self) -> None:
        self._over = True
        self._task.cancel()


def being_cancelled() -> bool:
    """True if a scope around the caller, or its asyncio task, is cancelled: then a cancellation must go on.

    False for one that user code caused itself, by awaiting what it had cancelled: that is a failure of
    the user's code, and let through it would end the whole worker.

    Example: ``except anyio.get_cancelled_exc_class(): if being_cancelled(): raise``
    """
    task = asyncio.current_task()
    asked_to_end = task is not None and task.cancelling() > 0
    return asked_to_end or anyio.current_effective_deadline() == -math.inf
