"""The steps of an embedded server's life: start it or attach to it, and end it.

All of them run while the caller holds ``start.lock`` (`Folder.starting`).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import asyncpg

from notifyq.embedded_binaries import PROGRAM_ENV, Account, Binaries, find_binaries
from notifyq.embedded_folder import Folder
from notifyq.errors import EmbeddedUnavailable

__all__ = ["Answer", "Plan", "attach_or_start", "dsn", "end_server"]

START_SECONDS = 60.0  # initdb and crash recovery on a slow disk
STOP_SECONDS = 90.0  # more than the supervisor's own patience
POLL_SECONDS = 0.01
# How to end a server, and the seconds to wait: with a checkpoint, without, by force.
CLEAN_END = ((signal.SIGINT, 60.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))
IMMEDIATE_END = CLEAN_END[1:]
KILL = CLEAN_END[2:]

# Below 32768: above it the kernel hands ports to outgoing connections, and ours would be taken at times.
PORTS = range(20_000, 32_768)
SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",  # TCP is enough, and a path may be too long for a socket
        "max_connections": "200",
        # The log must not hold what emails hold: neither statements nor the values of a broken constraint.
        "log_min_error_statement": "panic",
        "log_error_verbosity": "terse",
    }
)

# What the log says when another try may succeed.
PORT_TAKEN = "could not create any TCP/IP sockets"
PREDECESSOR_ENDS = "is still in use"  # the shared memory of a server that was killed just now
NOT_YET = (OSError, asyncpg.CannotConnectNowError, asyncpg.ConnectionDoesNotExistError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a server is to be started, if it must be."""

    settings: Mapping[str, str]
    env: Mapping[str, str]
    throwaway: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server that answers said: where it listens, and its version (``"18.6"``)."""

    port: int
    version: str


def dsn(folder: Folder, port: int) -> str:
    """Return the URL of the server in *folder*; it holds the password."""
    # The programs of the wheels have no TLS: saying so saves a round trip for each connection.
    return f"postgresql://postgres:{folder.password()}@127.0.0.1:{port}/postgres?sslmode=disable"


def attach_or_start(folder: Folder, plan: Plan) -> Answer:
    """Return when the server in *folder* answers, started by us or by another process.

    Raises `EmbeddedUnavailable` with the last lines of the log when it does not start.
    """
    deadline = time.monotonic() + START_SECONDS
    port = folder.last_port()
    while True:
        starts = not folder.is_supervised()
        if starts:
            end_server(folder, CLEAN_END)  # one whose supervisor was killed
            folder.disown_dead_server()
            port = _free_port(port)
            _launch(folder, plan, port)
        if answer := _wait_for_answer(folder, deadline):
            folder.remember_port(answer.port)
            return answer
        log = folder.log_tail()
        may_work_next_time = not starts or PORT_TAKEN in log or PREDECESSOR_ENDS in log
        if not may_work_next_time or time.monotonic() > deadline:
            raise EmbeddedUnavailable(f"Postgres did not start in {folder.path}; its log ends:\n{log}")
        if PORT_TAKEN in log:
            port = None


def end_server(folder: Folder, steps: tuple[tuple[signal.Signals, float], ...]) -> None:
    """End the server that runs in *folder*, if any, and wait until it and its supervisor are gone."""
    for step, patience in steps:
        found = folder.running()
        if found is None:
            break
        with suppress(ProcessLookupError):
            os.kill(found[0], step)
        deadline = time.monotonic() + patience
        while folder.running() == found and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
    folder.wait_until_unsupervised(STOP_SECONDS)


def _launch(folder: Folder, plan: Plan, port: int) -> None:
    """Start a supervisor, which is on its own when this returns."""
    binaries = find_binaries(plan.env, account=folder.account, major=folder.major())
    folder.password()
    order = {
        "folder": str(folder.path),
        "initdb": _initdb_command(binaries, folder, durable=not plan.throwaway),
        "postgres": _postgres_command(binaries, folder, {**SETTINGS, **plan.settings, "port": str(port)}),
        "env": PROGRAM_ENV,
        "account": _popen_account(folder.account),
        "throwaway": plan.throwaway,
    }
    script = Path(__file__).with_name("embedded_supervisor.py")
    log = folder.open_log()
    try:
        subprocess.run(  # noqa: S603 - our own script
            [sys.executable, "-I", "-S", str(script), json.dumps(order)],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C at the terminal is for us, not for the server
            timeout=START_SECONDS,
            check=False,  # if it fails, nobody holds the server's lock: the next step says so
        )
    except OSError as error:  # a Python inside another program may have no executable of its own
        raise EmbeddedUnavailable(f"cannot run {sys.executable!r}: {error.strerror}") from error
    finally:
        os.close(log)


def _initdb_command(binaries: Binaries, folder: Folder, *, durable: bool) -> list[str]:
    command = [str(binaries.folder / "initdb"), "--locale=C", "--encoding=UTF8", "--username=postgres"]
    command += ["--auth=scram-sha-256", f"--pwfile={folder.path / 'password'}", "--no-instructions"]
    if binaries.major >= 17:  # upper and lower case beyond ASCII, whatever locales the machine has
        command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    return command if durable else [*command, "--no-sync"]


def _postgres_command(binaries: Binaries, folder: Folder, settings: Mapping[str, str]) -> list[str]:
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    return [str(binaries.folder / "postgres"), "-D", str(folder.data), *options]


def _popen_account(account: Account | None) -> dict[str, object]:
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def _free_port(wanted: int | None) -> int:
    for port in (wanted, *random.sample(PORTS, 50)):
        with suppress(OSError), socket.socket() as probe:
            if port is not None:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
                return port
    raise EmbeddedUnavailable("no free port on 127.0.0.1")


def _wait_for_answer(folder: Folder, deadline: float) -> Answer | None:
    """Return port and version once the server answers; None when it ended or time is up."""
    # A thread of its own: the caller's may have an event loop already.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, _poll(folder, deadline)).result()


async def _poll(folder: Folder, deadline: float) -> Answer | None:
    while time.monotonic() < deadline and folder.is_supervised():
        if (found := folder.running()) and (version := await _ask_version(folder, found[1])):
            return Answer(port=found[1], version=version)
        await asyncio.sleep(POLL_SECONDS)
    return None


async def _ask_version(folder: Folder, port: int) -> str | None:
    try:
        conn = await asyncpg.connect(dsn(folder, port), timeout=10)
    except NOT_YET:
        return None
    except asyncpg.PostgresError as error:
        raise EmbeddedUnavailable(f"the server in {folder.path} refuses us: {error}") from error
    try:
        version: str = await conn.fetchval("show server_version")
    finally:
        await conn.close()
    return version.split()[0]
