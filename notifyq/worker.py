"""The worker: one process that sends what the outbox holds.

::

    Worker.run
     └─ services: listener, upkeep, recorder, heartbeat, ticker      cancelled last
         └─ lanes: emails, tasks
              └─ attempts: one child per claimed row, bounded by slots

No fault of the database or the provider, for any length of time, ends it. It ends by `drain` (what is
under way is finished within ``grace``, the rest given back or left in doubt) or by cancellation.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from notifyq.asking import Asker
from notifyq.bell import Bell
from notifyq.builders import Builder
from notifyq.builders import registered as registered_builders
from notifyq.db import DATABASE_FAULTS, Complaints, Link, Pool
from notifyq.email_work import EmailWork
from notifyq.errors import InvalidSettings, UnsafeDatabase
from notifyq.lane import Lane, Work
from notifyq.migrate import check_schema
from notifyq.provider import Provider
from notifyq.recorder import Recorder
from notifyq.rendering import Renderer
from notifyq.settings import WorkerSettings
from notifyq.sqlfiles import query
from notifyq.task_work import TaskWork
from notifyq.tasks import Task
from notifyq.tasks import registered as registered_tasks
from notifyq.ticker import Ticker
from notifyq.upkeep import Upkeep

__all__ = ["Worker"]

log = logging.getLogger("notifyq")

CONNECTIONS = 5
"""Listening, the bell's locks, claims and upkeep, records, and one for the proof that the bell is heard."""

SUBSCRIBE_LIMIT = 5.0


class Worker:
    """Sends emails from the outbox of *pool*'s database through *provider*, and runs tasks.

    *tasks* and *builders* default to all that were declared in this process. *listen_url* is a direct
    connection for the bell, where *pool* goes through a transaction pooler. *listen=False* polls only.
    The pool must allow five connections.

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
        tasks: Iterable[Task[Any]] | None = None,
        builders: Iterable[Builder[Any]] | None = None,
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
        self._tasks = {task.name: task for task in registered_tasks.values() if tasks is None}
        self._tasks |= {task.name: task for task in tasks or ()}
        self._builders = {made.name: made for made in registered_builders.values() if builders is None}
        self._builders |= {made.name: made for made in builders or ()}
        self._listen = listen
        self._listen_url = listen_url
        self._bell: Bell | None = None
        self._stop = anyio.Event()
        self._lanes: list[Lane[Any]] = []

    @property
    def listening(self) -> bool:
        """True while the bell has proven that it is heard."""
        return self._bell is not None and self._bell.proven

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
            await self._connect_first(records)
            await self._serve(claims, records, task_status)
        finally:
            with anyio.move_on_after(2, shield=True), suppress(*DATABASE_FAULTS):
                await claims.fetch("worker_gone", self.name)
            # Each has its own limit; none is skipped because the database did not answer another.
            with anyio.CancelScope(shield=True):
                for link in (claims, records):
                    await link.close()
                await self._provider.close()

    async def _serve(self, claims: Link, records: Link, task_status: TaskStatus[None]) -> None:
        recorder = Recorder(records, self._provider.account, lambda: emails.gate_troubled())
        emails = self._email_work(claims, recorder)
        upkeep = Upkeep(
            worker=self.name,
            provider=self._provider,
            settings=self.settings,
            link=claims,
            gate=lambda: emails.gate,
            listening=lambda: self.listening,
            serves=(sorted(self._tasks), sorted(self._builders)),
            under_way=lambda name: [id for lane in self._lanes if lane.name == name for id in lane.under_way],
        )
        self._lanes = [self._lane("emails", emails, upkeep)]
        async with anyio.create_task_group() as services:
            services.start_soon(recorder.run)
            try:
                services.start_soon(upkeep.run)
                if self._tasks:
                    calls = self._task_work(claims, recorder)
                    self._lanes.append(self._lane("tasks", calls, upkeep))
                    services.start_soon(calls.keep_leases)
                    services.start_soon(Ticker(self._tasks, claims).run)
                if self._listen:
                    await self._start_bell(claims, services)
                task_status.started()
                log.info("worker %s is ready", self.name)
                await self._run_lanes()
            finally:
                recorder.stop()
            services.cancel_scope.cancel()

    async def _start_bell(self, claims: Link, services: TaskGroup) -> None:
        self._bell = Bell(self._pool, self._lanes, claims, listen_url=self._listen_url)
        for lane in self._lanes:
            lane.report_to(self._bell.lanes_changed, self._bell.forgotten)
        services.start_soon(self._bell.run)
        await self._bell.wait_heard(SUBSCRIBE_LIMIT)

    def _lane(self, name: str, work: Work[Any], upkeep: Upkeep) -> Lane[Any]:
        lane: Lane[Any] = Lane(
            name,
            work,
            self.settings,
            nap=lambda: self.settings.poll if self._bell is None else self._bell.nap(lane, self.settings),
            others_seen=upkeep.look,
        )
        return lane

    def _email_work(self, claims: Link, recorder: Recorder) -> EmailWork:
        return EmailWork(
            worker=self.name,
            provider=self._provider,
            settings=self.settings,
            link=claims,
            recorder=recorder,
            asker=Asker(self._provider, self.settings, claims),
            renderer=Renderer(
                self._builders, self._pool, limit=self.settings.lease - self.settings.post_budget
            ),
            draining=self._stop.is_set,
        )

    def _task_work(self, claims: Link, recorder: Recorder) -> TaskWork:
        return TaskWork(
            worker=self.name,
            tasks=self._tasks,
            settings=self.settings,
            pool=self._pool,
            link=claims,
            recorder=recorder,
            freed=self._ring,
        )

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
        left = [
            f"{lane.name} {', '.join(map(str, lane.under_way))}" for lane in self._lanes if lane.under_way
        ]
        if left:
            log.warning("left behind after %g s: %s", self.settings.grace, "; ".join(left))
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

    async def _connect_first(self, records: Link) -> None:
        """Take the connection for the records before any other: what cannot be recorded must not be sent.

        Where the server has fewer connections left than a worker wants, the bell goes without, and it polls.
        """
        complaints = Complaints()
        while True:
            try:
                await records.value("durability")
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
