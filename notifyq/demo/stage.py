"""The stage: Postgres, provider and worker, open for the length of the story, and gone after it."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import anyio
import asyncpg
from anyio.abc import TaskGroup

from notifyq import embedded
from notifyq.db import Pool
from notifyq.demo.board import Board, Row
from notifyq.demo.second import second_worker
from notifyq.demo.short import SEARCH_LAG, SHORT
from notifyq.enqueue import Enqueued, enqueue
from notifyq.message import Email
from notifyq.migrate import migrate
from notifyq.postmark import Postmark
from notifyq.sqlfiles import query
from notifyq.tasks import Call, Task
from notifyq.testing import FakePostmark
from notifyq.worker import Worker

__all__ = ["Stage", "open_stage", "worker_log"]

SENDER: Final = "shop@example.com"
CONNECTIONS: Final = 16
"""A worker's four, the scenes' two, the spectator's, the page's."""

CLOSE_LIMIT: Final = 3.0


class Stage:
    """What a scene plays with: the database *dsn*, the provider *fake*, and the *board* of all rows."""

    def __init__(self, *, dsn: str, pool: Pool, fake: FakePostmark, board: Board, tg: TaskGroup) -> None:
        self.dsn = dsn
        self.pool = pool
        self.fake = fake
        self.board = board
        self.env = {**fake.env(), "EMAIL_FROM": SENDER}
        self._tg = tg
        self._worker: Worker | None = None
        self._ended = anyio.Event()

    async def start_worker(self, tasks: tuple[Task[Any], ...]) -> None:
        """Let this process's worker work; return when it listens."""
        self._worker = Worker(
            self.pool, provider=Postmark(env=self.env), settings=SHORT, tasks=tasks, builders=()
        )
        self._ended = anyio.Event()
        await self._tg.start(self._run, self._worker, self._ended)

    async def stop_worker(self) -> None:
        """Let it finish what is under way, and end."""
        if self._worker is not None:
            self._worker.drain()
            await self._ended.wait()

    @asynccontextmanager
    async def second_worker(self) -> AsyncIterator[Callable[[], None]]:
        """Have a second worker, in a process of its own. Gives the function that kills it (SIGKILL)."""
        async with second_worker({**self.env, "DATABASE_URL": self.dsn}) as process:
            yield process.kill

    async def commit(self, *items: Email | Call, key: str | None = None) -> list[Enqueued]:
        """Enqueue *items* in one transaction; latencies run from the moment its COMMIT is issued."""
        async with self.pool.acquire() as conn, conn.transaction():
            made = [await _enqueue(conn, item, key) for item in items]
            issued = time.monotonic()
        emails = zip(items, made, strict=True)
        self.board.note_commit((one.id for item, one in emails if isinstance(item, Email)), issued)
        return made

    async def retry(self, row: Row) -> bool:
        """Do what the operator's button does. Answers whether the email goes out again."""
        rows = await self.pool.fetch(query("demo_retry_email"), row.id)
        return bool(rows and rows[0]["changed"])

    async def _run(self, worker: Worker, ended: anyio.Event, *, task_status: Any) -> None:
        await worker.run(task_status=task_status)
        ended.set()


async def _enqueue(conn: Any, item: Email | Call, key: str | None) -> Enqueued:
    return await (enqueue(conn, item) if isinstance(item, Email) else enqueue(conn, item, key=key))


@asynccontextmanager
async def open_stage(
    show: Callable[[tuple[Row, ...]], None], tasks: tuple[Task[Any], ...]
) -> AsyncIterator[Stage]:
    """Start Postgres, the fake Postmark and a worker; close all of it, also when interrupted.

    Raises `notifyq.EmbeddedUnavailable` if Postgres does not start.
    """
    async with embedded.server(throwaway=True) as server, _provider() as fake, _pool(server.dsn) as pool:
        async with pool.acquire() as conn:
            await migrate(conn)
        board = Board(pool, fake, show)
        async with anyio.create_task_group() as tg:
            stage = Stage(dsn=server.dsn, pool=pool, fake=fake, board=board, tg=tg)
            tg.start_soon(board.run)
            await stage.start_worker(tasks)
            yield stage
            tg.cancel_scope.cancel()


@asynccontextmanager
async def _provider() -> AsyncIterator[FakePostmark]:
    fake = FakePostmark(search_lag=SEARCH_LAG)
    await fake.__aenter__()
    try:
        yield fake
    finally:
        fake.release()
        with anyio.move_on_after(CLOSE_LIMIT, shield=True):
            await fake.__aexit__(None, None, None)


@asynccontextmanager
async def _pool(dsn: str) -> AsyncIterator[Pool]:
    pool = await asyncpg.create_pool(dsn, min_size=0, max_size=CONNECTIONS)
    try:
        yield pool
    finally:
        with anyio.move_on_after(CLOSE_LIMIT, shield=True):
            await pool.close()
        pool.terminate()


@contextmanager
def worker_log(lines: int = 20) -> Iterator[deque[str]]:
    """Keep the worker's last log lines instead of printing them into the story: for when it goes wrong."""
    kept: deque[str] = deque(maxlen=lines)
    log, handler = logging.getLogger("notifyq"), _Keeper(kept)
    before = log.propagate, log.level
    log.addHandler(handler)
    log.propagate = False
    log.setLevel(logging.INFO)
    try:
        yield kept
    finally:
        log.removeHandler(handler)
        log.propagate, level = before
        log.setLevel(level)


class _Keeper(logging.Handler):
    def __init__(self, kept: deque[str]) -> None:
        super().__init__()
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append(f"{record.levelname.lower()}: {record.getMessage()}")
