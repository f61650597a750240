"""The worker: one process that sends what the outbox holds.

::

    Worker.run
     └─ services: listener, upkeep, recorder          cancelled last
         └─ lanes: emails
              └─ attempts: one child per claimed row, bounded by slots

No fault of the database or the provider, for any length of time, ends it. It ends by `drain` (what is
under way is finished within ``grace``, the rest given back or left in doubt) or by cancellation.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from typing import Any

import anyio
from anyio.abc import TaskStatus

from notifyq.asking import Asker
from notifyq.db import DATABASE_FAULTS, Complaints, Link, Pool
from notifyq.email_work import EmailJob, EmailWork
from notifyq.errors import InvalidSettings, UnsafeDatabase
from notifyq.lane import Lane
from notifyq.listener import Listener
from notifyq.migrate import check_schema
from notifyq.provider import Provider
from notifyq.recorder import Recorder
from notifyq.settings import WorkerSettings
from notifyq.sqlfiles import query
from notifyq.upkeep import Upkeep

__all__ = ["Worker"]

log = logging.getLogger("notifyq")

CONNECTIONS = 4
"""The bell, claims and upkeep, records, and one for the proof that the bell is heard."""

SUBSCRIBE_LIMIT = 5.0


class Worker:
    """Sends emails from the outbox of *pool*'s database through *provider*.

    *listen_url* is a direct connection for the bell, where *pool* goes through a transaction pooler.
    *listen=False* polls only. The pool must allow four connections.

    Raises `InvalidSettings` for a pool that is too small; `run` raises `SchemaMismatch` and
    `UnsafeDatabase` before it starts.

    Example::

        async with anyio.create_task_group() as app:
            await app.start(notifyq.Worker(pool, provider=notifyq.Postmark()).run)  # listening now
            ...
            app.cancel_scope.cancel()
    """

    def __init__(
        self,
        pool: Pool,
        *,
        provider: Provider,
        settings: WorkerSettings | None = None,
        listen: bool = True,
        listen_url: str | None = None,
    ) -> None:
        if pool.get_max_size() < CONNECTIONS:
            raise InvalidSettings(
                "pool", f"a worker needs a pool of at least {CONNECTIONS} connections: set max_size"
            )
        self.settings = settings or WorkerSettings()
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._pool = pool
        self._provider = provider
        self._listener = Listener(pool, self._ring, listen_url=listen_url) if listen else None
        self._stop = anyio.Event()
        self._lanes: list[Lane[EmailJob]] = []

    @property
    def listening(self) -> bool:
        """True while the bell has proven that it is heard."""
        return self._listener is not None and self._listener.proven

    def drain(self) -> None:
        """Stop claiming; finish what is under way within ``grace``; then `run` returns."""
        self._stop.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Work until `drain` or cancellation. With ``tg.start`` it returns once LISTEN is in place."""
        await self._check_database()
        await self._provider.open()
        claims = Link(self._pool, "worker claims")
        records = Link(self._pool, "worker records")
        try:
            await self._serve(claims, records, task_status)
        finally:
            with anyio.move_on_after(2, shield=True):
                await claims.close()
                await records.close()
                await self._provider.close()

    async def _serve(self, claims: Link, records: Link, task_status: TaskStatus[None]) -> None:
        work, recorder = self._email_work(claims, records)
        upkeep = Upkeep(
            worker=self.name,
            provider=self._provider,
            settings=self.settings,
            link=claims,
            gate=lambda: work.gate,
        )
        lane = Lane(
            "emails",
            work,
            self.settings,
            listening=lambda: self.listening,
            others_seen=upkeep.look,
        )
        self._lanes = [lane]
        async with anyio.create_task_group() as services:
            services.start_soon(recorder.run)
            services.start_soon(upkeep.run)
            if self._listener is not None:
                services.start_soon(self._listener.run)
                await self._listener.wait_subscribed(SUBSCRIBE_LIMIT)
            task_status.started()
            log.info("worker %s is ready", self.name)
            await self._run_lanes()
            services.cancel_scope.cancel()

    def _email_work(self, claims: Link, records: Link) -> tuple[EmailWork, Recorder]:
        recorder = Recorder(records, self._provider.account, lambda: work.gate_troubled())
        work = EmailWork(
            worker=self.name,
            provider=self._provider,
            settings=self.settings,
            link=claims,
            recorder=recorder,
            asker=Asker(self._provider, self.settings, claims),
            draining=self._stop.is_set,
        )
        return work, recorder

    async def _run_lanes(self) -> None:
        async with anyio.create_task_group() as running:
            for lane in self._lanes:
                running.start_soon(lane.run)
            running.start_soon(self._drain_lanes, running.cancel_scope)

    async def _drain_lanes(self, scope: anyio.CancelScope) -> None:
        """On `drain`: let the lanes finish within ``grace``, then cancel what is left and name it."""
        await self._stop.wait()
        for lane in self._lanes:
            lane.drain()
        log.info("worker %s stops: %d under way", self.name, len(self._under_way()))
        with anyio.move_on_after(self.settings.grace):
            for lane in self._lanes:
                await lane.ended.wait()
        left = self._under_way()
        if left:
            log.warning("left behind after %g s: emails %s", self.settings.grace, ", ".join(map(str, left)))
        scope.cancel()

    def _under_way(self) -> list[int]:
        return [id for lane in self._lanes for id in lane.under_way]

    def _ring(self) -> None:
        for lane in self._lanes:
            lane.ring()

    async def _check_database(self) -> None:
        """Refuse a schema or a server that cannot keep the promise; wait for a database that is away."""
        complaints = Complaints()
        while True:
            try:
                async with self._pool.acquire(timeout=5) as conn:
                    await check_schema(conn)
                    await self._check_durability(conn)
                return
            except DATABASE_FAULTS as error:
                complaints.about("start", error)
                await anyio.sleep(1)

    async def _check_durability(self, conn: Any) -> None:
        if self.settings.unsafe_durability or await conn.fetchval(query("durability")):
            return
        raise UnsafeDatabase(
            "the server runs with fsync or full_page_writes off: a crash could forget that an email was "
            "claimed, and it would be sent again. Turn them on, or run with --unsafe-durability"
        )
