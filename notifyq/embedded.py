"""A Postgres of our own, for a demo or for tests: no account, no service, nothing left behind.

::

    async with embedded.server() as server:          # the user's own; data stays
        pool = await asyncpg.create_pool(server.dsn)

    with embedded.running(throwaway=True) as server:  # a test session's; nothing stays
        ...

Any number of processes may use one folder at the same time: the first starts the server, the others
attach, and the last one out stops it, however it ends (``kill -9`` too). How: `notifyq.embedded_supervisor`.
The server listens on 127.0.0.1 alone and asks for a password (scram-sha-256).

It is a server for demos and tests on Linux and macOS, not for production.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import MappingProxyType

import anyio
import anyio.to_thread

from notifyq.embedded_binaries import bin_folders, server_account
from notifyq.embedded_folder import Folder, default_folder, throwaway_folder, try_lock, unlock
from notifyq.embedded_start import (
    CLEAN_END,
    IMMEDIATE_END,
    KILL,
    START_SECONDS,
    STOP_SECONDS,
    Answer,
    Plan,
    attach_or_start,
    dsn,
    end_server,
)
from notifyq.errors import EmbeddedUnavailable

__all__ = ["Server", "available", "data_dir", "running", "server"]

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


def data_dir(env: Mapping[str, str] | None = None) -> Path:
    """Return the folder of the user's own server, the default of `server`.

    Example: ``/home/ada/.local/share/notifyq/postgres``; for root ``/var/lib/notifyq/postgres``.
    """
    is_root = sys.platform != "win32" and os.geteuid() == 0
    return default_folder(os.environ if env is None else env, is_root=is_root)


def available(env: Mapping[str, str] | None = None) -> bool:
    """Tell whether programs to embed are installed. Nothing is run, so starting them may still fail.

    Example: ``if not embedded.available(): ask_for_database_url()``
    """
    if sys.platform == "win32":
        return False
    try:
        return any(True for _ in bin_folders(os.environ if env is None else env))
    except EmbeddedUnavailable:
        return False


@contextmanager
def running(
    data_dir: Path | None = None,
    *,
    throwaway: bool = False,
    settings: Mapping[str, str] = NO_SETTINGS,
    env: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run a server for the length of a ``with`` block; see `Server` for the arguments and errors.

    Example: ``with embedded.running(throwaway=True) as server: print(server.dsn)``
    """
    server = Server(data_dir, throwaway=throwaway, settings=settings, env=env)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@asynccontextmanager
