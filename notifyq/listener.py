"""The bell's ear: one connection that LISTENs, proves that it hears, and comes back for ever.

A LISTEN connection can be deaf without any error: a half-open socket, a frozen server, a transaction
pooler. So it proves itself. After it has subscribed, *another* connection sends it a notification on a
channel of its own (behind a transaction pooler that one never arrives); afterwards it sends one to
itself every few seconds. A proof that does not come back within the limit ends the connection, and a
new one is made. What was missed in between is found by a sweep right after every subscription.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

import anyio
import asyncpg

from notifyq import backoff
from notifyq.db import DATABASE_FAULTS, Complaints, Pool
from notifyq.sqlfiles import query

__all__ = ["Listener"]

log = logging.getLogger("notifyq")

CHANNEL: Final = "notifyq"
PROOF_EVERY: Final = 4.0
PROOF_LIMIT: Final = 2.0
DEAF_FOR: Final = 30.0
CONNECT_LIMIT: Final = 5.0
POOLER_ADVICE: Final = (
    "notifications do not arrive: the database is probably reached through a transaction pooler. "
    "Set NOTIFYQ_LISTEN_URL to a direct connection; until then the worker polls"
)


class Listener:
    """Rings *on_bell* for every notification and after every (re)subscription.

    *listen_url* is a direct connection for the bell; without it one connection of *pool* is used.
    `proven_at` is the monotonic time of the last proof, None while there is none.
    """

    def __init__(self, pool: Pool, on_bell: Callable[[], None], *, listen_url: str | None = None) -> None:
        self._pool = pool
        self._on_bell = on_bell
        self._listen_url = listen_url
        self._channel = f"notifyq_{secrets.token_hex(8)}"
        self._proof = anyio.Event()
        self._ended = anyio.Event()
        self._ready = anyio.Event()
        self._complaints = Complaints()
        self._warned_of_pooler = False
        self.proven_at: float | None = None

    @property
    def proven(self) -> bool:
        """True while the last proof is fresh: then the bell can be relied on, and polling is rare."""
        return (
            self.proven_at is not None and time.monotonic() - self.proven_at < PROOF_EVERY + 2 * PROOF_LIMIT
        )

    async def wait_subscribed(self, limit: float) -> bool:
        """Wait until LISTEN is in place for the first time, *limit* seconds at most."""
        with anyio.move_on_after(limit):
            await self._ready.wait()
            return True
        return False

    async def run(self) -> None:
        """Listen until cancelled."""
        failures = 0
        while True:
            subscribed_at: float | None = None
            conn: Any = None
            try:
                conn = await self._connect()
                await self._subscribe(conn)
                subscribed_at = time.monotonic()
                self._complaints.over("listen")
                await self._stay(conn)
            except DATABASE_FAULTS as error:
                self._complaints.about("listen", error)
            finally:
                self.proven_at = None
                await self._hang_up(conn)
            # A connection that had lived for a while is replaced at once.
            failures = 0 if subscribed_at and time.monotonic() - subscribed_at > 5 else failures + 1
            await anyio.sleep(backoff.reconnect(failures, random.random()) if failures else 0)  # noqa: S311

    async def _connect(self) -> Any:
        if self._listen_url is not None:
            return await asyncpg.connect(self._listen_url, timeout=CONNECT_LIMIT)
        return await self._pool.acquire(timeout=CONNECT_LIMIT)

    async def _subscribe(self, conn: Any) -> None:
        self._ended = anyio.Event()
        conn.add_termination_listener(self._on_end)
        with anyio.fail_after(CONNECT_LIMIT):
            await conn.add_listener(CHANNEL, self._on_notification)
            await conn.add_listener(self._channel, self._on_notification)
        self._ready.set()
        # Subscribe first, then sweep: what was enqueued in between is found.
        self._on_bell()

    async def _stay(self, conn: Any) -> None:
        async with anyio.create_task_group() as tg:
            tg.start_soon(self._prove_for_ever, conn, tg.cancel_scope)
            await self._ended.wait()
            tg.cancel_scope.cancel()

    async def _prove_for_ever(self, conn: Any, scope: anyio.CancelScope) -> None:
        try:
            if await self._prove(self._pool):
                while await self._prove(conn):  # noqa: ASYNC110 (a heartbeat, not a wait)
                    await anyio.sleep(PROOF_EVERY)
            else:
                # Not heard from another connection: its own notifications would prove nothing.
                self._warn_of_pooler()
                await anyio.sleep(DEAF_FOR)
        except DATABASE_FAULTS as error:
            self._complaints.about("listen", error)
        scope.cancel()

    def _warn_of_pooler(self) -> None:
        if not self._warned_of_pooler:
            self._warned_of_pooler = True
            log.warning(POOLER_ADVICE)

    async def _prove(self, sender: Any) -> bool:
        self._proof = anyio.Event()
        with anyio.move_on_after(PROOF_LIMIT):
            await sender.fetch(query("proof"), self._channel, timeout=PROOF_LIMIT)
            await self._proof.wait()
            self.proven_at = time.monotonic()
            return True
        return False

    def _on_notification(self, _conn: Any, _pid: int, channel: str, _payload: object) -> None:
        if channel == CHANNEL:
            self._on_bell()
        else:
            self._proof.set()

    def _on_end(self, _conn: Any) -> None:
        self.proven_at = None
        self._ended.set()

    async def _hang_up(self, conn: Any) -> None:
        if conn is None:
            return
        with anyio.CancelScope(shield=True), anyio.move_on_after(1):
            # Not an orderly close: that would wait for a server that may be gone.
            conn.terminate()
            if self._listen_url is None:
                await self._pool.release(conn, timeout=1)
