"""The context of a running call: what `notifyq.tasks.TaskContext` promises."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import anyio

from notifyq.db import Pool
from notifyq.sqlfiles import query
from notifyq.task_lifecycle import TaskClaim
from notifyq.tasks import GiveUp, RetryLater

__all__ = ["ClaimLost", "RunningCall"]


class ClaimLost(Exception):
    """The call's lease was lost to another worker: what this run did in its transaction is undone."""


class RunningCall:
    """One run of one call. *completed* is set once its own transaction committed ``done``."""

    def __init__(self, claim: TaskClaim, pool: Pool, timeout: float | None) -> None:
        self._claim = claim
        self._pool = pool
        self._ends_at = None if timeout is None else anyio.current_time() + timeout
        self.completed = False

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
        return None if self._ends_at is None else self._ends_at - anyio.current_time()

    @property
    def pool(self) -> Any:
        return self._pool

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self._pool.acquire() as conn, conn.transaction():
            yield conn
            done = await conn.fetch(query("task_done"), [self.id], [self._claim.claim_seq], ["done"])
            if not done:
                raise ClaimLost(f"call {self.id} was taken over by another worker")
        self.completed = True

    def retry_later(self, delay: float, reason: str = "") -> NoReturn:
        raise RetryLater(delay, reason)

    def give_up(self, reason: str) -> NoReturn:
        raise GiveUp(reason)
