"""A process that forks workers and applications on demand, in a few milliseconds each.

Every child is a process of its own, running the real code, and can be killed for real. Commands come as
JSON lines on stdin, news go as JSON lines to stdout: ``{"forked": pid}``, ``{"pid": pid, "exit": code}``.
The zygote has no threads and no event loop, so that a fork of it is clean.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import select
import signal
import sys
import traceback
import zlib
from typing import Any

import anyio
import asyncpg
from stepping import Steps

from notifyq import Email, Postmark, Worker, WorkerSettings, enqueue


def main() -> None:
    """Fork until stdin ends; then kill what is left."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    children: set[int] = set()
    buffer = b""
    while True:
        ready = select.select([0, reader], [], [])[0]
        if reader in ready:
            os.read(reader, 4096)
            _reap(children)
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                children.add(_fork(json.loads(line)))
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _fork(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        _be_a_child(order)
    _tell(forked=pid)
    return pid


def _reap(children: set[int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        children.discard(pid)
        _tell(pid=pid, exit=os.waitstatus_to_exitcode(status))


def _tell(**news: Any) -> None:
    os.write(1, json.dumps(news).encode() + b"\n")


def _be_a_child(order: dict[str, Any]) -> None:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 2)
        os.close(0)
        os.dup2(log, 1)
        random.seed()
        logging.basicConfig(level=logging.DEBUG, stream=sys.stderr, force=True)
        logging.getLogger("asyncio").setLevel(logging.INFO)
        asyncio.run(KINDS[order["kind"]](order))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


async def _work(order: dict[str, Any]) -> None:
    """A worker that drains at SIGTERM. With ``steps`` it stops where it is told (see `stepping`)."""
    steps = Steps(order["steps"]) if "steps" in order else None
    if steps is not None:
        steps.install()
    async with asyncpg.create_pool(order["dsn"], min_size=0, max_size=6) as pool:
        worker = Worker(
            pool,
            provider=Postmark(env=order["env"]),
            settings=WorkerSettings(**order["settings"]),
            tasks=(),
            builders=(),
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.drain)
        async with anyio.create_task_group() as tasks:
            if steps is not None:
                steps.cancel, steps.drain = tasks.cancel_scope.cancel, worker.drain
                asyncio.get_running_loop().add_signal_handler(
                    signal.SIGUSR1, lambda: (steps.report(), os._exit(0))
                )
            await tasks.start(worker.run)
    if steps is not None and "stop" not in order["steps"]:
        steps.report()


async def _order(order: dict[str, Any]) -> None:
    """An application: an order and its email in one transaction, at a steady rate, until SIGTERM.

    A commit whose answer is lost is looked up by its key; every tenth transaction is rolled back.
    """
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    chance = random.Random(order["seed"])
    conn: Any = None
    number = 0
    while not told.is_set():
        number += 1
        rolled_back = chance.random() < 0.1
        key = f"order-{'rolled-back-' if rolled_back else ''}{order['seed']}-{number}"
        while True:
            try:
                conn = (
                    conn if conn and not conn.is_closed() else await asyncpg.connect(order["dsn"], timeout=5)
                )
                await _order_once(conn, key, number, rolled_back)
                break
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                # Perhaps committed: the same key answers that. The database may be away for a moment.
                await asyncio.sleep(0.05)
        await asyncio.sleep(chance.expovariate(order["rate"]))
    if conn:
        await conn.close()


async def _order_once(conn: Any, key: str, number: int, rolled_back: bool) -> None:
    transaction = conn.transaction()
    await transaction.start()
    await conn.execute("insert into app.orders (key) values ($1) on conflict do nothing", key)
    policy = ("ask", "ask", "hold")[number % 3]
    await enqueue(conn, an_email(key, on_doubt=policy))
    await (transaction.rollback() if rolled_back else transaction.commit())


def an_email(key: str, **parts: Any) -> Email:
    """An email whose address and body may never be seen in a log."""
    return Email(
        key=key,
        to=f"canary-address-{zlib.crc32(key.encode())}@example.com",
        from_="shop@example.com",
        subject="s",
        text="canary-body",
        **parts,
    )


KINDS = {"worker": _work, "orders": _order}

if __name__ == "__main__":
    main()
