"""Fixtures for all tests: our own pytest plugin, on every Postgres that this machine has.

Folders ``sql`` and ``integration`` run on the embedded server and, where there is one, on the system's;
everything else on the embedded one alone, and so does a module that says ``ONE_SERVER_IS_ENOUGH``.
After each test nothing may be left behind: no task, no connection to the fake, no session in the test's
database.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import asyncpg
import pytest
from outbox import Outbox

from notifyq import embedded
from notifyq.embedded_binaries import BIN_SETTING, SYSTEM_FOLDER, bin_folders, find_binaries, server_account
from notifyq.testing import FakePostmark
from notifyq.testing.database import Databases, apart, connected

PLUGIN = "notifyq.testing.plugin"
# Where the package is installed, its entry point has loaded the plugin already; nothing above imports it.
pytest_plugins = ["pytester", *({PLUGIN} - sys.modules.keys())]

ON_EVERY_SERVER = ("sql", "integration")
LEFT_BEHIND = "select pid, application_name, state, query from pg_stat_activity where datname = $1"


@cache
def binaries() -> dict[str, str]:
    """The programs to test with, by the id of their tests: the embedded first, then the system's newest."""
    folders = [str(next(bin_folders(os.environ)))] if embedded.available() else []
    folders += sorted(map(str, SYSTEM_FOLDER.glob("*/bin")))[-1:]
    return {f"pg{_major(folder)}": folder for folder in folders}


def _major(folder: str) -> int:
    return find_binaries({BIN_SETTING: folder}, account=server_account()).major


def named_server(config: pytest.Config) -> str | None:
    """The server that somebody asked for, if any."""
    url: str | None = sys.modules[PLUGIN].named_server(config)
    return url


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Say on which servers a test runs."""
    if "notifyq_server" not in metafunc.fixturenames or named_server(metafunc.config):
        return
    everywhere = metafunc.definition.path.parent.name in ON_EVERY_SERVER
    if getattr(metafunc.module, "ONE_SERVER_IS_ENOUGH", False):
        everywhere = False
    ids = list(binaries()) if everywhere else list(binaries())[:1]
    metafunc.parametrize("notifyq_server", ids, indirect=True, scope="session")


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], Databases]]:
    """Start a server at its first use; all of them live as long as the run."""
    with ExitStack() as started:
        known: dict[str, Databases] = {}

        def server_of(folder: str) -> Databases:
            if folder not in known:
                env = {**os.environ, BIN_SETTING: folder}
                server = started.enter_context(embedded.running(throwaway=True, env=env))
                known[folder] = Databases(server.dsn)
            return known[folder]

        yield server_of


@pytest.fixture(scope="session")
def notifyq_server(
    request: pytest.FixtureRequest, servers: Callable[[str], Databases]
) -> Iterator[Databases]:
    """The server of this test: see `binaries`."""
    dsn = named_server(request.config)
    if dsn is None:
        yield servers(binaries()[request.param])
        return
    databases = Databases(dsn)
    yield databases
    databases.close()


@pytest.fixture
def notifyq_dsn(notifyq_dsn: str) -> Iterator[str]:
    """A database of the test's own, in which it leaves no session behind."""
    yield notifyq_dsn
    left = apart(lambda: connected(notifyq_dsn, _sessions_left))
    assert left == [], "sessions were left behind"


async def _sessions_left(conn: asyncpg.Connection) -> list[tuple[Any, ...]]:
    """Sessions of others; one that was hung up on takes a moment to notice."""
    deadline = time.monotonic() + 5
    own, name = conn.get_server_pid(), await conn.fetchval("select current_database()")
    while True:
        rows = await conn.fetch(LEFT_BEHIND + " and pid <> $2 and backend_type = 'client backend'", name, own)
        if not rows or time.monotonic() > deadline:
            return [tuple(row) for row in rows]
        await asyncio.sleep(0.02)


@pytest.fixture
async def fake_postmark(fake_postmark: FakePostmark) -> AsyncIterator[FakePostmark]:
    """The fake, to which no connection is left open."""
    yield fake_postmark
    left = 0
    for _ in range(500):
        if not (left := _connections(fake_postmark)):
            break
        await asyncio.sleep(0.01)
    assert left == 0, "connections to the fake were left open"


def _connections(fake: FakePostmark) -> int:
    server = fake._listener._runner.server
    return 0 if server is None else len(server.connections)


@pytest.fixture
async def outbox(
    notifyq_pool: asyncpg.Pool[asyncpg.Record], fake_postmark: FakePostmark
) -> AsyncIterator[Outbox]:
    """A migrated database and a fake, to start workers on; those still running at the end are drained."""
    outbox = Outbox(notifyq_pool, fake_postmark)
    yield outbox
    fake_postmark.release()
    await outbox.stop()


@pytest.fixture(autouse=True)
def nothing_is_left_running(request: pytest.FixtureRequest) -> None:
    """Check async tests: set up before their own fixtures, so that it looks after all of those."""
    if request.node.get_closest_marker("asyncio") is not None:
        request.getfixturevalue("no_task_is_left")


@pytest.fixture
async def no_task_is_left() -> AsyncIterator[None]:
    """A task that outlives its test belongs to nobody."""
    before = asyncio.all_tasks()
    yield
    for _ in range(20):  # what has been cancelled or closed may take a few turns to end
        left = asyncio.all_tasks() - before - {asyncio.current_task()}
        if not left:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"tasks were left running: {[task.get_name() for task in left]}")
