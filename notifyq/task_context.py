"""The context of a running call: what `notifyq.tasks.TaskContext` promises."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn

from notifyq.attempt import steady_clock
from notifyq.db import Pool
from notifyq.sqlfiles import query
from notifyq.task_lifecycle import TaskClaim
from notifyq.tasks import GiveUp, RetryLater

__all__ = ["ClaimLost", "RunningCall"]

LONGEST_DELAY: Final = 366 * 86400.0


class ClaimLost(Exception):
    """The call's lease was lost to another worker: what this run did in its transaction is undone."""


class RunningCall:
    """One run of one call.

    *completing* while its own transaction may be committing ``done``, *completed* once it did; *ended* is
    set from outside when its result no longer counts.
    """

    def __init__(self, claim: TaskClaim, pool: Pool, timeout: float | None) -> None:
        self._claim = claim
        self._pool = pool
        self._ends_at = None if timeout is None else steady_clock() + timeout
        self.completing = False
        self.completed = False
        self.ended = False

    def __repr__(self) -> str:
        return f"<call {self._claim.id} of {self._claim.name!r}, attempt {self.attempt}>"

    @property
    def id(self) -> int:
        return self._claim.id

    @property
    def attempt(self) -> int:
        return self._claim.attempts

    @property
    def key(self) -> str | None:
        return self._claim.key

    @property
    def deadline(self) -> float | None:
        return None if self._ends_at is None else self._ends_at - steady_clock()

    @property
    def overdue(self) -> bool:
        """Its timeout has passed."""
        return self._ends_at is not None and steady_clock() >= self._ends_at

    @property
    def cancelled(self) -> bool:
        return self.ended or self.overdue

    @property
    def pool(self) -> Any:
        return self._pool

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        if self.completed:
            raise RuntimeError("ctx.transaction() has completed this call already: it can be used once")
        async with self._pool.acquire() as conn:
            try:
                # Above READ COMMITTED each heartbeat in between would make "done" a serialization failure.
                async with conn.transaction(isolation="read_committed"):
                    yield conn
                    await self._complete(conn)
                self.completed = True
            finally:
                self.completing = False

    async def _complete(self, conn: Any) -> None:
        self.completing = True
        done = await conn.fetch(query("task_done"), [self.id], [self._claim.claim_seq], ["done"])
        if not done:
            raise ClaimLost(f"call {self.id} was taken over by another worker")

    def retry_later(self, delay: float, reason: str = "") -> NoReturn:
        if not 0 <= delay <= LONGEST_DELAY:
            raise ValueError("retry_later: the delay is a number of seconds from 0 to a year")
        raise RetryLater(delay, reason)

    def give_up(self, reason: str) -> NoReturn:
        raise GiveUp(reason)