async def server(
    data_dir: Path | None = None,
    *,
    throwaway: bool = False,
    settings: Mapping[str, str] = NO_SETTINGS,
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[Server]:
    """Do the same as `running`, without holding up the event loop.

    Example: ``async with embedded.server() as server: await asyncpg.connect(server.dsn)``
    """
    server = Server(data_dir, throwaway=throwaway, settings=settings, env=env)
    try:
        await anyio.to_thread.run_sync(server.start)
        yield server
    finally:
        with anyio.CancelScope(shield=True):  # `stop` has a limit of its own
            await anyio.to_thread.run_sync(server.stop)


class Server:
    """One process's use of an embedded server.

    *data_dir* is the folder to keep it in (default: `data_dir`); with *throwaway* it is a new temporary
    one, removed at the end. *settings* are Postgres settings of your own (``{"fsync": "off"}``); they
    count only for who starts the server, not for who attaches. *env* (default: the process's) may name
    the programs in ``NOTIFYQ_POSTGRES_BIN``. All methods may be called from any thread, and again.

    Example: ``Server(throwaway=True)``, then `start` and `stop`
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        throwaway: bool = False,
        settings: Mapping[str, str] = NO_SETTINGS,
        env: Mapping[str, str] | None = None,
    ) -> None:
        if throwaway and data_dir is not None:
            raise ValueError("a throwaway server makes a folder of its own: leave data_dir out")
        env = dict(os.environ if env is None else env)
        self._plan = Plan(settings=dict(settings), env=env, throwaway=throwaway)
        self._wanted_dir = data_dir
        self._mutex = threading.RLock()
        self._claims: tuple[int, ...] = ()
        self._process = 0  # who holds the claims: not a fork of it
        self._used: tuple[Folder, Answer] | None = None

    def __repr__(self) -> str:  # without the password
        if self._used is None:
            return "<Server, not started>"
        folder, answer = self._used
        return f"<Server {answer.version} on port {answer.port} in {folder.path}>"

    @property
    def dsn(self) -> str:
        """The URL to connect with, password included: do not log it."""
        folder, answer = self._started()
        return dsn(folder, answer.port)

    @property
    def version(self) -> str:
        """The version of the server, such as ``"18.6"``."""
        return self._started()[1].version

    @property
    def folder(self) -> Path:
        """The folder with the data and the log (``server.log``)."""
        return self._started()[0].path

    def start(self) -> None:
        """Start the server, or attach to it, and return when it answers.

        Raises `EmbeddedUnavailable` with the last lines of the server's log when it does not start.
        """
        with self._mutex:
            if self._claims:
                return
            folder = self._make_folder()
            try:
                with folder.starting(START_SECONDS):
                    self._claim(folder)
                    self._used = folder, attach_or_start(folder, self._plan)
            except BaseException:
                self._release()
                self._remove_throwaway(folder)
                raise

    def stop(self) -> None:
        """Leave the server; the last one to leave stops it, and waits for its end."""
        with self._mutex:
            if not self._claims or self._process != os.getpid():
                return
            folder = self._started()[0]
            try:
                with folder.starting(START_SECONDS):
                    is_last = try_lock(self._claims[1], shared=False)
                    self._release()
                    if is_last and not folder.wait_until_unsupervised(STOP_SECONDS):
                        raise EmbeddedUnavailable(f"the server in {folder.path} does not stop")
            except FileNotFoundError:  # somebody removed the folder: the supervisor ends all the same
                self._release()
            self._remove_throwaway(folder)

    def kill(self) -> None:
        """Kill the server with SIGKILL, as a crash would, and return when it is gone. For tests."""
        with self._mutex:
            folder = self._started()[0]
            with folder.starting(START_SECONDS):
                end_server(folder, KILL)

    def restart(self, *, immediate: bool = False) -> None:
        """Stop the server and start it again at the same address, with this object's settings.

        All its users lose their connections. With *immediate* it stops without a checkpoint and goes
        through crash recovery. It may have been killed before.

        Example: ``server.kill(); ...; server.restart()``
        """
        with self._mutex:
            folder = self._started()[0]
            with folder.starting(START_SECONDS):
                end_server(folder, IMMEDIATE_END if immediate else CLEAN_END)
                self._used = folder, attach_or_start(folder, self._plan)

    # -- the steps ---------------------------------------------------------------------------------

    def _started(self) -> tuple[Folder, Answer]:
        if self._used is None:
            raise RuntimeError("the embedded server is not started")
        return self._used

    def _make_folder(self) -> Folder:
        if sys.platform == "win32":
            raise EmbeddedUnavailable("no embedded Postgres on Windows: set DATABASE_URL")
        account = server_account()
        if self._plan.throwaway:
            path = throwaway_folder(account)
        else:
            # Made absolute and free of links, since the server's command line is how it is known again.
            path = (self._wanted_dir or data_dir(self._plan.env)).expanduser().absolute().resolve()
        folder = Folder(path, account)
        folder.prepare()
        return folder

    def _claim(self, folder: Folder) -> None:
        # The supervisor waits for the first lock. The second tells who is the last: nobody waits for it,
        # so that asking for it (under start.lock) has a sure answer.
        self._process = os.getpid()
        for name in ("users.lock", "last.lock"):
            self._claims += (folder.take(name, shared=True, seconds=STOP_SECONDS),)

    def _release(self) -> None:
        claims, self._claims, self._used = self._claims, (), None
        for claim in claims:
            unlock(claim)

    def _remove_throwaway(self, folder: Folder) -> None:
        if self._plan.throwaway:
            shutil.rmtree(folder.path, ignore_errors=True)
