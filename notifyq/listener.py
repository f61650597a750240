"""The bell's ear: one connection that LISTENs, proves that it hears, and comes back for ever.

A LISTEN connection can be deaf without any error: a half-open socket, a frozen server, a transaction
pooler. So it proves itself. After it has subscribed, *another* connection sends it a notification on a
channel of its own (behind a transaction pooler that one never arrives); afterwards it sends one to
itself every few seconds. A proof that does not come back within the limit ends the connection, and a
new one is made.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import asyncpg
from asyncpg.exceptions import InterfaceError

from notifyq import backoff
from notifyq.db import DATABASE_FAULTS, Complaints, Link, Pool, hang_up, is_lost, lost_as_fault
from notifyq.sqlfiles import query

__all__ = ["Listener"]

log = logging.getLogger("notifyq")

CHANNEL: Final = "notifyq"
CALL: Final = "notifyq_call"
"""Heard by every worker, all the time: look once."""

PROOF_EVERY: Final = 4.5
QUIET_PROOF_EVERY: Final = 20.0
PROOF_LIMIT: Final = 2.0
FRESH: Final = QUIET_PROOF_EVERY + 2 * PROOF_LIMIT
DEAF_FOR: Final = 30.0
CONNECT_LIMIT: Final = 5.0
POOLER_ADVICE: Final = (
    "notifications do not arrive: the database is probably reached through a transaction pooler. "
    "Set NOTIFYQ_LISTEN_URL to a direct connection; until then the worker polls"
)


class Listener:
    """A LISTEN connection that is there, or is being made again.

    *heard* is called for every ring while it is subscribed; *called* whenever another worker calls, and
    when a connection has proven itself (what came before was not heard).
    *listen_url* is a direct connection for the bell; without it one connection of *pool* is used.
    *changed* is called whenever the connection came, went or was proven. *prover* is the session through
    which proofs are sent, while there is one whose life matters too; else the connection proves itself.
    *quiet* says that nobody relies on it just now, so that proofs may be rare.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        heard: Callable[[], None],
        called: Callable[[], None],
        changed: Callable[[], None],
        prover: Callable[[], Link | None],
        quiet: Callable[[], bool],
        listen_url: str | None = None,
    ) -> None:
        self._pool = pool
        self._heard = heard
        self._called = called
        self._changed = changed
        self._prover = prover
        self._quiet = quiet
        self._listen_url = listen_url
        self._channel = f"notifyq_{secrets.token_hex(8)}"
        self._proof = anyio.Event()
        self._ended = anyio.Event()
        self._relied_on = anyio.Event()
        self._turn = anyio.Lock()
        self._complaints = Complaints()
        self._warned_of_pooler = False
        self._conn: Any = None
        self._subscribed: Any = None
        self._proven_at: float | None = None

    @property
    def proven(self) -> bool:
        """True while the last proof is fresh."""
        fresh = self._proven_at is not None and time.monotonic() - self._proven_at < FRESH
        return fresh and self._conn is not None

    @property
    def hears(self) -> bool:
        """True while the proven connection is the one that has subscribed to the bell."""
        return self.proven and self._subscribed is self._conn

    async def run(self) -> None:
        """Keep a connection until cancelled."""
        failures = 0
        while True:
            made_at = time.monotonic()
            conn: Any = None
            try:
                conn = await self._connect()
                await self._stay(conn)
            except DATABASE_FAULTS as error:
                self._complaints.about("listen", error)
            finally:
                self._lose()
                await self._hang_up(conn)
            # A connection that had lived for a while is replaced at once.
            failures = 0 if time.monotonic() - made_at > 5 else failures + 1
            await anyio.sleep(backoff.reconnect(failures, random.random()) if failures else 0)  # noqa: S311

    async def subscribe(self) -> bool:
        """LISTEN to the bell. False: there is no connection that hears."""
        if self._conn is None or not self.proven:
            return False
        # Proofs may have been rare: the next one is made now.
        self._relied_on.set()
        conn = self._conn
        await self._tell(conn, conn.add_listener)
        self._subscribed = conn
        return self.hears

    async def unsubscribe(self) -> None:
        """Listen no more: a NOTIFY wakes every session that listens."""
        conn, self._subscribed = self._conn, None
        if conn is not None and not is_lost(conn):
            await self._tell(conn, conn.remove_listener)

    async def call(self) -> None:
        """Tell every worker to look once."""
        conn = self._conn
        if conn is None:
            raise InterfaceError("there is no connection that listens")
        async with self._turn:
            with lost_as_fault(conn):
                await conn.fetch(query("proof"), CALL, timeout=CONNECT_LIMIT)

    def give_up(self) -> None:
        """Drop the connection: it did not answer. Another one is made."""
        self._ended.set()

    async def _tell(self, conn: Any, change: Callable[..., Awaitable[None]]) -> None:
        with anyio.fail_after(CONNECT_LIMIT), lost_as_fault(conn):
            async with self._turn:
                await change(CHANNEL, self._on_notification)

    async def _connect(self) -> Any:
        if self._listen_url is not None:
            return await asyncpg.connect(self._listen_url, timeout=CONNECT_LIMIT)
        return await self._pool.acquire(timeout=CONNECT_LIMIT)

    async def _stay(self, conn: Any) -> None:
        self._ended = anyio.Event()
        conn.add_termination_listener(self._on_end)
        with anyio.fail_after(CONNECT_LIMIT):
            await conn.fetch(query("prepare_ear"), timeout=CONNECT_LIMIT)
            await conn.add_listener(self._channel, self._on_notification)
            await conn.add_listener(CALL, self._on_notification)
        self._complaints.over("listen")
        async with anyio.create_task_group() as tg:
            tg.start_soon(self._prove_for_ever, conn, tg.cancel_scope)
            await self._ended.wait()
            tg.cancel_scope.cancel()

    async def _prove_for_ever(self, conn: Any, scope: anyio.CancelScope) -> None:
        try:
            if await self._prove_through_pool():
                self._conn = conn
                self._called()
                while await self._prove(conn):
                    self._changed()
                    self._relied_on = anyio.Event()
                    with anyio.move_on_after(QUIET_PROOF_EVERY if self._quiet() else PROOF_EVERY):
                        await self._relied_on.wait()
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

    async def _prove_through_pool(self) -> bool:
        return await self._heard_back(
            lambda: self._pool.fetch(query("proof"), self._channel, timeout=PROOF_LIMIT)
        )

    async def _prove(self, conn: Any) -> bool:
        link = self._prover()
        if link is not None:
            return await self._heard_back(lambda: link.fetch("proof", self._channel))
        async with self._turn:
            with lost_as_fault(conn):
                return await self._heard_back(
                    lambda: conn.fetch(query("proof"), self._channel, timeout=PROOF_LIMIT)
                )

    async def _heard_back(self, send: Callable[[], Awaitable[object]]) -> bool:
        self._proof = anyio.Event()
        with anyio.move_on_after(PROOF_LIMIT):
            await send()
            await self._proof.wait()
            self._proven_at = time.monotonic()
            return True
        return False

    def _on_notification(self, conn: Any, pid: int, channel: str, _payload: object) -> None:
        if is_lost(conn):
            return  # it rang as the connection ended
        if channel == CHANNEL:
            self._heard()
        elif channel == self._channel:
            self._proof.set()
        elif pid != conn.get_server_pid():
            self._called()

    def _on_end(self, _conn: Any) -> None:
        self._lose()
        self._ended.set()

    def _lose(self) -> None:
        self._proven_at = None
        self._conn = None
        self._changed()

    async def _hang_up(self, conn: Any) -> None:
        if conn is None:
            return
        if self._listen_url is None:
            await hang_up(self._pool, conn)
        else:
            conn.terminate()
