"""``notifyq`` as a process of its own, and what its tests ask the database."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from notifyq.embedded_binaries import BIN_SETTING
from notifyq.testing.database import apart, connected

ROOT = Path(__file__).resolve().parents[2]
MESSAGE = '{"to":[{"email":"a@example.com"}],"from":{"email":"b@example.com"},"subject":"s","text":"t"}'
FLAGS = ("--to", "a@example.com", "--from", "b@example.com", "--subject", "s", "--text", "t")
QUICK = ("--post-budget", "1", "--lease", "2.5", "--settle", "2", "--grace", "5")
NOWHERE = "postgresql://nobody@127.0.0.1:1/none"
LIMIT = 60


def environment(dsn: str | None, **more: str) -> dict[str, str]:
    """The environment of a command: nothing of ours but what is said here."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", BIN_SETTING) if name in os.environ}
    given = {} if dsn is None else {"DATABASE_URL": dsn}
    return {**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **given, **more}


def notifyq(dsn: str | None, *words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``notifyq`` to its end."""
    command = (sys.executable, "-m", "notifyq", *words)
    return subprocess.run(
        command,
        input=stdin,
        env=environment(dsn, **env),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def rows(dsn: str, statement: str, *args: Any) -> list[Any]:
    """Ask the database."""

    async def ask(conn: Any) -> list[Any]:
        return list(await conn.fetch(statement, *args))

    return apart(lambda: connected(dsn, ask))


def value(dsn: str, statement: str, *args: Any) -> Any:
    """The first column of the first row."""
    return rows(dsn, statement, *args)[0][0]


def put(dsn: str, key: str) -> int:
    """Enqueue one email with plain SQL."""
    return int(value(dsn, "select id from notifyq.enqueue_email($1, $2::text::jsonb)", key, MESSAGE))


def hold(dsn: str, email_id: int) -> None:
    """Make it a row whose fate is unknown."""
    rows(
        dsn,
        "update notifyq.emails set status = 'held', doubt_since = now() - interval '1 hour',"
        " last_error = 'no answer' where id = $1",
        email_id,
    )


class Process:
    """A running ``notifyq``; its stderr is read line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def says(self, words: str) -> str:
        """Wait for a line on stderr that has *words*."""
        assert self.process.stderr is not None
        async with asyncio.timeout(LIMIT):
            while line := (await self.process.stderr.readline()).decode():
                self.lines.append(line)
                if words in line:
                    return line
        raise AssertionError(f"it never said {words!r}: {self.lines}")

    async def end(self, *signals: signal.Signals) -> int:
        """Send *signals* and wait for the exit code."""
        for number in signals:
            self.process.send_signal(number)
        assert self.process.stderr is not None
        async with asyncio.timeout(LIMIT):
            rest = await self.process.stderr.read()
            self.lines += rest.decode().splitlines()
            return await self.process.wait()


@asynccontextmanager
async def running(
    dsn: str | None, *words: str, stdout: int = asyncio.subprocess.DEVNULL, **env: str
) -> AsyncIterator[Process]:
    """``notifyq`` as a process that goes on; killed at the end if it is still there."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "notifyq",
        *words,
        env=environment(dsn, **env),
        stdout=stdout,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Process(process)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def until(condition: Callable[[], Any]) -> None:
    """Wait for an async *condition*."""
    async with asyncio.timeout(LIMIT):
        while not await condition():  # noqa: ASYNC110 (a row in a database tells nobody)
            await asyncio.sleep(0.02)


def status(dsn: str, *words: str) -> Any:
    """The answer of ``status --json``."""
    return json.loads(notifyq(dsn, "status", "--json", *words).stdout)
